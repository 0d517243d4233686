"""Whether rows are equal to the referee's, off by rounding, or different."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradkit.numerics._places import unravelled
from gradkit.numerics._truth import Truth
from gradkit.numerics._ulps import ulp_distance, unit_roundoff

__all__ = ["FACTOR", "Worst", "bounds_of", "judge"]

#: Errors up to so many times their root mean square are rounding. Of sixteen drawn
#: runs it is known to a fifth; in ten million entries none is beyond it by chance.
FACTOR = 8.0


@dataclass(frozen=True)
class Worst:
    """The entry that is farthest beyond what rounding explains.

    Attributes:
        source: Which thing that is differentiated by.
        sample: ``n``.
        row: Which output.
        entry: Which entry of one sample's source, flat.
        found: What the method gives.
        right: What the referee gives.
        bound: What rounding may come to there.
        ulps: Steps between the two, in the method's dtype.
    """

    source: int
    sample: int
    row: int
    entry: int
    found: float
    right: float
    bound: float
    ulps: int


def bounds_of(found: Sequence[Tensor], truth: Truth) -> list[Tensor]:
    """Return what each entry of rows may be off by through rounding."""
    return [
        _factors(truth, right) * spread
        + unit_roundoff(rows.dtype) * right.abs()
        + torch.finfo(rows.dtype).tiny
        for rows, spread, right in zip(found, truth.spread, truth.rows, strict=True)
    ]


def _factors(truth: Truth, like: Tensor) -> Tensor:
    """Return how many spreads are allowed, by sample.

    A spread over runs of many decisions is that of the decisions themselves, and an
    honest run is one of them.
    """
    few = truth.unsettled
    if few is None:
        return torch.full((len(like), 1, 1), FACTOR, dtype=like.dtype).to(like.device)
    return torch.where(few, FACTOR / 2, FACTOR).to(like)[:, None, None]


def judge(found: Sequence[Tensor], truth: Truth) -> tuple[str, Worst | None]:
    """Return a verdict on rows ``(N, R, size)``, without conventions, and the worst."""
    if all(_same(f, r.to(f.dtype)) for f, r in zip(found, truth.rows, strict=True)):
        return "equal", None
    samples = len(found[0])
    over = torch.zeros(samples, dtype=torch.bool, device="cpu")
    worst: Worst | None = None
    beyond = 0.0
    bounds = bounds_of(found, truth)
    for i, (rows, limit) in enumerate(zip(found, bounds, strict=True)):
        gap = _gap(rows, truth.rows[i])
        part = (gap / limit).nan_to_num(nan=float("inf"))
        over |= (~(gap <= limit)).flatten(1).any(1).cpu()
        most = float(part.max()) if part.numel() else 0.0
        if part.numel() and (worst is None or most > beyond):
            beyond, worst = most, _at(part, i, rows, truth.rows[i], limit)
    scaled = _are_scaled(found, truth.rows, truth)
    if scaled and truth.limited is not None and not bool(over.any()):
        scaled = _are_scaled(found, truth.limited, truth)
        return "different" if scaled else "overflow", worst
    if not bool(over.any()):
        unsettled = truth.unsettled is not None and bool(truth.unsettled.any())
        verdict = "branch" if unsettled else "rounding"
        return ("different", worst) if scaled else (verdict, worst)
    verdict = "branch"
    for n in over.nonzero()[:, 0].tolist():
        own = [rows[n] for rows in found]
        doubled = [2 * limit[n] for limit in bounds]
        if _by_another_branch(own, doubled, truth, n):
            continue
        if not _by_overflow(own, doubled, truth, n):
            return "different", worst
        verdict = "overflow"
    return verdict, worst


def _same(found: Tensor, right: Tensor) -> bool:
    return bool(((found == right) | (found.isnan() & right.isnan())).all())


def _gap(rows: Tensor, right: Tensor) -> Tensor:
    """Return absolute differences; NaN beside NaN is none."""
    rows = rows.detach().double()
    same = (rows == right) | (rows.isnan() & right.isnan())
    gap = (rows - right).abs()
    return torch.where(same, 0.0, gap.nan_to_num(nan=float("inf")))


def _at(part: Tensor, source: int, rows: Tensor, right: Tensor, limit: Tensor) -> Worst:
    sample, row, entry = unravelled(int(part.argmax()), part.shape)
    place = sample, row, entry
    ulps = ulp_distance(rows[place], right[place].to(rows.dtype))
    return Worst(
        source, sample, row, entry, float(rows[place]), float(right[place]),
        float(limit[place]), int(ulps),
    )  # fmt: skip


def _are_scaled(found: Sequence[Tensor], right: Sequence[Tensor], truth: Truth) -> bool:
    """Whether all entries are off by one factor that no rounding makes of them.

    Errors of single entries average out over many; a common factor does not. Errors
    that are common to all, as of an elementary function, are a few roundoffs.
    """
    return any(
        known is not None
        and abs(_factor(f, r)) > max(FACTOR * known, 4 * unit_roundoff(f.dtype))
        for f, r, known in zip(found, right, truth.scales, strict=True)
    )


def _factor(rows: Tensor, right: Tensor) -> float:
    """Return by what part of ``right`` rows are off, if they all are; else 0."""
    square = float(right.square().sum())
    gap = rows.detach().double() - right
    finite = bool(torch.isfinite(gap).all()) and 0 < square < float("inf")
    return float((gap * right).sum()) / square if finite else 0.0


def _by_another_branch(
    own: Sequence[Tensor], limits: Sequence[Tensor], truth: Truth, sample: int
) -> bool:
    """Whether a sample's rows are what comes of decisions that rounding changes."""
    return any(
        all(
            bool((_gap(rows, other[sample]) <= limit).all())
            for rows, other, limit in zip(own, others, limits, strict=True)
        )
        for touched, others in truth.others
        if bool(touched[sample])
    )


def _by_overflow(
    own: Sequence[Tensor], limits: Sequence[Tensor], truth: Truth, sample: int
) -> bool:
    """Whether a sample's rows are what its own precision's range makes of them."""
    if truth.limited is None:
        return False
    for i, (rows, limit) in enumerate(zip(own, limits, strict=True)):
        # Which infinities meet, and give NaN, is a matter of order.
        fits = ~rows.isfinite() | (_gap(rows, truth.rows[i][sample]) <= limit)
        fits |= _gap(rows, truth.limited[i][sample]) <= limit
        if not bool(fits.all()):
            return False
    return True
