"""Forward and backward passes at stacks of points, in pieces that fit the memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gradkit._call._objective import evaluate
from gradkit._guards._graph import Graph
from gradkit._planner import Planner
from gradkit._problem._outputs import Outputs
from gradkit.errors import InputError
from gradkit.objectives import as_objective
from gradkit.saliency._points import Point, Points
from gradkit.saliency._prefix import prefixes
from gradkit.saliency._proofs import Proofs
from gradkit.saliency._pulled_once import PulledOnce, bytes_of_sums
from gradkit.saliency._runs import Runs

__all__ = ["Passes"]

Tile = Callable[[slice, slice], tuple[Tensor, ...]]
#: From a graph and a cotangent to tensors with the samples first.
Pull = Callable[[Graph, Tensor], Sequence[Tensor]]

#: Bytes of a forward's and a backward's tensors up to which steps are stacked on a
#: CPU: what does not stay in its caches costs more than stacking saves.
_CACHED = 2**25
#: Bytes of the pieces that a larger step is run in. Its tensors are small enough that
#: the C library keeps their memory, and needn't have it cleared for every step.
_PIECE = 2**24
#: Which part of the memory sums at a layer's output, not at the source, may take.
_SUMS = 32


def _at_sources(graph: Graph, cotangent: Tensor) -> Sequence[Tensor]:
    """Return the gradient at each source, in its own shape."""
    return graph.pull_to(graph.sources, cotangent)


class _Cut(NamedTuple):
    """A step that is run in pieces: graphs that are held by their start, if any."""

    step: int
    graphs: dict[int, Graph]
    cotangent: Tensor


class Passes:
    """Runs the model of a call at points near its inputs.

    The objective is called once for each point, in order, on the outputs of its whole
    batch. Several points are stacked for the model, as many as the memory allows and
    its caches reward. A batch that does not fit the caches is run in pieces; one that
    does not fit the memory twice: for the objective, and for the gradient.

    Args:
        runs: Of the call's model.
    """

    def __init__(self, runs: Runs) -> None:
        self._call, self._runs = runs.call, runs
        self._proofs = Proofs(runs)
        self._samples = runs.call.inputs.samples
        self._measuring = False
        #: Whether the model is made for the batch's own size, and runs at no other.
        self._is_whole = False
        #: Whether the graphs of a whole batch's pieces are held at once.
        self._keeps = False
        self._objective = as_objective(
            self._call.request.objective, labels_mean_class_score=True
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
                whole = [torch.empty_like(s) for s in self._runs.sources]
            for target, value in zip(whole, values, strict=True):
                target[columns] = value[0]
            if columns.stop == self._samples:
                yield whole

    def summed(self, points: Iterable[Point], weights: Sequence[float]) -> Point:
        """Return the sum of the gradients at points, each times its weight."""
        ahead = Points(points)
        graph = self._call.task.graph
        starts = prefixes(graph)
        room = self._call.planner.budget // _SUMS
        (first,) = ahead.take(slice(0, 1))
        if bytes_of_sums(starts, graph) > room or not self._proofs.merges(first):
            starts = [None] * len(starts)
        total = PulledOnce(graph, starts)
        run = self._pulled(ahead, total.pulled)
        count = len(weights)
        tiles = self._tiles(
            "gradients", count, ahead, run, bytes_of_sums(starts, graph)
        )
        for rows, columns, values in tiles:
            total.add(values, columns, weights[rows])
            del values
        return total.values()

    def values(self, points: Iterable[Point], count: int) -> Iterator[Tensor]:
        """Yield the objective's values ``(N,)`` at each of ``count`` points."""
        ahead = Points(points)
        last: list[Outputs] = []

        def ran(rows: slice, columns: slice) -> tuple[Tensor, ...]:
            last[:] = [self._runs.outputs(ahead.take(rows), columns)]
            return ()

        parts: list[Outputs] = []
        for rows, columns, _ in self._tiles("values", count, ahead, ran):
            parts += last
            if columns.stop < self._samples:
                continue
            outputs = self._runs.joined(parts)
            parts.clear()
            for step in range(rows.stop - rows.start):
                yield self._evaluated(outputs, step, values_only=True)[0].detach()

    def _pulled(self, ahead: Points, pull: Pull) -> Tile:
        """Return what pulls the objective back at a stack of points."""
        cut = _Cut(-1, {}, torch.empty(0))

        def pulled(rows: slice, columns: slice) -> tuple[Tensor, ...]:
            nonlocal cut
            stack = ahead.take(rows)
            steps, width = len(stack), columns.stop - columns.start
            if not self._measuring and width < self._samples and cut.step != rows.start:
                cut = self._cut(stack[0], rows.start, width)
            graph = cut.graphs.pop(columns.start, None)
            graph = graph or self._runs.graph(stack, columns)
            if self._measuring:
                # The objective is called once for each point, and not for this.
                cotangent = torch.ones(width, graph.outputs.width, device=graph.device)
            elif width < self._samples:
                cotangent = cut.cotangent[columns]
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
        # What is measured is the model, not the drawing.
        (first,) = ahead.take(slice(0, 1))
        self._runs.prepare(first)
        name = f"saliency's {name}"
        unit = self._measured(name, run)
        own = sum(s[:1].nbytes for s in self._runs.sources)
        # A point, its place in the stack, and its gradient, for each step; and what
        # points are drawn from and what becomes of them: baselines, ways, noise, sums.
        held += 7 * own * self._samples
        each = unit + 4 * own
        units = (planner.budget - held) // each
        if planner.strict:
            self._refuse_more_than(units, held, each)
        if self._is_whole:
            units = self._samples
        else:
            units = self._cut_for_caches(units, each, first)
        steps = min(units // self._samples, count)
        if steps > 1 and not self._proofs.stacks(ahead.take(slice(0, steps))):
            units = self._samples
        tiler = Planner(max(units, 1) * unit, planner.known)
        return tiler.tiles(name, count, self._samples, run)

    def _refuse_more_than(self, units: int, held: int, each: int) -> None:
        """Refuse a budget in which ``units`` samples fit, if those are too few."""
        least = self._samples if self._is_whole else 1
        if units >= least:
            return
        what = "one sample"
        if self._is_whole:
            what = f"all {least} samples, since it runs at no other number of them"
        budget = self._call.planner.budget
        raise InputError(
            f"max_memory must hold the model's run on {what}; got {budget:,} bytes,"
            f" and it needs {held + least * each:,}",
            argument="max_memory",
            needed=held + least * each,
            per_sample=each,
        )

    def _measured(self, name: str, run: Tile) -> int:
        """Return the bytes of the model's run on one sample; they are remembered.

        A model may hold a tensor of the batch's own, such as a mask, and fail at any
        other size. Then they are one sample's share, and batches are run whole.
        """
        known = self._call.planner.known
        sizes, whole = known.bytes_per_unit, f"{name}, of the whole batch"
        self._measuring = True
        try:
            if whole not in sizes:
                Planner(1, known).units(name, run)
        except torch.OutOfMemoryError:
            raise
        except Exception:  # what the whole batch raises too is met again
            every = slice(0, self._samples)
            Planner(1, known).units(whole, lambda rows, _: run(rows, every))
            sizes[name] = -(-sizes[whole] // self._samples)
        finally:
            self._measuring = False
        self._is_whole = whole in sizes
        return sizes[name]

    def _cut_for_caches(self, units: int, each: int, first: Point) -> int:
        """Return how many of the samples that fit the memory a CPU should run at once.

        ``each`` are one sample's bytes.
        """
        self._keeps = False
        if any(device.type != "cpu" for device in self._call.guard.devices):
            return units
        if units < self._samples or _CACHED // each >= self._samples:
            return min(units, max(_CACHED // each, 1))
        pieces = -(-self._samples * each // _PIECE)
        width = -(-self._samples // pieces)
        self._keeps = self._proofs.divides(first, width)
        return width if self._keeps else self._samples

    def _evaluated(
        self, outputs: Outputs, step: int, *, values_only: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Return the objective's values and cotangent at one point of a stack."""
        own = self._runs.step(outputs, step)
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

    def _cut(self, point: Point, step: int, width: int) -> _Cut:
        """Run a batch in pieces of ``width``, for the objective."""
        graphs: dict[int, Graph] = {}
        parts = []
        try:
            for piece in self._runs.pieces(width):
                if self._keeps:
                    graph = graphs[piece.start] = self._runs.graph([point], piece)
                    parts.append(graph.outputs)
                else:
                    parts.append(self._runs.outputs([point], piece))
        except Exception:
            self._keeps = False  # there may be too little memory
            raise
        with torch.no_grad():
            outputs = self._runs.joined(parts)
        return _Cut(step, graphs, self._cotangent(outputs, 1))
