"""One check on a result that did not come from the ordinary graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence

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
    precision: torch.dtype,
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
        precision: The coarsest dtype that the model computes in.
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
    weights = torch.zeros(
        samples or count, width, dtype=rows[0].dtype, device=rows[0].device
    )
    weights[start : start + count] = random_cotangent((count, width), rows[0])
    worst = apart = 0.0
    for row, pulled in zip(rows, pull(weights), strict=True):
        part = weights[start : start + count].to(row.dtype)
        # The largest entry of each row, without a copy of the rows.
        largest = (
            torch.linalg.vector_norm(row, float("inf"), -1) if row.numel() else part
        )
        size = part.abs() * largest
        if over_samples:
            summed = part.reshape(-1) @ row.reshape(count * width, -1)
            size = size.sum()[None]
        else:
            pulled = pulled[start : start + count]
            summed = torch.bmm(part[:, None], row)[:, 0]
            size = size.sum(1, keepdim=True)
        pulled = pulled.to(row.dtype)
        worst = max(worst, _gap(summed, pulled, size))
        apart = max(apart, _largest(summed - pulled))
    if worst <= tolerance(precision):
        return None
    # Where the derivative is zero but for rounding, its size says nothing.
    return worst if not apart <= 64 * _rounding(pull, weights) else None


def _rounding(pull: Pull, weights: Tensor) -> float:
    """Return by how much the pullback fails to be linear: its rounding errors."""
    other = random_cotangent(tuple(weights.shape), weights)
    parts = zip(pull(weights), pull(other), pull(weights - other), strict=True)
    return max(_largest(whole - (one + two)) for whole, one, two in parts)


def _largest(values: Tensor) -> float:
    return float(values.abs().nan_to_num(nan=0.0).max()) if values.numel() else 0.0


def _gap(summed: Tensor, pulled: Tensor, size: Tensor) -> float:
    """Return the largest difference relative to the largest size, per sample."""
    if not summed.numel():
        return 0.0
    # NaN in reverse mode where another mode is finite is a convention of its own.
    finite = torch.isfinite(summed) & torch.isfinite(pulled)
    odd = torch.isfinite(pulled) & ~torch.isfinite(summed)
    if bool(odd.any()):
        return float("inf")
    gap = torch.where(finite, (summed - pulled).abs(), 0.0)
    scale = torch.where(finite, pulled.abs(), 0.0).amax(-1, keepdim=True)
    size = torch.where(torch.isfinite(size), size, 0.0)
    scale = torch.maximum(scale, size).clamp_min(torch.finfo(summed.dtype).tiny)
    return float((gap / scale).max())
