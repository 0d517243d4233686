"""Torch calls with a parameter that are no products: look-ups, normalisations, ..."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gradkit._rules._activation import PRELU
from gradkit._rules._bilinear import BILINEAR
from gradkit._rules._embedding import EMBEDDING, EMBEDDING_BAG, INDEX_SELECT, LOOK_UP
from gradkit._rules._layout import Layout
from gradkit._rules._normalisation import (
    BATCH_NORM,
    GROUP_NORM,
    INSTANCE_NORM,
    LAYER_NORM,
    RMS_NORM,
)
from gradkit._rules._rule import Rule
from operation_cases_of_broadcasts import (
    BATCH_FIRST,
    BROADCAST_CASES,
    FLAT,
    TIME_FIRST,
    WOVEN,
    case,
    integers,
    normal,
    own_axis,
    positive,
)
from rule_trial import OperationCase

__all__ = ["OPERATION_CASES"]

BY_FREQUENCY = "scale_grad_by_freq divides by how often the whole batch uses an index"
IN_TABLE = "the samples stand in the axes of its table"
NOT_INTEGERS = "its index is not one tensor of integers"

# -- embeddings ------------------------------------------------------------------------


class Densely(torch.autograd.Function):
    """The same tensor; its gradient is made dense."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return tensor.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.to_dense()


def sparsely(weight: Tensor, indices: Tensor) -> Tensor:
    return torch.embedding(Densely.apply(weight), indices, -1, False, True)


EMBEDDINGS = [
    case(EMBEDDING, "one", lambda n: (normal(7, 4), integers(7, n)), "weight"),
    case(EMBEDDING, "sequences", lambda n: (normal(7, 4), integers(7, n, 5)), "weight"),
    case(EMBEDDING, "repeated", lambda n: (normal(7, 4), integers(2, n, 2, 5)),
         "weight"),
    case(EMBEDDING, "padded", lambda n: (normal(7, 4), integers(3, n, 5), 2), "weight"),
    case(EMBEDDING, "padded with 0", lambda n: (normal(7, 4), integers(3, 5, n)),
         "weight", TIME_FIRST, padding_idx=0),
    case(EMBEDDING, "flattened", lambda n: (normal(7, 4), integers(7, n * 5), 1),
         "weight", FLAT),
    case(EMBEDDING, "woven", lambda n: (normal(7, 4), integers(7, 5 * n).int()),
         "weight", WOVEN),
    case(EMBEDDING, "sparse", lambda n: (normal(7, 4), integers(7, n, 5)), "weight",
         function=sparsely),
    case(EMBEDDING, "by frequency", lambda n: (normal(7, 4), integers(7, n, 5)),
         "weight", scale_grad_by_freq=True, refusal=BY_FREQUENCY),
    case(EMBEDDING, "samples", lambda n: (normal(7, n), integers(7, 5)), "weight",
         TIME_FIRST, refusal=IN_TABLE),
]  # fmt: skip


_BAG = {"scale_grad_by_freq": False, "mode": 0, "sparse": False}
_BAG |= {"per_sample_weights": None, "include_last_offset": False, "padding_idx": None}


def bags(*given: Any, **options: Any) -> Tensor:
    """Call with every argument, as ``torch.nn.functional`` does."""
    named: dict[str, Any] = _BAG | EMBEDDING_BAG.bind(given, options)
    return torch.embedding_bag(*(named[name] for name in EMBEDDING_BAG.arguments))[0]


def fixed(n: int) -> tuple[Tensor, ...]:
    """Draw five indices for each sample."""
    return normal(7, 4), integers(7, n * 5), torch.arange(n) * 5


def ragged(n: int, several: int = 1, below: int = 4) -> tuple[Tensor, ...]:
    """Draw bags of unequal sizes, an empty one too, of few indices."""
    sizes = torch.tensor([3, 0, 6, 1, 2]).repeat(several)[: n * several]
    offsets = sizes.cumsum(0) - sizes
    return normal(7, 4), integers(below, int(sizes.sum())), offsets


def tied(n: int) -> tuple[Tensor, ...]:
    """Draw a table many of whose entries are equal."""
    return integers(2, 7, 4).double(), *ragged(n, below=7)[1:]


