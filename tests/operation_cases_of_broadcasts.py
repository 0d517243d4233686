"""Torch calls that broadcast, join, choose or repeat a parameter."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gradkit._rules._aligned import is_in_place
from gradkit._rules._broadcast import (
    ADD,
    ADDCMUL,
    DIVIDE,
    MULTIPLY,
    REVERSED_SUBTRACT,
    SUBTRACT,
)
from gradkit._rules._expand import EXPAND
from gradkit._rules._joining import CAT, REPEAT, STACK, WHERE, WHERE_OF_INPUT
from gradkit._rules._layout import Layout
from gradkit._rules._rule import Rule
from rule_trial import OperationCase

__all__ = ["BATCH_FIRST", "BROADCAST_CASES", "FLAT", "TIME_FIRST", "WOVEN", "case"]
__all__ += ["integers", "normal", "own_axis", "positive"]

BATCH_FIRST, TIME_FIRST = Layout(0), Layout(1)
#: Sequences of five behind one another, and sequences that alternate.
FLAT, WOVEN = Layout(0, after=5), Layout(0, before=5)

ORDER = "its arguments are in a deprecated order, or its factor is a tensor"
APART = "its copies along the samples' axis are not each of one sample"


def own_axis(shape: tuple[int, ...], output: tuple[int, ...]) -> str:
    return (
        f"a parameter aligned as {shape} has the samples' axis of the output {output}"
        " itself"
    )


def normal(*shape: int) -> Tensor:
    """Draw numbers, or a number."""
    return torch.randn(shape, dtype=torch.float64)


def integers(below: int, *shape: int) -> Tensor:
    return torch.randint(below, shape)


def positive(*shape: int) -> Tensor:
    """Draw numbers that are safe to divide by."""
    return normal(*shape).abs() + 0.5


def case(
    rule: Rule,
    name: str,
    arguments: Callable[[int], tuple[Any, ...]],
    parameters: str,
    layout: Layout = BATCH_FIRST,
    *,
    refusal: str | None = None,
    function: Callable[..., Any] | None = None,
    **options: Any,
) -> OperationCase:
    return OperationCase(
        f"{rule.name}: {name}",
        rule,
        arguments,
        tuple(parameters.split()),
        layout=layout,
        refusal=refusal,
        function=function,
        options=options,
    )


# -- every function, and every way to broadcast ----------------------------------------


def owner(function: Callable[..., Any]) -> str:
    is_method = getattr(Tensor, function.__name__, None) is function
    return "Tensor" if is_method else "torch"


def spelling(rule: Rule, function: Callable[..., Any]) -> OperationCase:
    """Return a case of one of the functions that a rule serves."""

    @functools.wraps(function)
    def on_copy(first: Tensor, *rest: Any) -> Tensor:
        return function(first.clone(), *rest)  # a leaf must not be written to

    written = is_in_place(function)
    refused = written and rule in (MULTIPLY, DIVIDE)
    return case(
        rule,
        f"as {owner(function)}.{function.__name__}",
        lambda n: (normal(n, 5, 4), positive(4)),
        "other",
        function=on_copy if written else function,
        refusal="it overwrites what its derivative needs" if refused else None,
    )


_ELEMENTWISE = (ADD, SUBTRACT, REVERSED_SUBTRACT, MULTIPLY, DIVIDE)
SPELLINGS = [spelling(rule, f) for rule in _ELEMENTWISE for f in rule.functions]

#: Shapes of what flows and of the parameter, and where the samples are.
_SHAPES: dict[str, tuple[Callable[[int], tuple[int, ...]], tuple[int, ...], Layout]] = {
    "a bias": (lambda n: (n, 4), (4,), Layout(0)),
    "all but the samples": (lambda n: (n, 5, 4), (5, 4), Layout(0)),
    "an axis for the samples": (lambda n: (n, 5, 4), (1, 5, 1), Layout(0)),
    "a number": (lambda n: (n, 5, 4), (), Layout(0)),
    "a number with an axis": (lambda n: (n, 5), (1,), Layout(0)),
    "channels": (lambda n: (n, 6, 5, 4), (6, 1, 1), Layout(0)),
    "more entries": (lambda n: (n, 1, 4), (5, 1), Layout(0)),
    "more axes": (lambda n: (n, 4), (2, 1, 4), TIME_FIRST),
    "time first": (lambda n: (5, n, 4), (5, 1, 4), TIME_FIRST),
    "samples last": (lambda n: (5, 4, n), (4, 1), Layout(2)),
    "flattened": (lambda n: (n * 5, 4), (4,), FLAT),
    "woven": (lambda n: (5 * n, 4), (1, 4), WOVEN),
    "flattened within": (lambda n: (2, n * 5, 4), (2, 1, 4), Layout(1, after=5)),
}


def sides(
    rule: Rule,
    name: str,
    flow: Callable[[int], tuple[int, ...]],
    shape: tuple[int, ...],
    layout: Layout,
) -> list[OperationCase]:
    """Return a case with the parameter on the right, and one on the left."""
    return [
        case(rule, f"{name}, right",
             lambda n: (normal(*flow(n)), positive(*shape)), "other", layout),
        case(rule, f"{name}, left",
             lambda n: (normal(*shape), positive(*flow(n))), "input", layout),
    ]  # fmt: skip


BROADCASTS = [
    one
    for rule in (ADD, MULTIPLY, DIVIDE)
    for name, shapes in _SHAPES.items()
    for one in sides(rule, name, *shapes)
]

FACTORS = [
    case(ADD, "alpha", lambda n: (normal(n, 5, 4), normal(5, 1)), "other", alpha=0.3),
    case(ADD, "no alpha", lambda n: (normal(4), normal(n, 4)), "input", alpha=0.3),
    case(SUBTRACT, "x - 3 p", lambda n: (normal(n, 4), normal(4)), "other", alpha=3),
    case(SUBTRACT, "p - 3 x", lambda n: (normal(4), normal(n, 4)), "input", alpha=3),
    case(REVERSED_SUBTRACT, "p - 3 x", lambda n: (normal(n, 4), normal(4)), "other",
         alpha=3),
    case(REVERSED_SUBTRACT, "x - 3 p", lambda n: (normal(4), normal(n, 4)), "input",
         alpha=3),
    case(MULTIPLY, "integers", lambda n: (integers(9, n, 5, 4), normal(5, 1)), "other"),
    case(DIVIDE, "integers", lambda n: (normal(4), integers(7, n, 4) + 3), "input"),
    case(MULTIPLY, "a mask", lambda n: (normal(4), normal(n, 5, 4) > 0), "input"),
    case(ADDCMUL, "twice", lambda n: (normal(4), normal(n, 5, 4), normal(5, 1)),
         "input tensor2", value=0.7),
    case(ADDCMUL, "first", lambda n: (normal(5, n, 4), normal(4), normal(5, n, 4)),
         "tensor1", TIME_FIRST),
    case(ADDCMUL, "in place", lambda n: (normal(n, 4), normal(n, 1), normal(4)),
         "tensor2", function=lambda x, *rest: x.clone().addcmul_(*rest)),
]  # fmt: skip

REFUSED = [
    case(rule, "samples", lambda n: (normal(n, 5), normal(n, 1)), "other",
         refusal=own_axis((3, 1), (3, 5)))
    for rule in _ELEMENTWISE
] + [
    case(rule, "complex", lambda n: (normal(n) * 1j, normal(1)), "other",
         refusal="it computes complex numbers")
    for rule in _ELEMENTWISE
] + [
    case(DIVIDE, "rounded", lambda n: (normal(n, 4), positive(4)), "other",
         rounding_mode="floor", refusal="its quotients are rounded"),
    case(MULTIPLY, "a number", lambda n: (normal(n), 2.0), "input",
         refusal="other is not a tensor"),
    case(ADD, "alpha in a tensor", lambda n: (normal(n), normal(1)), "other",
         alpha=torch.tensor(2), refusal=ORDER),
    case(ADDCMUL, "samples", lambda n: (normal(n), normal(1), normal(n)), "tensor2",
         refusal=own_axis((3,), (3,))),
]  # fmt: skip

# -- joins -----------------------------------------------------------------------------


def joined(rule: Rule, samples: int, function: Callable[..., Tensor] | None = None):
    """Return the rule's function on tensors that are repeated along the samples."""

    def call(tensors: list[Tensor], **options: int) -> Tensor:
        n = max(t.shape[samples] for t in tensors if t.dim() > samples)
        several = [t.expand(_with(t, samples, n)) if t.numel() else t for t in tensors]
        return (function or rule.functions[0])(several, **options)

    return call


