"""Products written in letters, ``torch.einsum``, with one parameter of two tensors.

What it does: ``y[output] = sum over other letters of x[letters] w[letters]``.
Jacobian: ``dy[output] / dw[letters] = x[letters]`` summed over letters of ``x`` alone.
Pullback: ``w[n, r, letters] = sum over other letters of c[n, r, output] x[letters]``.
Covered: two tensors, explicit and implicit outputs, ellipses, broadcast axes of one;
a letter twice in one tensor (a diagonal), one tensor, three and more raise.
Source: https://docs.pytorch.org/docs/stable/generated/torch.einsum.html
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradkit._rules._contraction import Product, foreign_reason, fresh_letters
from gradkit._rules._factor import Factor
from gradkit._rules._rule import Operation, Rows, Rule

__all__ = ["EINSUM", "parsed"]


def parsed(equation: str, dimensions: Sequence[int]) -> tuple[list[str], str]:
    """Return the letters of each operand and of the output.

    Args:
        equation: As ``torch.einsum`` takes it.
        dimensions: The number of each operand's axes.
    """
    inputs, arrow, output = equation.replace(" ", "").partition("->")
    operands = inputs.split(",")
    hidden = [
        size - len(letters.replace("...", ""))
        for letters, size in zip(operands, dimensions, strict=True)
    ]
    # Ellipses are aligned at their last axis.
    most = max(
        (h for h, o in zip(hidden, operands, strict=True) if "..." in o), default=0
    )
    ellipsis = fresh_letters(most)
    if not arrow:
        alone = sorted(a for a in set(inputs) - set(",.") if inputs.count(a) == 1)
        output = "..." + "".join(alone)
    found = [
        letters.replace("...", ellipsis[most - size :])
        for letters, size in zip(operands, hidden, strict=True)
    ]
    return found, output.replace("...", ellipsis)


def _operands(operation: Operation) -> list[Tensor]:
    """Return what is multiplied; it may have been passed as one list."""
    passed = [operation.get("left"), operation.get("right")]
    if isinstance(passed[0], (list, tuple)):
        passed = list(passed[0])
    return [operand for operand in passed if operand is not None]


def _place(operation: Operation, argument: str) -> int:
    if operation.place is not None:
        return operation.place
    return ("left", "right").index(argument)


def _letters(operation: Operation) -> tuple[list[str], str]:
    dimensions = [operand.dim() for operand in _operands(operation)]
    return parsed(operation.arguments["equation"], dimensions)


def _product(operation: Operation, argument: str) -> Product:
    """Return the product; what is not the parameter flows into it."""
    letters, output = _letters(operation)
    mine = _place(operation, argument)
    flow = operation.cast(_operands(operation)[1 - mine])
    shape = operation.parameters[argument]
    return Product(operation, (flow, letters[1 - mine]), (shape, letters[mine]), output)


def _unsupported(operation: Operation) -> str | None:
    reason = foreign_reason(operation)
    if reason is not None:
        return reason
    count = operation.arguments["equation"].count(",") + 1
    if count != 2:
        return f"it multiplies {count} tensors, not two"
    for letters in _letters(operation)[0]:
        twice = sorted(a for a in set(letters) if letters.count(a) > 1)
        if twice:
            return f"letter {twice[0]!r} stands twice in {letters!r}"
    reasons = [_product(operation, name).reason() for name in operation.parameters]
    return next((reason for reason in reasons if reason is not None), None)


def _rows(argument: str) -> Rows:
    def rows(operation: Operation, c: Tensor) -> Factor | Tensor:
        return _product(operation, argument).rows(c)

    return rows


EINSUM = Rule(
    name="einsum",
    functions=(torch.functional.einsum,),
    arguments=("equation", "left", "right"),
    rows={"left": _rows("left"), "right": _rows("right")},
    unsupported=_unsupported,
)
