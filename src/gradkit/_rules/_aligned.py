"""What rules of broadcast parameters share.

A parameter that is broadcast acts on many entries of one sample: its row is the sum
of what they pull back, over all axes along which it was repeated but the samples'.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from gradkit._rules._rule import Operation

__all__ = [
    "aligned",
    "by_itself",
    "is_in_place",
    "reduced",
    "spelled",
    "summed",
    "weighted",
    "without_own_samples",
]


def spelled(*names: str) -> tuple[Callable[..., Any], ...]:
    """Return torch's functions and its tensors' methods of these names."""
    owners = (torch, Tensor)
    found = (getattr(owner, name, None) for name in names for owner in owners)
    return tuple(dict.fromkeys(f for f in found if f is not None))


def is_in_place(function: Callable[..., Any]) -> bool:
    """Whether a torch function writes to its first argument."""
    name = getattr(function, "__name__", "")
    if name.startswith("__"):
        return name in ("__iadd__", "__isub__", "__imul__", "__idiv__", "__itruediv__")
    return name.endswith("_")


def aligned(operation: Operation, shape: Sequence[int]) -> tuple[int, ...]:
    """Return a shape with the output's number of axes, as broadcasting aligns it."""
    return (1,) * (len(operation.shape) - len(shape)) + tuple(shape)


def without_own_samples(
    operation: Operation, shapes: Iterable[Sequence[int]]
) -> str | None:
    """Return a reason if a parameter, aligned with the output, differs by samples."""
    layout = operation.layout
    if operation.samples == 1:
        return None  # all of it is that sample's
    for shape in shapes:
        if shape[layout.axis] not in (1, layout.before * layout.after):
            return (
                f"a parameter aligned as {tuple(shape)} has the samples' axis of the"
                f" output {tuple(operation.shape)} itself"
            )
    return None


def by_itself(operation: Operation, cotangent: Tensor) -> Tensor:
    """Return ``(N, R, ..)`` with one axis for each of the output's, in its order.

    In the samples' place stands what shares their axis, if only ``1``.
    """
    if operation.layout.before == operation.layout.after == 1:
        return cotangent.unsqueeze(2 + operation.layout.axis)
    return cotangent


def summed(cotangent: Tensor, place: Sequence[int]) -> Tensor:
    """Sum ``(N, R, ..)``, by itself, to ``(N, R, *place)``: over repeated entries.

    Args:
        cotangent: With one axis for each of the output's.
        place: A parameter's shape, aligned with the output.
    """
    given = cotangent.shape[2:]
    axes = [2 + a for a, s in enumerate(place) if s == 1 and given[a] != 1]
    return cotangent.sum(axes, keepdim=True) if axes else cotangent


def reduced(
    operation: Operation,
    cotangent: Tensor,
    shape: Sequence[int],
    place: Sequence[int] | None = None,
) -> Tensor:
    """Return rows ``(N, R, *shape)`` of what was repeated to the output's shape.

    Args:
        operation: The operation.
        cotangent: ``(N, R, ..)``.
        shape: The parameter's shape.
        place: It, aligned with the output; ``None``: as broadcasting aligns it.
    """
    place = aligned(operation, shape) if place is None else place
    found = summed(by_itself(operation, cotangent), place)
    return found.reshape(*found.shape[:2], *shape)


def weighted(
    operation: Operation,
    cotangent: Tensor,
    weights: Tensor,
    shape: Sequence[int],
    place: Sequence[int] | None = None,
) -> Tensor:
    """Return rows ``(N, R, *shape)`` of what each entry is multiplied by.

    Args:
        operation: The operation.
        cotangent: ``(N, R, ..)``.
        weights: Broadcast to the output's shape, with the samples as they are in it.
        shape: The parameter's shape.
        place: As in ``reduced``.
    """
    # A product and a sum: einsum copies both factors to make them matrices, and took
    # five times as long.
    weights = operation.front(weights.expand(operation.shape))
    return reduced(operation, cotangent * weights[:, None], shape, place)
