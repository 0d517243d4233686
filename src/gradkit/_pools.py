"""Max pooling by the faster of torch's two kernels.

On a CPU torch pools images that lie channel by channel in memory one number at a time,
and those with the channels last in whole vectors. To lay them out anew, pool, and lay
the result back takes half to a third of the time. Maxima are not rounded, so that both
give the same numbers and the same places.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["has_pools", "quick_pools"]

_POOL = torch.ops.aten.max_pool2d_with_indices.default
#: Entries from which on laying them out anew is regained.
_LARGE = 50_000


class _QuickPools(TorchDispatchMode):
    """Takes the max pooling that runs while it is on."""

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # to say so for each operation takes longer than most of them

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is _POOL and _gains(args[0]):
            laid = args[0].contiguous(memory_format=torch.channels_last)
            maxima, places = func(laid, *args[1:], **(kwargs or {}))
            return maxima.contiguous(), places.contiguous()
        return func(*args, **(kwargs or {}))


def _gains(images: Tensor) -> bool:
    return (
        type(images) is Tensor
        and images.device.type == "cpu"
        and images.ndim == 4
        and images.shape[1] > 1
        and images.numel() >= _LARGE
        and images.is_contiguous()
    )


def has_pools(nodes: Iterable[Any]) -> bool:
    """Whether a graph's nodes pool images by their maxima."""
    return any(n.name().startswith("MaxPool2DWithIndices") for n in nodes)


def quick_pools(wanted: bool) -> AbstractContextManager[Any]:
    """Return where max pooling is quick, if it is wanted and nobody else looks on."""
    if not wanted or torch._C._len_torch_dispatch_stack():
        return nullcontext()  # another mode wants to see the operations themselves
    return _QuickPools()