def ended(n: int) -> tuple[Tensor, ...]:
    weight, indices, offsets = ragged(n)
    return weight, indices, torch.cat([offsets, torch.tensor([len(indices)])])


def bag_case(
    name: str, arguments: Any, layout: Layout = BATCH_FIRST, **options: Any
) -> OperationCase:
    return case(
        EMBEDDING_BAG, name, arguments, "weight", layout, function=bags, **options
    )


_MODES = {"sum": 0, "mean": 1, "max": 2}

BAGS = [
    one
    for word, mode in _MODES.items()
    for one in (
        bag_case(f"{word}", fixed, mode=mode),
        bag_case(f"{word}, ragged", ragged, mode=mode),
        bag_case(f"{word}, tied", tied, mode=mode),
        bag_case(f"{word}, padded", ragged, mode=mode, padding_idx=2),
        bag_case(f"{word}, padded from the end", ragged, mode=mode, padding_idx=-6),
        bag_case(f"{word}, all padded", lambda n: ragged(n, below=1), mode=mode,
                 padding_idx=0),
        bag_case(f"{word}, ended", ended, mode=mode, include_last_offset=True),
        bag_case(f"{word}, flattened", lambda n: ragged(n, 5), FLAT, mode=mode),
        bag_case(f"{word}, woven", lambda n: ragged(n, 5), WOVEN, mode=mode),
    )
] + [
    bag_case("weighted", lambda n: (*fixed(n), False, 0, False, normal(n * 5))),
    bag_case("weighted, padded", lambda n: (*fixed(n), False, 0, False, normal(n * 5)),
             padding_idx=1),
    bag_case("by frequency", fixed, scale_grad_by_freq=True, refusal=BY_FREQUENCY),
    bag_case("samples", lambda n: (normal(7, n), integers(7, 5), torch.arange(5)),
             TIME_FIRST, refusal=IN_TABLE),
    bag_case("disordered", lambda n: (*fixed(n)[:2], torch.tensor([0, 9, 4])),
             refusal="its offsets are not in ascending order"),
    bag_case("cut off", lambda n: (*fixed(n)[:2], torch.arange(n + 1) * 4),
             include_last_offset=True,
             refusal="its last offset is not the number of indices"),
]  # fmt: skip

# -- indexing --------------------------------------------------------------------------

LOOK_UPS = [
    case(LOOK_UP, "one", lambda n: (normal(7, 4), integers(7, n)), "input"),
    case(LOOK_UP, "repeated", lambda n: (normal(7, 4), integers(2, n, 2, 5)), "input"),
    case(LOOK_UP, "from the end", lambda n: (normal(7, 4), integers(14, n, 5) - 7),
         "input"),
    case(LOOK_UP, "a vector", lambda n: (normal(7), integers(7, n, 5)), "input"),
    case(LOOK_UP, "of matrices", lambda n: (normal(7, 2, 4), integers(7, n, 5).int()),
         "input"),
    case(LOOK_UP, "time first", lambda n: (normal(7, 4), integers(7, 5, n)), "input",
         TIME_FIRST),
    case(LOOK_UP, "flattened", lambda n: (normal(7, 4), integers(7, 2, n * 5)), "input",
         Layout(1, after=5)),
    case(LOOK_UP, "tuple", lambda n: (normal(7, 4), (integers(7, n),)), "input"),
    case(LOOK_UP, "slices after", lambda n: (normal(7, 4), (integers(7, n), ..., slice(
        None))), "input"),
    case(LOOK_UP, "mask", lambda n: (normal(n), torch.ones(n) > 0), "input",
         refusal=NOT_INTEGERS),
    case(LOOK_UP, "slice", lambda n: (normal(7), slice(n)), "input",
         refusal=NOT_INTEGERS),
    case(LOOK_UP, "two", lambda n: (normal(7, 4), (integers(7, n), integers(4, n))),
         "input", refusal=NOT_INTEGERS),
    case(LOOK_UP, "samples", lambda n: (normal(7, n), integers(7, 5)), "input",
         TIME_FIRST, refusal=IN_TABLE),
    case(INDEX_SELECT, "rows", lambda n: (normal(7, 4), 0, integers(7, n)), "input"),
    case(INDEX_SELECT, "flattened", lambda n: (normal(7, 2, 4), -3, integers(7, n * 5)),
         "input", FLAT, function=Tensor.index_select),
    case(INDEX_SELECT, "columns", lambda n: (normal(7, 4), 1, integers(4, n)), "input",
         TIME_FIRST, refusal="it selects along an axis that is not the first"),
    case(INDEX_SELECT, "samples", lambda n: (normal(7, n), 0, integers(7, 5)), "input",
         TIME_FIRST, refusal=IN_TABLE),
]  # fmt: skip

