"""The walk of an autograd graph."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any

__all__ = ["nodes_below"]


def nodes_below(starts: Iterable[Any], stop: Collection[Any] = ()) -> Iterator[Any]:
    """Yield each node once that ``starts`` lead to, themselves included.

    Args:
        starts: Nodes; ``None`` is passed over, as what has no gradient has none.
        stop: Nodes that are neither yielded nor passed.
    """
    waiting = [node for node in starts if node is not None]
    seen: set[Any] = set()
    while waiting:
        node = waiting.pop()
        if node in seen or node in stop:
            continue
        seen.add(node)
        yield node
        waiting += [n for n, _ in node.next_functions if n is not None]
