"""What a tape holds: sources, the calls that computed them, and operations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

__all__ = [
    "Edge",
    "Geometry",
    "Path",
    "Recorded",
    "Source",
    "Step",
    "edge_of",
    "settings_of",
    "tensors_in",
]

#: A node of the autograd graph, and which of its outputs.
Edge = tuple[Any, int]

#: An argument: its position or keyword, and the place in it where it is a list.
Path = tuple[int | str, int | None]


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
class Step:
    """One call that computed a source: ``function(*args, **kwargs)[output]``."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    #: Which source stands where among the arguments.
    places: dict[Path, int]
    output: int | None
    versions: list[tuple[Tensor, int]] = field(default_factory=list)

    def is_current(self) -> bool:
        """Whether its arguments still hold what it computed with."""
        return all(t._version == version for t, version in self.versions)


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
class Recorded:
    """One call that took a source and something of the samples.

    ``inputs`` are the edges of its other arguments, taken before the call.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    places: dict[Path, int]
    inputs: set[Edge]
    edge: Edge
    geometry: Geometry
    dtype: torch.dtype
    #: Which arguments hold something of the samples.
    sampled: frozenset[Path] = frozenset()
    versions: list[tuple[Tensor, int]] = field(default_factory=list)

    def is_current(self) -> bool:
        """Whether its arguments still hold what it computed with."""
        return all(t._version == version for t, version in self.versions)


def tensors_in(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[tuple[Path, Tensor]]:
    """Yield the tensors among arguments, those in lists too, and where they stand."""
    for position, value in (*enumerate(args), *kwargs.items()):
        if isinstance(value, Tensor):
            yield (position, None), value
        elif isinstance(value, (list, tuple)):
            for place, part in enumerate(value):
                if isinstance(part, Tensor):
                    yield (position, place), part


def settings_of(recorded: Recorded | Step) -> Iterator[Any]:
    """Yield the settings among arguments, and the shapes of tensors."""
    for value in (*recorded.args, *recorded.kwargs.items()):
        if isinstance(value, Tensor):
            yield value.shape
        elif value is None or isinstance(value, (bool, int, float, str)):
            yield type(value), value
        else:
            yield repr(value) if not _holds_tensors(value) else type(value)


def _holds_tensors(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(_holds_tensors, value))
    return isinstance(value, Tensor)


def edge_of(tensor: Tensor) -> Edge:
    """Return where a tensor's gradient arrives."""
    edge = get_gradient_edge(tensor)
    return edge.node, edge.output_nr
