"""What is known of torch's operations: which round, how often, and which do not.

Operations go by their ATen names, without overloads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = [
    "PRODUCTS",
    "SUMS",
    "TRANSFORMS",
    "is_exact",
    "is_reduction",
    "is_solved",
    "is_unknown",
    "keeps_scalars",
    "name_of",
    "reach_of",
    "rounds",
    "samples",
    "units_of",
]


def _repeats(index: Tensor) -> int:
    return int(index.flatten().bincount().max()) if index.numel() else 1


def _taps(weight: Tensor, transposed: bool, groups: int) -> int:
    """Return how many products make an entry of a convolution."""
    most = weight.numel() // max(groups * weight.shape[1], 1)
    return most if transposed else weight[0].numel()


def _put(x: Tensor, indices: Any, values: Tensor) -> int:
    """Return how many values meet in one place."""
    counts = torch.zeros_like(x, dtype=torch.float64)
    ones = torch.ones_like(values, dtype=torch.float64)
    return int(torch.ops.aten.index_put(counts, indices, ones, True).max())


#: Sums of products, linear in each of their tensors: how many terms one entry has.
SUMS: dict[str, Callable[..., Any]] = {
    "mm": lambda a, b: a.shape[1],
    "addmm": lambda c, a, b: a.shape[1] + 1,
    "bmm": lambda a, b: a.shape[2],
    "baddbmm": lambda c, a, b: a.shape[2] + 1,
    "mv": lambda a, b: a.shape[1],
    "addmv": lambda c, a, b: a.shape[1] + 1,
    "dot": lambda a, b: a.shape[0],
    "addr": lambda c, a, b: 2,
    "addbmm": lambda c, a, b: a.shape[0] * a.shape[2] + 1,
    "_trilinear": lambda *given: max(t.numel() for t in given[:3]) ** 0.5,
    "sum": lambda x, *_: x.numel(),
    "nansum": lambda x, *_: x.numel(),
    "mean": lambda x, *_: x.numel(),
    "cumsum": lambda x, axis, *_: x.shape[axis],
    "convolution": lambda x, w, *more: _taps(w, more[4], more[6]) + 1,
    "convolution_backward": lambda g, x, w, *more: (
        _taps(w, not more[4], more[6]),
        *[max(g.numel() // g.shape[1], x.numel() // x.shape[1], 1)] * 2,
    ),
    "embedding_dense_backward": lambda g, index, *_: _repeats(index),
    "index_add": lambda x, axis, index, *_: _repeats(index) + 1,
    "scatter_add": lambda x, axis, index, *_: index.shape[axis] + 1 if x.ndim else 2,
    "index_put": lambda x, indices, values, *_: _put(x, indices, values) + 1,
    "index_put_": lambda x, indices, values, *_: _put(x, indices, values) + 1,
    "_index_put_impl_": lambda x, indices, values, *_: _put(x, indices, values) + 1,
    "avg_pool2d": lambda x, size, *_: math.prod(size),
    "avg_pool3d": lambda x, size, *_: math.prod(size),
    "_adaptive_avg_pool2d": lambda x, *_: x.shape[-1] * x.shape[-2],
}
#: Results that are exact: entries are moved, chosen, negated or thrown away.
_EXACT = frozenset(
    {
        "clone", "_to_copy", "copy_", "cat", "stack", "index", "index_select",
        "gather", "embedding", "where", "masked_fill", "masked_fill_", "zeros", "ones",
        "full", "fill_", "zero_", "neg", "neg_", "abs", "abs_", "sign", "sgn", "relu",
        "relu_", "threshold", "threshold_backward", "max", "min", "amax", "amin",
        "maximum", "minimum", "clamp", "clamp_min", "clamp_max", "sort", "topk",
        "kthvalue", "median", "constant_pad_nd", "roll", "flip", "repeat", "tril",
        "triu", "lift_fresh", "lift_fresh_copy", "arange", "empty", "empty_like",
        "empty_strided", "new_empty", "new_zeros", "new_ones", "new_full",
        "zeros_like", "ones_like", "full_like", "rand", "randn", "rand_like",
        "randn_like", "bernoulli", "bernoulli_", "normal", "normal_", "uniform_",
        "max_pool2d_with_indices", "index_put", "index_put_", "put",
        "scatter", "select_backward", "slice_backward", "select_scatter",
        "slice_scatter", "diagonal_scatter", "diagonal_backward", "as_strided_scatter",
        "unfold_backward", "im2col", "hardtanh", "hardtanh_backward", "floor", "ceil",
        "round", "trunc", "eye", "linspace", "scalar_tensor",
        "value_selecting_reduction_backward", "reflection_pad1d", "reflection_pad2d",
        "replication_pad1d", "replication_pad2d", "_reshape_alias", "_unsafe_view",
        "pixel_shuffle", "channel_shuffle", "detach", "masked_select",
        "max_pool3d_with_indices", "adaptive_max_pool2d", "adaptive_max_pool3d",
        "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d",
        "reflection_pad3d", "replication_pad3d", "take", "cummax", "cummin", "mode",
        "nanmedian", "aminmax", "masked_scatter", "index_copy", "index_fill", "fill",
        "copy", "complex", "conj_physical", "diag_embed", "fmod", "nan_to_num",
        "eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_not",
        "logical_xor", "isnan", "isfinite", "isinf", "isposinf", "isneginf", "signbit",
        "any", "all", "equal", "argmax", "argmin", "nonzero", "searchsorted",
        "bucketize", "heaviside", "copysign", "item", "_local_scalar_dense", "unique",
        "hann_window", "hamming_window", "blackman_window", "bartlett_window",
        "kaiser_window", "logspace", "frac", "isclose", "allclose", "unique_dim",
    }
)  # fmt: skip
#: These add up where they are told to, by their fourth argument.
_ADDING = frozenset(("index_put", "index_put_", "_index_put_impl_", "put", "put_"))
_EXACT_IF_REAL = frozenset(("abs", "abs_", "sgn"))
_DRAWN = frozenset(
    ("bernoulli", "bernoulli_", "native_dropout", "normal", "normal_", "uniform_",
     "exponential_", "cauchy_", "log_normal_", "geometric_", "arange")
)  # fmt: skip
#: Fast Fourier transforms.
TRANSFORMS = frozenset(("_fft_c2c", "_fft_r2c", "_fft_c2r"))
#: Factorizations and what is solved with them, by the head of their names.
_SOLVED = (
    "linalg_", "_linalg_", "cholesky", "_cholesky", "lu_", "triangular_solve",
    "geqrf", "ormqr", "orgqr", "matrix_exp",
)  # fmt: skip
_NOT_SOLVED = ("linalg_vector_norm", "linalg_cross")
#: How many factors one entry has.
PRODUCTS: dict[str, Callable[..., Any]] = {
    "prod": lambda x, *_: x.numel(),
    "cumprod": lambda x, axis, *_: x.shape[axis] if x.ndim else 1,
}
#: One rounding.
_SINGLE = frozenset(
    ("add", "add_", "sub", "sub_", "rsub", "mul", "mul_", "div", "div_", "sqrt",
     "reciprocal", "square", "remainder")
)  # fmt: skip
#: What an elementary function may be off by, in units of roundoff: torch's vector
#: functions keep within one or two units in the last place.
_SEVERAL = 4.0
_ELEMENTARY = frozenset(
    (
        "exp", "exp2", "expm1", "log", "log1p", "log2", "log10", "sin", "cos", "tan",
        "sinh", "cosh", "tanh", "asin", "acos", "atan", "asinh", "acosh", "atanh",
        "atan2", "hypot", "pow", "rsqrt", "sigmoid", "erf", "erfc", "abs", "angle",
        "polar", "exp_", "tanh_", "sigmoid_", "pow_", "silu_", "rsqrt_", "log_",
    )
)  # fmt: skip
#: In these the places of samples are rounded too, to a part of the whole axis.
_SAMPLING = ("upsample_", "_upsample_", "grid_sampler_")


def name_of(func: Any) -> str:
    """Return an operation's name, without its overload; of torch's own, ``aten``."""
    name = func._schema.name
    # Primitives round as what they are called.
    return name if name == "prims::var" else name.split("::")[-1]


def is_solved(name: str) -> bool:
    """Whether an operation factorizes a matrix, or solves with one."""
    return name.startswith(_SOLVED) and not name.startswith(_NOT_SOLVED)


def units_of(name: str) -> float:
    """Return by how many roundoffs an operation's result is off."""
    return 1.0 if name in _SINGLE else _SEVERAL


