"""Kernels that are many operations in one, and what they consist of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from gradkit.numerics._operations import SUMS, name_of

__all__ = ["opened"]

#: By the head of their names.
_KERNELS = (
    "native_layer_norm", "native_group_norm", "native_batch_norm",
    "_native_batch_norm_legit", "_batch_norm", "_softmax", "_log_softmax",
    "nll_loss", "mse_loss", "smooth_l1_loss", "huber_loss",
    "binary_cross_entropy", "soft_margin_loss", "gelu", "silu", "softplus", "mish",
    "elu", "celu", "selu", "glu", "logsumexp", "var", "std", "linalg_vector_norm",
    "norm", "tanh_backward", "sigmoid_backward", "log_sigmoid", "hardswish",
    "hardsigmoid", "_prelu", "addcmul", "addcdiv", "lerp", "rms_norm",
    "_fused_rms_norm", "cosine_similarity", "logit", "special_entr", "xlogy",
    "_euclidean_dist",
)  # fmt: skip
_OPENED: dict[Any, Callable[..., Any]] = {}


def opened(func: Any) -> Callable[..., Any] | None:
    """Return what a kernel of many operations consists of; ``None`` for others."""
    name = name_of(func)
    return _OWN.get(name) or (None if name in SUMS else _opened().get(func))


def _opened() -> dict[Any, Callable[..., Any]]:
    if not _OPENED:
        from torch._decomp import decomposition_table  # takes a while to import

        for func, parts in decomposition_table.items():
            name = str(getattr(func, "_schema", func)).removeprefix("aten::")
            if name.startswith(_KERNELS):
                _OPENED[func] = parts
    return _OPENED


def _variance(
    x: Tensor,
    axes: Sequence[int] | None = None,
    correction: float | None = 1.0,
    **_: Any,
) -> Tensor:
    every = tuple(range(x.ndim)) if axes is None else tuple(axes)
    count = x.numel() / max(x.mean(every).numel(), 1)
    squares = (x - x.mean(every, keepdim=True)).square()
    return squares.sum(every) / (count - (1.0 if correction is None else correction))


def _batch_norm_without_training(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    variance: Tensor,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Scale and shift, as kernels do; a mean that cancels costs digits so."""
    shape = (1, -1, *[1] * (x.ndim - 2))
    scale = (variance + eps).rsqrt()
    scale = scale if weight is None else scale * weight
    shift = -mean * scale
    shift = shift if bias is None else bias + shift
    found = x * scale.reshape(shape) + shift.reshape(shape)
    return found, x.new_empty(0), x.new_empty(0)


def _batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None,
    variance: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    arguments = (x, weight, bias, mean, variance)
    if training or mean is None or variance is None:
        parts = _opened()[torch.ops.aten.native_batch_norm.default]
        return parts(*arguments, training, momentum, eps)
    return _batch_norm_without_training(x, weight, bias, mean, variance, momentum, eps)


def _layer_norm_backward(
    grad: Tensor,
    x: Tensor,
    shape: Sequence[int],
    mean: Tensor,
    scale: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Differentiate as kernels do: what is subtracted is no difference itself."""
    inner = tuple(range(x.ndim - len(shape), x.ndim))
    outer = tuple(range(x.ndim - len(shape)))
    weighted = grad if weight is None else grad * weight
    count = x[(0,) * len(outer)].numel() if outer else x.numel()
    along, total = (weighted * x).sum(inner, True), weighted.sum(inner, True)
    slope = (total * mean - along) * scale**3 / count
    shift = -slope * mean - total * scale / count
    normed = x * scale - mean * scale
    return (
        scale * weighted + slope * x + shift if mask[0] else None,
        _summed(grad * normed, outer) if mask[1] and weight is not None else None,
        _summed(grad, outer) if mask[2] and bias is not None else None,
    )


def _summed(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    return x.sum(axes) if axes else x.clone()


def _safe_softmax(x: Tensor, axis: int, dtype: torch.dtype | None = None) -> Tensor:
    """Subtract the logarithm of the sum, as fused attention does when it recomputes."""
    rows = x - x.logsumexp(axis, keepdim=True)
    masked = (x == float("-inf")).all(axis, keepdim=True)
    return torch.where(masked, 0.0, rows.exp())


#: Of these, torch's decompositions are others than its kernels.
_OWN: dict[str, Callable[..., Any]] = {
    "prims::var": _variance,
    "native_batch_norm": _batch_norm,
    "native_layer_norm_backward": _layer_norm_backward,
    "_safe_softmax": _safe_softmax,
    "_native_batch_norm_legit_no_training": _batch_norm_without_training,
}
