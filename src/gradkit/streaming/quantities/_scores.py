"""Scores of how much there is to learn from a sample, as means over models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gradkit._call._public import public
from gradkit._methods._method import Method
from gradkit.errors import InputError
from gradkit.objectives._scores import describe, floating_outputs
from gradkit.streaming.quantities._asked import averaged, rows_of, values_of
from gradkit.streaming.quantities._batch import Batch, Split, no_targets
from gradkit.streaming.quantities._given import Given, read_given
from gradkit.streaming.quantities._quantity import Quantity

__all__ = ["el2n", "grand"]


@public
def el2n(
    model: Any | Sequence[Any],
    *,
    of: Any = None,
    split: Split | None = None,
    seed: int | None = None,
) -> Quantity:
    """Return what gives each sample's error, ``‖softmax(f(x)) − onehot(y)‖₂``.

    It is 0 for what the model is sure of and right, and ``√2`` for what it is sure of
    and wrong. The paper takes models early in training, and the mean over ten.

    Args:
        model: Maps ``(N, *in)`` to logits ``(N, C)``, of two classes at least; or a
            sequence of such models, whose mean is taken.
        of: Which of the model's outputs, as in ``gk.jacobian``.
        split: As in ``loss``; targets are classes, whole numbers ``(N,)``.
        seed: As in ``loss``.

    Returns:
        A ``Quantity``, whose rows are ``(N,)``, in float32 at least.

    Raises:
        InputError: An argument is not what the function takes; or, at a batch, the
            outputs are no logits, or the targets none of their classes.
        SampleDependenceError: At a batch, the model couples samples.
        UnsupportedModelError: As in ``loss``.

    Cost:
        As that of ``loss``, for each model.

    Example:
        >>> import torch
        >>> from gradkit.streaming import quantities
        >>> score = quantities.el2n(lambda logits: logits)
        >>> score((torch.tensor([[0.0, 0.0], [0.0, 99.0]]), torch.tensor([0, 0])))
        tensor([0.7071, 1.4142])

    Source:
        Paul, Ganguli and Dziugaite, "Deep learning on a data diet" (2021), sec. 2,
        definition of the EL2N score.
    """
    given = read_given(model, several=True, of=of, split=split, seed=seed)
    return Quantity("el2n", given, _el2n)


def _el2n(given: Given, batch: Batch) -> Tensor:
    if batch.targets is None:
        raise no_targets(batch.inputs, "the score compares with")
    # What each sample is asked for is an objective like any other.
    return averaged(replace(given, objective=_errors), batch, values_of)


def _errors(labels: Any) -> _Errors:
    is_integer = isinstance(labels, Tensor) and not (
        labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool
    )
    if not is_integer or labels.dim() != 1:
        raise InputError(
            "targets must be classes, a tensor of whole numbers (N,); got"
            f" {describe(labels)}",
            argument="targets",
        )
    return _Errors(labels)


@dataclass(frozen=True, eq=False)
class _Errors:
    """From logits to the norm of each sample's error."""

    labels: Tensor

    def __call__(self, outputs: Any) -> Tensor:
        # Without a gradient, so that nothing is pulled back.
        logits = floating_outputs("el2n", outputs).detach()
        if logits.dim() != 2 or logits.shape[1] < 2:
            raise InputError(
                "outputs must be logits (N, C) of two classes at least; got"
                f" {describe(logits)}",
                argument="outputs",
                shape=tuple(logits.shape),
            )
        labels = self._checked(logits)
        # Half precision would round an error of 1e-3 away beside 1.
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        errors = wide.softmax(1) - F.one_hot(labels, logits.shape[1])
        return torch.linalg.vector_norm(errors, dim=1)

    def _checked(self, logits: Tensor) -> Tensor:
        labels, (count, classes) = self.labels.long(), logits.shape
        if len(labels) != count:
            raise InputError(
                f"targets must be one class per sample, ({count},); got"
                f" {describe(self.labels)}",
                argument="targets",
            )
        outside = ((labels < 0) | (labels >= classes)).nonzero().flatten()
        if len(outside):
            sample = int(outside[0])
            raise InputError(
                f"targets must be classes from 0 to {classes - 1}, for outputs of shape"
                f" {tuple(logits.shape)}; got {int(labels[sample])} at sample {sample}",
                argument="targets",
                sample=sample,
            )
        return labels


@public
def grand(
    model: Any | Sequence[Any],
    criterion: Callable[..., Any] = F.cross_entropy,
    *,
    objective: Callable[[Any], Any] | None = None,
    of: Any = None,
    split: Split | None = None,
    seed: int | None = None,
    method: str | Method = "auto",
    max_memory: int | str | None = None,
) -> Quantity:
    """Return what gives the norm of each sample's gradient by all parameters.

    Of one model it is ``gradient_norm``; the score is the mean over several,
    started differently.

    Args:
        model: As in ``loss``, or a sequence of models, whose mean is taken. Frozen
            parameters are left out.
        criterion: As in ``loss``.
        objective: As in ``loss``.
        of: As in ``loss``.
        split: As in ``loss``.
        seed: As in ``loss``.
        method: As in ``gk.per_sample_gradients``.
        max_memory: As in ``gk.per_sample_gradients``.

    Returns:
        A ``Quantity``, whose rows are ``(N,)``, in the dtype of the parameters.

    Raises:
        InputError: As in ``loss``.
        SampleDependenceError: At a batch, a model or the objective couples samples.
        UnsupportedModelError: At a batch, ``method`` cannot differentiate a model.

    Cost:
        That of ``gk.per_sample_gradients(...).norms()``, for each model.

    Example:
        >>> import torch
        >>> from gradkit.streaming import quantities
        >>> models = [torch.nn.Linear(3, 2) for _ in range(4)]
        >>> batch = torch.ones(5, 3), torch.tensor([0, 1, 1, 0, 1])
        >>> quantities.grand(models)(batch).shape
        torch.Size([5])

    Source:
        Paul, Ganguli and Dziugaite, "Deep learning on a data diet" (2021), sec. 2,
        definition of the GraNd score.
    """
    given = read_given(
        model, question="per_sample_gradients", several=True, criterion=criterion,
        objective=objective, of=of, split=split, seed=seed, method=method,
        max_memory=max_memory,
    )  # fmt: skip
    return Quantity("grand", given, _grand)


def _grand(given: Given, batch: Batch) -> Tensor:
    return averaged(given, batch, lambda *asked: rows_of(*asked).norms())
