"""What a wrong derivative looks like, beside the entries around the worst one."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gradkit.testing._differences import SAFETY
from gradkit.testing._entry import Entry
from gradkit.testing._point import Point
from gradkit.testing._variables import span

__all__ = ["Around", "around_forward", "around_reverse", "hint_of"]

#: How many entries around the worst one are looked at by differences.
MOST = 48
_NOTHING = "nothing arrives: a term is missing, or detach, no_grad or .data cuts it off"


@dataclass(frozen=True, eq=False)
class Around:
    """Entries of one tensor of a product by two ways.

    Args:
        analytic: The whole tensor as a mode gives it.
        positions: Which of its entries were compared, ``(M,)``.
        numerical: What they are compared with, ``(M,)``.
        tolerance: By how much they may differ, ``(M,)``.
    """

    analytic: Tensor
    positions: Tensor
    numerical: Tensor
    tolerance: Tensor

    def wrong(self, found: Tensor) -> Tensor:
        """Return which of the compared entries ``found``, a whole tensor, is not."""
        here = found.reshape(-1)[self.positions]
        return ~((here - self.numerical).abs() <= self.tolerance)


def around_reverse(point: Point, d: int, generator: torch.Generator) -> Around | None:
    """Return entries of ``Jᵀ v`` beside entry ``d``, of the same variable."""
    part, where = span(point.inputs, d)
    cotangent = point.cotangent(torch.ones_like(point.centre), generator)
    analytic = point.gradient(cotangent)[where]
    chosen = torch.randperm(part.size, generator=generator)[:MOST]
    rows: list[tuple[int, float, float]] = []
    for place in chosen.tolist():
        alone = torch.zeros_like(point.scale, dtype=torch.float64)
        step = float(point.scale[where.start + place])
        if not step:
            continue
        alone[where.start + place] = step
        along = point.along(alone).dot(cotangent)
        if not bool(along.kinked.any()):
            slope = along.central
            rows.append((place, float(slope.value) / step, float(slope.error) / step))
    return _around(point, analytic.reshape(part.shape), rows)


def around_forward(point: Point, k: int, direction: Tensor) -> Around | None:
    """Return entries of ``J u`` beside entry ``k``, of the same output."""
    part, where = span(point.outputs, k)
    found = point.along(direction)
    inside = torch.arange(where.start, where.stop)
    slope = found.central
    rows = [
        (int(i) - where.start, float(slope.value[i]), float(slope.error[i]))
        for i in inside[~found.kinked[inside]]
    ]
    analytic = point.tangent(direction)[inside].reshape(part.shape)
    return _around(point, analytic, rows)


def _around(
    point: Point, analytic: Tensor, rows: list[tuple[int, float, float]]
) -> Around | None:
    if not rows:
        return None
    positions = torch.tensor([place for place, _, _ in rows])
    table = torch.tensor([row[1:] for row in rows], dtype=torch.float64)
    tolerance = SAFETY * table[:, 1] + point.rounding_of(table[:, 0])
    return Around(analytic, positions, table[:, 0], tolerance)


def hint_of(entry: Entry, around: Around | None) -> str:
    """Return what could explain a wrong entry; empty where nothing fits.

    A factor holds within the error of the differences, for the worst entry and for
    most of the others that are wrong.
    """
    if not math.isfinite(entry.analytic):
        return "it is not finite where the function is smooth"
    noise = abs(entry.numerical) <= 100 * entry.tolerance
    if around is not None and (text := _moved(around)):
        return text
    if not math.isfinite(entry.numerical) or noise or entry.sides:
        return ""
    if entry.analytic == 0:
        return _NOTHING if _fits(0.0, entry, around, every=True) else ""
    if _fits(-1.0, entry, around):
        return "the sign is opposite"
    ratio = entry.analytic / entry.numerical
    for factor, inverse in ((ratio, False), (1 / ratio, True)):
        whole = round(factor) if math.isfinite(factor) else 0
        if abs(whole) > 1 and _fits(1 / whole if inverse else whole, entry, around):
            sign = "-" if whole < 0 else ""
            of = f"1/{abs(whole)}" if inverse else f"{abs(whole)}"
            return f"it is {sign}{of} times what it should be"
    return ""


def _fits(
    factor: float, entry: Entry, around: Around | None, *, every: bool = False
) -> bool:
    room = max(abs(factor), 1.0) * entry.tolerance
    if not abs(entry.analytic - factor * entry.numerical) <= room:
        return False
    if around is None:
        return True
    wrong = around.wrong(around.analytic)
    if not bool(wrong.any()):
        return True
    here = around.analytic.reshape(-1)[around.positions][wrong]
    gap = (here - factor * around.numerical[wrong]).abs()
    like = gap <= max(abs(factor), 1.0) * around.tolerance[wrong]
    share = float(like.double().mean())
    return share == 1 if every else share > 0.5


def _moved(around: Around) -> str:
    """Return whether the right entries lie in other places: those of a transpose."""
    found = around.analytic
    if found.dim() < 2 or not bool(around.wrong(found).any()):
        return ""
    rows, columns = found.shape[-2:]
    if rows == columns and not bool(around.wrong(found.mT).any()):
        return "it is the transpose of what it should be"
    turned = found.reshape(*found.shape[:-2], columns, rows).mT
    if rows != columns and not bool(around.wrong(turned).any()):
        return "its entries are those of the transpose: reshape or view is not .T"
    return ""