def _with(tensor: Tensor, axis: int, size: int) -> list[int]:
    return [size if a == axis else -1 for a in range(tensor.dim())]


def listed(*tensors: Tensor) -> tuple[list[Tensor]]:
    return (list(tensors),)


JOINS = [
    case(CAT, f"as {f.__name__}", lambda n: listed(normal(1, 2, 4), normal(n, 5, 4)),
         "tensors[0]", function=joined(CAT, 0, f), dim=1)
    for f in CAT.functions
] + [
    case(CAT, "around", lambda n: listed(normal(1, 4), normal(n, 5), normal(1, 2)),
         "tensors[0] tensors[2]", function=joined(CAT, 0), axis=-1),
    case(CAT, "time first", lambda n: listed(normal(5, n), normal(2, 1)), "tensors[1]",
         TIME_FIRST, function=joined(CAT, 1)),
    case(CAT, "flattened", lambda n: listed(normal(n * 5, 4), normal(1, 2)),
         "tensors[1]", FLAT, function=joined(CAT, 0), dim=1),
    case(CAT, "with none", lambda n: listed(normal(0), normal(n, 5), normal(1, 2)),
         "tensors[2]", function=joined(CAT, 0), dim=1),
    case(STACK, "first", lambda n: listed(normal(1, 4), normal(n, 4)), "tensors[0]",
         function=joined(STACK, 0), dim=1),
    case(STACK, "last", lambda n: listed(normal(n, 4), normal(n, 4), normal(1, 4)),
         "tensors[2]", function=joined(STACK, 0), axis=-1),
    case(STACK, "time first", lambda n: listed(normal(n, 4), normal(1, 4)),
         "tensors[1]", TIME_FIRST, function=joined(STACK, 0)),
    case(CAT, "samples", lambda n: listed(normal(n, 2), normal(n, 5)), "tensors[0]",
         dim=1, refusal=own_axis((3, 2), (3, 7))),
    case(STACK, "samples", lambda n: listed(normal(n, 2), normal(n, 2)), "tensors[0]",
         dim=1, refusal=own_axis((3, 1, 2), (3, 2, 2))),
    case(CAT, "along samples", lambda n: listed(normal(n - 1, 2), normal(1, 2)),
         "tensors[1]", refusal="it joins along the samples' axis"),
    case(CAT, "complex", lambda n: listed(normal(n, 2) * 1j, normal(n, 5)),
         "tensors[1]", dim=1, refusal="it computes complex numbers"),
]  # fmt: skip

