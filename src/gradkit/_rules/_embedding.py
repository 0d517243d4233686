"""Rules of look-ups: rows of a table that samples choose by integers."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Size, Tensor

from gradkit._rules._aligned import spelled
from gradkit._rules._lookup import Lookup
from gradkit._rules._rule import Operation, Rule

__all__ = ["EMBEDDING", "EMBEDDING_BAG", "INDEX_SELECT", "LOOK_UP"]


def _looked_up(
    operation: Operation, cotangent: Tensor, index: Tensor, table: Size
) -> Lookup:
    """Return the rows of a table whose entries ``(V, ..)`` were looked up.

    Args:
        operation: The operation.
        cotangent: ``(N, R, *index, ..)``.
        index: Indices that are not negative, with the output's leading axes.
        table: The table's shape.
    """
    index = operation.front(index)
    samples, rows = cotangent.shape[:2]
    positions, width = prod(index.shape[1:]), prod(table[1:])
    index = index.reshape(samples, positions).long()
    cotangent = cotangent.reshape(samples, rows, positions, width)
    return Lookup(table, cotangent, index)


def _without_samples(operation: Operation, index: Tensor) -> str | None:
    if operation.layout.axis >= index.dim():
        return "the samples stand in the axes of its table"
    return None


# -- embedding -------------------------------------------------------------------------


def _rows_of_embedding(operation: Operation, cotangent: Tensor) -> Lookup:
    index = operation.values("indices")
    # No index equals the -1 that stands for no padding.
    padding = operation.get("padding_idx", -1)
    if padding >= 0:
        counted = operation.front(index != padding)[:, None, ..., None]
        cotangent = torch.where(counted, cotangent, 0.0)
    return _looked_up(operation, cotangent, index, operation.parameters["weight"])


def _refused_embedding(operation: Operation) -> str | None:
    if operation.get("scale_grad_by_freq", False):
        return "scale_grad_by_freq divides by how often the whole batch uses an index"
    return _without_samples(operation, operation.arguments["indices"])


# Looks up rows of a table: y[t] = p[v[t]].
# Jacobian: dy[t, o] / dp[v, o'] = 1 where v = v[t] and o = o', else 0.
# Pullback: rows[n, r, v, o] = sum_t c[n, r, t, o] [v[n, t] = v], over t not padded.
# Covers padding_idx, sparse, repeated indices; refuses scale_grad_by_freq.
# https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.embedding.html
EMBEDDING = Rule(
    "embedding",
    (torch.embedding,),
    ("weight", "indices", "padding_idx", "scale_grad_by_freq", "sparse"),
    {"weight": _rows_of_embedding},
    _refused_embedding,
)


# -- embedding_bag ---------------------------------------------------------------------

_SUM, _MEAN, _MAX = range(3)


def _padding(operation: Operation) -> int:
    """Return the index that is not counted, ``-1`` if there is none."""
    given = operation.get("padding_idx")
    return -1 if given is None else given % operation.parameters["weight"][0]


def _shares(operation: Operation, bag: Tensor, counted: Tensor) -> Tensor:
    """Return what each index's row is multiplied by in its bag, ``(J, 1 or d)``."""
    mode = operation.get("mode", _SUM)
    if mode == _MAX:
        return _is_largest(operation, bag)
    if mode == _MEAN:
        sizes = bag.new_zeros(operation.shape[0]).index_add_(0, bag, counted.long())
        sizes = sizes.to(operation.compute or operation.dtype)
        return sizes[bag, None].reciprocal()
    if operation.get("per_sample_weights") is not None:
        return operation.values("per_sample_weights")[:, None]
    return counted[:, None]


def _is_largest(operation: Operation, bag: Tensor) -> Tensor:
    """Return whether each index gave its bag's largest entries, ``(J, d)``."""
    weight, index = operation.values("weight"), operation.values("indices")
    offsets = operation.values("offsets")
    whole = operation.get("include_last_offset", False)
    padding = operation.get("padding_idx")
    # Which of equal entries counts is the operation's to say, so it is asked again.
    largest = torch.embedding_bag(
        weight, index, offsets, False, _MAX, False, None, whole, padding
    )[3]
    same = largest[bag] == index[:, None]
    # An index that stands in its bag more than once is counted the first time.
    running = same.cumsum(0)
    before = (running - same.long())[offsets[bag]]
    return same & (running == before + 1)


@dataclass(frozen=True, eq=False)
class _Slots:
    """Where each of ``J`` indices goes in tables ``(N, T, ..)`` by sample.

    ``T`` is what the sample with the most indices has.
    """

    sample: Tensor
    slot: Tensor
    #: Which of its sample's bags it is in.
    place: Tensor
    samples: int
    positions: int

    @classmethod
    def of(cls, operation: Operation, bag: Tensor) -> _Slots:
        """Sort the indices by whose they are."""
        samples = operation.samples
        every = torch.arange(operation.shape[0], device=bag.device)
        bags = operation.front(every).reshape(samples, -1)
        owner, place = torch.empty_like(every), torch.empty_like(every)
        owner[bags] = torch.arange(samples, device=bag.device)[:, None]
        place[bags] = torch.arange(bags.shape[1], device=bag.device)
        sample = owner[bag]
        counts = torch.bincount(sample, minlength=samples)
        order = sample.argsort(stable=True)
        slot = torch.arange(len(bag), device=bag.device)
        slot = slot - (counts.cumsum(0) - counts)[sample[order]]
        slot = torch.empty_like(slot).index_copy_(0, order, slot)
        return cls(sample, slot, place[bag], samples, int(counts.max()))

    def table(self, values: Tensor) -> Tensor:
        """Return values of the indices, ``(J, ..)``, by sample; zero elsewhere."""
        found = values.new_zeros(self.samples, self.positions, *values.shape[1:])
        found[self.sample, self.slot] = values
        return found


