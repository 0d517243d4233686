"""What is known of torch's operations: which round, how often, and which do not.

Operations go by their ATen names, without overloads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = [
    "SEVERAL",
    "SINGLE",
    "SUMS",
    "TRANSFORMS",
    "coarsest",
    "is_exact",
    "is_solved",
    "keeps_scalars",
    "name_of",
    "opened",
    "rounds",
]


def _repeats(index: Tensor) -> int:
    return int(index.flatten().bincount().max()) if index.numel() else 1


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
    "sum": lambda x, *_: x.numel(),
    "mean": lambda x, *_: x.numel(),
    "cumsum": lambda x, axis, *_: x.shape[axis],
    "convolution": lambda x, w, *_: w[0].numel() + 1,
    "convolution_backward": lambda g, x, w, *_: (
        max(w.numel() // w.shape[1], 1),
        *[max(g.numel() // w.shape[0], 1)] * 2,
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
        "max_pool2d_with_indices", "index_put", "index_put_",
        "scatter", "select_backward", "slice_backward", "select_scatter",
        "slice_scatter", "diagonal_scatter", "diagonal_backward", "as_strided_scatter",
        "unfold_backward", "im2col", "hardtanh", "hardtanh_backward", "floor", "ceil",
        "round", "trunc", "eye", "linspace", "scalar_tensor",
        "value_selecting_reduction_backward", "reflection_pad1d", "reflection_pad2d",
        "replication_pad1d", "replication_pad2d", "_reshape_alias", "_unsafe_view",
        "pixel_shuffle", "channel_shuffle", "detach", "masked_select",
    }
)  # fmt: skip
#: These add up where they are told to, by their fourth argument.
_ADDING = frozenset(("index_put", "index_put_", "_index_put_impl_"))
_EXACT_IF_REAL = frozenset(("abs", "abs_", "sgn"))
_DRAWN = frozenset(
    ("bernoulli", "bernoulli_", "native_dropout", "normal", "normal_", "uniform_",
     "exponential_", "cauchy_", "log_normal_", "geometric_", "arange")
)  # fmt: skip
#: Fast Fourier transforms: an entry's error follows the size of all along the axes,
#: in ``log2(n)`` steps (Higham 2002, theorem 24.2).
TRANSFORMS = frozenset(("_fft_c2c", "_fft_r2c", "_fft_c2r"))
#: Factorizations and what is solved with them, by the head of their names: the result
#: is that of matrices that are off by a few roundoffs of their largest entry (Higham
#: 2002, chs. 9, 10, 19).
_SOLVED = (
    "linalg_", "_linalg_", "cholesky", "_cholesky", "lu_", "triangular_solve",
    "geqrf", "ormqr", "orgqr", "matrix_exp",
)  # fmt: skip
_NOT_SOLVED = ("linalg_vector_norm", "linalg_cross")
#: One rounding; others are taken for several.
SINGLE = frozenset(
    ("add", "add_", "sub", "sub_", "rsub", "mul", "mul_", "div", "div_", "sqrt")
)
#: What an elementary function may be off by, in units of roundoff, and what is known
#: of no operation: torch's vector functions keep within one unit in the last place.
SEVERAL = 4.0


def name_of(func: Any) -> str:
    """Return an operation's name, without its namespace and overload."""
    return func._schema.name.removeprefix("aten::")


def is_solved(name: str) -> bool:
    """Whether an operation factorizes a matrix, or solves with one."""
    return name.startswith(_SOLVED) and not name.startswith(_NOT_SOLVED)


def rounds(value: Any) -> bool:
    """Whether a value is a tensor of numbers that have a precision."""
    return isinstance(value, Tensor) and (
        value.is_floating_point() or value.is_complex()
    )


def coarsest(dtypes: Iterable[torch.dtype]) -> torch.dtype:
    """Return the floating or complex dtype that keeps the fewest digits."""
    return max(dtypes, key=lambda dtype: torch.finfo(dtype).eps)


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
    return not (name in _EXACT_IF_REAL and args[0].is_complex())


_OPENED: dict[Any, Callable[..., Any]] = {}
#: Kernels that are many operations in one, by the head of their names.
_KERNELS = (
    "native_layer_norm", "native_group_norm", "native_batch_norm",
    "_native_batch_norm_legit", "_batch_norm", "_softmax", "_log_softmax", "nll_loss",
    "mse_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy",
    "soft_margin_loss", "gelu", "silu", "softplus", "mish", "elu", "celu", "selu",
    "glu", "logsumexp", "var", "std", "linalg_vector_norm", "norm", "tanh_backward",
    "sigmoid_backward", "log_sigmoid", "hardswish", "hardsigmoid", "_prelu", "addcmul",
    "addcdiv", "lerp", "rms_norm", "_fused_rms_norm", "cosine_similarity", "logit",
    "special_entr", "xlogy",
)  # fmt: skip


def opened(func: Any) -> Callable[..., Any] | None:
    """Return what a kernel of many operations consists of; ``None`` for others."""
    return None if name_of(func) in SUMS else _opened().get(func)


def _opened() -> dict[Any, Callable[..., Any]]:
    if not _OPENED:
        from torch._decomp import decomposition_table  # takes a while to import

        for func, opened in decomposition_table.items():
            name = str(getattr(func, "_schema", func)).removeprefix("aten::")
            if name.startswith(tuple(_KERNELS)):
                _OPENED[func] = opened
    return _OPENED
