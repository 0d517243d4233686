"""Rules of sums, differences, products and quotients with a broadcast parameter."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from gradkit._rules._aligned import (
    aligned,
    is_in_place,
    reduced,
    spelled,
    weighted,
    without_own_samples,
)
from gradkit._rules._rule import Operation, Rows, Rule

__all__ = [
    "ADD",
    "ADDCMUL",
    "DIVIDE",
    "MULTIPLY",
    "REVERSED_SUBTRACT",
    "SUBTRACT",
]

_OVERWRITES = "it overwrites what its derivative needs"


def _operand(operation: Operation, argument: str) -> Tensor:
    """Return an argument as it was computed with: integers too as real numbers."""
    return operation.cast(operation.arguments[argument])


def _term(argument: str, factor: Callable[[Operation], float]) -> Rows:
    """Return the rows of a term of a sum that is multiplied by a number."""

    def rows(operation: Operation, cotangent: Tensor) -> Tensor:
        found = reduced(operation, cotangent, operation.parameters[argument])
        number = factor(operation)
        return found if number == 1 else found * number

    return rows


def _factor(argument: str, weights: Callable[[Operation], Tensor]) -> Rows:
    """Return the rows of what acts on each entry by a weight of its own."""

    def rows(operation: Operation, cotangent: Tensor) -> Tensor:
        shape = operation.parameters[argument]
        return weighted(operation, cotangent, weights(operation), shape)

    return rows


def _refused(operation: Operation, *names: str) -> str | None:
    """Return why an operation on these arguments is not covered."""
    if operation.dtype.is_complex:
        return "it computes complex numbers"
    for name in names:
        if not isinstance(operation.arguments.get(name), Tensor):
            return f"{name} is not a tensor"
    numbers = (operation.get("alpha", 1), operation.get("value", 1))
    if any(isinstance(number, Tensor) for number in numbers):
        return "its arguments are in a deprecated order, or its factor is a tensor"
    given = operation.parameters
    shapes = (aligned(operation, given[n]) for n in names if n in given)
    return without_own_samples(operation, shapes)


def _refused_sum(operation: Operation) -> str | None:
    return _refused(operation, "input", "other")


def _refused_product(operation: Operation) -> str | None:
    if operation.get("rounding_mode") is not None:
        return "its quotients are rounded"
    if is_in_place(operation.function):
        return _OVERWRITES
    return _refused(operation, "input", "other")


def _alpha(operation: Operation) -> float:
    return operation.get("alpha", 1)


# Adds two tensors, broadcast: y = x + alpha p.
# Jacobian: dy[e] / dp[e'] = alpha where entry e' of p was used for e, else 0.
# Pullback: rows[n, r, e'] = alpha sum_e c[n, r, e] over the sample's e that used e'.
# Covers any broadcasting, alpha, writes to x; complex numbers and a parameter with a
# samples axis of its own are refused.
# https://docs.pytorch.org/docs/stable/generated/torch.add.html
ADD = Rule(
    "add",
    spelled("add", "add_", "__add__", "__radd__", "__iadd__"),
    ("input", "other", "alpha"),
    {"input": _term("input", lambda _: 1), "other": _term("other", _alpha)},
    _refused_sum,
)

# Subtracts two tensors, broadcast: y = x - alpha p.
# Jacobian: dy[e] / dx[e'] = 1, dy[e] / dp[e'] = -alpha where e' was used for e.
# Pullback: rows[n, r, e'] = sum_e c[n, r, e], or its -alpha-fold.
# Covers what ADD does, with the parameter on either side, and refuses what it does.
# https://docs.pytorch.org/docs/stable/generated/torch.sub.html
SUBTRACT = Rule(
    "sub",
    spelled("sub", "sub_", "subtract", "subtract_", "__sub__", "__isub__"),
    ("input", "other", "alpha"),
    {
        "input": _term("input", lambda _: 1),
        "other": _term("other", lambda operation: -_alpha(operation)),
    },
    _refused_sum,
)

# Subtracts the other way round: y = p - alpha x for the arguments (x, p).
# Jacobian: dy[e] / dx[e'] = -alpha, dy[e] / dp[e'] = 1 where e' was used for e.
# Pullback: rows[n, r, e'] = -alpha sum_e c[n, r, e], or without the factor.
# Covers what ADD does, with the parameter on either side, and refuses what it does.
# https://docs.pytorch.org/docs/stable/generated/torch.sub.html
REVERSED_SUBTRACT = Rule(
    "rsub",
    spelled("rsub", "__rsub__"),
    ("input", "other", "alpha"),
    {
        "input": _term("input", lambda operation: -_alpha(operation)),
        "other": _term("other", lambda _: 1),
    },
    _refused_sum,
)

# Multiplies two tensors, broadcast: y = x p.
# Jacobian: dy[e] / dp[e'] = x[e] where e' was used for e, else 0.
# Pullback: rows[n, r, e'] = sum_e c[n, r, e] x[n, e] over the e that used e'.
# Covers any broadcasting; refuses writes to x (the x that is needed is gone), complex
# numbers and a parameter with a samples axis of its own.
# https://docs.pytorch.org/docs/stable/generated/torch.mul.html
MULTIPLY = Rule(
    "mul",
    spelled("mul", "mul_", "multiply", "multiply_", "__mul__", "__rmul__", "__imul__"),
    ("input", "other"),
    {
        "input": _factor("input", lambda operation: _operand(operation, "other")),
        "other": _factor("other", lambda operation: _operand(operation, "input")),
    },
    _refused_product,
)


def _of_divisor(operation: Operation) -> Tensor:
    divisor = _operand(operation, "other")
    return -(_operand(operation, "input") / divisor) / divisor


# Divides two tensors, broadcast: y = x / p.
# Jacobian: dy[e] / dx[e'] = 1 / p[e], dy[e] / dp[e'] = -x[e] / p[e']² where e' was
# used for e.
# Pullback: rows[n, r, e'] = sum_e c[n, r, e] / p[e], or -c[n, r, e] x[n, e] / p[e']².
# Covers what MULTIPLY does, with the parameter on either side; refuses a rounding
# mode, and what MULTIPLY does.
# https://docs.pytorch.org/docs/stable/generated/torch.div.html
DIVIDE = Rule(
    "div",
    spelled(
        *("div", "div_", "divide", "divide_", "true_divide", "true_divide_"),
        *("__truediv__", "__itruediv__", "__div__", "__idiv__"),
    ),
    ("input", "other"),
    {
        "input": _factor(
            "input", lambda operation: _operand(operation, "other").reciprocal()
        ),
        "other": _factor("other", _of_divisor),
    },
    _refused_product,
)


def _refused_addcmul(operation: Operation) -> str | None:
    written = operation.arguments["input"] if is_in_place(operation.function) else None
    factors = ("tensor1", "tensor2")
    if written is not None and any(operation.get(f) is written for f in factors):
        return _OVERWRITES
    return _refused(operation, "input", *factors)


def _beside(argument: str) -> Rows:
    """Return the rows of one factor of ``addcmul``: the weights are the other's."""

    def weights(operation: Operation) -> Tensor:
        return _operand(operation, argument) * operation.get("value", 1)

    return _factor("tensor2" if argument == "tensor1" else "tensor1", weights)


# Adds a product, broadcast: y = x + value p q.
# Jacobian: dy[e] / dx[e'] = 1, dy[e] / dp[e'] = value q[e] where e' was used for e.
# Pullback: rows[n, r, e'] = sum_e c[n, r, e], or value sum_e c[n, r, e] q[n, e].
# Covers any broadcasting, value, writes to x unless x is a factor too; refuses what ADD
# does.
# https://docs.pytorch.org/docs/stable/generated/torch.addcmul.html
ADDCMUL = Rule(
    "addcmul",
    spelled("addcmul", "addcmul_"),
    ("input", "tensor1", "tensor2", "value"),
    {
        "input": _term("input", lambda _: 1),
        "tensor1": _beside("tensor2"),
        "tensor2": _beside("tensor1"),
    },
    _refused_addcmul,
)
