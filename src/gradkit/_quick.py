"""Where operations are computed by the faster of torch's own ways."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from gradkit._layouts import LayoutError, laid_convolution, sees_layout
from gradkit._pools import quick_pool, quick_pool_backward
from gradkit._products import (
    ENTRIES,
    has_operation,
    is_plain,
    quick_addmm,
    quick_mm,
)

__all__ = ["gains_forward", "is_looked_on", "quick_forward", "quick_products"]

_aten = torch.ops.aten
_WAYS: Mapping[Any, Callable[[Any, Any, Any], Any]] = MappingProxyType(
    {
        _aten.mm.default: quick_mm,
        _aten.addmm.default: quick_addmm,
        _aten.max_pool2d_with_indices.default: quick_pool,
        _aten.max_pool2d_with_indices_backward.default: quick_pool_backward,
    }
)
#: The nodes that these operations leave in a graph.
_NODES = ("AddmmBackward", "MmBackward", "MaxPool2DWithIndices", "ConvolutionBack")


class _Quick(TorchDispatchMode):
    """Takes the operations that there is a quicker way for.

    Args:
        laid_from: Entries from which on images are convolved with the channels last;
            ``None``: never.
    """

    supports_higher_order_operators = True

    def __init__(self, laid_from: int | None = None) -> None:
        super().__init__()
        self._laid_from = laid_from

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Compiled code runs eagerly here anyway, and to say so for each operation
        # takes longer than most of them.
        return False

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        way = _WAYS.get(func)
        kwargs = kwargs or {}
        if self._laid_from is not None:
            if func is _aten.convolution.default:
                return laid_convolution(func, args, kwargs, self._laid_from)
            if sees_layout(func, args, kwargs):
                raise LayoutError(f"{func} sees how images lie in memory")
        return func(*args, **kwargs) if way is None else way(func, args, kwargs)


def quick_products(like: Tensor, entries: int) -> AbstractContextManager[Any]:
    """Return where large products of a pull-back are quick, if it has any.

    Args:
        like: A tensor of the dtype and on the device of the work.
        entries: How many numbers the work is to give.
    """
    wanted = is_plain(like) and entries >= ENTRIES and has_operation()
    return quick_forward(wanted)


def gains_forward(nodes: Iterable[Any]) -> bool:
    """Whether a forward with these nodes in its graph has what can be quicker."""
    return any(node.name().startswith(_NODES) for node in nodes)


def is_looked_on() -> bool:
    """Whether another mode wants to see the operations themselves.

    In ``batch_invariant`` no bit may depend on how the work is cut, and with it on the
    memory given.
    """
    return torch._C._len_torch_dispatch_stack() > 0


def quick_forward(
    wanted: bool, laid_from: int | None = None
) -> AbstractContextManager[Any]:
    """Return where a model's forward is quick, if it is wanted and nobody looks on.

    Args:
        wanted: Whether it is wanted.
        laid_from: Entries from which on images are convolved with the channels last;
            ``None``: never. Proved first: see ``gradkit._layouts``.
    """
    if not wanted or is_looked_on():
        return nullcontext()
    return _Quick(laid_from)
