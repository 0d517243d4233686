"""Flat blocks of rows collected into tensors of the caller's shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Size, Tensor

from gradkit._problem._block import Block
from gradkit.errors import InputError

__all__ = ["OutRows", "Rows", "check_out", "joined"]


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
        self._written = torch.zeros(samples, rows, dtype=torch.bool, device="cpu")
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
        part = self._written[block.samples, block.rows]
        if bool(part.any()):
            raise InputError(
                f"a method must yield each row once; it yielded some of samples"
                f" {block.samples} and rows {block.rows} again",
                argument="method",
            )
        part.fill_(True)

    def _complete(self) -> None:
        missing = int((~self._written).sum())
        if missing:
            raise InputError(
                f"a method must yield each row once; {missing} of"
                f" {self.samples * self.rows} never came",
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
        joined = _join(self._blocks)
        return [
            values.to(dtype)
            for values, (_, dtype, _) in zip(joined, self.like, strict=True)
        ]


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


def _storages_overlap(first: Tensor, second: Tensor) -> bool:
    return (
        first.numel() > 0
        and second.numel() > 0
        and first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
    )


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
    if any(s == 0 and n > 1 for s, n in zip(out.stride(), out.shape, strict=True)):
        raise InputError(
            "out must not overlap itself; got an expanded tensor; pass out.clone()",
            argument="out",
        )
    if any(_storages_overlap(out, other) for other in others):
        raise InputError(
            "out must not share memory with inputs or parameters; pass a tensor of"
            " its own",
            argument="out",
        )
