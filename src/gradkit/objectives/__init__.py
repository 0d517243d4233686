"""Objectives: what is differentiated, as one number per sample.

An objective maps the outputs of a whole batch, ``(N, *out)``, to one number per
sample, ``(N,)``. Any callable that does so will do; these are the usual ones. All
of them are immutable, can be pickled, and differentiate as often as torch does.
"""

# Arguments are checked whatever their declared types say.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from gradkit._hints import hinted
from gradkit._offered import offering
from gradkit.errors import InputError
from gradkit.objectives._argument import as_objective as as_objective
from gradkit.objectives._argument import (
    check_objective_values as check_objective_values,
)
from gradkit.objectives._criteria import criterion_name
from gradkit.objectives._losses import SampleLoss, TokenLoss
from gradkit.objectives._scores import (
    ClassScore,
    WeightedSum,
    describe,
    floating_outputs,
)

__all__ = [
    "class_score",
    "output_sum",
    "sample_loss",
    "token_loss",
    "weighted_sum",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = offering(
        globals(),
        {
            "cross_entropy": "write gk.objectives.sample_loss(F.cross_entropy, y)",
            "CrossEntropyLoss": "write gk.objectives.sample_loss(F.cross_entropy, y)",
            "loss": "write gk.objectives.sample_loss(F.cross_entropy, y)",
            "nll_loss": "write gk.objectives.sample_loss(F.cross_entropy, y)",
            "mse": "write gk.objectives.sample_loss(F.mse_loss, y)",
            "mse_loss": "write gk.objectives.sample_loss(F.mse_loss, y)",
            "MSELoss": "write gk.objectives.sample_loss(F.mse_loss, y)",
        },
    )

Objective = Callable[[Any], Tensor]
_Index = int | tuple[int, ...]


def output_sum(outputs: Tensor) -> Tensor:
    """Return the sum of each sample's outputs.

    Its gradient is the sum of the Jacobian's rows.

    Args:
        outputs: ``(N, *out)``, floating.

    Returns:
        ``(N,)``, in the dtype of the outputs.

    Raises:
        InputError: ``outputs`` is not one floating tensor with a sample axis.

    Cost:
        One pass over the outputs.

    Example:
        >>> import torch
        >>> from gradkit.objectives import output_sum
        >>> output_sum(torch.tensor([[1.0, 2.0, 3.0], [0.5, 0.0, 1.5]]))
        tensor([6., 2.])
    """
    outputs = floating_outputs("output_sum", outputs)
    return outputs.reshape(len(outputs), outputs.shape[1:].numel()).sum(1)


@hinted
def weighted_sum(weights: Tensor | np.ndarray | Sequence[Any]) -> Objective:
    """Return the objective that sums each sample's outputs with weights.

    Its gradient is the weighted sum of the Jacobian's rows: ``weights`` is the
    vector that ``outputs.backward(weights)`` takes.

    Args:
        weights: ``(K,)`` with ``K = prod(out)``, or ``(*out)``, for all samples
            alike, or ``(N, *out)``. Used in the dtype of the outputs. A tensor is
            expected on their device and not copied.

    Returns:
        A callable from outputs ``(N, *out)`` to ``(N,)``, in their dtype.

    Raises:
        InputError: ``weights`` are not real numbers. The callable raises it for
            outputs of other shapes.

    Cost:
        One pass over the outputs at each call.

    Example:
        >>> import torch
        >>> from gradkit.objectives import weighted_sum
        >>> objective = weighted_sum([1.0, -1.0, 0.0])
        >>> objective(torch.tensor([[1.0, 2.0, 3.0], [0.5, 0.0, 1.5]]))
        tensor([-1.0000,  0.5000])
        >>> objective
        weighted_sum(a float32 tensor of shape (3,))
    """
    numbers = weights if isinstance(weights, Tensor) else _as_numbers(weights)
    if numbers is None or numbers.is_complex() or numbers.dtype == torch.bool:
        raise InputError(
            "weighted_sum takes weights that are a tensor of real numbers;"
            f" got {describe(weights)}.",
            weights_type=type(weights).__name__,
        )
    return WeightedSum(numbers, follows_device=numbers is not weights)


@hinted
def class_score(
    index: _Index | Sequence[_Index] | np.ndarray | Tensor,
) -> Objective:
    """Return the objective that picks one output of each sample.

    Where a sample has one output, ``(N,)`` or ``(N, 1)``, no objective is needed.

    Args:
        index: A whole number, for outputs ``(N, C)``: that output of every sample.
            A tuple of whole numbers, for outputs with more axes: the index of one
            output, the same for all samples. A list, array or integer tensor of
            length ``N``, for outputs ``(N, C)``: one class per sample. For outputs
            with more axes a list of ``N`` tuples, or an integer tensor with one index
            per row: one output per sample. It is copied, and moved to their device.

    Returns:
        A callable from outputs to ``(N,)``, in their dtype.

    Raises:
        InputError: Not here: the callable raises it, with the outputs' shape, if the
            index is negative, out of range, of the wrong length, or not whole.

    Cost:
        One number per sample is read at each call.

    Example:
        >>> import torch
        >>> from gradkit.objectives import class_score
        >>> outputs = torch.tensor([[1.0, 2.0, 3.0], [0.5, 0.0, 1.5]])
        >>> class_score(2)(outputs)
        tensor([3.0000, 1.5000])
        >>> class_score([1, 0])(outputs)
        tensor([2.0000, 0.5000])
        >>> class_score([(2, 0), (0, 1)])(torch.arange(12.0).reshape(2, 3, 2))
        tensor([4., 7.])
    """
    return ClassScore(index)


@hinted
def sample_loss(
    criterion: Callable[..., Any], targets: Any, *, reduction: str | None = None
) -> Objective:
    """Return the objective that is the loss of each sample alone.

    The law: the value of sample ``n`` is
    ``criterion(outputs[n : n + 1], targets[n : n + 1])``, the criterion on a batch
    of one. No row is scaled by ``1/N``. The criterion is evaluated once, on the
    whole batch, without reduction; each sample's elements are then reduced.

    The law has one exception. On a batch of one, ``cross_entropy`` and ``nll_loss``
    with ``weight=`` and ``reduction="mean"`` divide by the sum of the weights that
    they have just multiplied by, so that a sample with one label loses its weight.
    Here class weights stay factors: the mean divides by the number of elements that
    are not ignored, and the batch's loss is
    ``sum(values) / sum(weight[targets])``.

    Args:
        criterion: A function of ``torch.nn.functional``, with its settings bound by
            ``functools.partial`` if need be; a loss module, also one with a
            ``forward`` of its own; or a callable ``(outputs, targets) -> (N, ...)``.
            A parameter or attribute called ``reduction`` is set to ``"none"``.
        targets: What the criterion compares with, ``(N, ...)``, on the device of the
            outputs. Other structures are handed to a callable as they are.
        reduction: ``"mean"`` or ``"sum"`` over one sample's elements. ``None``
            follows the criterion: its mean leaves out elements equal to
            ``ignore_index``, and weighs entries as ``mse_loss(weight=)`` does. A
            criterion without the setting, or with ``"none"``, is averaged.

    Returns:
        A callable from outputs ``(N, ...)`` to ``(N,)``. A sample whose elements are
        all ignored has the mean NaN with gradient zero, as in torch, and the sum
        zero. It raises ``InputError`` where targets do not fit the outputs, or the
        criterion returns one number for the whole batch.

    Raises:
        InputError: ``criterion`` is not callable, is a class, or averages over the
            batch in a way that cannot be left out; or ``reduction`` is unknown.

    Cost:
        One evaluation of the criterion.

    Example:
        >>> import torch
        >>> import torch.nn.functional as F
        >>> from gradkit.objectives import sample_loss
        >>> outputs = torch.tensor([[1.0, 3.0], [0.0, 2.0], [5.0, 0.0]])
        >>> sample_loss(F.mse_loss, torch.zeros(3, 2))(outputs)
        tensor([ 5.0000,  2.0000, 12.5000])
        >>> sample_loss(F.mse_loss, torch.zeros(3, 2), reduction="sum")(outputs)
        tensor([10.,  4., 25.])

    Source:
        The formulas of the means are those in the pages of ``torch.nn.MSELoss`` and
        ``torch.nn.CrossEntropyLoss``. Checked in ``tests/test_objectives.py``.
    """
    if inspect.isclass(criterion) and issubclass(criterion, nn.Module):
        raise InputError(
            f"sample_loss takes a criterion that can be called; got the class"
            f" {criterion.__name__}. Write {criterion.__name__}().",
            criterion=criterion.__name__,
        )
    if not callable(criterion):
        swapped = callable(targets) and isinstance(criterion, Tensor)
        made = (
            "()" if inspect.isclass(targets) or isinstance(targets, nn.Module) else ""
        )
        hint = (
            f"sample_loss({criterion_name(targets)}{made}, targets)" if swapped else ""
        )
        raise InputError(
            "sample_loss takes a criterion that can be called;"
            f" got {describe(criterion)}. Write"
            f" {hint or 'sample_loss(F.cross_entropy, targets)'}.",
            criterion_type=type(criterion).__name__,
        )
    _check_reduction("sample_loss", reduction, (None, "mean", "sum"))
    return SampleLoss(criterion, targets, reduction)


@hinted
def token_loss(
    labels: Tensor,
    *,
    shift: bool = False,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Objective:
    """Return the objective that is the cross entropy of each sample's tokens.

    Args:
        labels: Whole numbers ``(N, T)``, on the device of the outputs.
        shift: Whether position ``t`` predicts label ``t + 1``, as in a causal
            language model given its own input as labels: the last outputs and the
            first label are left out. Without it a call whose inputs are the labels
            themselves, where they count, warns.
        ignore_index: The label of tokens that do not count.
        reduction: ``"mean"`` over the sample's own tokens that count, or ``"sum"``.

    Returns:
        A callable from outputs ``(N, T, V)`` to ``(N,)``. The mean of a sample
        without tokens that count is NaN with gradient zero, as in torch. Note that
        the mean of these means is the batch's mean over tokens only where all
        samples have as many tokens.

    Raises:
        InputError: ``labels`` are not an integer tensor ``(N, T)``, or ``reduction``
            is unknown. The callable raises it where the labels do not fit the outputs.

    Cost:
        One cross entropy over all tokens at each call.

    Example:
        >>> import torch
        >>> from gradkit.objectives import token_loss
        >>> labels = torch.tensor([[1, 0, -100], [2, 2, 2]])
        >>> token_loss(labels)(torch.zeros(2, 3, 4)) / torch.tensor(4.0).log()
        tensor([1., 1.])
    """
    is_integer = isinstance(labels, Tensor) and not (
        labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool
    )
    if not is_integer or labels.dim() != 2:
        raise InputError(
            "token_loss takes labels that are an integer tensor (N, T);"
            f" got {describe(labels)}.",
            label_type=type(labels).__name__,
        )
    _check_reduction("token_loss", reduction, ("mean", "sum"))
    return TokenLoss(labels, shift, ignore_index, reduction)


def _as_numbers(weights: Any) -> Tensor | None:
    try:
        # A copy, on no device that a default could name.
        return torch.tensor(weights, device="cpu")
    except (TypeError, ValueError, RuntimeError):
        return None


def _check_reduction(
    name: str, reduction: str | None, allowed: tuple[str | None, ...]
) -> None:
    if reduction not in allowed:
        raise InputError(
            f"{name} takes reduction {' or '.join(map(repr, allowed))}, over the"
            f" elements of one sample; got {reduction!r}.",
            reduction=reduction,
        )
