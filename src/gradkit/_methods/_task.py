"""What a method is given: flat sizes, one realised forward, and cotangents."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from gradkit._guards._forward import Forwards
from gradkit._guards._graph import Graph
from gradkit._guards._memory import Known

__all__ = ["Task", "Tiler"]

Values = tuple[Tensor, ...]


class Tiler(Protocol):
    """Splits work into tiles that fit the memory budget."""

    budget: int
    known: Known
    renew: bool

    def tiles(
        self, name: str, first: int, second: int, run: Callable[[slice, slice], Values]
    ) -> Iterator[tuple[slice, slice, Values]]:
        """Yield ``(first, second, run(first, second))`` over the whole rectangle."""
        ...

    def watched(self, name: str, count: int) -> Iterator[int]:
        """Yield ``range(count)``, with a progress bar if it takes long."""
        ...


@dataclass(frozen=True, eq=False)
class Task:
    """One call, as methods see it.

    ``samples`` is ``N``, ``rows`` is ``R``: 1 for an objective, ``K`` for a
    Jacobian. ``sizes`` are the numbers of entries of each source.
    """

    kind: Literal["inputs", "parameters"]
    graph: Graph
    forwards: Forwards
    planner: Tiler
    #: The objective's cotangent ``(N, K)``; ``None`` for a Jacobian.
    cotangent: Tensor | None
    #: Whether the result keeps its graph.
    connected: bool = False

    @property
    def samples(self) -> int:
        """``N``; 1 where no sample axis is assumed."""
        return self.graph.samples

    @property
    def outputs(self) -> int:
        """``K``, the numbers in one sample's output."""
        return self.graph.outputs.width

    @property
    def rows(self) -> int:
        """``R``, the rows per sample."""
        return self.outputs if self.cotangent is None else 1

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of entries of each source (of one sample's, for inputs)."""
        lead = 1 if self.graph.lead is None else max(self.graph.lead, 1)
        return tuple(s.numel() // lead for s in self.graph.sources)

    @property
    def batched(self) -> bool:
        """Whether the inputs have a sample axis."""
        return self.forwards.inputs.batched

    def cotangents(self, rows: slice, samples: slice = slice(None)) -> Tensor:
        """Return the cotangents ``(r, n, K)`` of some rows of some samples."""
        if self.cotangent is not None:
            return self.cotangent[samples][None]
        count = len(range(*samples.indices(self.samples)))
        width = rows.stop - rows.start
        hot = torch.zeros(
            width, count, self.outputs, dtype=self.graph.dtype, device=self.graph.device
        )
        hot.diagonal(rows.start, 0, 2).fill_(1)
        return hot

    def weighted(self, weights: Tensor) -> Tensor:
        """Return the cotangent ``(N, K)`` of the rows weighted by ``(N, R)``."""
        if self.cotangent is None:
            return weights.to(self.graph.dtype)
        return self.cotangent * weights.to(self.cotangent.dtype)

    def part(self, tensors: Values, dims: Any, samples: slice) -> Values:
        """Return the tensors that ``dims`` says have samples, cut to ``samples``."""
        return tuple(
            t if d is None else t[samples] for t, d in zip(tensors, dims, strict=True)
        )

    def function(self) -> tuple[Callable[..., Tensor], Values, Values, Any]:
        """Return ``f(sources, others) -> (K,)`` of one sample, and its arguments.

        Sources come in the order of the graph's; the last value is the others'
        ``in_dims``.
        """
        place = self.forwards.order()
        inner = self.forwards.function(self.graph)
        sources, others, dims = self.forwards.arguments(self.graph)

        def ordered(given: Values, rest: Values) -> Tensor:
            back: list[Any] = [None] * len(place)
            for source, there in zip(given, place, strict=True):
                back[there] = source
            return inner(back, rest)

        return ordered, tuple(sources[i] for i in place), others, dims
