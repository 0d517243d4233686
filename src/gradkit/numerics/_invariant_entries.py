"""Functions of single entries, and sums, that no place in memory changes.

The vectorised body of a loop and its end run different code, and strided memory a
third. Here entries lie flat, in whole vectors, whichever thread takes them. Sums are
taken along contiguous memory, on one thread.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gradkit.numerics._invariant_samples import on_one_thread

__all__ = ["entrywise", "reduced", "settled", "variance"]

#: Twice the entries of the widest vector: loops are unrolled by two.
_VECTORS = 128
#: Entries per thread from which on torch divides a loop.
_GRAIN = 32768
#: Entries from which on torch divides any loop; some have smaller grains.
_SMALL = 256


def _padded_size(count: int) -> int:
    """Return a size at which every thread's share is whole vectors."""
    threads = torch.get_num_threads()
    shares = 0
    while shares != (now := min(threads, -(-max(count, 1) // _GRAIN))):
        shares = now
        count = -(-count // (_VECTORS * shares)) * _VECTORS * shares
    return max(count, _VECTORS)


def entrywise(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return ``func`` of tensors of entries, each at home in a whole vector."""
    tensors = [a for a in args if isinstance(a, Tensor)]
    shape = torch.broadcast_shapes(*(t.shape for t in tensors))
    count = shape.numel()
    size = _padded_size(count)

    def flat(value: Any) -> Any:
        # A number in a tensor takes part in promotion otherwise than an axis does.
        if not isinstance(value, Tensor) or (not value.ndim and len(tensors) > 1):
            return value
        whole = value.expand(shape).contiguous().view(-1)
        if size == count:
            return whole
        # Ones are in every function's domain, and cost no handling of subnormals.
        room = whole.new_ones(size)
        room[:count] = whole
        return room

    result = func(*map(flat, args), **{k: flat(v) for k, v in kwargs.items()})
    if isinstance(result, Tensor):
        return result[:count].view(shape)
    return tuple(
        r[:count].view(shape) if r.numel() == size else r for r in result
    )


def settled(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return ``func`` of contiguous tensors on one thread."""
    args = tuple(_contiguous(a) for a in args)
    kwargs = {name: _contiguous(value) for name, value in kwargs.items()}
    with on_one_thread():
        return func(*args, **kwargs)


def _contiguous(value: Any) -> Any:
    if isinstance(value, Tensor) and value.layout is torch.strided:
        return value.contiguous()
    return value


def reduced(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return a sum or the like over axes, each along contiguous memory.

    Where the reduced axes lie decides how torch adds; an axis of size one lies
    anywhere, so they are brought to the end first.
    """
    names = [a.name for a in func._schema.arguments]
    bound = dict(zip(names, args, strict=False)) | kwargs
    values = bound.pop(names[0])
    axes = bound.pop("dim", None)
    kept = bound.pop("keepdim", False)
    axes = [axes] if isinstance(axes, int) else axes
    axes = sorted({a % values.ndim for a in axes or range(values.ndim)} if values.ndim else [])
    others = [a for a in range(values.ndim) if a not in axes]
    rows = values.permute(*others, *axes)
    shape = [values.shape[a] for a in others]
    flat = rows.reshape(*shape, -1) if values.ndim and values.numel() else None
    if flat is None or "dim" not in names:
        return settled(func, args, kwargs)
    place = -1 if "int" in str(_argument(func, "dim").type)[:3] else [-1]
    bound["dim"] = place
    with on_one_thread():
        if len(flat.view(-1, flat.shape[-1])) == 1:
            # A lone row is summed otherwise than a row among others.
            both = func(torch.stack((flat, flat)), **bound)
            result = both[0]
        else:
            result = func(flat.contiguous(), **bound)
    if kept:
        for axis in axes:
            result = result.unsqueeze(axis)
    return result


def _argument(func: Any, name: str) -> Any:
    return next(a for a in func._schema.arguments if a.name == name)


def variance(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return ``var``, ``std`` and their pairs with the mean, from sums."""
    name = func._schema.name.removeprefix("aten::")
    names = [a.name for a in func._schema.arguments]
    bound = dict(zip(names, args, strict=False)) | kwargs
    values, axes, kept = bound["self"], bound.get("dim"), bound.get("keepdim", False)
    correction = bound.get("correction")
    correction = 1 if correction is None else correction
    axes = list(range(values.ndim)) if not axes else axes
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
