"""Rules of operations that copy a parameter: beside what flows, in its place, often.

A class token is joined to a sequence; a mask token stands where a mask says so; a
table of positions is repeated for each sample.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gradkit._rules._aligned import (
    aligned,
    by_itself,
    reduced,
    spelled,
    summed,
    without_own_samples,
)
from gradkit._rules._rule import Operation, Rows, Rule

__all__ = ["CAT", "REPEAT", "STACK", "WHERE", "WHERE_OF_INPUT"]


def _axis(operation: Operation) -> int:
    """Return the output's axis along which tensors are joined."""
    given = operation.get("dim", operation.get("axis", 0))
    return given % len(operation.shape)


def _refused(operation: Operation, shape: tuple[int, ...]) -> str | None:
    if operation.dtype.is_complex:
        return "it computes complex numbers"
    if _axis(operation) == operation.layout.axis and operation.samples > 1:
        return "it joins along the samples' axis"
    return without_own_samples(operation, [shape])


# -- cat -------------------------------------------------------------------------------


def _part(operation: Operation) -> tuple[int, int]:
    """Return where the parameter begins along the joined axis, and its size there."""
    axis = _axis(operation)
    # An empty vector may be joined to tensors of any number of axes.
    sizes = [
        tensor.shape[axis] if tensor.dim() == len(operation.shape) else 0
        for tensor in operation.arguments["tensors"]
    ]
    place = operation.place or 0
    return sum(sizes[:place]), sizes[place]


def _shape_of_part(operation: Operation) -> tuple[int, ...]:
    return aligned(operation, operation.parameters["tensors"])


def _rows_of_part(operation: Operation, cotangent: Tensor) -> Tensor:
    start, size = _part(operation)
    axis = 2 + _axis(operation)
    cotangent = by_itself(operation, cotangent).narrow(axis, start, size)
    found = summed(cotangent, _shape_of_part(operation))
    return found.reshape(*found.shape[:2], *operation.parameters["tensors"])


# Joins tensors along an axis they have: y = [.., p, ..].
# Jacobian: dy[e] / dp[e'] = 1 where e is the place of e' in y, else 0.
# Pullback: rows[n, r, e'] = c[n, r, e] for that place, summed over repeated places.
# Covers any axis but the samples', any number of tensors; complex numbers and a
# parameter with a samples axis of its own are refused.
# https://docs.pytorch.org/docs/stable/generated/torch.cat.html
CAT = Rule(
    "cat",
    spelled("cat", "concat", "concatenate"),
    ("tensors", "dim"),
    {"tensors": _rows_of_part},
    lambda operation: _refused(operation, _shape_of_part(operation)),
)


# -- stack -----------------------------------------------------------------------------


def _shape_in_stack(operation: Operation) -> tuple[int, ...]:
    axis = _axis(operation)
    shape = aligned(operation, operation.parameters["tensors"])[1:]
    return (*shape[:axis], 1, *shape[axis:])


def _rows_in_stack(operation: Operation, cotangent: Tensor) -> Tensor:
    axis = 2 + _axis(operation)
    place = operation.place or 0
    cotangent = by_itself(operation, cotangent).narrow(axis, place, 1)
    found = summed(cotangent, _shape_in_stack(operation))
    return found.reshape(*found.shape[:2], *operation.parameters["tensors"])


# Joins tensors along an axis that is new: y[.., k, ..] = p for the k-th of them.
# Jacobian: dy[e] / dp[e'] = 1 where e is the place of e' in y, else 0.
# Pullback: rows[n, r, e'] = c[n, r, e] for that place, summed over repeated places.
# Covers any axis but the samples', any number of tensors; complex numbers and a
# parameter with a samples axis of its own are refused.
# https://docs.pytorch.org/docs/stable/generated/torch.stack.html
STACK = Rule(
    "stack",
    spelled("stack"),
    ("tensors", "dim"),
    {"tensors": _rows_in_stack},
    lambda operation: _refused(operation, _shape_in_stack(operation)),
)


