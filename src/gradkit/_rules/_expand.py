"""Parameters repeated for every sample: class tokens, learned queries.

What it does: ``y[n, ..] = p[..]``, with axes of size one repeated.
Jacobian: one where the other indices agree.
Pullback: ``p[n, r, ..] = c[n, r, ..]``, summed over the repeated axes but the samples'.
Covered: ``expand`` and its like, where the samples are a repeated axis; others raise.
Source: https://docs.pytorch.org/docs/stable/generated/torch.Tensor.expand.html
"""

from __future__ import annotations

import torch
from torch import Tensor

from gradkit._rules._aligned import aligned, reduced, without_own_samples
from gradkit._rules._rule import Operation, Rule

__all__ = ["EXPAND"]


def _rows(operation: Operation, cotangent: Tensor) -> Tensor:
    return reduced(operation, cotangent, operation.parameters["input"])


def _unsupported(operation: Operation) -> str | None:
    shape = aligned(operation, operation.parameters["input"])
    return without_own_samples(operation, [shape])


EXPAND = Rule(
    name="expand",
    functions=(
        Tensor.expand,
        Tensor.expand_as,
        Tensor.broadcast_to,
        torch.broadcast_to,
    ),
    arguments=("input",),
    rows={"input": _rows},
    unsupported=_unsupported,
)
