"""The custom Functions of a graph: backwards that someone wrote in Python."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch.autograd.function import BackwardCFunction

from gradkit._guards._walk import nodes_below

__all__ = ["custom_name", "custom_nodes"]


def custom_nodes(starts: Iterable[Any]) -> list[Any]:
    """Return the nodes of custom ``autograd.Function`` that ``starts`` lead to."""
    return [n for n in nodes_below(starts) if isinstance(n, BackwardCFunction)]


def custom_name(node: Any) -> str:
    """Return the name of the Function that a node is of."""
    written = getattr(type(node), "_forward_cls", None)
    return getattr(written, "__name__", type(node).__name__.removesuffix("Backward"))
