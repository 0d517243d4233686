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

    gradkit makes it and hands it to the functions of a ``gk.Method``. A *source* is
    an input, a submodule's output or a parameter that is differentiated with respect
    to. There are ``R`` rows per sample: 1 for an objective, ``K`` for a Jacobian.

    Attributes:
        kind: ``"inputs"`` or ``"parameters"``: what the sources are.
        graph: The ordinary autograd graph of the one forward, whose
            ``pull(cotangent)`` takes ``(N, K)`` to one tensor per source: ``(N, size)``
            by inputs, ``(size,)`` summed over samples by parameters.
        forwards: Runs the model again, and knows its inputs and parameters.
        planner: Splits work into tiles that fit the memory budget.
        cotangent: The objective's cotangent ``(N, K)``; ``None`` for a Jacobian.
        connected: Whether the result keeps its graph.

    Example:
        >>> import torch
        >>> import gradkit as gk
        >>> seen = []
        >>> def look(task):
        ...     seen.append((task.kind, task.samples, task.outputs, task.rows))
        ...     seen.append((task.sizes, task.cotangents(slice(1, 2)).shape))
        ...     return gk.METHODS["loop"].inputs(task)
        >>> method = gk.Method("look", "reverse", "looks at its task", inputs=look)
        >>> _ = gk.jacobian(torch.nn.Linear(3, 2), torch.ones(5, 3), method=method)
        >>> seen
        [('inputs', 5, 2, 2), ((3,), torch.Size([1, 5, 2]))]
    """

    kind: Literal["inputs", "parameters"]
    graph: Graph
    forwards: Forwards
    planner: Tiler
    cotangent: Tensor | None
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
        """Return the cotangents of some rows of some samples.

        Args:
            rows: From a first to an end, both given; of an objective the one row.
            samples: Which samples; all of them by default.

        Returns:
            ``(r, n, K)`` in the dtype of the graph: one-hot for a Jacobian, the
            objective's own otherwise.
        """
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
        """Return the cotangent of a weighted sum of each sample's rows.

        Args:
            weights: ``(N, R)``.

        Returns:
            ``(N, K)``, in the dtype of the task's other cotangents.
        """
        if self.cotangent is None:
            return weights.to(self.graph.dtype)
        return self.cotangent * weights.to(self.cotangent.dtype)

    def part(self, tensors: Values, dims: Any, samples: slice) -> Values:
        """Return tensors, those with samples cut to some of them.

        Args:
            tensors: One or more, of any shape.
            dims: For each, ``0`` where its first axis is the samples', else ``None``.
            samples: Which samples.

        Returns:
            As ``tensors``.
        """
        return tuple(
            t if d is None else t[samples] for t, d in zip(tensors, dims, strict=True)
        )

    def function(self) -> tuple[Callable[..., Tensor], Values, Values, Any]:
        """Return the model as a function of one sample, and its arguments.

        Returns:
            ``f``, sources, others and the others' ``in_dims``, as ``torch.vmap``
            takes them. ``f(sources, others)`` is ``(K,)``, of one sample's part of
            each. Sources come in the order of the graph's.
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
