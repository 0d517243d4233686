"""Gradients of many rows, pulled back some rows at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

__all__ = ["in_pieces", "stacked"]

Gradients = list[Tensor | None]


def in_pieces(
    pull: Callable[[slice], Gradients], edges: int, rows: int, several: int
) -> Gradients:
    """Return the gradients ``(rows, ...)`` at some edges, ``several`` rows at a time.

    ``None`` where none arrives from any row.
    """
    whole: Gradients = [None] * edges
    for start in range(0, rows, several):
        part = slice(start, min(start + several, rows))
        for i, found in enumerate(pull(part)):
            if found is None:
                continue
            if several >= rows:
                whole[i] = found
                continue
            target = whole[i]
            if target is None:
                target = whole[i] = found.new_zeros(rows, *found.shape[1:])
            target[part] = found
    return whole


def stacked(rows: Sequence[Tensor | None]) -> Tensor | None:
    """Return the gradients of single rows as one; zero where none arrives from some."""
    known = [row for row in rows if row is not None]
    if not known:
        return None
    zero = torch.zeros_like(known[0])
    return torch.stack([zero if row is None else row for row in rows])
