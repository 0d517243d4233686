"""Matrix products, with a parameter on either side, and what is added to them.

What they do: ``y[.., p, q] = sum_k a[.., p, k] b[.., k, q]``; two add it to ``beta d``.
Jacobian: ``dy[.., p, q] / db[.., k, q] = a[.., p, k]``, and the same for ``a``.
Pullback: ``b[n, r, i, o] = sum_t c[n, r, t, o] x[n, t, i]``, one for each shared batch.
Covered: samples in any axis of the other factor, broadcast batches; others raise.
Source: https://docs.pytorch.org/docs/stable/generated/torch.matmul.html
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from gradkit._rules._aligned import reduced
from gradkit._rules._contraction import (
    Product,
    broadcast_reason,
    foreign_reason,
    fresh_letters,
)
from gradkit._rules._factor import Factor
from gradkit._rules._rule import Operation, Rows, Rule

__all__ = ["ADDMM", "BADDBMM", "BMM", "MATMUL", "MM", "MV", "RMATMUL"]


def _letters(left: int, right: int) -> tuple[str, str, str]:
    """Return the letters of two factors of so many axes, and of their product."""
    batch = fresh_letters(max(left, right, 2) - 2)
    rows, columns = "p" * (left > 1), "q" * (right > 1)
    first = batch[len(batch) - max(left - 2, 0) :] + rows + "k"
    second = batch[len(batch) - max(right - 2, 0) :] + "k" + columns
    return first, second, batch + rows + columns


def _product(operation: Operation, argument: str, factors: tuple[str, str]) -> Product:
    left, right = (operation.arguments[name].dim() for name in factors)
    first, second, output = _letters(left, right)
    mine, theirs = (first, second) if argument == factors[0] else (second, first)
    other = factors[argument == factors[0]]
    flow = operation.values(other), theirs
    return Product(operation, flow, (operation.parameters[argument], mine), output)


def _scaled(operation: Operation, name: str, c: Tensor) -> Tensor:
    scale = operation.get(name, 1)
    return c if scale == 1 else c * scale


def _rule(
    name: str,
    functions: tuple,
    factors: tuple[str, str],
    added: bool = False,
    swapped: bool = False,
) -> Rule:
    """Return the rule of a product of two factors, with an input added to it or not."""
    arguments = factors[::-1] if swapped else factors
    if added:
        arguments = ("input", *factors)

    def unsupported(operation: Operation) -> str | None:
        reason = foreign_reason(operation)
        if reason is not None:
            return reason
        if not all(isinstance(operation.get(a), Tensor) for a in arguments):
            return "its first arguments are not tensors"  # a deprecated form
        for argument, shape in operation.parameters.items():
            if argument in factors:
                reason = _product(operation, argument, factors).reason()
            else:
                reason = broadcast_reason(operation, shape)
            if reason is not None:
                return reason
        return None

    def of(argument: str) -> Rows:
        def rows(operation: Operation, c: Tensor) -> Factor | Tensor:
            c = _scaled(operation, "alpha", c)
            return _product(operation, argument, factors).rows(c)

        return rows

    def of_input(operation: Operation, c: Tensor) -> Tensor:
        c = _scaled(operation, "beta", c)
        return reduced(operation, c, operation.parameters["input"])

    rows: Mapping[str, Rows] = {name: of(name) for name in factors}
    if added:
        rows = {"input": of_input, **rows}
    return Rule(name, functions, arguments, rows, unsupported)


MATMUL = _rule(
    "matmul",
    (torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.linalg.matmul),
    ("input", "other"),
)
#: ``w.__rmatmul__(x)`` is ``x @ w``.
RMATMUL = _rule("rmatmul", (Tensor.__rmatmul__,), ("other", "input"), swapped=True)
MM = _rule("mm", (torch.mm, Tensor.mm), ("input", "mat2"))
BMM = _rule("bmm", (torch.bmm, Tensor.bmm), ("input", "mat2"))
MV = _rule("mv", (torch.mv, Tensor.mv), ("input", "vec"))
ADDMM = _rule("addmm", (torch.addmm, Tensor.addmm), ("mat1", "mat2"), added=True)
BADDBMM = _rule(
    "baddbmm", (torch.baddbmm, Tensor.baddbmm), ("batch1", "batch2"), added=True
)
