"""Points that the model is asked at: drawn one after another, stacked, cut."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

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


def joined(parts: Sequence[Outputs]) -> Outputs:
    """Return the outputs of pieces of one batch as those of the batch."""
    if len(parts) == 1:
        return parts[0]
    counts = [p.tensors[0].shape[0] for p in parts]

    def whole(values: Sequence[Any]) -> Any:
        has_rows = all(
            isinstance(v, Tensor) and v.ndim and len(v) == count
            for v, count in zip(values, counts, strict=True)
        )
        return torch.cat(list(values)) if has_rows else values[0]

    return replace(
        parts[0],
        tensors=tuple(map(torch.cat, zip(*(p.tensors for p in parts), strict=True))),
        leaves=tuple(map(whole, zip(*(p.leaves for p in parts), strict=True))),
    )


def step_of(outputs: Outputs, step: int, samples: int) -> Outputs:
    """Return the outputs of one point of a stack, of ``samples`` each."""
    every = outputs.tensors[0].shape[0]
    if every == samples:
        return outputs
    rows = slice(step * samples, (step + 1) * samples)

    def own(value: Any) -> Any:
        has_rows = isinstance(value, Tensor) and value.ndim and len(value) == every
        return value[rows] if has_rows else value

    return replace(
        outputs,
        tensors=tuple(t[rows] for t in outputs.tensors),
        leaves=tuple(own(v) for v in outputs.leaves),
    )
