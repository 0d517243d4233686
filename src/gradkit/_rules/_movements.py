"""How a graph moves entries about, as far as the place of samples depends on it.

Where samples stand is proved by weights, and remembered for graphs that are alike.
Alike means: the same nodes, joined in the same way, with the same axes, shifts and
positions. Where values decide what goes where (an index, a sort, a scatter), no graph
is like another, and the proof is made at every call.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gradkit._guards._walk import nodes_below
from gradkit._rules._recorded import Edge

__all__ = ["movements"]

#: What nodes say of how they move entries, by the head of their name.
_SETTINGS = {
    "Permute": ("_saved_dims",),
    "Transpose": ("_saved_dim0", "_saved_dim1"),
    "Roll": ("_saved_shifts", "_saved_dims"),
    "Flip": ("_saved_dims",),
    "Select": ("_saved_dim", "_saved_index"),
    "Slice": ("_saved_dim", "_saved_start", "_saved_end", "_saved_step"),
    "Unbind": ("_saved_dim",),
    "Cat": ("_saved_dim",),
    "Stack": ("_saved_dim",),
}
#: Nodes that move entries to where values say.
_BY_VALUES = ("Index", "Gather", "Scatter", "Sort", "Topk", "Take", "Masked", "Put")


def movements(outputs: Iterable[Edge]) -> tuple[int, bool]:
    """Return a fingerprint of a graph, and whether values decide what goes where."""
    places: dict[Any, int] = {}
    said: list[Any] = []
    by_values = False
    for node in nodes_below(node for node, _ in outputs):
        places[node] = len(places)
        name = node.name()
        said.append(name)
        head = name.partition("Backward")[0]
        if head.startswith(_BY_VALUES):
            by_values = True
        said += [repr(getattr(node, s, None)) for s in _SETTINGS.get(head, ())]
        said += [(places.get(n, -1), number) for n, number in node.next_functions]
    return hash(tuple(said)), by_values
