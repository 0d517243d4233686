"""Derivatives along a direction by differences, with the error they have.

Differences at steps ``h, h/4, h/16, …`` are extrapolated once. Truncation and rounding
both show in how far neighbouring extrapolations differ: the first falls with the step,
the second grows. The entry is taken whose two neighbours are nearest, and the larger of
the two distances is its error, beside what rounding of the values alone must give.

Sources: Ridders, "Accurate computation of F'(x) and F'(x) F''(x)", Advances in
Engineering Software 4 (1982); Griewank and Walther, "Evaluating Derivatives", 2nd ed.
(SIAM 2008), ch. 1; Higham, "Accuracy and Stability of Numerical Algorithms", 2nd ed.
(SIAM 2002), section 1.14.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

__all__ = ["SAFETY", "STARTS", "Differences", "Slope", "agreed", "differences"]

#: An error that is itself an estimate is trusted to this factor.
SAFETY = 10.0
#: Factors on the steps where a mismatch is looked at again.
STARTS = (1.0, 0.61, 0.37)
RATIO = 4.0
STEPS = 7


@dataclass(frozen=True, eq=False)
class Slope:
    """Derivatives and the error of each, float64 ``(K,)``."""

    value: Tensor
    error: Tensor


@dataclass(frozen=True, eq=False)
class Differences:
    """Values of a function near a point along a direction, less the value there.

    Args:
        steps: ``(S,)``.
        after: ``f(x + h u) - f(x)``, ``(S, K)``.
        before: ``f(x) - f(x - h u)``, ``(S, K)``.
        size: ``|f|`` nearby, ``(K,)``: what is rounded.
        roundoff: Of the dtype.
        coarse: Whether values were rounded to a lower precision on the way, so that
            no change at small steps means nothing.
    """

    steps: Tensor
    after: Tensor
    before: Tensor
    size: Tensor
    roundoff: float
    coarse: bool

    @cached_property
    def jumps(self) -> bool:
        """Whether the change does not fade with the step, on either side."""
        if not len(self.size):
            return False
        room = 1e4 * self.roundoff * self.size.max()
        return any(
            bool(
                ((side[-1].abs() > room) & (side[-1].abs() > side[-3].abs() / 2)).any()
            )
            for side in (self.after, self.before)
        )

    @cached_property
    def central(self) -> Slope:
        """The derivative, two-sided."""
        return self._slope((self.after + self.before) / 2, RATIO**2)

    @cached_property
    def right(self) -> Slope:
        """The derivative on the side that the direction points to."""
        return self._slope(self.after, RATIO)

    @cached_property
    def left(self) -> Slope:
        """The derivative on the other side."""
        return self._slope(self.before, RATIO)

    @cached_property
    def kinked(self) -> Tensor:
        """Where the one-sided derivatives differ, ``(K,)``."""
        room = SAFETY * (self.right.error + self.left.error)
        return (self.right.value - self.left.value).abs() > room

    def dot(self, cotangent: Tensor) -> Differences:
        """Return the differences of ``<v, f>``."""
        used = cotangent != 0  # an entry that is left out may be NaN
        weight = cotangent[used]
        return Differences(
            self.steps,
            (self.after[:, used] @ weight)[:, None],
            (self.before[:, used] @ weight)[:, None],
            (self.size[used] @ weight.abs())[None],
            self.roundoff,
            self.coarse,
        )

    def _slope(self, change: Tensor, power: float) -> Slope:
        quotients = change / self.steps[:, None]
        better = (power * quotients[1:] - quotients[:-1]) / (power - 1)
        apart = (better[1:] - better[:-1]).abs()
        error = torch.maximum(apart[1:], apart[:-1])
        if self.coarse:
            error = torch.where(change[2:-1] == 0, torch.inf, error)
        error = error + self.roundoff * self.size / self.steps[2:-1, None]
        error = torch.where(error.isnan(), torch.inf, error)
        least, best = error.min(0)
        value = better[1:-1].gather(0, best[None])[0]
        return Slope(value, torch.maximum(least, self._common(least)))

    def _common(self, error: Tensor) -> Tensor:
        """Return the usual error: in one entry of many it is small by accident.

        It is usual for the size, or for all, since a small value may be what large
        ones have left.
        """
        good = error.isfinite() & (self.size > 0)
        if not good.any():
            return torch.zeros_like(error)
        relative = (error[good] / self.size[good]).median()
        return torch.maximum(self.size * relative, error[good].median())


def agreed(slopes: Sequence[Slope]) -> Slope:
    """Return the middle of several estimates; how far they spread is an error too."""
    values = torch.stack([slope.value for slope in slopes])
    spread = values.max(0)[0] - values.min(0)[0]
    spread = torch.where(spread.isnan(), torch.inf, spread)
    error = torch.stack([slope.error for slope in slopes]).median(0)[0]
    return Slope(values.median(0)[0], torch.maximum(error, spread))


def differences(
    values: Callable[[float], Tensor],
    centre: Tensor,
    dtype: torch.dtype,
    *,
    coarse: bool = False,
    start: float = 1.0,
) -> Differences:
    """Evaluate a function along a direction.

    Args:
        values: ``f(x + h u)`` for a step ``h``, float64 ``(K,)``. The direction has the
            size of ``x``.
        centre: ``f(x)``.
        dtype: What ``f`` is evaluated in.
        coarse: See ``Differences``.
        start: A factor on all steps.

    Returns:
        Fourteen evaluations. The steps surround ``eps ** (1/5)``, where truncation of
        the fourth order and rounding are equal, and reach down to ``eps ** (1/3)``.
    """
    information = torch.finfo(dtype)
    first = start * min(8 * information.eps**0.2, 0.5)
    steps = torch.tensor([first * RATIO**-i for i in range(STEPS)], dtype=torch.float64)
    after = torch.stack([values(float(h)) for h in steps]) - centre
    before = centre - torch.stack([values(-float(h)) for h in steps])
    near = after[-1].abs() + before[-1].abs()
    size = centre.abs().nan_to_num(0.0, 0.0) + near.nan_to_num(0.0, 0.0)
    return Differences(steps, after, before, size, information.eps / 2, coarse)
