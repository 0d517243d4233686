"""Torch calls that are products with a parameter: linear layers and matrix products.

Sizes: ``N`` = 3 samples, ``T`` = 2 positions, ``i`` = 4 inputs, ``o`` = 5 outputs,
6 heads, and 7 or 8 where more are needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from gradkit._rules._layout import Layout
from gradkit._rules._linear import LINEAR
from gradkit._rules._products import ADDMM, BADDBMM, BMM, MATMUL, MM, MV, RMATMUL
from gradkit._rules._rule import Rule
from operation_cases_of_convolutions import CONVOLUTION_CASES
from operation_cases_of_einsum import EINSUM_CASES, EINSUM_OF_ONE_SAMPLE
from rule_trial import BATCH_FIRST, OperationCase, Shape, normal, tensors

__all__ = ["ONE_SAMPLE_CASES", "OPERATION_CASES"]

TIME_FIRST = Layout(1)
FLAT = Layout(0, after=2)
WOVEN = Layout(0, before=2)
LAST = Layout(2)

ALONG = "the parameter has an axis along the samples"
COMPLEX = "its numbers are complex"
NUMBERS = "its first arguments are not tensors"


def made(
    rule: Rule,
    rows: list[tuple[Any, ...]],
    options: Mapping[str, Any] | None = None,
    **settings: Any,
) -> list[OperationCase]:
    """Return cases ``(name, parameters, layout, *shapes)`` of one rule."""
    return [
        OperationCase(
            f"{rule.name}{' scaled' if options else ''}: {name}",
            rule,
            tensors(*shapes),
            tuple(parameters.split()),
            layout=layout,
            options=options or {},
            **settings,
        )
        for name, parameters, layout, *shapes in rows
    ]


LINEAR_CASES = made(
    LINEAR,
    [
        ("one position", "weight bias", BATCH_FIRST, ("n", 4), (5, 4), (5,)),
        ("no bias", "weight", BATCH_FIRST, ("n", 4), (5, 4)),
        ("positions", "weight bias", BATCH_FIRST, ("n", 2, 4), (5, 4), (5,)),
        ("many positions", "weight", BATCH_FIRST, ("n", 7, 4), (5, 4)),
        ("two axes of them", "weight bias", BATCH_FIRST, ("n", 2, 3, 4), (5, 4), (5,)),
        ("time first", "weight bias", TIME_FIRST, (2, "n", 4), (5, 4), (5,)),
        ("flat", "weight bias", FLAT, ("nt", 4), (5, 4), (5,)),
        ("woven", "weight bias", WOVEN, ("nt", 4), (5, 4), (5,)),
        ("one output", "weight bias", BATCH_FIRST, ("n", 2, 4), (4,), ()),
        ("a bias of one", "weight bias", BATCH_FIRST, ("n", 2, 4), (5, 4), (1,)),
        ("one input", "weight", BATCH_FIRST, ("n", 2, 1), (5, 1)),
        ("parameter as input", "input", TIME_FIRST, (2, 4), ("n", 4)),
        ("the same, flat", "input", Layout(1, after=2), (7, 4), ("nt", 4)),
    ],
) + [
    OperationCase(
        f"linear refused: {name}",
        LINEAR,
        tensors(*shapes),
        (parameter,),
        layout=layout,
        refusal=reason,
    )
    for name, parameter, layout, shapes, reason in [
        ("input along", "input", BATCH_FIRST, [("n", 4), (5, 4)], ALONG),
        ("bias along", "bias", TIME_FIRST, [(2, 4), ("n", 4), ("n",)], ALONG),
        ("weight along", "weight", TIME_FIRST, [(2, 4), ("n", 4)], ALONG),
    ]
]

TWO_SIDES = [
    ("on the right", "{b}", BATCH_FIRST, ("n", 4), (4, 5)),
    ("on the right, flat", "{b}", FLAT, ("nt", 4), (4, 5)),
    ("on the right, woven", "{b}", WOVEN, ("nt", 4), (4, 5)),
    ("on the left", "{a}", TIME_FIRST, (5, 4), (4, "n")),
]
BATCHED = [
    ("on the right, by heads", "{b}", TIME_FIRST, (6, "n", 4), (6, 4, 5)),
    ("on the left, by heads", "{a}", LAST, (6, 5, 4), (6, 4, "n")),
    ("by heads, flat", "{b}", Layout(1, after=2), (6, "nt", 4), (6, 4, 5)),
]


def for_factors(rows: list[tuple[Any, ...]], a: str, b: str) -> list[tuple[Any, ...]]:
    """Return rows of a table with the factors' names put in."""
    return [(name, which.format(a=a, b=b), *rest) for name, which, *rest in rows]


