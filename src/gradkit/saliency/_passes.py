"""Forward and backward passes at stacks of points, in pieces that fit the memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from gradkit._call._objective import evaluate
from gradkit._call._open import Call
from gradkit._call._proof import moved_by_shape
from gradkit._guards._graph import Graph
from gradkit._guards._independence import coupled_sample, random_cotangent
from gradkit._planner import Planner
from gradkit._problem._outputs import Outputs
from gradkit._quick import gains_forward, quick_forward
from gradkit.errors import InputError
from gradkit.objectives import as_objective
from gradkit.saliency._points import Point, Points, joined, part_of, step_of
from gradkit.saliency._prefix import is_faithful
from gradkit.saliency._pulled_once import PulledOnce

__all__ = ["Passes"]

Tile = Callable[[slice, slice], tuple[Tensor, ...]]
#: From a graph and a cotangent to tensors with the samples first.
Pull = Callable[[Graph, Tensor], Sequence[Tensor]]

#: Bytes of a forward's and a backward's tensors up to which steps are stacked on a
#: CPU: what does not stay in its caches costs more than stacking saves.
_CACHED = 2**25
#: Which part of the memory sums at a layer's output, not at the source, may take.
_SUMS = 32


def _at_sources(graph: Graph, cotangent: Tensor) -> Sequence[Tensor]:
    """Return the gradient at each source, in its own shape."""
    return graph.pull_to(graph.sources, cotangent)


def _values(outputs: Outputs, samples: int) -> Tensor:
    """Return outputs as ``(N, K)``."""
    return Graph(outputs, (), None, samples).values()


def _halved(point: Point) -> Point:
    return [t * -0.5 for t in point]


class Passes:
    """Runs the model of a call at points near its inputs.

    The objective is called once for each point, in order, on the outputs of its whole
    batch. Several points are stacked for the model, as many as the memory allows and
    its caches reward; a batch that does not fit is run in pieces, twice: for the
    objective, and for the gradient.

    Args:
        call: The call, whose forward has run at the inputs.
        sources: What points are in place of, ``(N, *)`` each.
        places: Where each stands among the inputs' tensors; ``None``: a submodule's
            output.
    """

    def __init__(
        self, call: Call, sources: Point, places: Sequence[int | None]
    ) -> None:
        self._call, self._sources, self._places = call, sources, list(places)
        self._samples = call.inputs.samples
        self._measuring = False
        #: Which leaves of the outputs have the samples first.
        self._has_rows = [
            isinstance(v, Tensor) and v.ndim > 0 and len(v) == self._samples
            for v in call.task.graph.outputs.leaves
        ]
        self._gains = gains_forward(call.task.graph.nodes())
        self._objective = as_objective(
            call.request.objective, labels_mean_class_score=True
        )

    def gradients(self, points: Iterable[Point], count: int) -> Iterator[Point]:
        """Yield the gradient at each of ``count`` points, in order."""
        ahead = Points(points)
        run = self._pulled(ahead, _at_sources)
        whole: Point = []
        for rows, columns, values in self._tiles("gradients", count, ahead, run):
            if columns == slice(0, self._samples):
                for step in range(rows.stop - rows.start):
                    yield [v[step] for v in values]
                continue
            if columns.start == 0:
                whole = [torch.empty_like(s) for s in self._sources]
            for target, value in zip(whole, values, strict=True):
                target[columns] = value[0]
            if columns.stop == self._samples:
                yield whole

    def summed(self, points: Iterable[Point], weights: Sequence[float]) -> Point:
        """Return the sum of the gradients at points, each times its weight."""
        ahead = Points(points)
        graph = self._call.task.graph
        total = PulledOnce(graph, merges=self._merges(ahead.take(slice(0, 1))[0]))
        if total.nbytes > self._call.planner.budget // _SUMS:
            total = PulledOnce(graph, merges=False)
        run = self._pulled(ahead, total.pulled)
        count = len(weights)
        tiles = self._tiles("gradients", count, ahead, run, total.nbytes)
        for rows, columns, values in tiles:
            total.add(values, columns, weights[rows])
            del values
        return total.values()

    def values(self, points: Iterable[Point], count: int) -> Iterator[Tensor]:
        """Yield the objective's values ``(N,)`` at each of ``count`` points."""
        ahead = Points(points)
        last: list[Outputs] = []

        def ran(rows: slice, columns: slice) -> tuple[Tensor, ...]:
            last[:] = [self._outputs(ahead.take(rows), columns)]
            return ()

        parts: list[Outputs] = []
        for rows, columns, _ in self._tiles("values", count, ahead, ran):
            parts += last
            if columns.stop < self._samples:
                continue
            outputs = joined(parts, self._has_rows)
            parts.clear()
            for step in range(rows.stop - rows.start):
                yield self._evaluated(outputs, step, values_only=True)[0].detach()

    def _pulled(self, ahead: Points, pull: Pull) -> Tile:
        """Return what pulls the objective back at a stack of points."""
        cotangents: dict[int, Tensor] = {}

        def pulled(rows: slice, columns: slice) -> tuple[Tensor, ...]:
            stack = ahead.take(rows)
            steps, width = len(stack), columns.stop - columns.start
            if self._measuring:
                # The objective is called once for each point, and not for this.
                graph = self._graph(stack, columns)
                one = torch.ones(width, graph.outputs.width, device=graph.device)
                return tuple(pull(graph, one))
            if width < self._samples and rows.start not in cotangents:
                cotangents.clear()
                cotangents[rows.start] = self._cotangent_in_pieces(stack[0], width)
            graph = self._graph(stack, columns)
            if width < self._samples:
                cotangent = cotangents[rows.start][columns]
            else:
                cotangent = self._cotangent(graph.outputs, steps)
            return tuple(
                g.detach().reshape(steps, width, *g.shape[1:])
                for g in pull(graph, cotangent)
            )

        return pulled

    def _tiles(
        self, name: str, count: int, ahead: Points, run: Tile, held: int = 0
    ) -> Any:
        """Yield ``(steps, samples, run(steps, samples))`` over all of them.

        ``held`` are the bytes of what is kept meanwhile.
        """
        planner = self._call.planner
        ahead.take(slice(0, 1))  # what is measured is the model, not the drawing
        name = f"saliency's {name}"
        unit = self._measured(name, run)
        own = sum(s[:1].nbytes for s in self._sources)
        # A point, its place in the stack, and its gradient, for each step; and what
        # points are drawn from and what becomes of them: baselines, ways, noise, sums.
        held += 7 * own * self._samples
        each = unit + 4 * own
        units = (planner.budget - held) // each
        if planner.strict and units < 1:
            raise InputError(
                "max_memory must hold the model's run on one sample; got"
                f" {planner.budget:,} bytes, and it needs {held + each:,}",
                argument="max_memory",
                needed=held + each,
                per_sample=each,
            )
        if all(device.type == "cpu" for device in self._call.guard.devices):
            units = min(units, max(_CACHED // each, self._samples))
        steps = min(units // self._samples, count)
        if steps > 1 and not self._stacks(ahead.take(slice(0, steps))):
            units = self._samples
        tiler = Planner(max(units, 1) * unit, planner.known)
        return tiler.tiles(name, count, self._samples, run)

    def _measured(self, name: str, run: Tile) -> int:
        """Return the bytes of the model's run on one sample; they are remembered."""
        known = self._call.planner.known
        self._measuring = True
        try:
            Planner(1, known).units(name, run)
        finally:
            self._measuring = False
        return known.bytes_per_unit[name]

    def _merges(self, first: Point) -> bool:
        """Whether sums may pass the affine beginning once; it is remembered.

        Where another mode looks on, as ``batch_invariant`` does, no bit may depend on
        the memory that is given, and with it on where sums are taken.
        """
        if torch._C._len_torch_dispatch_stack():
            return False
        known = self._call.known
        if known.merges is None or self._call.proof_due:
            base = self._call.task.graph
            every = slice(0, self._samples)
            others = [self._graph([point], every) for point in (first, _halved(first))]
            known.merges = all(is_faithful(base, other) for other in (base, *others))
        return known.merges

    def _stacks(self, stack: Sequence[Point]) -> bool:
        """Whether several batches of ``N`` may be run as one; it is remembered.

        Never those of a lone sample: a branch that is taken for the whole batch is its
        own there, and nobody could tell that steps meet in it.
        """
        if self._samples < 2:
            return False
        known = self._call.known
        if known.stacks is None or self._call.proof_due:
            known.stacks = self._come_out_alike([stack[0], stack[-1]])
        return known.stacks

    def _come_out_alike(self, stack: Sequence[Point]) -> bool:
        """Whether batches have in a stack the outputs that they have alone.

        Samples were proved independent in a batch of ``N``. A model may be made for
        that size, or take a branch for the whole batch, as a lone sample may.
        """
        every = slice(0, self._samples)
        try:
            graph = self._graph(stack, every)
            for step in range(len(stack)):
                alone = self._outputs([stack[step]], every)
                among = self._step(graph.outputs, step)
                if moved_by_shape(*(_values(o, self._samples) for o in (alone, among))):
                    return False
            if graph.sources:
                size = (len(stack) * self._samples, graph.outputs.width)
                like = torch.empty((), dtype=graph.dtype, device=graph.device)
                return coupled_sample(graph.pull, random_cotangent(size, like)) is None
        except torch.OutOfMemoryError:
            return True  # which is met again, and then there is less at once
        except Exception:
            return False  # what a batch of N raises too is met again
        return True

    # -- one forward at a stack of points ---------------------------------------

    def _graph(self, stack: Sequence[Point], columns: slice) -> Graph:
        """Run the model on samples ``columns`` of every point of the stack."""
        given = [part_of([p[i] for p in stack], columns) for i in range(len(stack[0]))]
        tensors = []
        for place, tensor in enumerate(self._call.inputs.tensors):
            if place in self._places:
                tensors.append(given[self._places.index(place)])
            elif tensor.role == "sample":
                tensors.append(part_of([tensor.tensor] * len(stack), columns))
            else:
                tensors.append(tensor.tensor)
        placed = [g for g, p in zip(given, self._places, strict=True) if p is None]
        forwards = self._call.forwards.at(tensors, placed)
        with quick_forward(self._gains):
            graph = forwards.graph()
        # A model may draw, or write to itself, at other values than the inputs' alone.
        self._call.guard.observe()
        return graph

    def _outputs(self, stack: Sequence[Point], columns: slice) -> Outputs:
        with torch.no_grad():
            return self._graph(stack, columns).outputs

    def _step(self, outputs: Outputs, step: int) -> Outputs:
        """Return the outputs of one point of a stack."""
        return step_of(outputs, step, self._samples, self._has_rows)

    def _evaluated(
        self, outputs: Outputs, step: int, *, values_only: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Return the objective's values and cotangent at one point of a stack."""
        own = self._step(outputs, step)
        return evaluate(
            self._objective,
            Graph(own, (), None, self._samples),
            self._call.guard.autocast,
            batched=True,
            known=True,
            values_only=values_only,
        )

    def _cotangent(self, outputs: Outputs, steps: int) -> Tensor:
        parts = [self._evaluated(outputs, step)[1] for step in range(steps)]
        return parts[0] if steps == 1 else torch.cat(parts)

    def _cotangent_in_pieces(self, point: Point, width: int) -> Tensor:
        """Return the cotangent of a batch that is run in pieces of ``width``."""
        starts = range(0, self._samples, width)
        pieces = [slice(s, min(s + width, self._samples)) for s in starts]
        parts = [self._outputs([point], piece) for piece in pieces]
        return self._cotangent(joined(parts, self._has_rows), 1)
