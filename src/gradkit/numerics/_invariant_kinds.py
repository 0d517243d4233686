"""Which operations are computed how, so that rows do not depend on their batch.

Measured: each operation on batches and on their samples alone, in float32, float64
and bfloat16, contiguous, off the alignment of vectors, strided and transposed, on one
and two threads.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from gradkit.numerics._invariant_entries import (
    along,
    entrywise,
    reduced,
    rowwise,
    settled,
    variance,
)
from gradkit.numerics._invariant_products import UnprovedError, products
from gradkit.numerics._invariant_samples import convolution, convolution_gradients

__all__ = ["COMPLEX", "NAMED", "Way", "way_of"]

Way = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: Rounded once, or not at all, in every loop: never seen to differ.
_EXACT = _words(
    "abs add bitwise_and bitwise_not bitwise_or bitwise_xor ceil clamp clamp_max"
    " clamp_min clone copysign div eq equal floor fmax fmin ge gt hardtanh heaviside"
    " isfinite isinf isnan isneginf isposinf le leaky_relu logical_and logical_not"
    " logical_or logical_xor lt masked_fill maximum minimum mul nan_to_num"
    " native_dropout_backward ne neg positive relu relu6 sgn sign signbit sqrt square"
    " sub threshold threshold_backward trunc where"
)
#: Entry by entry, though torch does not tag them so.
_UNTAGGED = _words(
    "_prelu_kernel _prelu_kernel_backward elu_backward hardsigmoid_backward hardswish"
    " hardswish_backward log_sigmoid_backward log_sigmoid_forward mish_backward"
    " rsub softplus_backward"
)
#: Entry by entry unless they sum: then the sum is over the batch or opened above.
_LOSSES = _words(
    "binary_cross_entropy binary_cross_entropy_backward huber_loss"
    " huber_loss_backward mse_loss mse_loss_backward smooth_l1_loss"
    " smooth_l1_loss_backward"
)
_REDUCED = _words("linalg_vector_norm logsumexp mean norm prod sum nansum")
_VARIANCES = _words("std std_mean var var_mean")
_ALONG = _words(
    "_log_softmax _log_softmax_backward_data _softmax _softmax_backward_data cumprod"
    " cumsum logcumsumexp"
)
_ROWWISE = _words("native_layer_norm native_layer_norm_backward")
_SETTLED = _words(
    "_adaptive_avg_pool2d _adaptive_avg_pool2d_backward _adaptive_avg_pool3d"
    " _adaptive_avg_pool3d_backward _embedding_bag _embedding_bag_forward_only"
    " _fused_rms_norm _fused_rms_norm_backward _linalg_eigh _linalg_svd"
    " _native_batch_norm_legit"
    " _native_batch_norm_legit_no_training _scaled_dot_product_flash_attention_for_cpu"
    " _scaled_dot_product_flash_attention_for_cpu_backward avg_pool2d"
    " avg_pool2d_backward avg_pool3d avg_pool3d_backward batch_norm_backward col2im"
    " embedding_dense_backward glu glu_backward grid_sampler_2d"
    " grid_sampler_2d_backward grid_sampler_3d grid_sampler_3d_backward index_add"
    " index_put linalg_cholesky_ex linalg_inv_ex linalg_lu_factor_ex linalg_qr"
    " linalg_lu_solve linalg_solve_triangular native_batch_norm"
    " native_batch_norm_backward"
    " native_group_norm native_group_norm_backward renorm scatter_add scatter_reduce"
    " upsample_bicubic2d upsample_bicubic2d_backward upsample_bilinear2d"
    " upsample_bilinear2d_backward upsample_linear1d upsample_linear1d_backward"
    " upsample_trilinear3d upsample_trilinear3d_backward _upsample_bicubic2d_aa"
    " _upsample_bilinear2d_aa glu_jvp"
)
#: Factor matrices or their transposes by how they lie, as their backwards know.
_FACTORED = _words("_linalg_det _linalg_slogdet _linalg_solve_ex")
#: Of complex numbers too.
COMPLEX = _words("_fft_c2c _fft_c2r _fft_r2c")
#: One kernel with products inside that no mode can open.
NAMED = _words(
    "_cdist_backward _cdist_forward _pdist_backward _pdist_forward _trilinear"
    " _thnn_fused_gru_cell _thnn_fused_lstm_cell _linear_pointwise_binary"
    " _native_multi_head_attention _transformer_encoder_layer_fwd"
    " mkldnn_rnn_layer mkldnn_rnn_layer_backward quantized_gru quantized_lstm"
    " linalg_matrix_exp linalg_lstsq"
)


def _factored(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if not args[0].is_contiguous():
        raise UnprovedError("matrices that are not contiguous")
    return settled(func, args, kwargs)


@cache
def way_of(func: Any) -> Way | None:
    """Return how an operation that writes to nothing is computed, if otherwise."""
    name = func._schema.name.rpartition("::")[2]
    if name in _PRODUCTS:
        return _PRODUCTS[name]
    if name in ("add", "sub"):
        return _scaled
    if name in _LOSSES:
        return _loss
    for names, way in _WAYS:
        if name in names:
            return way
    if torch.Tag.pointwise in func.tags and name not in _EXACT:
        return entrywise
    return None


_WAYS: tuple[tuple[frozenset[str], Way], ...] = (
    (_UNTAGGED, entrywise),
    (_REDUCED, reduced),
    (_VARIANCES, variance),
    (_ALONG, along),
    (_ROWWISE, rowwise),
    (_SETTLED | COMPLEX, settled),
    (_FACTORED, _factored),
)


def _scaled(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    # With a factor some loops fuse, others round twice.
    plain = kwargs.get("alpha", args[2] if len(args) > 2 else 1) == 1
    return func(*args, **kwargs) if plain else entrywise(func, args, kwargs)


def _loss(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    names = [a.name for a in func._schema.arguments]
    bound = dict(zip(names, args, strict=False)) | kwargs
    backward = func._schema.name.endswith("backward")
    if bound.get("reduction", 1) == 0:
        return entrywise(func, args, kwargs)
    if backward:
        return settled(func, args, kwargs)
    place = names.index("reduction")
    mean, args = bound["reduction"] == 1, (*args[:place], 0, *args[place + 1 :])
    kwargs = {k: v for k, v in kwargs.items() if k != "reduction"}
    if len(args) <= place:
        kwargs["reduction"] = 0
    over = torch.ops.aten.mean.default if mean else torch.ops.aten.sum.default
    return reduced(over, (entrywise(func, args, kwargs),), {})


def _added(product: Tensor, other: Tensor, beta: Any, alpha: Any) -> Tensor:
    """Return ``beta * other + alpha * product``: never fused, in whatever shape."""
    product = product if alpha == 1 else product * alpha
    if beta == 0:
        return product
    return product + (other if beta == 1 else other * beta)


def _mm(left: Tensor, right: Tensor) -> Tensor:
    return products(left[None], right[None])[0]


def _mv(matrix: Tensor, vector: Tensor) -> Tensor:
    return _mm(matrix, vector[:, None])[:, 0]


def _dot(left: Tensor, right: Tensor) -> Tensor:
    return _mm(left[None], right[:, None])[0, 0]


def _simple(product: Callable[[Tensor, Tensor], Tensor]) -> Way:
    return lambda func, args, kwargs: product(args[0], args[1])


def _sum(product: Callable[[Tensor, Tensor], Tensor]) -> Way:
    def way(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        other, left, right = args
        beta, alpha = kwargs.get("beta", 1), kwargs.get("alpha", 1)
        return _added(product(left, right), other, beta, alpha)

    return way


def _activated(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    kwargs = dict(kwargs)
    gelu = kwargs.pop("use_gelu", False)
    result = _sum(_mm)(func, args, kwargs)
    if not gelu:
        return result.relu()
    return entrywise(torch.ops.aten.gelu.default, (result,), {})


def _pointwise_linear(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    inputs, weight, bias, attribute = args[:4]
    if attribute != "none" or func._overloadname:
        return func(*args, **kwargs)
    flat = inputs.reshape(-1, inputs.shape[-1])
    result = _mm(flat, weight.t()).view(*inputs.shape[:-1], -1)
    return result if bias is None else result + bias


def _batches(left: Tensor, right: Tensor) -> Tensor:
    summed = products(left, right)
    return reduced(torch.ops.aten.sum.dim_IntList, (summed, [0]), {})


def _distances(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return distances as torch does, from one product of augmented rows."""
    first, second = args
    sums = [
        reduced(torch.ops.aten.sum.dim_IntList, (t.square(), [-1], True), {})
        for t in args
    ]
    left = torch.cat((first * -2, sums[0], torch.ones_like(sums[0])), -1)
    right = torch.cat((second, torch.ones_like(sums[1]), sums[1]), -1)
    shape = *first.shape[:-1], second.shape[-2]
    squares = products(
        left.reshape(-1, *left.shape[-2:]), right.reshape(-1, *right.shape[-2:]).mT
    )
    return squares.view(shape).clamp_min(0).sqrt()


_PRODUCTS: dict[str, Way] = {
    "_euclidean_dist": _distances,
    "mm": _simple(_mm),
    "bmm": _simple(products),
    "mv": _simple(_mv),
    "dot": _simple(_dot),
    "vdot": _simple(_dot),
    "addmm": _sum(_mm),
    "baddbmm": _sum(products),
    "addbmm": _sum(_batches),
    "addmv": _sum(_mv),
    "_addmm_activation": _activated,
    "_linear_pointwise": _pointwise_linear,
    "convolution": lambda func, args, kwargs: convolution(*args, **kwargs),
    "convolution_backward": lambda func, args, kwargs: convolution_gradients(*args),
}
