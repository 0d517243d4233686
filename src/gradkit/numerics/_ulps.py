"""Units in the last place: how many floating numbers lie between two."""

from __future__ import annotations

import torch
from torch import Tensor

from gradkit.errors import InputError

__all__ = ["ulp_distance", "unit_roundoff"]

#: The integers that have a floating dtype's bits.
_BITS = {
    torch.float64: torch.int64,
    torch.float32: torch.int32,
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
}


def unit_roundoff(dtype: torch.dtype) -> float:
    """Return ``u``: the largest relative error of rounding to nearest.

    Args:
        dtype: A floating dtype.

    Returns:
        Half the distance from 1 to the next number, ``finfo(dtype).eps / 2``.

    Example:
        >>> import torch
        >>> import gradkit as gk
        >>> gk.numerics.unit_roundoff(torch.float32) == 2.0**-24
        True

    Source:
        Higham, "Accuracy and Stability of Numerical Algorithms", 2nd ed. (SIAM 2002),
        section 2.1.
    """
    return torch.finfo(dtype).eps / 2


def ulp_distance(a: Tensor, b: Tensor) -> Tensor:
    """Return how many steps from one number to the next lead from ``a`` to ``b``.

    Neighbouring numbers are one unit in the last place (ULP) apart, whatever their
    size. Zero is one number, with either sign; the step from the smallest positive
    number to it is one ULP. Two NaN are 0 apart, NaN and anything else as far as
    can be told.

    Args:
        a: Floating, of any shape.
        b: Of the same dtype, on the same device; it broadcasts with ``a``.

    Returns:
        Whole numbers, int64, of the broadcast shape. From infinity to the largest
        number is one step. The largest int64 stands for NaN beside a number, and for
        what is farther apart than it, as may be in float64.

    Raises:
        InputError: The dtypes differ, or are not floating.

    Example:
        >>> import torch
        >>> import gradkit as gk
        >>> a = torch.tensor([1.0, 0.0, 3.0])
        >>> b = torch.nextafter(a, torch.tensor(9.0))
        >>> gk.numerics.ulp_distance(a, b)
        tensor([1, 1, 1])

    Source:
        The bits of IEEE 754 numbers of one sign, read as a whole number, count the
        numbers in their order (IEEE 754-2019, section 3.4).
    """
    for name, value in (("a", a), ("b", b)):
        if not isinstance(value, Tensor) or value.dtype not in _BITS:
            kinds = ", ".join(str(dtype).removeprefix("torch.") for dtype in _BITS)
            raise _refused(f"{name} must be a floating tensor ({kinds}); got"
                           f" {_described(value)}", name)  # fmt: skip
    if a.dtype != b.dtype:
        raise _refused(
            f"a and b must have one dtype, since a unit belongs to one; got {a.dtype}"
            f" and {b.dtype}. Convert the wider one",
            "b",
        )
    first, second = torch.broadcast_tensors(a.detach(), b.detach())
    most = torch.iinfo(torch.int64).max
    here, there = _place(first), _place(second)
    # Of opposite signs the difference may be too large for int64.
    gap = (here - there).abs()
    apart = (here < 0) != (there < 0)
    gap = torch.where(
        apart & ((gap < 0) | (here.abs() > most - there.abs())), most, gap
    )
    odd, other = first.isnan(), second.isnan()
    gap = torch.where(odd != other, most, gap)
    return torch.where(odd & other, 0, gap)


def _place(values: Tensor) -> Tensor:
    """Return each number's place in the order of all, zero being 0."""
    bits = values.contiguous().view(_BITS[values.dtype]).to(torch.int64)
    width = 8 * values.element_size()
    if width == 64:
        magnitude = bits & torch.iinfo(torch.int64).max
    else:
        magnitude = bits & (2 ** (width - 1) - 1)
    return torch.where(bits < 0, -magnitude, magnitude)


def _described(value: object) -> str:
    if isinstance(value, Tensor):
        return f"a {str(value.dtype).removeprefix('torch.')} tensor"
    return type(value).__name__


def _refused(text: str, argument: str) -> InputError:
    error = InputError(text, argument=argument)
    error.function = "ulp_distance"
    return error
