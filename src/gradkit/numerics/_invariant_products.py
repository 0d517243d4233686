"""Matrix products whose entries depend on their row and their column alone.

Every kernel measured sums over the inner axis in order, by fused multiplications and
additions into one register, as long as that axis is short, both outer axes fill whole
registers, and neither has size one. Such an entry is one chain of roundings, whatever
the shape, the place or the number of threads. Longer inner axes are therefore cut at
places that their length alone decides, and the chains added in order.

That a kernel is of this kind is not assumed: each shape is tried, once per process
and number of threads, on known rows and columns before it is used.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gradkit._dtypes import short

__all__ = ["UnprovedError", "products"]

#: Longest chain by the BLAS, and by oneDNN where both outer axes are long enough.
_SHORT, _LONG = 192, 400
#: Outer axes are padded to multiples of this where a kernel wants whole registers.
_REGISTERS = 48
#: Bytes of a cache line.
_LINE = 64
#: Distinct known rows and columns: prime to every width of a register.
_ROWS, _COLUMNS = 7, 5
#: Multiplications of one matrix from which on oneDNN is quicker than the BLAS.
_LARGE = 1 << 18


class UnprovedError(Exception):
    """No kernel gives each entry by itself; says the shape in words."""


def products(left: Tensor, right: Tensor) -> Tensor:
    """Return ``left @ right`` of ``(B, M, K)`` and ``(B, K, N)``, entry by entry.

    Lower precisions are computed in float32 and rounded once.
    """
    if left.dtype in (torch.bfloat16, torch.float16):
        return products(left.float(), right.float()).to(left.dtype)
    (batch, rows, inner), columns = left.shape, right.shape[2]
    if not (batch and rows and inner and columns):
        return left.new_zeros(batch, rows, columns)
    longest = _LONG if left.dtype is torch.float32 else _SHORT
    count = -(-inner // longest)
    # Whole multiples of 16, decided by the length alone.
    length = -(-inner // (16 * count)) * 16
    total = None
    for start in range(0, inner, length):
        stop = start + length
        part = _chains(left[:, :, start:stop], right[:, start:stop])
        total = part if total is None else total.add_(part)
    assert total is not None
    return total


def _chains(left: Tensor, right: Tensor) -> Tensor:
    """Return the products by the first way that gives chains for this shape."""
    left, right = _plain(left), _plain(right)
    rows, columns = left.shape[1], right.shape[2]
    for multiple in (1, 16, _REGISTERS):
        more_rows, more_columns = -rows % multiple, -columns % multiple
        if min(rows + more_rows, columns + more_columns) < 2:
            continue
        a = F.pad(left, (0, 0, 0, more_rows)) if more_rows else left
        b = F.pad(right, (0, more_columns)) if more_columns else right
        way = _way(*_kind(a, b))
        if way is not None:
            return way(a, b)[:, :rows, :columns]
    raise UnprovedError(
        f"a {short(left.dtype)} product of {tuple(left.shape)} and {tuple(right.shape)}"
    )


def _plain(matrices: Tensor) -> Tensor:
    """Return matrices that lie one after the other, rows or columns contiguous."""
    if not (matrices.is_contiguous() or matrices.mT.is_contiguous()):
        return matrices.contiguous()
    # Fresh memory begins at a whole cache line; kernels may look at that.
    return matrices.clone() if matrices.data_ptr() % _LINE else matrices


def _kind(left: Tensor, right: Tensor) -> tuple[Any, ...]:
    batch, rows, inner = left.shape
    layout = left.is_contiguous(), right.is_contiguous()
    threads = torch.get_num_threads()
    return left.dtype, batch, rows, inner, right.shape[2], layout, threads


def _by_blas(left: Tensor, right: Tensor) -> Tensor:
    if len(left) == 1:
        return torch.mm(left[0], right[0])[None]
    return torch.bmm(left, right)


def _by_onednn(left: Tensor, right: Tensor) -> Tensor:
    operation = torch.ops.mkldnn._linear_pointwise.default
    pairs = zip(left.unbind(), right.unbind(), strict=True)
    parts = [operation(a, b.t(), None, "none", [], "") for a, b in pairs]
    return parts[0][None] if len(parts) == 1 else torch.stack(parts)


@cache
def _way(
    dtype: torch.dtype,
    batch: int,
    rows: int,
    inner: int,
    columns: int,
    layout: tuple[bool, bool],
    threads: int,
) -> Any:
    """Return the quickest way that gives chains for matrices of this kind."""
    del threads  # part of the key: kernels divide their work by it
    left, right, expected = _known(dtype, inner)
    a = left.repeat(-(-rows // _ROWS), 1)[:rows].repeat(batch, 1, 1)
    b = right.repeat(1, -(-columns // _COLUMNS))[:, :columns].repeat(batch, 1, 1)
    a = a if layout[0] else a.mT.contiguous().mT
    b = b if layout[1] else b.mT.contiguous().mT
    wanted = expected.repeat(-(-rows // _ROWS), -(-columns // _COLUMNS))
    wanted = wanted[:rows, :columns].expand(batch, -1, -1)
    for way in _ways(dtype, rows * inner * columns):
        if torch.equal(way(a, b), wanted):
            return way
    return None


def _ways(dtype: torch.dtype, size: int) -> list[Any]:
    mkldnn = torch.backends.mkldnn
    built = mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    if dtype is not torch.float32 or not built:
        return [_by_blas]
    ways = [_by_blas, _by_onednn]
    return ways[::-1] if size >= _LARGE else ways


@cache
def _known(dtype: torch.dtype, inner: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return known rows and columns, and the chain of each pair of them."""
    source = torch.Generator().manual_seed(inner)
    left = torch.randn(_ROWS, inner, generator=source, dtype=dtype, device="cpu")
    right = torch.randn(inner, _COLUMNS, generator=source, dtype=dtype, device="cpu")
    if dtype is torch.float32:
        return left, right, _chain_of_singles(left, right)
    chains = [
        [_chain(row, column) for column in right.t().tolist()] for row in left.tolist()
    ]
    return left, right, torch.tensor(chains, dtype=dtype)


def _chain_of_singles(left: Tensor, right: Tensor) -> Tensor:
    """Return fused sums in float32: products are exact in float64."""
    total = left.new_zeros(_ROWS, _COLUMNS)
    for column, row in zip(
        left.double().unbind(1), right.double().unbind(), strict=True
    ):
        total = (torch.outer(column, row) + total.double()).float()
    return total


def _chain(row: list[float], column: list[float]) -> float:
    """Return a fused sum in float64: each step is rounded once."""
    total = 0.0
    for a, b in zip(row, column, strict=True):
        total = float(Fraction(a) * Fraction(b) + Fraction(total))
    return total
