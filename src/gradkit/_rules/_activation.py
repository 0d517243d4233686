"""The rule of the activation that has a parameter."""

from __future__ import annotations

from torch import Tensor

from gradkit._rules._aligned import spelled, weighted, without_own_samples
from gradkit._rules._rule import Operation, Rule

__all__ = ["PRELU"]


def _shape(operation: Operation) -> tuple[int, ...]:
    """Return the slopes' shape aligned with the output: channels are its axis 1."""
    axes = len(operation.shape)
    slopes = operation.parameters["weight"].numel()
    return (1,) * axes if slopes == 1 else (1, slopes, *(1,) * (axes - 2))


def _rows(operation: Operation, cotangent: Tensor) -> Tensor:
    negative = operation.values("input").clamp(max=0)
    shape = operation.parameters["weight"]
    return weighted(operation, cotangent, negative, shape, _shape(operation))


# Multiplies negative entries by a slope: y = max(x, 0) + p min(x, 0).
# Jacobian: dy[n, i, t] / dp[i] = min(x[n, i, t], 0).
# Pullback: rows[n, r, i] = sum_t c[n, r, i, t] min(x[n, i, t], 0).
# Covers one slope, and one for each channel (axis 1); refused if that is the samples'.
# https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.prelu.html
PRELU = Rule(
    "prelu",
    spelled("prelu"),
    ("input", "weight"),
    {"weight": _rows},
    lambda operation: without_own_samples(operation, [_shape(operation)]),
)
