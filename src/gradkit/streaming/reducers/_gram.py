"""The inner products of all samples' rows with one another."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from gradkit._call._request import naming
from gradkit._memory_use import format_bytes
from gradkit._problem._inputs import as_position
from gradkit.errors import InputError
from gradkit.streaming.reducers._folding import Folding, State, flat, wide
from gradkit.streaming.reducers._reducer import Place

__all__ = ["Gram"]

#: Samples and entries that are widened and multiplied at a time.
_SAMPLES, _ENTRIES = 1024, 4096


@dataclass(frozen=True)
class Gram(Folding):
    """The inner products of all rows with all rows, samples in the order of the data.

    Of per-sample gradients, projected or not, this is the empirical tangent kernel.

    Args:
        max_samples: More are refused: the result has ``N²`` numbers.

    Returns:
        ``(N, N)``: float64, or of complex rows complex128 with
        ``[i, j] = r_i · conj(r_j)``.

    Raises:
        InputError: There are no rows, more than ``max_samples``, or of different
            shapes; or ``max_samples`` is no number.

    Cost:
        Keeps all rows, ``N · D`` numbers in their own dtype, where they lie. The result
        takes ``8 N²`` bytes more (3.2 GB for 20,000 samples) and ``N² D`` operations.

    Example:
        >>> import torch
        >>> from gradkit.streaming.reducers import Gram, Place
        >>> gram = Gram()
        >>> later = torch.tensor([[3.0, 4.0]])
        >>> state = gram.add(gram.start(), later, Place(batch=1, first=1))
        >>> first = torch.tensor([[1.0, 0.0]])
        >>> gram.result(gram.add(state, first, Place(batch=0, first=0)))
        tensor([[ 1.,  3.],
                [ 3., 25.]], dtype=torch.float64)
    """

    max_samples: int = 20_000

    def __post_init__(self) -> None:
        most = as_position(self.max_samples)
        if most is None or most < 1:
            with naming("Gram"):
                raise InputError(
                    "max_samples must be a whole number of at least 1; got"
                    f" {self.max_samples!r}",
                    argument="max_samples",
                )
        object.__setattr__(self, "max_samples", most)

    def _of(self, rows: Tensor, place: Place) -> State:
        self._check_count(len(rows), rows.numel() * rows.element_size())
        return {"firsts": [place.first], "blocks": [flat(rows).clone()]}

    def _merged(self, state: State, other: State) -> State:
        blocks = [*state["blocks"], *other["blocks"]]
        kept = sum(block.numel() * block.element_size() for block in blocks)
        self._check_count(state["count"] + other["count"], kept)
        return {"firsts": [*state["firsts"], *other["firsts"]], "blocks": blocks}

    def _check_count(self, count: int, kept: int) -> None:
        if count > self.max_samples:
            size = 8 * count**2
            raise InputError(
                f"there must be at most max_samples={self.max_samples:,} samples; got"
                f" {count:,}, whose result takes {format_bytes(size)} beside"
                f" {format_bytes(kept)} of rows. Pass a larger max_samples, or reduce"
                " some of the samples",
                argument="max_samples",
                samples=count,
                bytes=size + kept,
            )

    def _finished(self, state: State) -> Tensor:
        order = sorted(range(len(state["firsts"])), key=state["firsts"].__getitem__)
        rows = _Rows([state["blocks"][i] for i in order])
        count = state["count"]
        found = rows.like.new_zeros(count, count)
        for i, left in enumerate(rows.parts):
            for right in rows.parts[i:]:
                products = rows.products(left, right)
                found[left, right] = products
                found[right, left] = products.mH
        return found


class _Rows:
    """Blocks of rows as one matrix, of which parts are widened at a time."""

    def __init__(self, blocks: list[Tensor]) -> None:
        self.blocks = blocks
        self.starts = [0, *accumulate(len(block) for block in blocks)]
        self.like = wide(blocks[0].new_empty(0))
        for block in blocks[1:]:
            dtype = torch.promote_types(self.like.dtype, block.dtype)
            self.like = self.like.to(dtype)
        # By the data alone: the same numbers however it was cut into batches.
        count = self.starts[-1]
        self.parts = [
            slice(start, min(start + _SAMPLES, count))
            for start in range(0, count, _SAMPLES)
        ]

    def products(self, left: slice, right: slice) -> Tensor:
        """Return the inner products of some rows with some rows."""
        shape = left.stop - left.start, right.stop - right.start
        total = self.like.new_zeros(shape)
        for start in range(0, self.blocks[0].shape[1], _ENTRIES):
            entries = slice(start, start + _ENTRIES)
            total += self._wide(left, entries) @ self._wide(right, entries).mH
        return total

    def _wide(self, part: slice, entries: slice) -> Tensor:
        return torch.cat([b[:, entries].to(self.like) for b in self._within(part)])

    def _within(self, part: slice) -> Iterator[Tensor]:
        first = bisect_right(self.starts, part.start) - 1
        last = bisect_left(self.starts, part.stop)
        for start, block in zip(
            self.starts[first:last], self.blocks[first:last], strict=True
        ):
            yield block[max(part.start - start, 0) : part.stop - start]
