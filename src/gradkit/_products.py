"""Matrix products by the faster of torch's two libraries.

On a CPU torch hands products in single precision to its BLAS, and convolutions to
oneDNN, whose products can take half as long on processors that the BLAS is not tuned
for. The operation used here is the one that ``torch.compile`` puts in place of a
linear layer; both libraries round as single precision does, in their own order.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["product", "quick_products"]

_MM = torch.ops.aten.mm.default
#: Multiplications from which on the other library's overhead is regained.
_LARGE = 4_000_000
#: Entries of a pull-back's result from which on its products are looked at.
_ENTRIES = 200_000
#: A transposed left factor is rearranged first; that pays with so many columns.
_WIDE = 256


def _operation() -> Any:
    """Return oneDNN's product, or ``None`` in a build or setting without it."""
    if not (torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled):
        return None
    packet = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
    return getattr(packet, "default", None)


def _is_plain(tensor: Tensor) -> bool:
    return (
        type(tensor) is Tensor
        and tensor.dtype is torch.float32
        and tensor.device.type == "cpu"
        and tensor.layout is torch.strided
    )


def _gains(left: Tensor, right: Tensor) -> bool:
    """Whether a product is large enough, and lies in memory as oneDNN likes it."""
    (rows, inner), columns = left.shape, right.shape[1]
    if rows * inner * columns < _LARGE:
        return False
    return left.stride(1) == 1 or columns >= _WIDE


def product(left: Tensor, right: Tensor) -> Tensor:
    """Return ``left @ right`` of two matrices, detached."""
    if _is_plain(left) and _is_plain(right) and _gains(left, right):
        operation = _operation()
        if operation is not None:
            return operation(left.detach(), right.detach().t(), None, "none", [], "")
    return left.detach() @ right.detach()


class _QuickProducts(TorchDispatchMode):
    """Takes the matrix products that run while it is on."""

    supports_higher_order_operators = True

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
        if func is _MM and not kwargs and _is_plain(args[0]) and _is_plain(args[1]):
            return product(*args)
        return func(*args, **(kwargs or {}))


def quick_products(like: Tensor, entries: int) -> AbstractContextManager[Any]:
    """Return where large products are quick, if a result of ``entries`` has any.

    Args:
        like: A tensor of the dtype and on the device of the work.
        entries: How many numbers the work is to give.
    """
    if not _is_plain(like) or entries < _ENTRIES or _operation() is None:
        return nullcontext()
    if torch._C._len_torch_dispatch_stack():
        return nullcontext()  # another mode wants to see the products themselves
    return _QuickProducts()
