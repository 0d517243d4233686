"""Proof that the tape has seen every use of a parameter.

The autograd graph is walked from the outputs. A recorded operation is crossed from
its output to its inputs; whoever then arrives at a parameter has found a use that the
tape did not see, and that parameter is not served.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch.autograd.function import BackwardCFunction

from gradkit._guards._walk import nodes_below
from gradkit._rules._recorded import Edge, Recorded, Source

__all__ = ["has_python_nodes", "is_whole", "unseen_uses"]


def _next(edge: Edge) -> Iterator[Edge]:
    for node, number in edge[0].next_functions:
        if node is not None:
            yield node, number


def _is_leaf(node: Any) -> bool:
    return not node.next_functions


def is_whole(start: Edge, inputs: Iterable[Edge], sources: Iterable[Edge]) -> bool:
    """Whether the graph between an output and the known edges holds nothing else.

    Args:
        start: Where the output's cotangent arrives.
        inputs: Where the operation's other arguments' gradients arrive.
        sources: Where its parameters' gradients arrive.
    """
    stop = {*inputs, *sources}
    reached: set[Edge] = set()
    seen: set[Any] = set()
    waiting = [start]
    while waiting:
        edge = waiting.pop()
        if edge in stop:
            reached.add(edge)
            continue
        if edge[0] in seen:
            continue
        if _is_leaf(edge[0]):
            return False  # something that requires grad and is none of its arguments
        seen.add(edge[0])
        waiting += _next(edge)
    return not reached.isdisjoint(sources)


def unseen_uses(
    outputs: Iterable[Edge],
    recorded: Sequence[Recorded],
    parameters: Sequence[Source],
) -> tuple[set[int], set[int]]:
    """Return the parameters that are reached past the tape, and what is reached on it.

    Args:
        outputs: Where the model's outputs' cotangents arrive.
        recorded: The operations that are crossed.
        parameters: The parameters, in order.

    Returns:
        Positions among ``parameters``, and positions among ``recorded``.
    """
    crossings = {r.edge: i for i, r in enumerate(recorded)}
    # By node: a parameter's gradient arrives at a node of its own; one that is
    # computed (a parametrised weight of the caller's) may share its node with others.
    targets: Mapping[Edge, int] = {p.edge: i for i, p in enumerate(parameters)}
    found: set[int] = set()
    reached: set[int] = set()
    seen: set[Edge] = set()
    waiting = list(outputs)
    while waiting:
        edge = waiting.pop()
        if edge in seen:
            continue
        seen.add(edge)
        if edge in targets:
            found.add(targets[edge])
            continue
        crossing = crossings.get(edge)
        if crossing is not None:
            reached.add(crossing)
            waiting += recorded[crossing].inputs
            continue
        waiting += _next(edge)
    return found, reached


def has_python_nodes(outputs: Iterable[Edge]) -> bool:
    """Whether a node of the graph is defined in Python, where parameters can hide."""
    nodes = nodes_below(node for node, _ in outputs)
    return any(isinstance(node, BackwardCFunction) for node in nodes)
