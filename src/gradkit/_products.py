"""Matrix products by the faster of torch's two libraries.

On a CPU torch hands products in single precision to its BLAS, and convolutions to
oneDNN, whose products can take half as long on processors that the BLAS is not tuned
for. The operation used here is the one that ``torch.compile`` puts in place of a
linear layer; both libraries round as single precision does, in their own order.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["ENTRIES", "has_operation", "is_plain", "product", "quick_addmm", "quick_mm"]

#: Multiplications from which on the other library's overhead is regained.
_LARGE = 4_000_000
#: Entries of a pull-back's result from which on its products are looked at.
ENTRIES = 200_000
#: A transposed left factor is rearranged first; that pays with so many columns.
_WIDE = 256


def has_operation() -> bool:
    """Whether this build and setting have oneDNN's product."""
    return _operation() is not None


def _operation() -> Any:
    """Return oneDNN's product, or ``None`` in a build or setting without it."""
    if not (torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled):
        return None
    packet = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
    return getattr(packet, "default", None)


def is_plain(tensor: Tensor) -> bool:
    """Whether oneDNN may take a product with a tensor."""
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
    found = _quick(left, right, None)
    return left.detach() @ right.detach() if found is None else found


def _quick(left: Tensor, right: Tensor, bias: Tensor | None) -> Tensor | None:
    """Return ``left @ right + bias`` by oneDNN; ``None`` where that gains nothing."""
    plain = is_plain(left) and is_plain(right) and (bias is None or is_plain(bias))
    operation = _operation() if plain and _gains(left, right) else None
    if operation is None:
        return None
    return operation(left.detach(), right.detach().t(), bias, "none", [], "")


def quick_mm(func: Any, args: Any, kwargs: Any) -> Tensor:
    """Return what ``aten::mm`` is called for."""
    left, right = args
    found = None if kwargs else _quick(left, right, None)
    return func(*args, **kwargs) if found is None else found


def quick_addmm(func: Any, args: Any, kwargs: Any) -> Tensor:
    """Return what ``aten::addmm`` is called for, as a linear layer calls it."""
    found = None
    if not kwargs and len(args) == 3:
        bias, left, right = args
        if bias.ndim == 1 and bias.shape[0] == right.shape[1]:
            found = _quick(left, right, bias.detach())  # no longer a parameter
    return func(*args, **kwargs) if found is None else found
