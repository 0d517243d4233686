"""One realised forward: its outputs, and the pullback through its graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from gradkit._guards._walk import nodes_below
from gradkit._problem._outputs import Outputs
from gradkit._quick import quick_products

__all__ = ["Graph"]


@dataclass(frozen=True, eq=False)
class Graph:
    """The ordinary autograd graph of one forward.

    ``sources`` is what derivatives are taken with respect to; ``lead`` is ``N``
    where each sample has its own part of every source (inputs), or ``None`` where
    all samples share it (parameters). ``points`` are tensors with the samples
    first at which independence can be read; ``look_ups`` are such tensors whose
    first axis only may be the samples.
    """

    outputs: Outputs
    sources: tuple[Tensor, ...]
    lead: int | None
    samples: int
    points: tuple[Tensor, ...] = ()
    look_ups: tuple[Tensor, ...] = ()
    connected: bool = field(default=False)
    #: What was recorded of the forward for rules, where they may serve.
    tape: Any = None

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that cotangents are made in."""
        dtype = self.outputs.tensors[0].dtype
        for tensor in self.outputs.tensors[1:]:
            dtype = torch.promote_types(dtype, tensor.dtype)
        return dtype

    @property
    def device(self) -> torch.device:
        """The device that cotangents are made on."""
        return self.outputs.tensors[0].device

    def pull(self, cotangent: Tensor) -> tuple[Tensor, ...]:
        """Pull one cotangent ``(N, K)`` back; ``(N, D)`` or ``(p,)`` per source."""
        return self.pull_of(range(len(self.sources)), cotangent)

    def pull_of(self, places: Sequence[int], cotangent: Tensor) -> tuple[Tensor, ...]:
        """Pull one cotangent ``(N, K)`` back to some of the sources."""
        sources = [self.sources[i] for i in places]
        found = self._gradients(cotangent, sources, several=False)
        return tuple(g.reshape(self._flat_shape(g)) for g in found)

    def pull_many(self, cotangents: Tensor) -> tuple[Tensor, ...]:
        """Pull ``(C, N, K)`` back in one vmapped backward; ``C`` comes first."""
        found = self._gradients(cotangents, self.sources, several=True)
        count = cotangents.shape[0]
        return tuple(
            g.reshape(count, *self._flat_shape(g[0] if count else g)) for g in found
        )

    def pull_to(
        self, points: Sequence[Tensor], cotangent: Tensor
    ) -> tuple[Tensor, ...]:
        """Pull one cotangent back to ``points``; each keeps its own shape."""
        return self._gradients(cotangent, points, several=False)

    def pull_to_edges(
        self,
        edges: Sequence[tuple[Any, int]],
        cotangents: Tensor,
        *,
        several: bool,
        entries: int,
    ) -> tuple[Tensor | None, ...]:
        """Pull ``(N, K)``, or ``several`` ``(C, N, K)``, back to edges of the graph.

        ``entries`` is how many numbers one cotangent has at all of them.
        """
        if not edges:
            return ()
        points = [GradientEdge(*e) for e in edges]
        return self._found(cotangents, points, several, entries)

    def nodes(self) -> Iterator[Any]:
        """Yield every node of the graph once."""
        return nodes_below(t.grad_fn for t in self.outputs.tensors)

    def values(self) -> Tensor:
        """Return the outputs as ``(N, K)``, detached."""
        return torch.cat(
            [
                t.detach().reshape(self.samples, width)
                for t, width in zip(
                    self.outputs.tensors, self.outputs.widths, strict=True
                )
            ],
            1,
        )

    def _flat_shape(self, gradient: Tensor) -> tuple[int, ...]:
        if self.lead is None:
            return (gradient.numel(),)
        return (self.lead, gradient.numel() // max(self.lead, 1))

    def _gradients(
        self, cotangents: Tensor, sources: Sequence[Tensor], *, several: bool
    ) -> tuple[Tensor, ...]:
        lead = cotangents.shape[:1] if several else ()
        entries = sum(s.numel() for s in sources)
        found = self._found(cotangents, sources, several, entries)
        return tuple(
            _zero(s, lead) if g is None else _dense(g)
            for g, s in zip(found, sources, strict=True)
        )

    def _found(
        self, cotangents: Tensor, points: Sequence[Any], several: bool, entries: int
    ) -> tuple[Tensor | None, ...]:
        """Return the gradient at each point, or ``None`` where none arrives."""
        lead = cotangents.shape[:1] if several else ()
        widths, outputs = self.outputs.widths, self.outputs.tensors
        pieces = cotangents.split(widths, -1) if len(widths) > 1 else (cotangents,)
        pairs = [
            (y, c.reshape((*lead, *y.shape)).to(y.dtype))
            for y, c in zip(outputs, pieces, strict=True)
            if y.requires_grad
        ]
        if not pairs:
            return (None,) * len(points)
        count = lead[0] if lead else 1
        quick = quick_products(cotangents, count * entries)
        with nullcontext() if self.connected else quick:
            return torch.autograd.grad(
                [y for y, _ in pairs],
                list(points),
                [c for _, c in pairs],
                retain_graph=True,
                create_graph=self.connected,
                allow_unused=True,
                is_grads_batched=several,
            )


def _zero(source: Tensor, lead: tuple[int, ...]) -> Tensor:
    """Return the gradient of what the outputs do not use; one number in memory."""
    zero = torch.zeros((), dtype=source.dtype, device=source.device)
    return zero.expand((*lead, *source.shape))


def _dense(gradient: Tensor) -> Tensor:
    """Return a sparse embedding gradient as an ordinary tensor."""
    return gradient.to_dense() if gradient.layout is not torch.strided else gradient
