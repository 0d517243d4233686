"""One entry of a Jacobian, found by halving, and what is to be said of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gradkit.testing._differences import SAFETY, STARTS, Differences, agreed
from gradkit.testing._point import Point
from gradkit.testing._variables import place

__all__ = ["Entry", "halved", "named", "pin_forward", "pin_reverse"]

Verdict = Literal["agrees", "edge", "kink", "wrong"]

#: A difference settles when its error is below this part of the value or its size.
DECISIVE = 1e-3


@dataclass(frozen=True)
class Entry:
    """One derivative by two ways.

    Args:
        output: The output's name, and the index in it.
        variable: The input's or parameter's name, and the index in it.
        analytic: What reverse or forward mode says.
        numerical: What it is compared with.
        tolerance: By how much they may differ.
        sides: The one-sided derivatives, where these differ.
        edge: Whether differences settle on nothing here, as at the end of a domain or
            a slope without bound: nothing refutes a NaN.
        alone: Whether the output depends on no other entry.
        d: Its place among all entries of all variables.
        k: Its place among all entries of all outputs.
    """

    output: str
    output_index: tuple[int, ...]
    variable: str
    index: tuple[int, ...]
    analytic: float
    numerical: float
    tolerance: float
    sides: tuple[float, float] | None = None
    edge: bool = False
    alone: bool = False
    d: int = -1
    k: int = -1

    @property
    def verdict(self) -> Verdict:
        """Whether the analytic derivative may be right."""
        if abs(self.analytic - self.numerical) <= self.tolerance:
            return "agrees"
        if self.sides is not None:
            low, high = sorted(self.sides)
            if low - self.tolerance <= self.analytic <= high + self.tolerance:
                return "kink"
            # Of one number alone, nothing else is a derivative. Kinks of several that
            # add up with both signs may leave the interval, and each be right.
            if not self.alone and math.isfinite(self.analytic):
                return "kink"
        if self.edge and not math.isfinite(self.analytic):
            return "edge"
        return "wrong"

    @property
    def settled(self) -> bool:
        """Whether the differences are clear enough to call anything wrong."""
        size = max(abs(self.analytic), abs(self.numerical))
        return not math.isfinite(self.analytic) or self.tolerance <= size / 100

    @property
    def text(self) -> str:
        """What the entry is called."""
        output = named(self.output, self.output_index)
        return f"d {output} / d {named(self.variable, self.index)}"


def named(name: str, index: tuple[int, ...]) -> str:
    """Return a name with its index, which a 0-d tensor has none of."""
    return f"{name}[{', '.join(map(str, index))}]" if index else name


def halved(positions: Tensor, gap: Callable[[Tensor], float]) -> int:
    """Return the position that most of a difference comes from."""
    while len(positions) > 1:
        middle = len(positions) // 2
        first, second = positions[:middle], positions[middle:]
        one, other = gap(first), gap(second)
        # NaN compares as the larger.
        positions = first if not one <= other else second
    return int(positions[0])


def _only(row: Tensor, positions: Tensor) -> Tensor:
    result = torch.zeros_like(row)
    result[positions] = row[positions]
    return result


def _excess(analytic: float, numerical: float, error: float) -> float:
    return abs(analytic - numerical) / (error + 1e-300)


def pin_reverse(point: Point, direction: Tensor, cotangent: Tensor) -> Entry:
    """Return the entry that ``<Jᵀ v, u>`` is wrong by."""
    gradient = point.gradient(cotangent)

    def gap(block: Tensor) -> float:
        slope = point.along(_only(direction, block)).dot(cotangent).central
        analytic = float(gradient[block] @ direction[block])
        return _excess(analytic, float(slope.value), float(slope.error))

    d = halved(torch.nonzero(direction)[:, 0], gap)
    alone = _only(direction, torch.tensor([d]))
    column = point.along(alone, start=0.61)

    def gap_of(block: Tensor) -> float:
        slope = column.dot(_only(cotangent, block)).central
        analytic = float(point.gradient(_only(cotangent, block))[d] * direction[d])
        return _excess(analytic, float(slope.value), float(slope.error))

    k = halved(torch.nonzero(cotangent)[:, 0], gap_of)
    one = torch.zeros_like(cotangent)
    one[k] = 1.0
    return _entry(point, d, k, direction, float(point.gradient(one)[d]))


def pin_forward(point: Point, direction: Tensor, k: int) -> Entry:
    """Return the entry that ``(J u)[k]`` is wrong by."""

    def gap(block: Tensor) -> float:
        only = _only(direction, block)
        slope = point.along(only).central
        analytic = float(point.tangent(only)[k])
        return _excess(analytic, float(slope.value[k]), float(slope.error[k]))

    d = halved(torch.nonzero(direction)[:, 0], gap)
    alone = _only(direction, torch.tensor([d]))
    analytic = float(point.tangent(alone)[k] / direction[d])
    return _entry(point, d, k, direction, analytic)


def _is_alone(point: Point, k: int) -> bool:
    one = torch.zeros_like(point.centre)
    one[k] = 1.0
    return int(point.gradient(one).count_nonzero()) <= 1


def _unsettled(found: Differences) -> bool:
    # The size of all: one entry may be zero, and its error the usual one.
    size = float(found.size.max()) if len(found.size) else 0.0
    return bool((SAFETY * found.central.error > DECISIVE * size).any())


def _entry(point: Point, d: int, k: int, direction: Tensor, analytic: float) -> Entry:
    step = float(direction[d])
    alone = _only(direction, torch.tensor([d]))
    several = [point.along(alone, start=start) for start in STARTS]
    found, central = several[1], agreed([f.central for f in several])
    left, right = found.left, found.right
    output, output_index = place(point.outputs, k)
    variable, index = place(point.inputs, d)
    sides, value = None, float(central.value[k]) / step + 0.0
    error = float(central.error[k]) / abs(step)
    if bool(found.kinked[k]):
        sides = float(left.value[k]) / step + 0.0, float(right.value[k]) / step + 0.0
        error = max(error, float(left.error[k] + right.error[k]) / abs(step))
    tolerance = SAFETY * error + float(point.rounding_of(torch.tensor(value)))
    return Entry(
        output.name, output_index, variable.name, index, analytic + 0.0, value,
        tolerance, sides, _unsettled(found), _is_alone(point, k), d, k,
    )  # fmt: skip
