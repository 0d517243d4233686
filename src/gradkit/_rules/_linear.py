"""Linear layers.

What it does: ``y[.., o] = sum_i x[.., i] w[o, i] + b[o]``.
Jacobian: ``dy[.., o] / dw[o, i] = x[.., i]``, ``dy[.., o] / db[o] = 1``.
Pullback: ``w[n, r, o, i] = sum_t c[n, r, t, o] x[n, t, i]``, ``b = sum_t c[n, r, t]``.
Covered: any leading axes, a weight of one axis, a parameter as input; others raise.
Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.linear.html
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from gradkit._rules._aligned import reduced
from gradkit._rules._contraction import (
    Product,
    broadcast_reason,
    foreign_reason,
    fresh_letters,
)
from gradkit._rules._factor import Factor
from gradkit._rules._outer import Outer
from gradkit._rules._rule import Operation, Rule

__all__ = ["LINEAR"]


def _product(operation: Operation, argument: str) -> Product:
    other = "input" if argument == "weight" else "weight"
    shape = operation.parameters[argument]
    lead = fresh_letters(operation.arguments["input"].dim() - 1)
    out = "o" if operation.arguments["weight"].dim() == 2 else ""
    letters = {"input": lead + "i", "weight": out + "i"}
    flow = operation.values(other), letters[other]
    return Product(operation, flow, (shape, letters[argument]), lead + out)


def _unsupported(operation: Operation) -> str | None:
    reason = foreign_reason(operation)
    if reason is not None:
        return reason
    for argument, shape in operation.parameters.items():
        if argument == "bias":
            reason = broadcast_reason(operation, shape)
        else:
            reason = _product(operation, argument).reason()
        if reason is not None:
            return reason
    return None


def _weight(operation: Operation, c: Tensor) -> Factor | Tensor:
    """Return the rows of the weight: outer products over the leading axes."""
    shape = operation.parameters["weight"]
    positional = operation.arguments["input"].dim() - 1
    if len(shape) != 2 or operation.layout.axis >= positional:
        return _product(operation, "weight").rows(c)
    x = operation.samples_first("input").to(c)
    n, r, o, i = *c.shape[:2], *shape
    positions = x.shape[1:-1].numel()
    return Outer(shape, c.reshape(n, r, 1, positions, o), x.reshape(n, 1, positions, i))


def _bias(operation: Operation, c: Tensor) -> Tensor:
    """Return the rows of the bias: the cotangent, summed over the other axes."""
    return reduced(operation, c, operation.parameters["bias"])


LINEAR = Rule(
    name="linear",
    functions=(F.linear,),
    arguments=("input", "weight", "bias"),
    rows={
        "input": lambda operation, c: _product(operation, "input").rows(c),
        "weight": _weight,
        "bias": _bias,
    },
    unsupported=_unsupported,
)
