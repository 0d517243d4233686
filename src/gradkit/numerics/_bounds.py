"""What rounding can come to: bounds that follow from lengths and magnitudes.

Higham, "Accuracy and Stability of Numerical Algorithms", 2nd ed. (SIAM 2002), ch. 3:
every operation returns its exact result times ``1 + d`` with ``|d| <= u``; a sum of
``n`` products then is off by at most ``gamma(n) = n u / (1 - n u)`` times the sum of
their absolute values, in whatever order it is added.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gradkit.errors import InputError
from gradkit.numerics._arguments import (
    floating,
    refuse_other_devices,
    refusing_as,
    whole,
)
from gradkit.numerics._ulps import unit_roundoff

__all__ = ["dot_error_bound", "gamma", "linear_error_bound"]


def gamma(length: int, dtype: torch.dtype) -> float:
    """Return ``n u / (1 - n u)``, the error of ``n`` roundings in a row.

    Args:
        length: ``n``, how many roundings a term passes.
        dtype: The dtype that is rounded to.

    Returns:
        The bound; infinity where ``n u >= 1`` and nothing is left to say.

    Raises:
        InputError: ``length`` is no whole number of at least 0, or ``dtype`` is not
            floating.

    Cost:
        A few operations on two numbers.

    Example:
        >>> import torch
        >>> import gradkit as gk
        >>> u = gk.numerics.unit_roundoff(torch.float32)
        >>> gk.numerics.gamma(1000, torch.float32) == 1000 * u / (1 - 1000 * u)
        True

    Source:
        Higham (2002), lemma 3.1.
    """
    with refusing_as("gamma"):
        reach = whole(length, "length", 0) * unit_roundoff(dtype)
    return reach / (1 - reach) if reach < 1 else math.inf


def dot_error_bound(x: Tensor, y: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return by how much a dot product can be off: ``gamma(n) |x| . |y|``.

    Args:
        x: ``(*lead, n)``.
        y: ``(*lead, n)``; the leading axes broadcast.
        dtype: What the products are rounded to and added in; that of ``x`` by default.

    Returns:
        ``(*lead,)``, float64: the bound on ``|computed - exact|``, whatever the order
        of the additions and whether or not products and sums are fused.

    Raises:
        InputError: ``x`` or ``y`` is no dense floating tensor with values, ``dtype`` is
            not floating, or lengths, leading axes or devices do not belong together.

    Cost:
        One pass over the products, and a copy of each argument in float64.

    Example:
        >>> import torch
        >>> import gradkit as gk
        >>> x, y = torch.rand(2, 1000), torch.rand(2, 1000)
        >>> exact = (x.double() * y.double()).sum(-1)
        >>> error = ((x * y).sum(-1).double() - exact).abs()
        >>> bool((error <= gk.numerics.dot_error_bound(x, y)).all())
        True

    Source:
        Higham (2002), equation (3.5).
    """
    with refusing_as("dot_error_bound"):
        found = {"x": floating(x, "x"), "y": floating(y, "y")}
        refuse_other_devices(found)
        sizes = _products(*found.values())
        return _scaled(sizes, x.shape[-1], x.dtype if dtype is None else dtype)


def _products(x: Tensor, y: Tensor) -> Tensor:
    shapes = f"{tuple(x.shape)} and {tuple(y.shape)}"
    if not x.ndim or x.shape[-1:] != y.shape[-1:]:
        text = f"x and y must have one length, (*lead, n); got {shapes}"
        raise InputError(text, argument="y")
    try:
        return (x.double().abs() * y.double().abs()).sum(-1)
    except RuntimeError as error:
        text = f"the leading axes of x and y must broadcast; got {shapes}"
        raise InputError(text, argument="y") from error


def _scaled(sizes: Tensor, length: int, dtype: torch.dtype) -> Tensor:
    # Where all terms are 0 so is their sum, even if the bound has nothing to say.
    return torch.where(sizes == 0, 0.0, gamma(length, dtype) * sizes)


def linear_error_bound(
    inputs: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Return by how much ``inputs @ weight.T + bias`` can be off, entry by entry.

    Args:
        inputs: ``(*lead, D)``.
        weight: ``(K, D)``, as ``torch.nn.Linear`` has it.
        bias: ``(K,)``, or ``None``.
        dtype: What is rounded to; that of ``inputs`` by default.

    Returns:
        ``(*lead, K)``, float64: ``gamma(D + 1) (|x| |W|^T + |b|)``, or with
        ``gamma(D)`` where there is no bias.

    Raises:
        InputError: ``inputs``, ``weight`` or ``bias`` is no dense floating tensor with
            values, ``dtype`` is not floating, or shapes or devices do not belong
            together.

    Cost:
        One product of matrices as large as the layer's, in float64, on copies.

    Example:
        >>> import torch
        >>> import gradkit as gk
        >>> layer, x = torch.nn.Linear(300, 5), torch.randn(7, 300)
        >>> exact = x.double() @ layer.weight.double().T + layer.bias.double()
        >>> bound = gk.numerics.linear_error_bound(x, layer.weight, layer.bias)
        >>> bool(((layer(x).double() - exact).abs() <= bound).all())
        True

    Source:
        Higham (2002), section 3.5: the bound of a dot product for every entry.
    """
    given = {"inputs": inputs, "weight": weight}
    given |= {} if bias is None else {"bias": bias}
    with refusing_as("linear_error_bound"):
        found = {name: floating(value, name) for name, value in given.items()}
        refuse_other_devices(found)
        _refuse_shapes(**found)
        x, w, *b = (value.double().abs() for value in found.values())
        sizes, length = x @ w.T, w.shape[1] + len(b)
        sizes = sizes + b[0] if b else sizes
        return _scaled(sizes, length, inputs.dtype if dtype is None else dtype)


def _refuse_shapes(inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> None:
    fits = weight.ndim == 2 and inputs.shape[-1:] == weight.shape[-1:]
    if fits and (bias is None or bias.shape == weight.shape[:1]):
        return
    raise InputError(
        "weight must be (k, d) for inputs (*lead, d), and bias (k,); got inputs"
        f" {tuple(inputs.shape)}, weight {tuple(weight.shape)}, bias"
        f" {None if bias is None else tuple(bias.shape)}",
        argument="weight" if not fits else "bias",
    )