# -- normalisations --------------------------------------------------------------------

_BOTH = "weight bias"


def last(*shape: int) -> tuple[Any, ...]:
    return shape, normal(*shape), normal(*shape)


def running(rule: Rule) -> Callable[..., Tensor]:
    """Return the rule's function with the buffers as a module passes them."""

    def call(given: Tensor, weight: Tensor, bias: Tensor, *rest: Any) -> Tensor:
        buffers = [r.detach().clone() if isinstance(r, Tensor) else r for r in rest]
        return rule.functions[0](given, weight, bias, *buffers)

    return call


def channels(*shape: int) -> tuple[Tensor, ...]:
    return normal(*shape), normal(shape[1]), normal(shape[1])


def statistics(size: int) -> tuple[Tensor, ...]:
    return normal(size), positive(size)


NORMALISATIONS = [
    case(LAYER_NORM, "rows", lambda n: (normal(n, 4), *last(4)), _BOTH),
    case(LAYER_NORM, "sequences", lambda n: (normal(n, 5, 4), *last(4), 0.1), _BOTH),
    case(LAYER_NORM, "matrices", lambda n: (normal(n, 2, 5, 4), *last(5, 4)), _BOTH),
    case(LAYER_NORM, "time first", lambda n: (normal(5, n, 4), *last(4)), _BOTH,
         TIME_FIRST),
    case(LAYER_NORM, "flattened", lambda n: (normal(n * 5, 4), *last(4)), _BOTH, FLAT),
    case(LAYER_NORM, "no bias", lambda n: (normal(n, 5, 4), *last(4)[:2]), "weight"),
    case(LAYER_NORM, "no scale", lambda n: (normal(n, 5, 4), (4,), None, normal(4)),
         "bias", eps=0.3),
    case(LAYER_NORM, "samples", lambda n: (normal(5, n), *last(n)), _BOTH, TIME_FIRST,
         refusal=own_axis((1, 3), (5, 3))),
    case(RMS_NORM, "rows", lambda n: (normal(n, 4), *last(4)[:2]), "weight"),
    case(RMS_NORM, "small", lambda n: (1e-7 * normal(n, 5, 4), *last(4)[:2]), "weight"),
    case(RMS_NORM, "matrices", lambda n: (normal(n, 2, 5, 4), *last(5, 4)[:2], 0.1),
         "weight"),
    case(RMS_NORM, "woven", lambda n: (normal(5 * n, 4), *last(4)[:2]), "weight",
         WOVEN),
    case(RMS_NORM, "samples", lambda n: (normal(5, n), *last(n)[:2]), "weight",
         TIME_FIRST, refusal=own_axis((1, 3), (5, 3))),
    case(GROUP_NORM, "images", lambda n: (normal(n, 6, 5, 4), 3, normal(6), normal(6)),
         _BOTH),
    case(GROUP_NORM, "no positions", lambda n: (normal(n, 6), 2, normal(6), normal(6)),
         _BOTH, eps=0.1),
    case(GROUP_NORM, "flattened", lambda n: (normal(n * 5, 6, 4), 3, normal(6)),
         "weight", FLAT),
    case(GROUP_NORM, "samples", lambda n: (normal(5, n, 4), 1, normal(n)), "weight",
         TIME_FIRST, refusal=own_axis((1, 3, 1), (5, 3, 4))),
    case(INSTANCE_NORM, "images", lambda n: (*channels(n, 6, 5, 4), None, None, True,
         0.1, 0.2, True), _BOTH),
    case(INSTANCE_NORM, "updating", lambda n: (*channels(n, 6, 4), *statistics(6), True,
         0.1, 1e-5, True), _BOTH, function=running(INSTANCE_NORM)),
    case(INSTANCE_NORM, "running", lambda n: (*channels(n, 6, 4), *statistics(6), False,
         0.1, 0.2, True), _BOTH, function=running(INSTANCE_NORM)),
    case(INSTANCE_NORM, "flattened", lambda n: (*channels(n * 5, 6, 4), None, None,
         True, 0.1, 1e-5, True), _BOTH, FLAT),
    case(INSTANCE_NORM, "samples", lambda n: (*channels(5, n, 4), None, None, True, 0.1,
         1e-5, True), _BOTH, TIME_FIRST, refusal=own_axis((1, 3, 1), (5, 3, 4))),
    case(BATCH_NORM, "images", lambda n: (*channels(n, 6, 5, 4), *statistics(6), False,
         0.1, 0.2, True), _BOTH, function=running(BATCH_NORM)),
    case(BATCH_NORM, "rows", lambda n: (*channels(n, 6), *statistics(6), False, 0.1,
         1e-5, True), _BOTH, function=running(BATCH_NORM)),
    case(BATCH_NORM, "flattened", lambda n: (*channels(n * 5, 6, 4), *statistics(6),
         False, 0.1, 1e-5, True), _BOTH, FLAT, function=running(BATCH_NORM)),
    case(BATCH_NORM, "samples", lambda n: (*channels(5, n, 4), *statistics(n), False,
         0.1, 1e-5, True), _BOTH, TIME_FIRST, function=running(BATCH_NORM),
         refusal=own_axis((1, 3, 1), (5, 3, 4))),
    case(BATCH_NORM, "training", lambda n: (*channels(n, 6, 4), None, None, True, 0.1,
         1e-5, True), _BOTH, refusal="in training mode it normalises over the samples"),
]  # fmt: skip