BROADCAST = [
    ("positions", "{b}", BATCH_FIRST, ("n", 2, 4), (4, 5)),
    ("time first", "{b}", TIME_FIRST, (2, "n", 4), (4, 5)),
    ("left of a batch", "{a}", BATCH_FIRST, (5, 4), ("n", 4, 2)),
    ("a vector", "{b}", BATCH_FIRST, ("n", 2, 4), (4,)),
    ("a vector on the left", "{a}", BATCH_FIRST, (4,), ("n", 4, 2)),
    ("heads", "{b}", BATCH_FIRST, ("n", 6, 2, 4), (6, 4, 5)),
    ("heads on the left", "{a}", BATCH_FIRST, (6, 5, 4), ("n", 6, 4, 2)),
    ("heads of it alone", "{b}", BATCH_FIRST, ("n", 1, 2, 4), (6, 4, 5)),
    ("heads of one", "{b}", BATCH_FIRST, ("n", 6, 2, 4), (1, 4, 5)),
    ("two batches", "{b}", BATCH_FIRST, ("n", 3, 6, 2, 4), (3, 1, 4, 5)),
    ("a batch of one", "{b}", BATCH_FIRST, ("n", 2, 4), (1, 4, 5)),
    ("samples in the matrix", "{b}", TIME_FIRST, (6, "n", 4), (1, 4, 5)),
    ("entries of one", "{b}", BATCH_FIRST, ("n", 6, 7, 1), (6, 1, 1)),
]
ALIKE = TWO_SIDES + BATCHED + BROADCAST

MATRIX_CASES = [
    *made(MATMUL, for_factors(ALIKE, "input", "other")),
    *made(MM, for_factors(TWO_SIDES, "input", "mat2")),
    *made(BMM, for_factors(BATCHED, "input", "mat2")),
    *made(MV, [("a vector", "vec", BATCH_FIRST, ("n", 4), (4,))]),
    *made(MV, [("a vector, flat", "vec", FLAT, ("nt", 4), (4,))]),
    # Here the first argument is the right factor.
    *made(RMATMUL, [("on the right", "input", BATCH_FIRST, (4, 5), ("n", 4))]),
    *made(RMATMUL, [("on the left", "other", TIME_FIRST, (4, "n"), (5, 4))]),
]

ADDED = [
    ("a row", "input {b}", BATCH_FIRST, (5,), ("n", 4), (4, 5)),
    ("a row of two axes", "input {b}", FLAT, (1, 5), ("nt", 4), (4, 5)),
    ("a number", "input {b}", WOVEN, (1, 1), ("nt", 4), (4, 5)),
    ("a column", "input {a}", TIME_FIRST, (5, 1), (5, 4), (4, "n")),
]
ADDED_TO_BATCHES = [
    ("a row", "input {b}", TIME_FIRST, (5,), (6, "n", 4), (6, 4, 5)),
    ("a row for each", "input {b}", TIME_FIRST, (6, 1, 5), (6, "n", 4), (6, 4, 5)),
    ("a matrix", "input", BATCH_FIRST, (2, 5), ("n", 2, 4), ("n", 4, 5)),
    ("a column for each", "input {a}", LAST, (6, 5, 1), (6, 5, 4), (6, 4, "n")),
]
SCALED = {"alpha": 0.3, "beta": -1.7}