def is_unknown(func: Any) -> bool:
    """Whether nothing is known of an operation but that it is a sound one."""
    name = name_of(func)
    known = name in _SINGLE or name in _ELEMENTARY or name in PRODUCTS
    return not known and not func._schema.is_mutable


def reach_of(name: str, value: Tensor) -> float:
    """Return by how many roundoffs an argument may be off to explain a result.

    Args:
        name: Of an operation that nothing more is known of.
        value: The argument.
    """
    if samples(name):
        return float(max(value.shape[2:], default=1))
    if is_reduction(name):
        return max(_SEVERAL, value.numel() ** 0.5)
    return _SEVERAL


def is_reduction(name: str) -> bool:
    """Whether an operation adds up, in places that its arguments say."""
    return "_reduce" in name or name == "scatter"


def samples(name: str) -> bool:
    """Whether an operation reads between the entries of its argument."""
    return name.startswith(_SAMPLING)


def rounds(value: Any) -> bool:
    """Whether a value is a tensor of numbers that have a precision."""
    return isinstance(value, Tensor) and (
        value.is_floating_point() or value.is_complex()
    )


def keeps_scalars(func: Any) -> bool:
    """Whether Python numbers decide what or how much an operation makes."""
    return name_of(func) in _DRAWN


def is_exact(func: Any, args: Sequence[Any]) -> bool:
    """Whether an operation's result is exact, given its arguments."""
    if func.is_view:
        return True
    name = name_of(func)
    if name not in _EXACT:
        return False
    if name in _ADDING and len(args) > 3:
        return not args[3]
    if "reduce" in func._overloadname:
        return False
    return not (name in _EXACT_IF_REAL and args[0].is_complex())
