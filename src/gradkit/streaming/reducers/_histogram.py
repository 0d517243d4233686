"""How many entries of rows lie between given edges."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gradkit._call._request import naming
from gradkit.errors import InputError
from gradkit.objectives._scores import describe
from gradkit.streaming.reducers._folding import Folding, State, refuse_complex, wide
from gradkit.streaming.reducers._reducer import Place

__all__ = ["Counts", "Histogram"]


class Counts(NamedTuple):
    """What ``Histogram`` counted.

    Attributes:
        edges: ``(bins + 1,)``, float64.
        counts: ``(bins,)``, int64: the entries in each bin.
        below: Entries under the first edge.
        above: Entries over the last edge.
        not_a_number: Entries that are NaN.

    Example:
        >>> import torch
        >>> from gradkit.streaming.reducers import Counts
        >>> edges = torch.tensor([0.0, 1.0, 2.5], dtype=torch.float64)
        >>> found = Counts(edges, torch.tensor([3, 4]), 1, 0, not_a_number=2)
        >>> found.edges.diff(), int(found.counts.sum()) + sum(found[2:])
        (tensor([1.0000, 1.5000], dtype=torch.float64), 10)
    """

    edges: Tensor
    counts: Tensor
    below: int
    above: int
    not_a_number: int


@dataclass(frozen=True)
class Histogram(Folding):
    """How many entries of all rows lie in each bin.

    A bin holds its left edge and not its right one, but the last holds both, as with
    ``numpy.histogram``. Each entry of a row counts.

    Args:
        edges: ``(bins + 1,)``: at least two finite numbers that increase.

    Returns:
        ``Counts(edges (bins + 1,), counts (bins,), below, above, not_a_number)``.

    Raises:
        InputError: There are no rows, rows are complex or of different shapes, or
            ``edges`` are not such numbers.

    Cost:
        Keeps one number per bin, and works on a copy of a batch in float64.

    Example:
        >>> import torch
        >>> from gradkit.streaming.reducers import Histogram, Place
        >>> histogram = Histogram([0.0, 1.0, 2.0])
        >>> rows = torch.tensor([0.0, 1.0, 2.0, 5.0, float("nan")])
        >>> state = histogram.add(histogram.start(), rows, Place(batch=0, first=0))
        >>> found = histogram.result(state)
        >>> found.counts, found.below, found.above, found.not_a_number
        (tensor([1, 2]), 0, 1, 1)
    """

    edges: Sequence[float] | Tensor | np.ndarray

    def __post_init__(self) -> None:
        with naming("Histogram"):
            object.__setattr__(self, "edges", _read_edges(self.edges))

    def _of(self, rows: Tensor, place: Place) -> State:
        refuse_complex(rows, "counted in bins")
        values = wide(rows).flatten()
        edges = self._edges(values.device)
        # 0 is below, 1 to the number of bins are the bins, then above, then NaN.
        bins = torch.bucketize(values, edges, right=True)
        bins[values == edges[-1]] = len(edges) - 1
        bins[values.isnan()] = len(edges) + 1
        return {"counts": bins.bincount(minlength=len(edges) + 2)}

    def _merged(self, state: State, other: State) -> State:
        mine = state["counts"]
        return {"counts": mine + other["counts"].to(mine.device)}

    def _finished(self, state: State) -> Counts:
        counts = state["counts"]
        below, above, nan = counts[[0, -2, -1]].tolist()
        return Counts(
            self._edges(counts.device), counts[1:-2].clone(), below, above, nan
        )

    def _edges(self, device: torch.device) -> Tensor:
        return torch.tensor(self.edges, dtype=torch.float64, device=device)


def _read_edges(edges: Any) -> tuple[float, ...]:
    """Return the edges as numbers that can be compared and printed."""
    what = "edges must be at least 2 finite numbers that increase"
    values = edges.tolist() if isinstance(edges, (Tensor, np.ndarray)) else edges
    known = isinstance(values, Sequence) and not isinstance(values, (str, bytes))
    if not known or not all(_is_finite(value) for value in values):
        bad = [v for v in values if not _is_finite(v)] if known else []
        got = f"{bad[0]!r} among them" if bad else describe(edges)
        raise InputError(f"{what}; got {got}", argument="edges")
    found = tuple(float(value) for value in values)
    if len(found) < 2:
        raise InputError(f"{what}; got {len(found)}", argument="edges")
    for left, right in pairwise(found):
        if left >= right:
            raise InputError(
                f"{what}; got {right} after {left}. Use sorted(set(edges))",
                argument="edges",
            )
    return found


def _is_finite(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float, np.number)):
        return False
    try:
        return math.isfinite(value)
    except (OverflowError, TypeError):  # a whole number beyond floats, a complex one
        return False
