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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map, tree_map_only

from gradkit.numerics._errors import may_be_off, size_of_error
from gradkit.numerics._kernels import opened
from gradkit.numerics._operations import is_exact, keeps_scalars, name_of, rounds
from gradkit.numerics._own import Precisions, Step, with_casts
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
        given = args, dict(kwargs or {})
        if is_exact(func, args):
            if not keeps_scalars(func):
                given = self._with_scalars(given, self._own)
            return func(*given[0], **given[1])
        step = self._whole or self._following(name_of(func))
        if self._whole is None and any(step.casts) and not func._schema.is_mutable:
            given = with_casts(given, step, partial(self._off, size=Tensor.abs))
        given = self._with_scalars(given, step.dtype)
        parts = opened(func)
        if parts is not None:
            with self, self._inside(step):
                return parts(*given[0], **given[1])
        size = may_be_off(func)
        if size is not None:
            given = tree_map_only(
                Tensor, partial(self._off, dtype=step.dtype, size=size), given
            )
        result = func(*given[0], **given[1])
        sizes = size_of_error(func, given[0], given[1], result)
        self._move(result, sizes, step.dtype)
        return result

    @contextmanager
    def _inside(self, step: Step) -> Iterator[None]:
        outer, self._whole = self._whole, step
        try:
            yield
        finally:
            self._whole = outer

    def _with_scalars(self, given: Any, dtype: torch.dtype) -> Any:
        """Move Python numbers by as much as the precision cannot hold of them."""

        def moved(value: Any) -> Any:
            if type(value) is not float or not math.isfinite(value):
                return value
            lost = float(torch.tensor(value, dtype=dtype, device="cpu")) - value
            if not math.isfinite(lost):
                return value
            drawn = torch.randn((), generator=self._generator, device="cpu")
            return value + float(drawn) * lost

        return tree_map(moved, given)

    def _off(
        self, value: Tensor, dtype: torch.dtype, size: Callable[[Tensor], Tensor]
    ) -> Tensor:
        if not rounds(value):
            return value
        other = value.clone()
        self._move(other, size(value).expand_as(other), dtype)
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
