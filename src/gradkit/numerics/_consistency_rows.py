"""Which rows of two tensors belong to the same samples, and how they differ."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Size, Tensor

from gradkit.numerics._ulps import ulp_distance

__all__ = ["Difference", "Layout", "layouts", "starts_of"]

#: Of more slices than this a spread is taken.
MOST_PARTS = 64
#: What a row differs by before it is sought among others; and how many numbers that
#: may take.
_GROSS, _MOST_SOUGHT = 2.0**-10, 2**26


@dataclass(frozen=True)
class Layout:
    """Where the samples of a tensor lie.

    Attributes:
        axis: The axis they lie on; ``None`` where only the count of entries tells.
        per_sample: How many places on it one sample has.
        samples_first: Whether a sample's places lie together.
    """

    axis: int | None
    per_sample: int = 1
    samples_first: bool = True

    def rows(self, tensor: Tensor, count: int) -> Tensor:
        """Return ``(count, entries)``."""
        if self.axis is None:
            return tensor.reshape(count, -1)
        moved = tensor.movedim(self.axis, 0)
        if not self.samples_first:
            moved = moved.reshape(self.per_sample, count, *moved.shape[1:])
            moved = moved.movedim(1, 0)
        return moved.reshape(count, tensor.numel() // max(count, 1))


def layouts(whole: Size, part: Size, samples: int, fewer: int) -> list[Layout] | str:
    """Return where samples may lie, told by what changes with their number.

    Args:
        whole: The shape of a tensor in a batch of ``samples``.
        part: Its shape in a batch of ``fewer``.
        samples: ``N``.
        fewer: Less than ``N``.

    Returns:
        The layouts that fit both shapes, or why there is none.
    """
    if len(whole) == len(part):
        changed = [i for i in range(len(whole)) if whole[i] != part[i]]
        if not changed:
            return "no axis follows the number of samples"
        found = []
        for axis in changed:
            each, rest = divmod(whole[axis], samples)
            if each and not rest and part[axis] == each * fewer:
                found.append(Layout(axis, each))
                if each > 1:
                    found.append(Layout(axis, each, False))
        if found:
            return found
    elif (
        whole
        and whole[0] == samples
        and (whole.numel() * fewer == part.numel() * samples)
    ):
        return [Layout(None)]  # squeeze() has taken the axis of one sample away
    return (
        f"its shape {tuple(whole)} in the batch is {tuple(part)} for {fewer} of the"
        f" {samples} samples"
    )


def starts_of(samples: int, size: int) -> list[int]:
    """Return where slices begin: all, or ``MOST_PARTS`` spread over the batch."""
    starts = list(range(0, samples, size))
    if len(starts) <= MOST_PARTS:
        return starts
    places = torch.linspace(0, len(starts) - 1, MOST_PARTS, dtype=torch.float64)
    return [starts[i] for i in places.round().long().tolist()]


@dataclass
class Difference:
    """How rows of the same samples differ, over all that were compared.

    Zeros of both signs are equal, and so are two NaN.

    Attributes:
        entries: How many were compared.
        differing: How many are not the same number.
        ulps: The largest distance in units in the last place.
        relative: The largest difference relative to the two numbers.
        gap: The largest absolute difference.
        size: The largest finite magnitude.
        elsewhere: The same as ``gap``, where a row that differs by a lot is compared
            with the row that is nearest to it, of whatever sample.
        whole: How many of those that differ are whole numbers or truth values.
    """

    entries: int = 0
    differing: int = 0
    ulps: int = 0
    relative: float = 0.0
    gap: float = 0.0
    size: float = 0.0
    elsewhere: float = 0.0
    whole: int = 0

    @property
    def of_size(self) -> float:
        """The largest difference, relative to the largest magnitude."""
        return self.gap / self.size if self.size else self.gap

    def add(self, first: Tensor, second: Tensor, pool: Tensor | None = None) -> None:
        """Count the entries of two tensors of one shape.

        With a ``pool`` of rows they are two-dimensional, and rows of ``second`` are
        sought in it.
        """
        self.entries += first.numel()
        if not first.numel():
            return
        floating = first.is_floating_point()
        if floating:
            self.size = max(self.size, _magnitude(first))
        if torch.equal(first, second):
            return
        unequal = first != second
        if floating:
            unequal &= ~(first.isnan() & second.isnan())
        count = int(unequal.sum())
        if not count:
            return
        self.differing += count
        a, b = first[unequal], second[unequal]
        if not floating:
            self.whole += count
            return
        if a.dtype == b.dtype:
            self.ulps = max(self.ulps, int(ulp_distance(a, b).max()))
        a, b = a.double(), b.double()
        gap = (a - b).abs()
        relative = gap / torch.maximum(a.abs(), b.abs())
        self.gap = max(self.gap, _largest(gap))
        nearest = _largest(gap) if pool is None else _nearest(first, second, pool)
        self.elsewhere = max(self.elsewhere, nearest)
        self.relative = max(self.relative, _largest(relative))

    def __iadd__(self, other: Difference) -> Difference:
        self.entries += other.entries
        self.differing += other.differing
        self.whole += other.whole
        for name in ("ulps", "relative", "gap", "size", "elsewhere"):
            setattr(self, name, max(getattr(self, name), getattr(other, name)))
        return self


def _nearest(first: Tensor, second: Tensor, pool: Tensor) -> float:
    """Return the largest difference between a row and the one nearest to it."""
    apart = (first.double() - second.double()).abs().nan_to_num(nan=math.inf).amax(1)
    size = torch.where(first.isfinite(), first.double().abs(), 0.0).max()
    gross = apart > _GROSS * size
    if not bool(gross.any()) or second[gross].numel() * len(pool) > _MOST_SOUGHT:
        return _largest(apart)
    found = apart.clone()
    rows = pool.double()
    for place in gross.nonzero().flatten().tolist():
        each = (rows - second[place].double()).abs().nan_to_num(nan=math.inf)
        found[place] = each.amax(1).min()
    return _largest(found)


def _magnitude(values: Tensor) -> float:
    """Return the largest finite magnitude."""
    largest = float(values.abs().max())
    if math.isfinite(largest):
        return largest
    return float(torch.where(values.isfinite(), values.abs(), 0.0).max())


def _largest(values: Tensor) -> float:
    """Return the largest value; of NaN, infinity."""
    return float(values.nan_to_num(nan=float("inf")).max())
