"""Nested containers as a list of leaves and back.

A thin layer over ``torch.utils._pytree``, which ``torch.func`` and
``transformers`` register their types with. It differs in two ways: things that
only look like containers (packed sequences) stay whole, so that they can be
refused by name, and mappings that are not ``dict`` (``BatchEncoding``) are
opened.
"""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch import Tensor
from torch.nn.utils.rnn import PackedSequence
from torch.utils import _pytree

__all__ = ["Leaf", "flatten", "leaves", "map_leaves", "pairs", "plain"]


class Leaf(NamedTuple):
    """One leaf and where it stands: ``path`` reads like ``['ids'][0]``."""

    path: str
    value: Any


def _is_whole(value: Any) -> bool:
    return isinstance(value, PackedSequence)


def plain(tree: Any) -> Any:
    """Open a mapping that ``torch.utils._pytree`` takes for a leaf."""
    if isinstance(tree, UserDict) or (
        isinstance(tree, Mapping)
        and not isinstance(tree, dict)
        and _pytree.tree_structure(tree).num_leaves == 1
    ):
        return {key: plain(value) for key, value in tree.items()}
    return tree


def pairs(tree: Any) -> list[tuple[Any, Any]]:
    """Return the keys, or places, of a mapping or sequence with what stands there."""
    opened = plain(tree)
    return list(opened.items() if isinstance(opened, Mapping) else enumerate(opened))


def flatten(tree: Any) -> tuple[list[Leaf], Callable[[list[Any]], Any]]:
    """Return the leaves with their paths, and the function that puts back."""
    if isinstance(tree, Tensor):  # the usual case, and a pytree costs time
        return [Leaf("", tree)], lambda values: values[0]
    paths, spec = _pytree.tree_flatten_with_path(plain(tree), is_leaf=_is_whole)
    found = [Leaf(_pytree.keystr(path), value) for path, value in paths]

    def rebuild(values: list[Any]) -> Any:
        return _pytree.tree_unflatten(values, spec)

    return found, rebuild


def leaves(tree: Any) -> list[Any]:
    """Return the leaves alone."""
    if isinstance(tree, Tensor):
        return [tree]
    return _pytree.tree_leaves(plain(tree), is_leaf=_is_whole)


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """Apply ``function`` to every leaf and keep the containers."""
    if isinstance(tree, Tensor):
        return function(tree)
    return _pytree.tree_map(function, plain(tree), is_leaf=_is_whole)
