"""The methods, one file each; a new one is one file and one line here."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from gradkit._methods._jacfwd import JACFWD
from gradkit._methods._jacrev import JACREV
from gradkit._methods._loop import LOOP
from gradkit._methods._method import Method
from gradkit._methods._onehot import ONEHOT
from gradkit._methods._rows import ROWS
from gradkit._methods._rules import RULES_METHOD, rules_method
from gradkit._methods._vmap import VMAP
from gradkit.errors import InputError

__all__ = ["AUTO", "METHODS", "read_method", "rules_method"]

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
            RULES_METHOD,
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
        # Each parameter by the first that serves it: its operations' own rules; one
        # pullback per sample; through the one graph where the forward draws.
        "per_sample_gradients": ("rules", "vmap", "rows", "loop"),
        "parameter_jacobian": ("rules", "vmap", "rows", "loop"),
    }
)


def read_method(function: str, method: Any) -> list[Method]:
    """Return the methods to try, in order."""
    if isinstance(method, Method):
        return [method]
    if method == "auto":
        return [METHODS[name] for name in AUTO[function]]
    if isinstance(method, str) and method in METHODS:
        return [METHODS[method]]
    known = ", ".join(map(repr, ("auto", *METHODS)))
    raise InputError(
        f"method must be a gk.Method or one of {known}; got {method!r}",
        argument="method",
    )
