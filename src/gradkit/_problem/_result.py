"""Flat blocks of rows collected into tensors of the caller's shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Size, Tensor

from gradkit._problem._block import Block
from gradkit.errors import InputError

__all__ = ["OutRows", "Rows", "check_out", "joined", "overlaps_itself"]


class Rows:
    """Collects blocks into one ``(N, R, *shape)`` tensor per thing differentiated.

    Rows are copied into one preallocated result: a list of small results between
    large temporaries fragments the C heap. A block that is the whole result is
    taken as it is. With ``connected`` nothing is written in place, so that the
    result keeps its graph.
    """

    def __init__(
        self,
        samples: int,
        rows: int,
        like: Sequence[tuple[Size, torch.dtype, torch.device]],
        *,
        connected: bool = False,
    ) -> None:
        self.samples, self.rows = samples, rows
        self.like = tuple(like)
        self.connected = connected
        self._blocks: list[Block] = []
        # (first sample, first row, end of samples, end of rows) of what came
        self._came: list[tuple[int, int, int, int]] = []
        self._flat: list[Tensor] | None = None

    def write(self, block: Block) -> None:
        """Take one block of rows."""
        self._count(block)
        whole = block.covers(self.samples, self.rows)
        if self.connected or (whole and self._flat is None and not self._blocks):
            self._blocks.append(block)
            return
        if self._flat is None:
            self._flat = [
                torch.empty(
                    self.samples, self.rows, shape.numel(), dtype=dtype, device=device
                )
                for shape, dtype, device in self.like
            ]
        for target, values in zip(self._flat, block.values, strict=True):
            target[block.samples, block.rows] = values

    def _count(self, block: Block) -> None:
        """Refuse blocks that are no tensors of the promised sizes."""
        n = block.samples.stop - block.samples.start
        r = block.rows.stop - block.rows.start
        wanted = [(n, r, shape.numel()) for shape, _, _ in self.like]
        got = [tuple(v.shape) for v in block.values]
        if wanted != got:
            raise InputError(
                f"a method must yield values of shapes {wanted} for samples"
                f" {block.samples} and rows {block.rows}; got {got}",
                argument="method",
            )
        self._came.append(
            (block.samples.start, block.rows.start, block.samples.stop, block.rows.stop)
        )

    def _complete(self) -> None:
        """Refuse a result with rows that never came, or came twice."""
        if self._came == [(0, 0, self.samples, self.rows)]:
            return
        written = torch.zeros(self.samples, self.rows, dtype=torch.int32, device="cpu")
        for n, r, n_end, r_end in self._came:
            written[n:n_end, r:r_end] += 1
        missing, again = int((written == 0).sum()), int((written > 1).sum())
        if missing or again:
            raise InputError(
                f"a method must yield each row once; of {self.samples * self.rows},"
                f" {missing} never came and {again} came again",
                argument="method",
            )

    def flat(self) -> list[Tensor]:
        """Return one ``(N, R, size)`` tensor per thing differentiated."""
        self._complete()
        if self._flat is not None:
            return self._flat
        if not self._blocks:
            return [
                torch.zeros(self.samples, self.rows, s.numel(), dtype=t, device=d)
                for s, t, d in self.like
            ]
        found = [
            values.to(dtype)
            for values, (_, dtype, _) in zip(
                _join(self._blocks), self.like, strict=True
            )
        ]
        # A result that is one number in memory could not be written to.
        return (
            found
            if self.connected
            else [v.clone() if overlaps_itself(v) else v for v in found]
        )


def _join(blocks: list[Block]) -> list[Tensor]:
    """Concatenate blocks along rows within equal samples, then along samples."""
    blocks = sorted(blocks, key=lambda b: (b.samples.start, b.rows.start))
    starts = sorted({b.samples.start for b in blocks})
    bands = []
    for start in starts:
        band = [b.values for b in blocks if b.samples.start == start]
        bands.append([joined(parts, 1) for parts in zip(*band, strict=True)])
    return [joined(parts, 0) for parts in zip(*bands, strict=True)]


def joined(parts: Sequence[Tensor], axis: int) -> Tensor:
    """Concatenate, but take a single part as it is."""
    return torch.cat(list(parts), axis) if len(parts) > 1 else next(iter(parts))


def unravel(index: int, shape: Size) -> tuple[int, ...]:
    """Return the multi-index of a flat ``index`` into ``shape``."""
    place: list[int] = []
    for size in reversed(shape):
        index, rest = divmod(index, size)
        place.append(rest)
    return tuple(reversed(place))


class OutRows(Rows):
    """Collects blocks into a tensor of the caller's, whatever its strides."""

    def __init__(
        self, out: Tensor, samples: int, rows: int, out_size: Size, in_size: Size
    ) -> None:
        super().__init__(samples, rows, [(in_size, out.dtype, out.device)])
        self.out_size, self.in_size = out_size, in_size
        # A leading axis of one stands for the samples where there is no such axis.
        self.target = (
            out.view(samples, *out_size, *in_size)
            if (out.ndim == len(out_size) + len(in_size) + 1)
            else out.unsqueeze(0)
        )

    def write(self, block: Block) -> None:
        """Copy one block of rows, row by row where the strides ask for it."""
        self._count(block)
        (values,) = block.values
        count = values.shape[0]
        if block.rows.stop - block.rows.start == self.rows:
            shape = (count, *self.out_size, *self.in_size)
            self.target[block.samples].copy_(values.reshape(shape))
            return
        for i, row in enumerate(range(block.rows.start, block.rows.stop)):
            index = (block.samples, *unravel(row, self.out_size))
            self.target[index].copy_(values[:, i].reshape(count, *self.in_size))

    def flat(self) -> list[Tensor]:
        """Return the target itself, viewed as ``(N, R, size)`` where it can be."""
        self._complete()
        return [self.target.reshape(self.samples, self.rows, self.in_size.numel())]


