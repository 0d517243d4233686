"""Weighted sums of gradients, step by step: no bit depends on what is stacked."""

from __future__ import annotations

import torch
from torch import Tensor

from gradkit.saliency._points import Point

__all__ = ["Sum", "wide"]


def wide(tensor: Tensor) -> Tensor:
    """Return a tensor in a precision that sums of many terms are taken in."""
    return tensor.float() if tensor.dtype.itemsize < 4 else tensor


class Sum:
    """A sum of points with weights, taken in the order in which they come."""

    def __init__(self, like: Point) -> None:
        self.like = like
        self.total = [torch.zeros_like(wide(s)) for s in like]

    def add(self, point: Point, weight: float = 1.0) -> None:
        """Add one point times a weight."""
        for total, value in zip(self.total, point, strict=True):
            total.add_(wide(value), alpha=weight)

    def add_products(self, first: Point, second: Point) -> None:
        """Add the entry-wise product of two points."""
        for total, a, b in zip(self.total, first, second, strict=True):
            total.addcmul_(wide(a), wide(b))

    def values(self, scale: float = 1.0) -> Point:
        """Return the sum, scaled, in the dtype of what it is a map of."""
        pairs = zip(self.total, self.like, strict=True)
        return [(t * scale).to(s.dtype) for t, s in pairs]
