"""Convolutions with a parameter as kernel and as bias, in all their settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gradkit._rules._convolution import (
    CONVOLUTION,
    CONVOLUTION_OF_ANY_KIND,
    TRANSPOSED_CONVOLUTION,
)
from gradkit._rules._layout import Layout
from gradkit._rules._rule import Rule
from rule_trial import OperationCase, normal

__all__ = ["CONVOLUTION_CASES"]

BOTH = ("weight", "bias")
FORWARD = {1: torch.conv1d, 2: torch.conv2d, 3: torch.conv3d}
BACK = {
    1: torch.conv_transpose1d,
    2: torch.conv_transpose2d,
    3: torch.conv_transpose3d,
}
UNBATCHED = "its input has no batch axis"
ELSEWHERE = "the samples are not its batch axis"

#: Channels in and out, the input's size, the kernel's size, settings.
Row = tuple[int, int, tuple[int, ...], tuple[int, ...], dict[str, Any]]

FORWARD_ROWS: list[Row] = [
    (4, 5, (6,), (3,), {}),
    (4, 5, (7,), (3,), {"stride": 2, "padding": 1}),
    (4, 5, (8,), (3,), {"dilation": 2, "padding": (3,)}),
    (4, 5, (7,), (4,), {"padding": "same"}),
    (4, 5, (7,), (2,), {"padding": "same", "dilation": 3}),
    (4, 5, (7,), (3,), {"padding": "valid", "stride": (3,)}),
    (4, 6, (5,), (2,), {"groups": 2}),
    (4, 8, (5,), (3,), {"groups": 4, "padding": 1}),
    (7, 8, (2,), (1,), {}),
    (4, 5, (7,), (1,), {"stride": 2}),
    (7, 8, (4,), (3,), {}),
    (7, 8, (3,), (3,), {}),
    (4, 5, (6, 7), (3, 2), {}),
    (4, 5, (6, 7), (3, 2), {"stride": (2, 3), "padding": (1, 0), "dilation": (1, 2)}),
    (4, 5, (6, 7), (3, 2), {"padding": "same"}),
    (4, 5, (6, 7), (4, 3), {"padding": "same", "dilation": (1, 2)}),
    (6, 9, (5, 4), (2, 3), {"groups": 3, "padding": [1, 2], "stride": [2]}),
    (4, 5, (4, 6), (4, 6), {}),
    (2, 3, (4, 5, 6), (2, 3, 1), {}),
    (2, 4, (4, 5, 6), (2, 3, 2), {"groups": 2, "stride": (1, 2, 3), "padding": 1}),
    (2, 3, (4, 5, 6), (2, 1, 3), {"padding": "same", "dilation": (3, 1, 2)}),
]
BACK_ROWS: list[Row] = [
    (4, 5, (6,), (3,), {}),
    (4, 5, (6,), (3,), {"stride": 2, "padding": 1, "output_padding": 1}),
    (4, 5, (6,), (3,), {"dilation": 3, "output_padding": (2,)}),
    (4, 6, (6,), (2,), {"groups": 2, "stride": 3}),
    (7, 8, (2,), (1,), {}),
    (7, 8, (1,), (3,), {}),
    (4, 5, (3, 4), (3, 2), {}),
    (
        4, 6, (3, 4), (3, 2),
        {"groups": 2, "stride": (2, 3), "padding": (1, 0), "output_padding": (0, 2)},
    ),
    (4, 5, (3, 4), (3, 2), {"dilation": (1, 2), "output_padding": (0, 1)}),
    (2, 3, (2, 3, 4), (2, 3, 1), {}),
    (2, 4, (2, 3, 4), (2, 1, 3), {"groups": 2, "stride": (1, 2, 3), "padding": 1}),
]  # fmt: skip


def arguments(
    row: Row, transposed: bool, bias: bool = True
) -> Callable[[int], tuple[Any, ...]]:
    """Return what draws input, kernel and bias."""
    inputs, outputs, space, size, settings = row
    groups = settings.get("groups", 1)
    sides = (inputs, outputs // groups) if transposed else (outputs, inputs // groups)

    def drawn(samples: int) -> tuple[Any, ...]:
        found = normal(samples, inputs, *space), normal(*sides, *size)
        return (*found, normal(outputs)) if bias else found

    return drawn


def made(rule: Rule, rows: list[Row], transposed: bool) -> list[OperationCase]:
    functions = BACK if transposed else FORWARD
    return [
        OperationCase(
            f"{rule.name}: {row}",
            rule,
            arguments(row, transposed),
            BOTH,
            function=functions[len(row[2])],
            options=row[4],
        )
        for row in rows
    ]


def of_any_kind(row: Row, transposed: bool) -> OperationCase:
    """Return a call of ``torch.convolution``, which takes all settings."""
    axes, given = len(row[2]), row[4]

    def setting(name: str, default: int) -> list[int]:
        value = given.get(name, default)
        return list(value) if isinstance(value, tuple) else [value] * axes

    draw = arguments(row, transposed)
    settings = (
        *(setting(name, d) for name, d in (("stride", 1), ("padding", 0))),
        setting("dilation", 1),
        transposed,
        setting("output_padding", 0),
        given.get("groups", 1),
    )
    return OperationCase(
        f"{CONVOLUTION_OF_ANY_KIND.name}: {transposed} {row}",
        CONVOLUTION_OF_ANY_KIND,
        lambda samples: (*draw(samples), *settings),
        BOTH,
    )


def refused(name: str, reason: str, **settings: Any) -> list[OperationCase]:
    """Return cases of each rule that it refuses."""
    made_by = [
        (CONVOLUTION, torch.conv1d, ()),
        (TRANSPOSED_CONVOLUTION, torch.conv_transpose1d, ()),
        (CONVOLUTION_OF_ANY_KIND, torch.convolution, ([1], [0], [1], False, [0], 1)),
    ]
    return [
        OperationCase(
            f"{rule.name} refused: {name}",
            rule,
            _refused_arguments(name, rest),
            ("weight",),
            function=function,
            refusal=reason,
            **settings,
        )
        for rule, function, rest in made_by
        # torch.convolution takes batches of real numbers alone
        if name not in ("unbatched", "complex") or not rest
    ]


def _refused_arguments(name: str, rest: tuple) -> Callable[[int], tuple[Any, ...]]:
    def drawn(samples: int) -> tuple[Any, ...]:
        size = (samples, 7) if name == "unbatched" else (2 * samples, samples, 7)
        kernel: Tensor = normal(samples, samples, 3)
        tensors = [normal(*size), kernel, normal(samples)]
        if name == "complex":
            tensors = [tensor.to(torch.complex128) for tensor in tensors]
        return (*tensors, *rest)

    return drawn


CONVOLUTION_CASES = [
    *made(CONVOLUTION, FORWARD_ROWS, transposed=False),
    *made(TRANSPOSED_CONVOLUTION, BACK_ROWS, transposed=True),
    of_any_kind(FORWARD_ROWS[13], transposed=False),
    of_any_kind(BACK_ROWS[7], transposed=True),
    OperationCase(
        "convolution: no bias",
        CONVOLUTION,
        arguments(FORWARD_ROWS[0], transposed=False, bias=False),
        ("weight",),
    ),
    *refused("unbatched", UNBATCHED),
    *refused("channels", ELSEWHERE, layout=Layout(1)),
    *refused("flat", ELSEWHERE, layout=Layout(0, after=2)),
    *refused("complex", "its numbers are complex", layout=Layout(0, after=2)),
]
