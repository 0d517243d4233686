"""What an entry point accepts as an objective, and what it accepts back from one."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any, cast

import numpy as np
from torch import Tensor, nn

from gradkit.errors import InputError
from gradkit.objectives._criteria import criterion_name, is_torch_loss
from gradkit.objectives._scores import (
    ClassScore,
    describe,
    is_whole_number,
    shape_text,
)

__all__ = ["as_objective", "check_objective_values"]


def as_objective(
    objective: Any, *, labels_mean_class_score: bool
) -> Callable[[Any], Tensor] | None:
    """Return what the caller gave as objective, as a callable.

    Args:
        objective: A callable, ``None``, or class labels.
        labels_mean_class_score: Whether a whole number or labels are short for
            ``class_score``. Where they could as well be the targets of a loss, they
            are refused.

    Returns:
        A callable from outputs to ``(N,)``, or ``None``.

    Raises:
        InputError: Anything else, with what to write instead.
    """
    if objective is None:
        return None
    if is_torch_loss(objective):
        name = criterion_name(objective)
        loss = f"F.{name}" if _is_function(objective) else f"nn.{name}()"
        raise InputError(
            "objective must map outputs to one number per sample; got the loss"
            f" {name}, which needs targets as well. Write"
            f" gk.objectives.sample_loss({loss}, y).",
            objective=name,
        )
    if _may_be_labels(objective):
        if labels_mean_class_score:
            return ClassScore(objective)
        raise _labels_refusal(objective)
    if isinstance(objective, nn.Module):
        raise InputError(
            "objective must map outputs to one number per sample; got the module"
            f" {type(objective).__name__}. The order is (model, inputs,"
            " objective). Write lambda outputs: module(outputs) if it is meant.",
            objective=type(objective).__name__,
        )
    if not callable(objective) or isinstance(objective, type):
        raise InputError(
            "objective must be a callable that maps outputs to one number per sample;"
            f" got {_given(objective)}. Write gk.objectives.output_sum,"
            " gk.objectives.class_score(index) or"
            " gk.objectives.sample_loss(F.cross_entropy, y).",
            objective=type(objective).__name__,
        )
    if _needs_more(objective):
        raise InputError(
            "objective must be a function of the outputs alone; got one that needs"
            " further arguments. Take targets from around it, lambda outputs:"
            " loss(outputs, y), or write gk.objectives.sample_loss(loss, y).",
            objective=type(objective).__name__,
        )
    return cast(Callable[[Any], Tensor], objective)


def check_objective_values(values: Any, n: int) -> Tensor:
    """Return ``values`` if they are one floating number for each of ``n`` samples.

    Raises:
        InputError: They are not; the message says what their shape suggests.
    """
    if not isinstance(values, Tensor):
        raise InputError(
            f"objective must return a floating tensor of shape ({n},), one number per"
            f" sample; got {describe(values)}. Return the tensor alone.",
            value_type=type(values).__name__,
        )
    if values.shape != (n,):
        raise InputError(
            f"objective must return one number per sample, shape ({n},);"
            f" got {describe(values)}. {_shape_advice(values, n)}",
            shape=tuple(values.shape),
        )
    if not values.is_floating_point():
        raise InputError(
            f"objective must return floating numbers; got {describe(values)}, which"
            " has no derivative. Return a score, not an index or a count.",
            shape=tuple(values.shape),
            dtype=values.dtype,
        )
    return values


def _shape_advice(values: Tensor, n: int) -> str:
    shape = shape_text(values.shape)
    if values.dim() == 0:
        return (
            "A mean or sum over the batch leaves no number of each sample's own, and"
            " a mean scales every row by 1/N. Reduce over each sample's own axes"
            " only, or write"
            " gk.objectives.sample_loss(F.cross_entropy, y)."
        )
    if values.shape == (n, 1):
        return "Write .squeeze(1)."
    if values.shape == (n, n):
        return (
            "Every sample was compared with every other: (N,) against (N, 1)"
            " broadcasts. Give both the same shape."
        )
    if values.shape[0] == n:
        return (
            f"Reduce each sample's own axes, for instance by .flatten(1).sum(1);"
            f" without an objective, gk.jacobian or gk.parameter_jacobian take all"
            f" {values.shape[1:].numel()} outputs."
        )
    return f"The first axis of {shape} should be the {n} samples."


def _may_be_labels(objective: Any) -> bool:
    numbers = (bool, int, float, np.generic, np.ndarray, Tensor)
    tuples = isinstance(objective, list) and objective
    if tuples and all(isinstance(entry, tuple) for entry in objective):
        # One index per sample.
        return all(_may_be_labels(entry) for entry in objective)
    if isinstance(objective, list | tuple):
        return all(isinstance(entry, numbers) for entry in objective)
    return isinstance(objective, numbers)


def _labels_refusal(objective: Any) -> InputError:
    if is_whole_number(objective):
        score = f"gk.objectives.class_score({int(objective)}) for that output"
    else:
        score = "gk.objectives.class_score(labels) for one chosen output"
    loss = "gk.objectives.sample_loss(F.cross_entropy, labels)"
    if isinstance(objective, Tensor) and objective.is_floating_point():
        loss = "gk.objectives.sample_loss(F.mse_loss, targets)"
        score = "gk.objectives.weighted_sum(weights)"
    return InputError(
        "objective must be a callable that maps outputs to one number per sample;"
        f" got {_given(objective)}. Write {loss} for the loss of each sample, or"
        f" {score}.",
        objective=type(objective).__name__,
    )


def _needs_more(objective: Any) -> bool:
    """Whether a plain function cannot be called with the outputs alone."""
    if not isinstance(objective, FunctionType):
        return False  # whose signature may say nothing, and takes time to find
    code, own = objective.__code__, objective.__defaults__ or ()
    named = code.co_varnames[code.co_argcount :][: code.co_kwonlyargcount]
    missing = set(named) - set(objective.__kwdefaults__ or ())
    return code.co_argcount - len(own) > 1 or bool(missing)


def _given(objective: Any) -> str:
    if isinstance(objective, type):
        return f"the class {objective.__name__}"
    if isinstance(objective, list | tuple):
        return f"{describe(objective)} of length {len(objective)}"
    return describe(objective)


def _is_function(objective: Any) -> bool:
    base = getattr(objective, "func", objective)
    return not isinstance(base, nn.Module | type)
