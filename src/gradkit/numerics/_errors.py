"""How far off an operation's result is, in units of roundoff: the root mean square."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_map

from gradkit.numerics._operations import (
    PRODUCTS,
    SUMS,
    TRANSFORMS,
    is_reduction,
    is_solved,
    is_unknown,
    name_of,
    reach_of,
    rounds,
    samples,
    units_of,
)

__all__ = ["may_be_off", "size_of_error"]


def may_be_off(func: Any) -> Callable[[Tensor], Tensor] | None:
    """Return how far off arguments may be taken to be; ``None`` where they are not.

    A sound algorithm's result is that of arguments which are off by a few roundoffs
    (Higham 2002, section 1.5), of a matrix which is off by some of its largest entry
    (chs. 9, 10 and 19). Where no more is known of an operation, its own conditioning
    tells so what may come of it.
    """
    name = name_of(func)
    if is_solved(name):
        return _of_matrix
    if is_unknown(func):
        return lambda value: reach_of(name, value) * value.abs()
    return None


def _of_matrix(value: Tensor) -> Tensor:
    if value.ndim < 2 or not value.numel():
        return value.abs()
    return 2 * value.abs().amax((-2, -1), keepdim=True) * value.shape[-1] ** 0.5


def size_of_error(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
) -> Any:
    """Return the error's size for each entry, ``None`` for what is not floating."""
    name = name_of(func)
    if name in SUMS:
        return _of_sums(func, args, kwargs, result)
    if name in TRANSFORMS:
        return _of_transform(result, args[1])
    units = units_of(name)
    if name in PRODUCTS:
        entries = max(result.numel(), 1) if name == "prod" else 1
        units = max(PRODUCTS[name](*args) / entries, 1.0) ** 0.5
    if is_reduction(name):
        units = max(reach_of(name, a) for a in args if isinstance(a, Tensor))
    places = reach_of(name, args[0]) if samples(name) else 0.0

    def size(y: Any) -> Any:
        if not rounds(y):
            return None
        own = units * y.abs()
        return own + max(places, reach_of(name, y)) * _around(y) if places else own

    return tree_map(size, result)


def _around(y: Tensor) -> Tensor:
    """Return the size of the largest entry of each map."""
    axes = tuple(range(2, y.ndim))
    return y.abs().amax(axes, keepdim=True) if axes and y.numel() else y.abs()


def _of_sums(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
) -> Any:
    """Return the size of errors of sums.

    The partial sums of ``n`` terms in random order have squares that add up to
    ``n (y**2 / 3 + sum t**2 / 6)`` in the mean; each is rounded, and each product.
    """
    name = name_of(func)
    try:
        length = SUMS[name](*args)
    except (TypeError, IndexError):
        length = max((a.numel() for a in args if isinstance(a, Tensor)), default=1)
    if name in ("sum", "nansum", "mean"):
        length = max(length // max(result.numel(), 1), 1)
    squares = func(*tree_map(_square, args), **tree_map(_square, dict(kwargs)))
    if name == "mean":
        squares = tree_map(lambda s: s / length, squares)

    if isinstance(result, Tensor):
        return _of_sum(result, squares, length)
    lengths = length if isinstance(length, tuple) else [length] * len(result)
    return [*map(_of_sum, result, squares, lengths)]


def _of_sum(y: Any, squares: Any, length: float) -> Any:
    if not rounds(y):
        return None
    return (length * _square(y) / 3 + (length / 6 + 1) * squares.abs()).sqrt()


def _square(value: Any) -> Any:
    return value.abs().square() if rounds(value) else value


def _of_transform(y: Tensor, axes: Any) -> Tensor:
    """Return what all entries along the axes may be off by, each in ``log2(n)`` steps.

    Source: Higham (2002), theorem 24.2.
    """
    length = math.prod(y.shape[axis] for axis in axes)
    mean = y.abs().square().mean(tuple(axes), keepdim=True).sqrt()
    return max(math.log2(max(length, 1)), 1.0) * mean.expand_as(y)
