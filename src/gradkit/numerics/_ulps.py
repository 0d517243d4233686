"""Units in the last place: how many floating numbers lie between two."""

from __future__ import annotations

import torch
from torch import Tensor

from gradkit._dtypes import short
from gradkit.errors import InputError
from gradkit.numerics._arguments import (
    floating,
    refuse_other_devices,
    refusing_as,
)

__all__ = ["BITS", "ulp_distance", "unit_roundoff"]

#: The integers that have the bits of the floating dtypes whose bits have the order of
#: their numbers.
BITS = {
    torch.float64: torch.int64,
    torch.float32: torch.int32,
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
    torch.float8_e4m3fn: torch.int8,
    torch.float8_e5m2: torch.int8,
    torch.float8_e4m3fnuz: torch.int8,
    torch.float8_e5m2fnuz: torch.int8,
}


def unit_roundoff(dtype: torch.dtype) -> float:
    """Return ``u``: the largest relative error of rounding to nearest.

    Args:
        dtype: A floating dtype.

    Returns:
        Half the distance from 1 to the next number, ``finfo(dtype).eps / 2``.

    Raises:
        InputError: It is no floating dtype: whole numbers are not rounded.

    Cost:
        One look-up; nothing is computed.

    Example:
        >>> import torch
        >>> import gradkit as gk
        >>> gk.numerics.unit_roundoff(torch.float32) == 2.0**-24
        True

    Source:
        Higham, "Accuracy and Stability of Numerical Algorithms", 2nd ed. (SIAM 2002),
        section 2.1.
    """
    if dtype == torch.float8_e5m2fnuz:  # finfo gives half of its eps, torch 2.13
        dtype = torch.float8_e5m2
    try:
        return torch.finfo(dtype).eps / 2
    except (TypeError, NotImplementedError):  # the latter for packed float4
        error = InputError(
            f"dtype must be a floating dtype, such as torch.float32; got {dtype!r}",
            argument="dtype",
        )
    error.function = "unit_roundoff"
    raise error


def ulp_distance(a: Tensor, b: Tensor) -> Tensor:
    """Return how many steps from one number to the next lead from ``a`` to ``b``.

    Neighbouring numbers are one unit in the last place (ULP) apart, whatever their
    size. Zero is one number, with either sign; the step from the smallest positive
    number to it is one ULP. Two NaN are 0 apart, NaN and anything else as far as
    can be told.

    Args:
        a: Floating, of any shape.
        b: Of any shape that broadcasts with ``a``, of its dtype, on its device.

    Returns:
        ``(*)``, the broadcast shape: whole numbers, int64. From infinity to the largest
        number is one step. The largest int64 stands for NaN beside a number, and for
        what is farther apart than it, as may be in float64.

    Raises:
        InputError: They are no dense floating tensors with values, or their dtypes,
            devices or shapes do not belong together.

    Cost:
        Some passes over the entries, and a few int64 numbers for each while it runs.

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
    with refusing_as("ulp_distance"):
        first, second = _read(a, b)
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


def _read(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return what ``ulp_distance`` is given, broadcast, or refuse it."""
    found = {"a": floating(a, "a"), "b": floating(b, "b")}
    for name, value in found.items():
        if value.dtype not in BITS:
            raise InputError(
                f"{name} must be of {', '.join(map(short, BITS))}; got"
                f" {short(value.dtype)}; pass x.float()",
                argument=name,
            )
    first, second = found["a"], found["b"]
    if first.dtype != second.dtype:
        raise InputError(
            f"a and b must have one dtype, since a unit belongs to one; got"
            f" {first.dtype} and {second.dtype}. Convert the wider one",
            argument="b",
        )
    refuse_other_devices(found)
    try:
        one, other = torch.broadcast_tensors(first, second)
    except RuntimeError as error:
        raise InputError(
            f"b must broadcast with a; got {tuple(second.shape)} and"
            f" {tuple(first.shape)}",
            argument="b",
        ) from error
    return one, other


def _place(values: Tensor) -> Tensor:
    """Return each number's place in the order of all, zero being 0."""
    bits = values.contiguous().view(BITS[values.dtype]).to(torch.int64)
    width = 8 * values.element_size()
    if width == 64:
        magnitude = bits & torch.iinfo(torch.int64).max
    else:
        magnitude = bits & (2 ** (width - 1) - 1)
    return torch.where(bits < 0, -magnitude, magnitude)
