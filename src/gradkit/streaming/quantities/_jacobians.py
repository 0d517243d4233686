"""How strongly the outputs move with the inputs: norms of input Jacobians."""

from __future__ import annotations

from functools import reduce
from typing import Any

import torch
from torch import Tensor

from gradkit._call._public import public
from gradkit._methods._method import Method
from gradkit.streaming.quantities._asked import jacobian_numbers
from gradkit.streaming.quantities._batch import Batch, Split
from gradkit.streaming.quantities._given import Given, read_given
from gradkit.streaming.quantities._quantity import Quantity

__all__ = ["jacobian_norm", "spectral_norm"]


@public
def jacobian_norm(
    model: Any,
    *,
    wrt: Any = None,
    of: Any = None,
    split: Split | None = None,
    seed: int | None = None,
    method: str | Method = "auto",
    max_memory: int | str | None = None,
) -> Quantity:
    """Return what gives the Frobenius norm of each sample's input Jacobian.

    It is the root of the sum of squares of ``dy[k] / dx[d]`` over all outputs and all
    entries of what ``wrt`` names.

    Args:
        model: As in ``loss``.
        wrt: As in ``gk.jacobian``; of several the Jacobians stand side by side.
        of: As in ``gk.jacobian``.
        split: As in ``loss``; targets are dropped.
        seed: As in ``loss``.
        method: As in ``gk.jacobian``.
        max_memory: As in ``gk.jacobian``.

    Returns:
        A ``Quantity``, whose rows are ``(N,)``, in float32 at least.

    Raises:
        InputError: An argument is not what the function takes, or the model draws
            random numbers at a batch and there is no seed.
        SampleDependenceError: At a batch, the model couples samples.
        UnsupportedModelError: At a batch, ``method`` cannot differentiate the model.

    Cost:
        That of ``gk.jacobian``, whose ``(N, K, D)`` numbers are held for a batch.

    Example:
        >>> import torch
        >>> from gradkit.streaming import quantities
        >>> quantities.jacobian_norm(lambda x: 2 * x)(torch.zeros(3, 9))
        tensor([6., 6., 6.])

    Source:
        Novak et al., "Sensitivity and generalization in neural networks" (2018),
        sec. 3.
    """
    given = read_given(
        model, question="jacobian", wrt=wrt, of=of, split=split, seed=seed,
        method=method, max_memory=max_memory,
    )  # fmt: skip
    return Quantity("jacobian_norm", given, _jacobian_norm)


@public
def spectral_norm(
    model: Any,
    *,
    wrt: Any = None,
    of: Any = None,
    split: Split | None = None,
    seed: int | None = None,
    method: str | Method = "auto",
    max_memory: int | str | None = None,
) -> Quantity:
    """Return what gives the largest singular value of each sample's input Jacobian.

    It is how much farther apart than two nearby inputs their outputs can be: the
    largest over directions of the input.

    Args:
        model: As in ``loss``.
        wrt: As in ``jacobian_norm``.
        of: As in ``gk.jacobian``; of several outputs the Jacobians stand below each
            other.
        split: As in ``loss``; targets are dropped.
        seed: As in ``loss``.
        method: As in ``gk.jacobian``.
        max_memory: As in ``gk.jacobian``.

    Returns:
        A ``Quantity``, whose rows are ``(N,)``, in float32 at least; where a Jacobian
        is not finite, its Frobenius norm, which is not either.

    Raises:
        InputError: As in ``jacobian_norm``.
        SampleDependenceError: As in ``jacobian_norm``.
        UnsupportedModelError: As in ``jacobian_norm``.

    Cost:
        That of ``gk.jacobian``, and the singular values of ``N`` matrices ``(K, D)``.

    Example:
        >>> import torch
        >>> from gradkit.streaming import quantities
        >>> quantities.spectral_norm(lambda x: 2 * x)(torch.zeros(3, 9))
        tensor([2., 2., 2.])

    Source:
        Yoshida and Miyato, "Spectral norm regularization" (2017), sec. 3, where it is
        bounded by the layers'.
    """
    given = read_given(
        model, question="jacobian", wrt=wrt, of=of, split=split, seed=seed,
        method=method, max_memory=max_memory,
    )  # fmt: skip
    return Quantity("spectral_norm", given, _spectral_norm)


def _jacobian_norm(given: Given, batch: Batch) -> Tensor:
    return jacobian_numbers(given, batch, _frobenius)


def _spectral_norm(given: Given, batch: Batch) -> Tensor:
    return jacobian_numbers(given, batch, _spectral)


def _dtype(blocks: list[Tensor]) -> torch.dtype:
    return reduce(torch.promote_types, [b.dtype for b in blocks], torch.float32)


def _frobenius(blocks: list[Tensor]) -> Tensor:
    # The squares of float32 numbers below 1e-23 and above 1e19 are none of float32.
    parts = [
        torch.linalg.vector_norm(b, dim=(1, 2), dtype=torch.float64) for b in blocks
    ]
    device = blocks[0].device
    together = torch.stack([part.to(device) for part in parts])
    return torch.linalg.vector_norm(together, dim=0).to(_dtype(blocks))


def _spectral(blocks: list[Tensor]) -> Tensor:
    dtype, device = _dtype(blocks), blocks[0].device
    matrices = torch.cat([b.to(device, dtype) for b in blocks], 2)
    if not matrices.numel():
        return matrices.new_zeros(len(matrices))
    # LAPACK refuses the whole batch for one entry that is not finite.
    finite = matrices.isfinite().flatten(1).all(1)
    safe = torch.where(finite[:, None, None], matrices, 0.0)
    largest = torch.linalg.matrix_norm(safe, ord=2)
    return torch.where(finite, largest, _frobenius(blocks))