# -- choices ---------------------------------------------------------------------------


def mask(*shape: int) -> Tensor:
    return normal(*shape) > 0.2


CHOICES = [
    case(WHERE, "left", lambda n: (mask(n, 5, 1), normal(4), normal(n, 5, 4)), "input"),
    case(WHERE, "right", lambda n: (mask(n, 5, 4), normal(n, 5, 4), normal(5, 1)),
         "other"),
    case(WHERE, "both", lambda n: (mask(5, n, 4), normal(4), normal(5, 1, 1)),
         "input other", TIME_FIRST),
    case(WHERE, "or zero", lambda n: (mask(n * 5, 1), normal(4), 0.0), "input", FLAT),
    case(WHERE_OF_INPUT, "left", lambda n: (normal(4), mask(n, 5, 1), normal(n, 5, 4)),
         "input"),
    case(WHERE_OF_INPUT, "right", lambda n: (normal(n, 4), mask(n, 1), normal(4)),
         "other"),
    case(WHERE, "samples", lambda n: (mask(n), normal(n), normal(n)), "input",
         refusal=own_axis((3,), (3,))),
    case(WHERE_OF_INPUT, "samples", lambda n: (normal(n), mask(n), normal(n)), "input",
         refusal=own_axis((3,), (3,))),
    case(WHERE, "complex", lambda n: (mask(n), normal(1), normal(n) * 1j), "input",
         refusal="it computes complex numbers"),
    case(WHERE, "bytes", lambda n: (integers(2, n), normal(1), normal(n)), "input",
         function=lambda condition, *rest: torch.where(condition.bool(), *rest),
         refusal="its condition is not a tensor of truth values"),
]  # fmt: skip

# -- repetitions -----------------------------------------------------------------------

REPETITIONS = [
    case(EXPAND, "a token", lambda n: (normal(1, 2, 4), n, -1, -1), "input"),
    case(EXPAND, "more axes", lambda n: (normal(4), n, 5, 4), "input"),
    case(EXPAND, "a number", lambda n: (normal(), n, 5), "input"),
    case(EXPAND, "as another", lambda n: (normal(5, 1), normal(n, 5, 4)), "input",
         function=Tensor.expand_as),
    case(EXPAND, "time first", lambda n: (normal(5, 1, 4), (5, n, 4)), "input",
         TIME_FIRST, function=torch.broadcast_to),
    case(EXPAND, "samples", lambda n: (normal(n, 4), 2, n, 4), "input", TIME_FIRST,
         refusal=own_axis((1, 3, 4), (2, 3, 4))),
    case(REPEAT, "a token", lambda n: (normal(1, 2, 4), n, 1, 1), "input"),
    case(REPEAT, "copies", lambda n: (normal(2, 4), n, 3, 1), "input"),
    case(REPEAT, "a number", lambda n: (normal(), n, 5), "input"),
    case(REPEAT, "in the samples' axis", lambda n: (normal(5, 4), n, 1), "input", FLAT),
    case(REPEAT, "twice in the samples' axis", lambda n: (normal(5, 4), (2 * n, 1)),
         "input", Layout(0, after=10), function=torch.tile),
    case(REPEAT, "woven", lambda n: (normal(1, 4), 5 * n, 1), "input", WOVEN),
    case(REPEAT, "mixed", lambda n: (normal(5, 4), n, 1), "input", WOVEN,
         refusal=APART),
    case(REPEAT, "samples", lambda n: (normal(n, 4), 2, 1, 1), "input", TIME_FIRST,
         refusal=APART),
]  # fmt: skip

BROADCAST_CASES = [
    *SPELLINGS,
    *BROADCASTS,
    *FACTORS,
    *REFUSED,
    *JOINS,
    *CHOICES,
    *REPETITIONS,
]
