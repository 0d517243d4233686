"""Where on the way from a baseline gradients are taken, and their weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MappingProxyType

import numpy as np

__all__ = ["RULES", "nodes_and_weights"]

Nodes = tuple[np.ndarray, np.ndarray]


def _gauss_legendre(steps: int) -> Nodes:
    nodes, weights = np.polynomial.legendre.leggauss(steps)
    return (nodes + 1) / 2, weights / 2


def _even(start: float) -> Callable[[int], Nodes]:
    """Return the rule of equal weights whose intervals are met at ``start``."""

    def rule(steps: int) -> Nodes:
        return (np.arange(steps) + start) / steps, np.full(steps, 1 / steps)

    return rule


def _trapezoid(steps: int) -> Nodes:
    if steps == 1:
        return _even(0.5)(1)
    weights = np.full(steps, 1.0 / (steps - 1))
    weights[[0, -1]] /= 2
    return np.linspace(0, 1, steps), weights


#: Rules of quadrature on the interval from 0 to 1.
RULES: Mapping[str, Callable[[int], Nodes]] = MappingProxyType(
    {
        "gauss_legendre": _gauss_legendre,
        "riemann_left": _even(0.0),
        "riemann_middle": _even(0.5),
        "riemann_right": _even(1.0),
        "trapezoid": _trapezoid,
    }
)


@lru_cache(maxsize=32)
def nodes_and_weights(rule: str, steps: int) -> tuple[tuple[float, float], ...]:
    """Return ``(node, weight)`` of each step, from the baseline to the input."""
    nodes, weights = RULES[rule](steps)
    return tuple(zip(nodes.tolist(), weights.tolist(), strict=True))
