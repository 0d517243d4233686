"""Gradients by the parameters: their norms, and themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from gradkit._call._public import public
from gradkit._methods._method import Method
from gradkit._parameter_jacobian._mapping import ParameterJacobian
from gradkit.errors import InputError
from gradkit.streaming.quantities._asked import rows_of
from gradkit.streaming.quantities._batch import Batch, Split
from gradkit.streaming.quantities._given import Given, read_given
from gradkit.streaming.quantities._quantity import Quantity

__all__ = ["gradient_norm", "gradients"]


@public
def gradient_norm(
    model: Any,
    criterion: Callable[..., Any] = F.cross_entropy,
    *,
    objective: Callable[[Any], Any] | None = None,
    of: Any = None,
    parameters: Any = None,
    per_parameter: bool = False,
    split: Split | None = None,
    seed: int | None = None,
    method: str | Method = "auto",
    max_memory: int | str | None = None,
) -> Quantity:
    """Return what gives the loss of each sample and the norm of its gradient.

    Args:
        model: As in ``loss``.
        criterion: As in ``loss``.
        objective: As in ``loss``.
        of: As in ``loss``.
        parameters: As in ``gk.per_sample_gradients``.
        per_parameter: Whether each parameter's part has a norm of its own.
        split: As in ``loss``.
        seed: As in ``loss``.
        method: As in ``gk.per_sample_gradients``.
        max_memory: As in ``gk.per_sample_gradients``.

    Returns:
        A ``Quantity``, whose rows are ``{"loss": (N,), "gradient_norm": (N,)}``, or
        with ``per_parameter`` ``{"loss": (N,), name: (N,), ...}``.

    Raises:
        InputError: As in ``loss``.
        SampleDependenceError: At a batch, the model or objective couples samples.
        UnsupportedModelError: At a batch, ``method`` cannot differentiate the model.

    Cost:
        That of ``gk.per_sample_gradients(...).norms()``: for most models one forward
        and one backward pass, without forming a row.

    Example:
        >>> import torch
        >>> from gradkit.streaming import quantities
        >>> layer = torch.nn.Linear(2, 1, bias=False)
        >>> _ = layer.weight.data.fill_(1.0)
        >>> batch = torch.tensor([[3.0, 4.0], [0.0, 2.0]]), torch.zeros(2, 1)
        >>> rows = quantities.gradient_norm(layer, torch.nn.MSELoss())(batch)
        >>> rows["loss"], rows["gradient_norm"]
        (tensor([49.,  4.]), tensor([70.,  8.]))
    """
    given = read_given(
        model, question="per_sample_gradients", criterion=criterion,
        objective=objective, of=of, parameters=parameters, split=split, seed=seed,
        method=method, max_memory=max_memory, options={"per_parameter": per_parameter},
    )  # fmt: skip
    return Quantity("gradient_norm", given, _gradient_norm)


def _gradient_norm(given: Given, batch: Batch) -> dict[str, Tensor]:
    rows = rows_of(given, given.model, batch)
    apart: bool = given.options["per_parameter"]
    norms = rows.norms(per_parameter=apart)
    fields = norms if apart else {"gradient_norm": norms}
    if "loss" in fields:
        raise InputError(
            "per_parameter=True gives the norms the parameters' names beside 'loss',"
            " which is what one of them is called; name them with parameters={...}",
            argument="per_parameter",
        )
    values = rows.objective_values
    assert values is not None, "an objective was given"
    return {"loss": values, **fields}


@public
def gradients(
    model: Any,
    criterion: Callable[..., Any] = F.cross_entropy,
    *,
    objective: Callable[[Any], Any] | None = None,
    of: Any = None,
    parameters: Any = None,
    split: Split | None = None,
    seed: int | None = None,
    method: str | Method = "auto",
    max_memory: int | str | None = None,
) -> Quantity:
    """Return what gives a batch's per-sample gradients, for ``gk.reduce``.

    Reducers take sums, means and moments of a ``ParameterJacobian`` without forming its
    rows. ``gk.stream`` refuses it: rows are as large as the model.

    Args:
        model: As in ``loss``.
        criterion: As in ``loss``.
        objective: As in ``loss``.
        of: As in ``loss``.
        parameters: As in ``gk.per_sample_gradients``.
        split: As in ``loss``.
        seed: As in ``loss``.
        method: As in ``gk.per_sample_gradients``.
        max_memory: As in ``gk.per_sample_gradients``.

    Returns:
        A ``Quantity`` that returns a ``ParameterJacobian``, ``{name: (N, *p)}``.

    Raises:
        InputError: As in ``loss``.
        SampleDependenceError: At a batch, the model or objective couples samples.
        UnsupportedModelError: At a batch, ``method`` cannot differentiate the model.

    Cost:
        That of ``gk.per_sample_gradients``.

    Example:
        >>> import torch
        >>> from gradkit.streaming import quantities
        >>> batch = torch.ones(5, 3), torch.tensor([0, 1, 1, 0, 1])
        >>> rows = quantities.gradients(torch.nn.Linear(3, 2))(batch)
        >>> {name: tuple(total.shape) for name, total in rows.sum().items()}
        {'weight': (2, 3), 'bias': (2,)}
    """
    given = read_given(
        model, question="per_sample_gradients", criterion=criterion,
        objective=objective, of=of, parameters=parameters, split=split, seed=seed,
        method=method, max_memory=max_memory,
    )  # fmt: skip
    return Quantity("gradients", given, _gradients)


def _gradients(given: Given, batch: Batch) -> ParameterJacobian:
    return rows_of(given, given.model, batch)