# -- one activation, and a product of three --------------------------------------------

OTHERS = [
    case(PRELU, "one slope", lambda n: (normal(n, 5, 4), normal(1)), "weight"),
    case(PRELU, "a number", lambda n: (normal(n), normal()), "weight"),
    case(PRELU, "channels", lambda n: (normal(n, 5, 4), normal(5)), "weight",
         function=Tensor.prelu),
    case(PRELU, "rows", lambda n: (normal(n, 5), normal(5)), "weight"),
    case(PRELU, "time first", lambda n: (normal(5, n, 4), normal(1)), "weight",
         TIME_FIRST),
    case(PRELU, "flattened", lambda n: (normal(n * 5, 4), normal(4)), "weight", FLAT),
    case(PRELU, "samples", lambda n: (normal(5, n, 4), normal(n)), "weight", TIME_FIRST,
         refusal=own_axis((1, 3, 1), (5, 3, 4))),
    case(BILINEAR, "rows", lambda n: (normal(n, 4), normal(n, 3), normal(2, 4, 3),
         normal(2)), _BOTH),
    case(BILINEAR, "positions", lambda n: (normal(n, 2, 5, 4), normal(n, 2, 5, 3),
         normal(6, 4, 3), normal(6)), _BOTH),
    case(BILINEAR, "small", lambda n: (normal(n, 2, 5), normal(n, 2, 6),
         normal(8, 5, 6)), "weight"),
    case(BILINEAR, "time first", lambda n: (normal(5, n, 4), normal(5, n, 3),
         normal(2, 4, 3), normal(2)), _BOTH, TIME_FIRST),
    case(BILINEAR, "flattened", lambda n: (normal(n * 5, 4), normal(n * 5, 3),
         normal(2, 4, 3), normal(2)), _BOTH, FLAT),
    case(BILINEAR, "samples", lambda n: (normal(5, 4), normal(5, 2), normal(n, 4, 2)),
         "weight", TIME_FIRST, refusal="the samples stand in the axis of its outputs"),
]  # fmt: skip

OPERATION_CASES = [
    *BROADCAST_CASES,
    *EMBEDDINGS,
    *BAGS,
    *LOOK_UPS,
    *NORMALISATIONS,
    *OTHERS,
]
