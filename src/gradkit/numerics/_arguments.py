"""Which arguments hold numbers whose rounding can be told, and why others do not."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from torch import Tensor

from gradkit._dtypes import short
from gradkit.errors import InputError

__all__ = ["floating", "refuse_other_devices", "refusing_as", "whole"]

_NUMBERS = (int, float, complex, np.number)


@contextmanager
def refusing_as(function: str) -> Iterator[None]:
    """Let what is refused inside say which public function was called."""
    try:
        yield
    except InputError as error:
        error.function = function
        raise


def floating(value: Any, place: str, others: str = "") -> Tensor:
    """Return a dense floating tensor that holds values, detached.

    Args:
        value: What came.
        place: The argument's name, and where in it the value stands.
        others: What else will do, as the text says it.

    Raises:
        InputError: It is something else; the text says what, and the way out.
    """
    what, advice = _fault(value, inside="[" in place)
    if not what:
        # Bits are read of it: a sign that is still to be changed is not in them.
        return value.detach().resolve_neg()
    raise InputError(
        f"{place} must be a floating tensor{others}; got"
        f" {'; '.join(filter(None, (what, advice)))}",
        argument=place.partition("[")[0],
        place=place,
    )


def _fault(value: Any, *, inside: bool) -> tuple[str, str]:
    """Return what a value is instead of a floating tensor, and what to do."""
    if not isinstance(value, Tensor):
        return type(value).__name__, _advice(value, inside=inside)
    layout = "" if value.is_nested else short(value.layout)
    sparse = layout not in ("", "strided")
    kinds = {
        "nested": (value.is_nested, "pass x.to_padded_tensor(0.0)"),
        "complex": (value.is_complex(), "pass torch.view_as_real(x)"),
        "quantized": (value.is_quantized, "pass x.dequantize()"),
        layout: (sparse, "pass x.to_dense()"),
        "meta": (value.device.type == "meta", "pass one that holds values"),
        "fake": (_is_a(value, "FakeTensor"), "pass one that holds values"),
        "masked": (_is_a(value, "MaskedTensor"), "pass x.to_tensor(0.0)"),
        "distributed": (_is_a(value, "DTensor"), "pass x.full_tensor()"),
    }
    for kind, (hit, advice) in kinds.items():
        if hit:
            return f"a {kind} tensor", advice
    dtype = short(value.dtype)
    if not value.is_floating_point():
        return f"{'an' if dtype[0] == 'i' else 'a'} {dtype} tensor", "pass x.double()"
    if dtype.startswith("float4"):
        return f"a {dtype} tensor", "unpack its values first"
    return "", ""


def _advice(value: Any, *, inside: bool) -> str:
    """Return what to do with what is no tensor, *inside* a mapping or not."""
    if isinstance(value, np.ndarray):
        return "pass torch.from_numpy(x)"
    if isinstance(value, _NUMBERS):
        return "pass torch.tensor(x)"
    if inside and value is None:
        return "where there is no gradient leave the name out"
    if inside and isinstance(value, (Mapping, list, tuple)):
        return "flatten what is nested, as in {'layer.weight': ...}"
    return ""


def _is_a(value: Tensor, name: str) -> bool:
    # By name: the modules of these classes are slow to import, or not always there.
    return type(value).__name__ == name


def refuse_other_devices(tensors: Mapping[str, Tensor]) -> None:
    """Refuse tensors, by their places, that are not on the first one's device."""
    (first, one), *others = tensors.items()
    for place, other in others:
        if other.device != one.device:
            raise InputError(
                f"{place} must be on the device of {first}; got {other.device} and"
                f" {one.device}; move one with .to(device)",
                argument=place.partition("[")[0],
            )


def whole(number: Any, argument: str, least: int = 1) -> int:
    """Return a whole number of at least so much, of Python, NumPy or torch."""
    try:
        found = least - 1 if isinstance(number, bool) else operator.index(number)
    except TypeError:
        found = least - 1
    if found < least:
        raise InputError(
            f"{argument} must be a whole number of at least {least}; got {number!r}",
            argument=argument,
        )
    return found
