"""What rounding does to a computation, by doing it: a float64 run with errors put in.

Every operation's result is moved at random by as much as rounding in a lower precision
would move it, and the rest of the computation carries that on, forward and backward,
with its own amplification. The spread over some runs is the rounding error that the
computation must have.

Sources: the model of one operation, ``fl(x op y) = (x op y)(1 + d) + e`` with
``|d| <= u`` and ``e`` below the smallest number, and sums as rows of such operations:
Higham, "Accuracy and Stability of Numerical Algorithms", 2nd ed. (SIAM 2002), sections
2.2, 2.8 and 3.1; errors taken as random: Higham and Mary, "A new approach to
probabilistic rounding error analysis" (SIAM Journal on Scientific Computing 41, 2019);
running with random errors: Parker, "Monte Carlo Arithmetic" (UCLA CSD-970002, 1997).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from gradkit.numerics._operations import (
    SEVERAL,
    SINGLE,
    SUMS,
    TRANSFORMS,
    is_exact,
    is_solved,
    keeps_scalars,
    name_of,
    opened,
    rounds,
)
from gradkit.numerics._own import Precisions, Step
from gradkit.numerics._ulps import unit_roundoff

__all__ = ["Rounding"]


class Rounding(TorchDispatchMode):
    """Puts random rounding errors into what is computed, in float64.

    Args:
        precisions: Which precision each operation's errors are of.
        generator: Draws them.
    """

    def __init__(self, precisions: Precisions, generator: torch.Generator) -> None:
        super().__init__()
        self._own, self._generator = precisions.own, generator
        self._following = precisions.followed()
        #: What is being opened: its parts are of its precision.
        self._whole: Step | None = None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if is_exact(func, args):
            if not keeps_scalars(func):
                args, kwargs = self._with_scalars(args, kwargs, self._own)
            return func(*args, **kwargs)
        name = name_of(func)
        step = self._whole or self._following(name)
        if any(step.casts) and self._whole is None:
            args, kwargs = self._with_casts(args, kwargs, step)
        args, kwargs = self._with_scalars(args, kwargs, step.dtype)
        parts = opened(func)
        if parts is not None:
            with self, self._inside(step):
                return parts(*args, **kwargs)
        if is_solved(name):
            args = tree_map(lambda a: self._of_others(a, step.dtype), args)
        result = func(*args, **kwargs)
        if name in SUMS:
            sizes = size_of_sums(name, func, args, kwargs, result)
        elif name in TRANSFORMS:
            sizes = _of_transform(result, args[1])
        else:
            units = 1.0 if name in SINGLE else SEVERAL
            sizes = tree_map(lambda y: units * y.abs() if rounds(y) else None, result)
        self._move(result, sizes, step.dtype)
        return result

    @contextmanager
    def _inside(self, step: Step) -> Iterator[None]:
        outer, self._whole = self._whole, step
        try:
            yield
        finally:
            self._whole = outer

    def _drawn(self) -> float:
        return float(torch.randn((), generator=self._generator, device="cpu"))

    def _with_scalars(self, args: Any, kwargs: Any, dtype: torch.dtype) -> Any:
        """Move Python numbers by as much as the precision cannot hold of them."""

        def moved(value: Any) -> Any:
            if type(value) is not float or not math.isfinite(value):
                return value
            lost = float(torch.tensor(value, dtype=dtype, device="cpu")) - value
            return value + self._drawn() * lost if math.isfinite(lost) else value

        return tree_map(moved, (args, dict(kwargs)))

    def _with_casts(self, args: Any, kwargs: Any, step: Step) -> Any:
        """Round what was cast down on its way to an operation."""
        leaves, tree = tree_flatten((args, kwargs))
        places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        for i, dtype in zip(places, step.casts, strict=False):
            if dtype is not None and rounds(leaves[i]):
                leaves[i] = leaves[i].clone()
                self._move(leaves[i], leaves[i].abs(), dtype)
        return tree_unflatten(leaves, tree)

    def _of_others(self, value: Any, dtype: torch.dtype) -> Any:
        """Return a matrix as near as one may stand for the other in a solution."""
        if not rounds(value) or value.ndim < 2 or not value.numel():
            return value
        size = value.abs().amax((-2, -1), keepdim=True) * value.shape[-1] ** 0.5
        other = value.clone()
        self._move(other, size.expand_as(other), dtype)
        return other

    def _move(self, result: Any, sizes: Any, dtype: torch.dtype) -> None:
        several = result if isinstance(result, (tuple, list)) else [result]
        sizes = sizes if isinstance(sizes, (tuple, list)) else [sizes]
        u = unit_roundoff(dtype)
        smallest = torch.finfo(dtype).tiny * 2 * u
        for y, size in zip(several, sizes, strict=True):
            if size is None or y.layout != torch.strided:
                continue
            drawn = torch.randn(y.shape, generator=self._generator, dtype=y.dtype,
                                device="cpu")  # fmt: skip
            # What is exactly zero stays so: nothing was added up or divided there.
            size = u * size + torch.where(y == 0, 0.0, smallest)
            error = drawn.to(y.device) * size
            y.add_(torch.where(error.isfinite(), error, 0.0))


def size_of_sums(
    name: str,
    func: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    result: Any,
) -> Any:
    """Return the size of errors of sums, in units of roundoff.

    The partial sums of ``n`` terms in random order have squares that add up to
    ``n (y**2 / 3 + sum t**2 / 6)`` in the mean; each is rounded, and each product.
    """
    try:
        length = SUMS[name](*args)
    except (TypeError, IndexError):
        length = max((a.numel() for a in args if isinstance(a, Tensor)), default=1)
    if name in ("sum", "mean"):
        length = max(length // max(result.numel(), 1), 1)
    squares = func(*tree_map(_square, args), **tree_map(_square, dict(kwargs)))
    if name == "mean":
        squares = tree_map(lambda s: s / length, squares)

    if isinstance(result, Tensor):
        return _of_sum(result, squares, length)
    lengths = length if isinstance(length, tuple) else [length] * len(result)
    return [*map(_of_sum, result, squares, lengths)]


def _of_transform(y: Tensor, axes: Any) -> Tensor:
    length = math.prod(y.shape[axis] for axis in axes)
    mean = y.abs().square().mean(tuple(axes), keepdim=True).sqrt()
    return max(math.log2(max(length, 1)), 1.0) * mean.expand_as(y)


def _of_sum(y: Any, squares: Any, length: int) -> Any:
    if not rounds(y):
        return None
    return (length * _square(y) / 3 + (length / 6 + 1) * squares.abs()).sqrt()


def _square(value: Any) -> Any:
    if rounds(value):
        return value.abs().square()
    return value
