"""The methods, one file each; a new one is one file and one line here."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from gradkit._methods._jacfwd import JACFWD
from gradkit._methods._jacrev import JACREV
from gradkit._methods._loop import LOOP
from gradkit._methods._method import Method
from gradkit._methods._onehot import ONEHOT
from gradkit._methods._rows import ROWS
from gradkit._methods._vmap import VMAP

__all__ = ["AUTO", "METHODS"]

METHODS: Mapping[str, Method] = MappingProxyType(
    {
        method.name: method
        for method in (
            LOOP,
            ONEHOT,
            VMAP,
            JACREV,
            JACFWD,
            ROWS,
        )
    }
)

#: What ``method="auto"`` tries, in order, for each function.
AUTO: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        # One pull-back gives all gradients: nothing is faster.
        "input_gradients": ("onehot", "loop"),
        # All cotangents at once; one by one where torch cannot vmap an operation.
        "jacobian": ("vmap", "onehot", "loop"),
        # One pullback per sample; through the one graph where the forward draws.
        "per_sample_gradients": ("vmap", "rows", "loop"),
        "parameter_jacobian": ("vmap", "rows", "loop"),
    }
)
