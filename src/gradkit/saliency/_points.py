"""Points that the model is asked at: drawn one after another, stacked, cut."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from gradkit._problem._outputs import Outputs

__all__ = ["Point", "Points", "joined", "part_of", "step_of"]

#: One tensor ``(N, *)`` for each thing that ``wrt`` names.
Point = list[Tensor]


class Points:
    """Points that are drawn in order, each once, and kept while they are wanted.

    What draws random numbers gives the same points however many are taken at once, and
    a stack that does not fit the memory is taken again in parts.
    """

    def __init__(self, points: Iterable[Point]) -> None:
        self._source: Iterator[Point] = iter(points)
        self._kept: list[Point] = []
        self._first = 0

    def take(self, rows: slice) -> list[Point]:
        """Return the points of ``rows``; earlier ones are forgotten."""
        del self._kept[: rows.start - self._first]
        self._first = max(self._first, rows.start)
        while len(self._kept) < rows.stop - self._first:
            self._kept.append(next(self._source))
        return self._kept[: rows.stop - rows.start]


def part_of(tensors: Sequence[Tensor], columns: slice) -> Tensor:
    """Return samples ``columns`` of every tensor, in one; a lone one is a view."""
    parts = [t[columns] for t in tensors]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def joined(parts: Sequence[Outputs], has_rows: Sequence[bool]) -> Outputs:
    """Return the outputs of pieces of one batch as those of the batch.

    ``has_rows`` tells which leaves have the samples first.
    """
    if len(parts) == 1:
        return parts[0]
    groups = zip(*(p.leaves for p in parts), strict=True)
    return replace(
        parts[0],
        tensors=tuple(map(torch.cat, zip(*(p.tensors for p in parts), strict=True))),
        leaves=tuple(
            torch.cat(group) if rows else group[0]
            for group, rows in zip(groups, has_rows, strict=True)
        ),
    )


def step_of(
    outputs: Outputs, step: int, samples: int, has_rows: Sequence[bool]
) -> Outputs:
    """Return the outputs of one point of a stack, of ``samples`` each."""
    if outputs.tensors[0].shape[0] == samples:
        return outputs
    rows = slice(step * samples, (step + 1) * samples)
    pairs = zip(outputs.leaves, has_rows, strict=True)
    return replace(
        outputs,
        tensors=tuple(t[rows] for t in outputs.tensors),
        leaves=tuple(v[rows] if own else v for v, own in pairs),
    )
