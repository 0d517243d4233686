"""A weighted sum of gradients that is pulled back through an affine beginning once."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from gradkit._guards._graph import Graph
from gradkit._layouts import lies_last
from gradkit.saliency._points import Point
from gradkit.saliency._prefix import Prefix, prefixes
from gradkit.saliency._sums import wide

__all__ = ["PulledOnce", "bytes_of_sums"]


class PulledOnce:
    """Sums gradients where the model stops being affine in a source.

    A forward at other values may take another branch. Where its beginning is not that
    of the forward at the inputs, its gradients are summed at the source.

    Args:
        graph: Of the forward at the inputs, through which sums are pulled back.
        starts: Its sources' affine beginnings, ``None`` where it sums at the source.
    """

    def __init__(self, graph: Graph, starts: Sequence[Prefix | None]) -> None:
        self._sources, self._prefixes = graph.sources, starts
        self._at_source = [torch.zeros_like(wide(s.detach())) for s in self._sources]
        self._at_prefix = [
            None if p is None else _zeros(p.source, _rows_of(p)) for p in starts
        ]
        self._merged: list[bool] = []

    def pulled(self, graph: Graph, cotangent: Tensor) -> Sequence[Tensor]:
        """Return gradients with the samples first, each where it is to be summed."""
        found = prefixes(graph)
        pairs = list(zip(self._prefixes, found, strict=True))
        self._merged = [p is not None and p.same(q) for p, q in pairs]
        edges, shapes = [], []
        for source, prefix, merged in zip(
            graph.sources, found, self._merged, strict=True
        ):
            if merged and prefix is not None:
                edges.append((prefix.node, 0))
                shapes.append(_rows_of(prefix))
            else:
                edge = get_gradient_edge(source)
                edges.append((edge.node, edge.output_nr))
                shapes.append(tuple(source.shape))
        entries = sum(map(math.prod, shapes))
        gradients = graph.pull_to_edges(
            edges, cotangent, several=False, entries=entries
        )
        return [
            source.detach().new_zeros(shape) if g is None else g.reshape(shape)
            for g, shape, source in zip(gradients, shapes, graph.sources, strict=True)
        ]

    def add(
        self, values: Sequence[Tensor], columns: slice, weights: Sequence[float]
    ) -> None:
        """Add what was pulled last, ``(S, n, *)`` per source, step by step."""
        for i, (value, merged) in enumerate(zip(values, self._merged, strict=True)):
            total = self._at_prefix[i] if merged else self._at_source[i]
            assert total is not None, "merged means that there is a place"
            if merged and lies_last(value[0]) and not lies_last(total):
                # As it lies, or adding would rearrange every step.
                total = total.contiguous(memory_format=torch.channels_last)
                self._at_prefix[i] = total
            for step, weight in enumerate(weights):
                total[columns].add_(wide(value[step]), alpha=weight)

    def values(self) -> Point:
        """Return the sums at the sources."""
        found = []
        for total, summed, prefix in zip(
            self._at_source, self._at_prefix, self._prefixes, strict=True
        ):
            if prefix is not None and summed is not None:
                total = total + wide(prefix.pull(summed))
            found.append(total)
        pairs = zip(found, self._sources, strict=True)
        return [f.to(s.dtype) for f, s in pairs]


def bytes_of_sums(starts: Sequence[Prefix | None], graph: Graph) -> int:
    """Return the bytes that sums take at a graph's sources and affine beginnings."""
    places = [(s, tuple(s.shape)) for s in graph.sources]
    places += [(p.source, _rows_of(p)) for p in starts if p is not None]
    return sum(
        math.prod(shape) * wide(like.detach()[:0]).element_size()
        for like, shape in places
    )


def _zeros(like: Tensor, shape: tuple[int, ...]) -> Tensor:
    return torch.zeros(shape, dtype=wide(like.detach()[:0]).dtype, device=like.device)


def _rows_of(prefix: Prefix) -> tuple[int, ...]:
    """Return the shape of a prefix's output, with the samples first."""
    shape, samples = prefix.shape, len(prefix.source)
    return shape if shape[0] == samples else (samples, math.prod(shape) // samples)
