"""The nodes of a graph, seen from what derivatives are taken by."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from gradkit._guards._graph import Graph

__all__ = ["Users", "nodes_above", "start_of", "users_of"]

Users = dict[Any, list[tuple[Any, int]]]


def users_of(graph: Graph) -> Users:
    """Return for each node those that lead to it, and the place that it has there.

    An output leads to its node too, as ``None``.
    """
    users: Users = {}
    for tensor in graph.outputs.tensors:
        if tensor.grad_fn is not None:
            users.setdefault(tensor.grad_fn, []).append((None, 0))
    for node in graph.nodes():
        for place, (below, _) in enumerate(node.next_functions):
            if below is not None:
                users.setdefault(below, []).append((node, place))
    return users


def start_of(source: Tensor, users: Users) -> Any:
    """Return the node that a source's gradient arrives at, or ``None``."""
    if source.grad_fn is not None:
        return source.grad_fn
    for node in users:
        if getattr(node, "variable", None) is source:
            return node
    return None


def nodes_above(graph: Graph) -> set[Any]:
    """Return the nodes between the sources and the outputs."""
    users = users_of(graph)
    found: set[Any] = set()
    waiting = [start_of(source, users) for source in graph.sources]
    while waiting:
        for node, _ in users.get(waiting.pop(), []):
            if node is not None and node not in found:
                found.add(node)
                waiting.append(node)
    return found
