"""One check on a result that did not come from the ordinary graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gradkit._guards._independence import random_cotangent

__all__ = ["disagreement"]


Pull = Callable[[Tensor], tuple[Tensor, ...]]


def tolerance(dtype: torch.dtype) -> float:
    """Return what two pull-backs of one model may differ by, relative to their size.

    Between the unit roundoff, which deep models exceed, and its square root, which
    is half the digits: 6e-10 in float64, 4e-4 in float32.
    """
    return 16 * torch.finfo(dtype).eps ** (2 / 3)


def disagreement(
    rows: Sequence[Tensor],
    pull: Pull,
    *,
    over_samples: bool,
    limit: float,
    start: int = 0,
    samples: int | None = None,
) -> float | None:
    """Return by how much rows and the ordinary graph differ, or ``None``.

    A random weight per row is pulled back through the ordinary graph and compared
    with the rows' weighted sum, so that one pull-back speaks for all rows.

    Args:
        rows: ``(n, R, size)`` per source.
        pull: From weights ``(N, R)`` to the gradient ``(N, size)`` (inputs) or
            ``(size,)`` (parameters) per source.
        over_samples: Whether the sum runs over samples too (parameters).
        limit: What the difference may be, relative to the gradient's size.
        start: The first sample that ``rows`` holds.
        samples: ``N``, where ``rows`` holds only some of the samples.

    Returns:
        The largest difference relative to the size of the gradient, if it is more
        than rounding explains.
    """
    rows = [r.detach() for r in rows]
    count, width = rows[0].shape[:2]
    if not count * width:
        return None
    whole = (samples or count, width)
    part = slice(start, start + count)
    weights = torch.zeros(whole, dtype=rows[0].dtype, device=rows[0].device)
    # Every row counts alike, or a small one's fault would hide behind a large one.
    weights[part] = random_cotangent((count, width), rows[0]) / _row_sizes(rows)
    pulled = [_own(p, part, over_samples) for p in pull(weights)]
    gaps = [_gaps(r, weights[part].to(r.dtype), p, over_samples)
            for r, p in zip(rows, pulled, strict=True)]  # fmt: skip
    if all(bool((gap.relative <= limit).all()) for gap in gaps):
        return None
    # Where a derivative is zero but for rounding, its size says nothing; by how
    # much the pullback fails to be linear says what its rounding is.
    noise = [torch.zeros_like(gap.absolute) for gap in gaps]
    eps = torch.finfo(rows[0].dtype).eps
    for _ in range(1 if eps > 1e-4 else _SPLITS):
        other = torch.zeros_like(weights)
        other[part] = random_cotangent((count, width), rows[0]) / _row_sizes(rows)
        for i, (p, one, two) in enumerate(
            zip(pulled, pull(other), pull(weights - other), strict=True)
        ):
            if p.shape[-1]:
                half = _own(one + two, part, over_samples).to(p.dtype)
                bent = 64 * (p - half).abs().amax(-1, keepdim=True)
                noise[i] = torch.maximum(noise[i], bent)
    unit = (2 if eps > 1e-4 else 64) * eps
    worst = 0.0
    for i, (gap, rounding) in enumerate(zip(gaps, noise, strict=True)):
        # A small derivative is not excused by a large one, only one that is nothing.
        others = [g.scale for j, g in enumerate(gaps) if j != i]
        nothing = bool(others) and not bool(pulled[i].any())
        floor = unit * _largest(others) if nothing else 0.0
        wrong = (gap.relative > limit) & ~(gap.absolute <= rounding + floor)
        if bool(wrong.any()):
            worst = max(worst, float(gap.relative[wrong].max()))
    return worst or None


#: How often a difference is held against a pullback's own rounding, which may be
#: nothing by chance; in few digits it never is.
_SPLITS = 8


def _largest(scales: Sequence[Tensor]) -> Tensor:
    finite = [s.double().nan_to_num(posinf=0.0) for s in scales]
    return torch.stack(finite).amax(0)


def _row_sizes(rows: Sequence[Tensor]) -> Tensor:
    """Return the largest entry of each row, ``(n, r)``; one where there is none."""
    sizes = torch.zeros(rows[0].shape[:2], dtype=rows[0].dtype, device=rows[0].device)
    for row in rows:
        if not row.shape[-1]:
            continue
        largest = torch.linalg.vector_norm(row, float("inf"), -1)
        good = torch.isfinite(largest) & (largest > torch.finfo(row.dtype).tiny * 1e8)
        largest = torch.where(good, largest, 0.0).to(rows[0].dtype)
        sizes = torch.maximum(sizes, largest)
    return torch.where(sizes > 0, sizes, 1.0)


class _Gap(NamedTuple):
    """Largest differences per sample, ``(n, 1)``, or over all of them, ``(1,)``."""

    relative: Tensor
    absolute: Tensor
    scale: Tensor


def _own(pulled: Tensor, part: slice, over_samples: bool) -> Tensor:
    return pulled.detach() if over_samples else pulled.detach()[part]


def _gaps(rows: Tensor, weights: Tensor, pulled: Tensor, over_samples: bool) -> _Gap:
    """Return how far the rows' weighted sum is from the gradient ``pulled``."""
    n, r, size = rows.shape
    if not size:
        zero = weights.new_zeros(1) if over_samples else weights.new_zeros(n, 1)
        return _Gap(zero, zero, zero)
    # The largest entry of each row, without a copy of the rows.
    largest = weights.abs() * torch.linalg.vector_norm(rows, float("inf"), -1)
    if over_samples:
        summed = weights.reshape(-1) @ rows.reshape(n * r, size)
        largest = largest.sum()[None]
    else:
        summed = torch.bmm(weights[:, None], rows)[:, 0]
        largest = largest.sum(1, keepdim=True)
    pulled = pulled.to(summed.dtype)
    finite = torch.isfinite(summed) & torch.isfinite(pulled)
    gap = torch.where(finite, (summed - pulled).abs(), 0.0)
    # NaN in reverse mode where another mode is finite is a convention of its own;
    # the other way round it is a fault.
    gap = torch.where(torch.isfinite(pulled) & ~finite, float("inf"), gap)
    absolute = gap.amax(-1, keepdim=True)
    scale = torch.where(finite, pulled.abs(), 0.0).amax(-1, keepdim=True)
    largest = torch.where(torch.isfinite(largest), largest, 0.0)
    scale = torch.maximum(scale, largest).clamp_min(torch.finfo(summed.dtype).tiny)
    return _Gap(absolute / scale, absolute, scale)
