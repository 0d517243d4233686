"""Functions of single entries, and sums, that no place in memory changes.

The vectorised body of a loop and its end run different code, and strided memory a
third. Here entries lie flat, in whole vectors, whichever thread takes them. Sums are
taken along contiguous memory, on one thread.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from gradkit.numerics._invariant_samples import on_one_thread

__all__ = ["along", "entrywise", "reduced", "rowwise", "settled", "variance"]

#: Twice the entries of the widest vector, and more: loops are unrolled.
_VECTORS = 128
#: Entries per thread from which on torch divides loops: by kind of loop.
_GRAINS = (1, 2048, 32768)


def _padded_size(count: int) -> int:
    """Return a size at which every thread's share is whole vectors."""
    threads = torch.get_num_threads()
    size = -1
    while size != (size := count):
        shares = (min(threads, -(-max(size, 1) // grain)) for grain in _GRAINS)
        multiple = _VECTORS * math.lcm(*shares)
        count = max(-(-size // multiple), 1) * multiple
    return size


def entrywise(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return ``func`` of tensors of entries, each at home in a whole vector."""
    tensors = [a for a in (*args, *kwargs.values()) if isinstance(a, Tensor)]
    dtypes = {t.dtype for t in tensors if t.ndim}
    shape = torch.broadcast_shapes(*(t.shape for t in tensors))
    count = shape.numel()
    size = _padded_size(count)

    def flat(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if not value.ndim and dtypes and value.dtype not in dtypes:
            return value  # without axes it does not decide the dtype
        whole = value.expand(shape).contiguous().view(-1)
        if size == count:
            return whole.clone() if whole.data_ptr() % 64 else whole
        # Ones are in every function's domain, and cost no handling of subnormals.
        room = whole.new_ones(size)
        room[:count] = whole
        return room

    result = func(*map(flat, args), **{k: flat(v) for k, v in kwargs.items()})
    if isinstance(result, Tensor):
        return result[:count].view(shape)
    return tuple(r[:count].view(shape) if r.numel() == size else r for r in result)


def rowwise(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return ``func`` of contiguous tensors: its rows were never seen to differ."""
    args = tuple(_contiguous(a) for a in args)
    return func(*args, **{name: _contiguous(value) for name, value in kwargs.items()})


def settled(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return ``func`` of contiguous tensors on one thread."""
    with on_one_thread():
        return rowwise(func, args, kwargs)


def along(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return what an operation along one axis gives along contiguous memory."""
    names = [a.name for a in func._schema.arguments]
    bound = dict(zip(names, args, strict=False)) | kwargs
    axis = bound["dim"]

    def last(value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.ndim:
            return value
        return value.movedim(axis, -1).contiguous()

    moved = {n: -1 if n == "dim" else last(v) for n, v in bound.items()}
    with on_one_thread() if "cum" in func._schema.name else nullcontext():
        result = func(**moved)
    return result.movedim(-1, axis) if result.ndim else result


def _contiguous(value: Any) -> Any:
    if isinstance(value, Tensor) and value.layout is torch.strided:
        return value.contiguous()
    return value


def reduced(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return a sum or the like over axes, each along contiguous memory.

    Where the reduced axes lie decides how torch adds, and an axis of size one lies
    anywhere, so they are brought to the end first.
    """
    func = _OVER_AXES.get(func, func)
    names = [a.name for a in func._schema.arguments]
    bound = dict(zip(names, args, strict=False)) | kwargs
    values, axes = bound.pop("self"), bound.pop("dim", None)
    kept = bound.pop("keepdim", False)
    axes = [axes] if isinstance(axes, int) else axes
    axes = sorted({a % values.ndim for a in axes or range(values.ndim)})
    others = [a for a in range(values.ndim) if a not in axes]
    shape = [values.shape[a] for a in others]
    length = math.prod(values.shape[a] for a in axes)
    rows = values.permute(*others, *axes).reshape(math.prod(shape), length)
    # A lone row is summed otherwise than a row among others.
    rows = torch.cat((rows, rows)) if len(rows) == 1 else rows.contiguous()
    with on_one_thread():
        result = func(rows, dim=-1 if func in _ONE_AXIS else [-1], **bound)
    result = result[: math.prod(shape)].reshape(shape)
    for axis in axes if kept else ():
        result = result.unsqueeze(axis)
    return result


_ATEN = torch.ops.aten
_OVER_AXES = {
    _ATEN.sum.default: _ATEN.sum.dim_IntList,
    _ATEN.mean.default: _ATEN.mean.dim,
    _ATEN.prod.default: _ATEN.prod.dim_int,
}
_ONE_AXIS = frozenset((_ATEN.prod.dim_int,))


def variance(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return ``var``, ``std`` and their pairs with the mean, from sums."""
    name = func._schema.name.removeprefix("aten::")
    names = [a.name for a in func._schema.arguments]
    bound = dict(zip(names, args, strict=False)) | kwargs
    values, axes, kept = bound["self"], bound.get("dim"), bound.get("keepdim", False)
    correction = bound.get("correction")
    correction = 1 if correction is None else correction
    axes = axes or list(range(values.ndim))
    wide = values.float() if values.dtype in (torch.bfloat16, torch.float16) else values
    mean = reduced(torch.ops.aten.mean.dim, (wide, axes, True), {})
    squares = (wide - mean).square()
    total = reduced(torch.ops.aten.sum.dim_IntList, (squares, axes, kept), {})
    count = values.numel() // max(total.numel(), 1)
    found = total / max(count - correction, 0)
    found = (found.sqrt() if name.startswith("std") else found).to(values.dtype)
    if not name.endswith("_mean"):
        return found
    return found, mean.reshape(found.shape).to(values.dtype)
