"""What a tape holds: sources, the calls that computed them, and operations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from gradkit._rules._arguments import Path, settings_in, tensors_in

__all__ = ["Edge", "Geometry", "Recorded", "Source", "Step", "edge_of", "name_of"]

#: A node of the autograd graph, and which of its outputs.
Edge = tuple[Any, int]


@dataclass(eq=False)
class Called:
    """One torch call: ``function(*args, **kwargs)``.

    ``places`` says which source stands where among the arguments; ``versions`` are
    those of the other tensors when it was made.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    places: dict[Path, int]
    versions: list[tuple[Tensor, int]]

    @property
    def name(self) -> str:
        """The function's name, for messages."""
        return name_of(self.function)

    def tensors(self) -> Iterator[tuple[Path, Tensor]]:
        """Yield the tensors among its arguments, and where they stand."""
        return tensors_in(self.args, self.kwargs)

    def settings(self) -> Iterator[Any]:
        """Yield the settings among its arguments, and the shapes of tensors."""
        return settings_in(self.args, self.kwargs)

    def is_current(self) -> bool:
        """Whether its arguments still hold what it computed with."""
        return all(t._version == version for t, version in self.versions)


@dataclass(eq=False)
class Source:
    """A parameter, or a value computed from parameters and constants alone.

    ``parents`` are the positions of the sources it is computed from; ``step`` computes
    it again, from their values.
    """

    tensor: Tensor
    edge: Edge
    version: int
    parents: tuple[int, ...] = ()
    step: Step | None = None

    def is_current(self) -> bool:
        """Whether nobody has written to it since it was computed."""
        return self.step is None or self.tensor._version == self.version


@dataclass(eq=False)
class Step(Called):
    """A call that computed a source: its result, or the ``output``-th part of it."""

    output: int | None = None


@dataclass(frozen=True)
class Geometry:
    """How an output lies on the memory whose gradient is asked for."""

    shape: tuple[int, ...]
    stride: tuple[int, ...] | None = None
    offset: int = 0

    def of(self, gradient: Tensor, lead: int) -> Tensor:
        """Return a gradient in the output's shape, after ``lead`` other axes."""
        if self.stride is None:
            return gradient
        gradient = gradient.contiguous()
        size = gradient[(0,) * lead].numel()
        flat = gradient.reshape(*gradient.shape[:lead], size)
        front = tuple(flat.stride())[:lead]
        return flat.as_strided(
            (*gradient.shape[:lead], *self.shape),
            (*front, *self.stride),
            flat.storage_offset() + self.offset,
        )


@dataclass(eq=False)
class Recorded(Called):
    """A call that took a source and something of the samples.

    ``inputs`` are the edges of its other arguments, taken before the call; ``sampled``
    says which arguments hold something of the samples.
    """

    inputs: set[Edge]
    edge: Edge
    geometry: Geometry
    dtype: torch.dtype
    sampled: frozenset[Path]

    @property
    def nbytes(self) -> int:
        """The bytes of the output, and of a cotangent of it."""
        return prod(self.geometry.shape) * self.dtype.itemsize


def name_of(function: Callable[..., Any]) -> str:
    """Return a torch function's name, for messages."""
    return getattr(function, "__name__", str(function))


def edge_of(tensor: Tensor) -> Edge:
    """Return where a tensor's gradient arrives."""
    edge = get_gradient_edge(tensor)
    return edge.node, edge.output_nr
