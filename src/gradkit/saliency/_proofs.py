"""What is proved of a model before its steps are cut, stacked, or pulled back at once.

Every answer is remembered of the model, and renewed with its other proofs.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gradkit._quick import is_looked_on
from gradkit.saliency._alike import outputs_alike, uncoupled
from gradkit.saliency._points import Point
from gradkit.saliency._prefix import is_faithful
from gradkit.saliency._runs import Runs, halved

__all__ = ["Proofs"]


class Proofs:
    """Asks a model how its steps may be run.

    Args:
        runs: Of a call's model.
    """

    def __init__(self, runs: Runs) -> None:
        self._call, self._runs = runs.call, runs
        self._samples = runs.call.inputs.samples
        self._every = slice(0, self._samples)

    def divides(self, first: Point, width: int) -> bool:
        """Whether a batch that is run in pieces has its own outputs; it is remembered.

        Samples were proved independent, but some models are made for one size.
        """
        if is_looked_on():
            return False
        known = self._call.known
        if known.divides is None or self._call.proof_due:
            known.divides = self._divides(first, width)
        return known.divides

    def _divides(self, first: Point, width: int) -> bool:
        runs, whole = self._runs, self._call.task.graph.outputs
        try:
            for point in (runs.sources, first):
                parts = [runs.outputs([point], p) for p in runs.pieces(width)]
                if point is first:
                    whole = runs.outputs([first], self._every)
                if not outputs_alike(runs.joined(parts), whole):
                    return False
        except Exception:
            return False  # what a whole batch raises too is met again
        return True

    def merges(self, first: Point) -> bool:
        """Whether sums may pass the affine beginning once; it is remembered."""
        if is_looked_on():
            return False
        known = self._call.known
        if known.merges is None or self._call.proof_due:
            base = self._call.task.graph
            points = (first, halved(first))
            others = [self._runs.graph([point], self._every) for point in points]
            known.merges = all(is_faithful(base, other) for other in (base, *others))
        return known.merges

    def stacks(self, stack: Sequence[Point]) -> bool:
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
        try:
            graph = self._runs.graph(stack, self._every)
            for step in range(len(stack)):
                alone = self._runs.outputs([stack[step]], self._every)
                among = self._runs.step(graph.outputs, step)
                if not outputs_alike(alone, among):
                    return False
            if graph.sources:
                return uncoupled(graph)
        except torch.OutOfMemoryError:
            return True  # which is met again, and then there is less at once
        except Exception:
            return False  # what a batch of N raises too is met again
        return True