def overlaps_itself(out: Tensor) -> bool:
    """Whether two entries may be one number in memory."""
    axes = sorted((s, n) for s, n in zip(out.stride(), out.shape, strict=True) if n > 1)
    reach = 0
    for stride, size in axes:
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return False


def _memory_overlaps(first: Tensor, second: Tensor) -> bool:
    """Whether two tensors may share memory, also where their storages differ.

    Arrays of numpy give every tensor made of them a storage of its own.
    """
    if first.device != second.device or not first.numel() or not second.numel():
        return False
    if second.layout is not torch.strided:
        return False
    start, stop = _span(first)
    other_start, other_stop = _span(second)
    return start < other_stop and other_start < stop


def _span(tensor: Tensor) -> tuple[int, int]:
    axes = zip(tensor.shape, tensor.stride(), strict=True)
    reach = sum((size - 1) * stride for size, stride in axes) + 1
    start = tensor.data_ptr()
    return start, start + reach * tensor.element_size()


def check_out(out: Any, like: Tensor, shape: tuple[int, ...], others: Any) -> None:
    """Refuse an ``out`` that is not exactly what would be returned."""
    if not isinstance(out, Tensor):
        raise InputError(
            f"out must be a torch.Tensor; got {type(out).__name__}", argument="out"
        )
    wanted = (tuple(shape), like.dtype, like.device)
    got = (tuple(out.shape), out.dtype, out.device)
    for what, want, have in zip(("shape", "dtype", "device"), wanted, got, strict=True):
        if want != have:
            raise InputError(f"out must have {what} {want}; got {have}", argument="out")
    if out.requires_grad:
        raise InputError(
            "out must not require grad, since rows are written into it; pass"
            " out.detach()",
            argument="out",
        )
    if overlaps_itself(out):
        raise InputError(
            "out must not overlap itself; pass out.clone()",
            argument="out",
        )
    if any(_memory_overlaps(out, other) for other in others):
        raise InputError(
            "out must not share memory with inputs or parameters; pass a tensor of"
            " its own",
            argument="out",
        )