# -- where -----------------------------------------------------------------------------


def _rows_chosen(argument: str, *, where: bool) -> Rows:
    """Return the rows of what stands where the condition is, or is not, true."""

    def rows(operation: Operation, cotangent: Tensor) -> Tensor:
        chosen = operation.spread("condition")
        chosen = (chosen if where else ~chosen)[:, None]
        # Not a product: zero times what is not finite is nan.
        cotangent = torch.where(chosen, cotangent, 0.0)
        return reduced(operation, cotangent, operation.parameters[argument])

    return rows


_CHOSEN = {
    "input": _rows_chosen("input", where=True),
    "other": _rows_chosen("other", where=False),
}


def _refused_choice(operation: Operation) -> str | None:
    if operation.dtype.is_complex:
        return "it computes complex numbers"
    condition = operation.arguments["condition"]
    if not isinstance(condition, Tensor) or condition.dtype != torch.bool:
        return "its condition is not a tensor of truth values"
    names = [n for n in _CHOSEN if n in operation.parameters]
    shapes = (aligned(operation, operation.parameters[n]) for n in names)
    return without_own_samples(operation, shapes)


# Takes each entry from one of two tensors, broadcast: y = p where m, x elsewhere.
# Jacobian: dy[e] / dp[e'] = m[e] where e' was used for e, else 0.
# Pullback: rows[n, r, e'] = sum_e m[n, e] c[n, r, e] over the e that used e'.
# Covers any broadcasting, the parameter on either side; a condition that is not
# boolean, complex numbers and a parameter with a samples axis of its own are refused.
# https://docs.pytorch.org/docs/stable/generated/torch.where.html
WHERE = Rule(
    "where",
    (torch.where,),
    ("condition", "input", "other"),
    _CHOSEN,
    _refused_choice,
)

# The same as a method of the tensor that is taken where the condition is true.
# Jacobian: dy[e] / dp[e'] = m[e] where e' was used for e, else 0.
# Pullback: rows[n, r, e'] = sum_e m[n, e] c[n, r, e] over the e that used e'.
# Covers and refuses what WHERE does.
# https://docs.pytorch.org/docs/stable/generated/torch.Tensor.where.html
WHERE_OF_INPUT = Rule(
    "Tensor.where",
    (Tensor.where,),
    ("input", "condition", "other"),
    _CHOSEN,
    _refused_choice,
)


# -- repeat ---------------------------------------------------------------------------


def _rows_of_repeated(operation: Operation, cotangent: Tensor) -> Tensor:
    cotangent = by_itself(operation, cotangent)
    shape = operation.parameters["input"]
    for axis, size in enumerate(aligned(operation, shape), start=2):
        if cotangent.shape[axis] != size:
            cotangent = cotangent.unflatten(axis, (-1, size)).sum(axis)
    return cotangent.reshape(*cotangent.shape[:2], *shape)


def _refused_repetition(operation: Operation) -> str | None:
    layout = operation.layout
    size = aligned(operation, operation.parameters["input"])[layout.axis]
    if operation.samples > 1 and size > 1 and layout.after % size:
        return "its copies along the samples' axis are not each of one sample"
    return None


# Copies a tensor along axes that it has or not: y[k, e] = p[e] for each copy k.
# Jacobian: dy[k, e] / dp[e'] = 1 where e = e', else 0.
# Pullback: rows[n, r, e] = sum_k c[n, r, k, e] over the sample's copies.
# Covers any sizes, also copies behind one another in the samples' axis; refused where
# one copy has entries of more than one sample.
# https://docs.pytorch.org/docs/stable/generated/torch.Tensor.repeat.html
REPEAT = Rule(
    "repeat",
    spelled("repeat", "tile"),
    ("input", "dims"),
    {"input": _rows_of_repeated},
    _refused_repetition,
)
