"""Whether runs of a model come out alike however its work is laid out and cut."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from gradkit._call._proof import moved_by_shape
from gradkit._guards._graph import Graph
from gradkit._guards._independence import coupled_sample, random_cotangent
from gradkit._problem._outputs import Outputs

__all__ = ["alike", "outputs_alike", "uncoupled"]


def outputs_alike(first: Outputs, second: Outputs) -> bool:
    """Whether outputs for the same samples differ by rounding alone."""
    return not moved_by_shape(*(_values(o) for o in (first, second)))


def alike(graphs: Iterable[Graph]) -> bool:
    """Whether two runs on the same samples have the same outputs and gradients.

    What one of them raises, as a ``view`` of images that lie otherwise does, says no.
    """
    try:
        first, second = graphs
        if not outputs_alike(first.outputs, second.outputs):
            return False
        cotangent = _cotangent(first)
        pairs = zip(first.pull(cotangent), second.pull(cotangent), strict=True)
        return not any(moved_by_shape(ours, theirs) for ours, theirs in pairs)
    except Exception:
        return False


def uncoupled(graph: Graph) -> bool:
    """Whether no sample's gradient depends on another's outputs."""
    return coupled_sample(graph.pull, _cotangent(graph)) is None


def _values(outputs: Outputs) -> Tensor:
    """Return outputs of any number of samples ``n`` as ``(n, K)``."""
    return Graph(outputs, (), None, len(outputs.tensors[0])).values()


def _cotangent(graph: Graph) -> Tensor:
    like = torch.empty((), dtype=graph.dtype, device=graph.device)
    size = (len(graph.outputs.tensors[0]), graph.outputs.width)
    return random_cotangent(size, like)