def _rows_of_bags(operation: Operation, cotangent: Tensor) -> Lookup:
    index = operation.values("indices").long()
    each = torch.arange(len(index), device=index.device)
    # A last offset, if there is one, is past all of them.
    offsets = operation.values("offsets").to(each.dtype)
    bag = torch.searchsorted(offsets, each, right=True) - 1
    counted = index != _padding(operation)
    shares = _shares(operation, bag, counted)
    slots = _Slots.of(operation, bag)
    samples, rows, width = *cotangent.shape[:2], cotangent.shape[-1]
    cotangent = cotangent.reshape(samples, rows, -1, width)
    place = slots.table(slots.place)[:, None, :, None]
    pulled = cotangent.gather(2, place.expand(-1, rows, -1, width))
    shares = slots.table(shares)[:, None]
    # Not a product alone: zero times what is not finite is nan.
    counted = slots.table(counted)[:, None, :, None]
    pulled = torch.where(counted, pulled * shares, 0.0)
    return Lookup(operation.parameters["weight"], pulled, slots.table(index))


def _refused_bags(operation: Operation) -> str | None:
    if operation.get("scale_grad_by_freq", False):
        return "scale_grad_by_freq divides by how often the whole batch uses an index"
    if operation.layout.axis:
        return "the samples stand in the axes of its table"
    index, offsets = operation.arguments["indices"], operation.arguments["offsets"]
    if bool((offsets[1:] < offsets[:-1]).any()):
        return "its offsets are not in ascending order"
    # Where they are not, torch's own results differ between dtypes.
    whole = operation.get("include_last_offset", False)
    if whole and int(offsets[-1]) != len(index):
        return "its last offset is not the number of indices"
    return None


# Sums, averages or takes the maximum over bags of looked-up rows: y[b] = sum_j s[j]
# p[v[j]] over the j in bag b, with s[j] a weight, 1 / |b|, or 1 where v[j] is largest.
# Jacobian: dy[b, o] / dp[v, o] = sum_j s[j, o] [v[j] = v].
# Pullback: rows[n, r, v, o] = sum_t c[n, r, b(t), o] s[n, t, o] [v[n, t] = v].
# Covers the three modes, per_sample_weights, padding_idx, empty bags,
# include_last_offset, sparse; refuses scale_grad_by_freq and disordered offsets.
# https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.embedding_bag.html
EMBEDDING_BAG = Rule(
    "embedding_bag",
    (torch.embedding_bag,),
    (
        *("weight", "indices", "offsets", "scale_grad_by_freq", "mode", "sparse"),
        *("per_sample_weights", "include_last_offset", "padding_idx"),
    ),
    {"weight": _rows_of_bags},
    _refused_bags,
)


# -- indexing --------------------------------------------------------------------------


def _index(operation: Operation) -> Tensor | None:
    """Return the one tensor that a table's first axis is indexed with."""
    given: Any = operation.arguments["index"]
    if isinstance(given, tuple):
        rest = given[1:]
        if not given or not all(r is Ellipsis or r == slice(None) for r in rest):
            return None
        given = given[0]
    if not isinstance(given, Tensor) or given.dtype in (torch.bool, torch.uint8):
        return None
    return given.detach()


def _rows_of_table(operation: Operation, cotangent: Tensor) -> Lookup:
    index = _index(operation)
    assert index is not None, "such an index is refused"
    table = operation.parameters["input"]
    index = torch.where(index < 0, index + table[0], index)
    return _looked_up(operation, cotangent, index, table)


def _refused_index(operation: Operation) -> str | None:
    index = _index(operation)
    if index is None:
        return "its index is not one tensor of integers"
    return _without_samples(operation, index)


def _refused_selection(operation: Operation) -> str | None:
    axes = len(operation.parameters["input"])
    if axes and operation.get("dim", 0) % axes:
        return "it selects along an axis that is not the first"
    return _without_samples(operation, operation.arguments["index"])


# Looks up entries along a table's first axis: y[t] = p[v[t]].
# Jacobian: dy[t, o] / dp[v, o'] = 1 where v = v[t] and o = o', else 0.
# Pullback: rows[n, r, v, o] = sum_t c[n, r, t, o] [v[n, t] = v].
# Covers one tensor of integers of any shape, negative ones too, and full slices after
# it; masks, and indices along other axes, are refused.
# https://docs.pytorch.org/docs/stable/tensors.html
LOOK_UP = Rule(
    "getitem",
    spelled("__getitem__"),
    ("input", "index"),
    {"input": _rows_of_table},
    _refused_index,
)

# Looks up entries along a table's first axis: y[t] = p[v[t]].
# Jacobian: dy[t, o] / dp[v, o'] = 1 where v = v[t] and o = o', else 0.
# Pullback: rows[n, r, v, o] = sum_t c[n, r, t, o] [v[n, t] = v].
# Covers the first axis; refuses others.
# https://docs.pytorch.org/docs/stable/generated/torch.index_select.html
INDEX_SELECT = Rule(
    "index_select",
    spelled("index_select"),
    ("input", "dim", "index"),
    {"input": _rows_of_table},
    _refused_selection,
)
