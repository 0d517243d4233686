"""What rounding does to a computation, by doing it: a float64 run with errors put in.

Every operation's result is moved at random by as much as rounding in a lower precision
would move it, and the rest of the computation carries that on, forward and backward,
with its own amplification. The spread over some runs is the rounding error that the
computation must have.

Sources: the model of one operation, ``fl(x op y) = (x op y)(1 + d)`` with ``|d| <= u``,
and sums as rows of such operations: Higham, "Accuracy and Stability of Numerical
Algorithms", 2nd ed. (SIAM 2002), sections 2.2 and 3.1; errors taken as random: Higham
and Mary, "A new approach to probabilistic rounding error analysis" (SIAM Journal on
Scientific Computing 41, 2019); running with random errors: Parker, "Monte Carlo
Arithmetic" (UCLA CSD-970002, 1997).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

__all__ = ["Rounding"]

#: Sums of products, linear in each of their tensors: how many terms one entry has.
_SUMS: dict[str, Callable[..., Any]] = {
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
    "embedding_dense_backward": lambda g, index, *_: index.numel(),
    "index_add": lambda x, axis, index, *_: index.numel(),
    "scatter_add": lambda x, axis, index, *_: index.shape[axis] if index.ndim else 1,
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
        "native_dropout", "max_pool2d_with_indices", "index_put", "index_put_",
        "scatter", "select_backward", "slice_backward", "select_scatter",
        "slice_scatter", "diagonal_scatter", "diagonal_backward", "as_strided_scatter",
        "unfold_backward", "im2col", "hardtanh", "hardtanh_backward", "floor", "ceil",
        "round", "trunc", "eye", "linspace", "scalar_tensor",
        "value_selecting_reduction_backward", "reflection_pad1d", "reflection_pad2d",
        "replication_pad1d", "replication_pad2d", "_reshape_alias", "_unsafe_view",
        "pixel_shuffle", "channel_shuffle", "detach", "masked_select",
    }
)  # fmt: skip
#: One rounding; others are taken for several.
_SINGLE = frozenset(
    ("add", "add_", "sub", "sub_", "rsub", "mul", "mul_", "div", "div_", "sqrt")
)
#: What an elementary function may be off by, in units of roundoff, and what is known
#: of no operation: torch's vector functions keep within one unit in the last place.
_SEVERAL = 4.0


class Rounding(TorchDispatchMode):
    """Puts random rounding errors into what is computed, in float64.

    Args:
        roundoff: ``u`` of the precision whose errors are put in.
        generator: Draws them.
    """

    def __init__(self, roundoff: float, generator: torch.Generator) -> None:
        super().__init__()
        self.roundoff, self.generator = roundoff, generator

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.removeprefix("aten::")
        if name not in _SUMS and name not in _EXACT and func in _opened():
            with self:  # a kernel of many operations, as those
                return _opened()[func](*args, **kwargs)
        result = func(*args, **kwargs)
        if name in _EXACT or func.is_view:
            return result
        if name in _SUMS:
            sizes = self._of_sums(name, func, args, kwargs, result)
        else:
            units = 1.0 if name in _SINGLE else _SEVERAL
            sizes = tree_map(lambda y: _size(y, units), result)
        self._move(result, sizes)
        return result

    def _of_sums(
        self,
        name: str,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
    ) -> Any:
        """Return the size of errors of sums, in units of roundoff.

        The partial sums of ``n`` terms in random order have squares that add up to
        ``n (y**2 / 3 + sum t**2 / 6)`` in the mean; each is rounded, and each product.
        """
        try:
            length = _SUMS[name](*args)
        except (TypeError, IndexError):
            length = max((a.numel() for a in args if isinstance(a, Tensor)), default=1)
        if name in ("sum", "mean"):
            length = max(length // max(result.numel(), 1), 1)
        squared, squared_options = tree_map(_square, (args, dict(kwargs)))
        squares = func(*squared, **squared_options)
        if name == "mean":
            squares = squares / length

        if isinstance(result, Tensor):
            return _of_sum(result, squares, length)
        lengths = length if isinstance(length, tuple) else [length] * len(result)
        return [*map(_of_sum, result, squares, lengths)]

    def _move(self, result: Any, sizes: Any) -> None:
        several = result if isinstance(result, (tuple, list)) else [result]
        sizes = sizes if isinstance(sizes, (tuple, list)) else [sizes]
        for y, size in zip(several, sizes, strict=True):
            if not isinstance(y, Tensor) or size is None or y.layout != torch.strided:
                continue
            drawn = torch.randn(y.shape, generator=self.generator, dtype=y.dtype,
                                device="cpu")  # fmt: skip
            error = self.roundoff * drawn.to(y.device) * size
            y.add_(torch.where(error.isfinite(), error, 0.0))


def _of_sum(y: Any, squares: Any, length: int) -> Any:
    if not isinstance(y, Tensor) or not y.is_floating_point():
        return None
    return (length * y.square() / 3 + (length / 6 + 1) * squares.abs()).sqrt()


def _size(value: Any, units: float) -> Any:
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return None
    return units * value.abs()


def _square(value: Any) -> Any:
    if isinstance(value, Tensor) and value.is_floating_point():
        return value.square()
    return value


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


def _opened() -> dict[Any, Callable[..., Any]]:
    """Return the kernels of many operations, and what they consist of."""
    if not _OPENED:
        from torch._decomp import decomposition_table  # takes a while to import

        for func, opened in decomposition_table.items():
            name = str(getattr(func, "_schema", func)).removeprefix("aten::")
            if name.startswith(tuple(_KERNELS)):
                _OPENED[func] = opened
    return _OPENED
