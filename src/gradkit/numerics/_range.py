"""What a computation comes to where its own precision cannot hold a number."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gradkit.numerics._operations import is_exact, name_of, rounds
from gradkit.numerics._own import Precisions

__all__ = ["Limited"]


class Limited(TorchDispatchMode):
    """Makes infinite, in a float64 run, what a lower precision cannot hold.

    Args:
        precisions: Which precision each operation has.

    Attributes:
        found: The operations whose results overflow, and how many numbers.
    """

    def __init__(self, precisions: Precisions) -> None:
        super().__init__()
        self._following = precisions.followed()
        self.found: dict[str, int] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if is_exact(func, args):
            return func(*args, **kwargs)
        name = name_of(func)
        step = self._following(name)
        given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        for value, dtype in zip(given, step.casts, strict=False):
            if dtype is not None and rounds(value):
                self._limit(f"a cast before {name}", value, dtype)
        result = func(*args, **kwargs)
        for value in tree_leaves(result):
            if rounds(value) and value.layout == torch.strided:
                self._limit(name, value, step.dtype)
        return result

    def _limit(self, name: str, value: Tensor, dtype: torch.dtype) -> None:
        beyond = (value.abs() > torch.finfo(dtype).max) & value.isfinite()
        count = int(beyond.sum())
        if count:
            self.found[name] = self.found.get(name, 0) + count
            value.copy_(torch.where(beyond, value * float("inf"), value))
