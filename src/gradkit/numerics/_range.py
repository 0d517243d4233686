"""What a computation comes to where its own precision cannot hold a number."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gradkit.numerics._operations import is_exact, name_of, rounds
from gradkit.numerics._own import Precisions, with_casts

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
        given = args, dict(kwargs or {})
        if is_exact(func, args):
            return func(*given[0], **given[1])
        name = name_of(func)
        step = self._following(name)
        if any(step.casts) and not func._schema.is_mutable:
            cast = f"a cast before {name}"
            given = with_casts(given, step, lambda t, d: self._limited(cast, t, d))
        result = func(*given[0], **given[1])
        for value in tree_leaves(result):
            if rounds(value) and value.layout == torch.strided:
                limited = self._limited(name, value, step.dtype)
                if limited is not value:
                    value.copy_(limited)
        return result

    def _limited(self, name: str, value: Tensor, dtype: torch.dtype) -> Tensor:
        beyond = (value.abs() > torch.finfo(dtype).max) & value.isfinite()
        count = int(beyond.sum())
        if not count:
            return value
        self.found[name] = self.found.get(name, 0) + count
        return torch.where(beyond, value * float("inf"), value)