ADDED_CASES = [
    *made(ADDMM, for_factors(ADDED, "mat1", "mat2")),
    *made(ADDMM, for_factors(ADDED[:1], "mat1", "mat2"), SCALED, function=Tensor.addmm),
    *made(BADDBMM, for_factors(ADDED_TO_BATCHES, "batch1", "batch2")),
    *made(BADDBMM, for_factors(ADDED_TO_BATCHES[1:2], "batch1", "batch2"), SCALED),
]


def refused(
    rule: Rule, name: str, parameter: str, reason: str, *shapes: Shape, **more: Any
) -> OperationCase:
    """Return a case that its rule refuses."""
    return OperationCase(
        f"{rule.name} refused: {name}",
        rule,
        tensors(*shapes),
        (parameter,),
        refusal=reason,
        **more,
    )


def of_complex(*shapes: Shape) -> Callable[[int], tuple[Tensor, ...]]:
    draw = tensors(*shapes)
    return lambda samples: tuple(t.to(torch.complex128) for t in draw(samples))


REFUSED_PRODUCTS = [
    refused(MATMUL, "for each sample", "other", ALONG, ("n", 2, 4), ("n", 4, 5)),
    refused(MATMUL, "rows along", "input", ALONG, ("n", 4), (4, 5)),
    refused(BMM, "for each sample", "mat2", ALONG, ("n", 2, 4), ("n", 4, 5)),
    refused(ADDMM, "added along", "input", ALONG, ("n", 5), ("n", 4), (4, 5)),
    refused(
        BADDBMM, "along", "input", ALONG, ("n", 1, 5), ("n", 2, 4), ("n", 4, 5)
    ),
    refused(MM, "rows along", "input", ALONG, ("n", 4), (4, 5)),
    refused(MV, "rows along", "input", ALONG, ("n", 4), (4,)),
    refused(RMATMUL, "rows along", "other", ALONG, (4, 5), ("n", 4)),
    OperationCase(
        "addmm refused: a number first",
        ADDMM,
        lambda samples: (0.5, normal(5), normal(samples, 4), normal(4, 5)),
        ("mat1",),
        refusal=NUMBERS,
    ),
    OperationCase(
        "mm refused: a sparse input",
        MM,
        lambda samples: (normal(samples, 4).to_sparse(), normal(4, 5)),
        ("mat2",),
        refusal="a tensor of it is sparse or nested",
    ),
    *(
        OperationCase(
            f"{rule.name} refused: complex",
            rule,
            arguments,
            (parameter,),
            refusal=COMPLEX,
        )
        for rule, arguments, parameter in [
            (LINEAR, of_complex(("n", 4), (5, 4)), "weight"),
            (MATMUL, of_complex(("n", 4), (4, 5)), "other"),
        ]
    ),
]  # fmt: skip


# A sample by itself: all axes are its own, whatever they are.
ONE_SAMPLE_CASES = [
    *made(
        LINEAR,
        [
            ("alone", "weight bias", Layout(0, after=5), (4,), (5, 4), (5,)),
            ("alone, rows", "input weight", FLAT, (2, 4), (5, 4)),
        ],
        samples=1,
    ),
    *made(
        MATMUL,
        [
            ("alone", "input other", FLAT, (2, 4), (4, 5)),
            ("alone, a vector", "other", Layout(0, after=5), (4,), (4, 5)),
        ],
        samples=1,
    ),
    *made(MV, [("alone", "input", Layout(0, after=5), (5, 4), (4,))], samples=1),
    *made(
        BMM,
        [("alone", "input mat2", Layout(0, after=6), (6, 2, 4), (6, 4, 5))],
        samples=1,
    ),
    *made(
        ADDMM,
        [("alone", "input mat1 mat2", FLAT, (2, 5), (2, 4), (4, 5))],
        samples=1,
    ),
    *EINSUM_OF_ONE_SAMPLE,
]

OPERATION_CASES = [
    *LINEAR_CASES,
    *MATRIX_CASES,
    *ADDED_CASES,
    *REFUSED_PRODUCTS,
    *EINSUM_CASES,
    *CONVOLUTION_CASES,
]
