"""Forwards of a call's model at stacks of points, on some of its samples."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradkit._call._open import Call
from gradkit._guards._graph import Graph
from gradkit._layouts import LARGE, gains_layout
from gradkit._problem._outputs import Outputs
from gradkit._quick import gains_forward, is_looked_on, quick_forward
from gradkit.saliency._alike import alike
from gradkit.saliency._points import Point, joined, part_of, step_of

__all__ = ["Runs", "halved"]


def halved(point: Point) -> Point:
    """Return a point that lies elsewhere than others do."""
    return [t * -0.5 for t in point]


class Runs:
    """Runs the model of a call at points near its inputs.

    Args:
        call: The call, whose forward has run at the inputs.
        sources: What points are in place of, ``(N, *)`` each.
        places: Where each stands among the inputs' tensors; ``None``: a submodule's
            output.
    """

    def __init__(
        self, call: Call, sources: Point, places: Sequence[int | None]
    ) -> None:
        self.call, self.sources, self._places = call, sources, list(places)
        self._samples = call.inputs.samples
        #: Which leaves of the outputs have the samples first.
        self._has_rows = [
            isinstance(v, Tensor) and v.ndim > 0 and len(v) == self._samples
            for v in call.task.graph.outputs.leaves
        ]
        self._gains = gains_forward(call.task.graph.nodes())
        self._laid_from: int | None = None

    def prepare(self, first: Point) -> None:
        """Find out whether images may lie with the channels last; it is remembered."""
        self._laid_from = LARGE if self._lies_anywhere(first) else None

    def _lies_anywhere(self, first: Point) -> bool:
        known = self.call.known
        if is_looked_on() or not gains_layout(self.call.task.graph.nodes()):
            return False
        if known.lies_anywhere is None or self.call.proof_due:
            columns = slice(0, min(self._samples, 2))
            known.lies_anywhere = all(
                alike(self._run([point], columns, way) for way in (None, 0))
                for point in (self.sources, first, halved(first))
            )
        return known.lies_anywhere

    def graph(self, stack: Sequence[Point], columns: slice) -> Graph:
        """Run the model on samples ``columns`` of every point of the stack."""
        graph = self._run_laid(stack, columns) or self._run(stack, columns, None)
        # A model may draw, or write to itself, at other values than the inputs' alone.
        self.call.guard.observe()
        return graph

    def outputs(self, stack: Sequence[Point], columns: slice) -> Outputs:
        """Run the model without a graph."""
        with torch.no_grad():
            return self.graph(stack, columns).outputs

    def _run_laid(self, stack: Sequence[Point], columns: slice) -> Graph | None:
        if self._laid_from is None:
            return None
        try:
            return self._run(stack, columns, self._laid_from)
        except Exception:
            # A branch that was not taken before is made for one layout.
            self.call.known.lies_anywhere, self._laid_from = False, None
            return None

    def _run(
        self, stack: Sequence[Point], columns: slice, laid_from: int | None
    ) -> Graph:
        given = [part_of([p[i] for p in stack], columns) for i in range(len(stack[0]))]
        tensors = []
        for place, tensor in enumerate(self.call.inputs.tensors):
            if place in self._places:
                tensors.append(given[self._places.index(place)])
            elif tensor.role == "sample":
                tensors.append(part_of([tensor.tensor] * len(stack), columns))
            else:
                tensors.append(tensor.tensor)
        placed = [g for g, p in zip(given, self._places, strict=True) if p is None]
        forwards = self.call.forwards.at(tensors, placed)
        with quick_forward(self._gains, laid_from):
            return forwards.graph()

    def step(self, outputs: Outputs, step: int) -> Outputs:
        """Return the outputs of one point of a stack."""
        return step_of(outputs, step, self._samples, self._has_rows)

    def joined(self, parts: Sequence[Outputs]) -> Outputs:
        """Return the outputs of pieces of one stack as those of the stack."""
        return joined(parts, self._has_rows)

    def pieces(self, width: int) -> list[slice]:
        """Return the batch in pieces of ``width`` samples."""
        starts = range(0, self._samples, width)
        return [slice(s, min(s + width, self._samples)) for s in starts]
