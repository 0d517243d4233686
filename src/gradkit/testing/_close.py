"""Two gradients held against one another, with a verdict instead of a tolerance."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from gradkit.errors import AgreementError
from gradkit.numerics import Difference
from gradkit.numerics._arguments import floating, refusing_as
from gradkit.numerics._compared import read_compared, refuse_unlike
from gradkit.numerics._difference import explained

__all__ = ["assert_gradients_close"]


def assert_gradients_close(
    actual: Any,
    expected: Any,
    *,
    terms: int | None = None,
    referee: Any = None,
) -> Difference:
    """Raise unless gradients differ by no more than rounding explains.

    Args:
        actual: A tensor, a mapping of tensors by name, or a sequence of tensors, such
            as ``torch.autograd.grad`` returns. ``None`` says that there is no
            gradient: equal to ``None`` alone, not to zeros. What a sparse tensor
            leaves out is zero.
        expected: The same, of the same names and shapes.
        terms: The length of the longest sum that makes an entry, such as the samples
            of a batch times the positions of a sequence; by default guessed from the
            shapes, as ``gk.numerics.explain_difference`` says.
        referee: The same in a higher precision; then each of the two is held against
            it, and the one that is wrong is known.

    Returns:
        The ``Difference``, whose verdict is ``"equal"`` or ``"rounding"``.

    Raises:
        AgreementError: They are *different*. The text names the tensor and index of
            the worst entry, both values, what is allowed, and what the difference
            looks like; ``difference`` holds it all. Or there is a gradient on one
            side only.
        InputError: Names, lengths, shapes, devices or kinds do not belong together.

    Cost:
        Some passes over the tensors in float64.

    Example:
        >>> import torch
        >>> import gradkit as gk
        >>> w = torch.randn(300, requires_grad=True)
        >>> x = torch.randn(64, 300)
        >>> (whole,) = torch.autograd.grad((x @ w).sum(), w)
        >>> parts = sum(torch.autograd.grad((row @ w).sum(), w)[0] for row in x)
        >>> bool(gk.testing.assert_gradients_close(parts, whole, terms=64))
        True

    Source:
        Higham, "Accuracy and Stability of Numerical Algorithms", 2nd ed. (SIAM 2002),
        ch. 3.
    """
    given = {"actual": actual, "expected": expected}
    given |= {} if referee is None else {"referee": referee}
    with refusing_as("assert_gradients_close"):
        given = {name: _by_name(value, name) for name, value in given.items()}
        refuse_unlike(given)
        _refuse_lone(given)
        given = {name: _with_gradients(value) for name, value in given.items()}
        found = explained(given, terms)
    if not found:
        raise _wrong(f"actual must be expected but for rounding; it is {found}", found)
    return found


def _by_name(value: Any, argument: str) -> Any:
    """Return sequences as mappings."""
    if isinstance(value, (list, tuple)):
        return dict(enumerate(value))
    if value is None or isinstance(value, (Tensor, Mapping)):
        return value
    return floating(value, argument, ", or a mapping or sequence of them")


def _refuse_lone(given: Mapping[str, Any]) -> None:
    """Raise where one side has a gradient and the other has none."""
    first, *others = (_places(value, argument) for argument, value in given.items())
    for argument, other in zip([*given][1:], others, strict=True):
        lone = [n for n in first if (first[n][1] is None) != (other[n][1] is None)]
        if lone:
            text, found = _no_gradient(lone, first[lone[0]], other[lone[0]])
            raise _wrong(
                f"actual must have gradients where {argument} has{text}", found
            )


def _places(value: Any, argument: str) -> dict[str, tuple[str, Any]]:
    """Return values with their places, by name."""
    if not isinstance(value, Mapping):
        return {"": (argument, value)}
    return {str(key): (f"{argument}[{key!r}]", v) for key, v in value.items()}


def _no_gradient(
    names: list[str], one: tuple[str, Any], other: tuple[str, Any]
) -> tuple[str, Difference]:
    a, b = _largest(*one), _largest(*other)
    (none, _), (place, _) = (one, other) if one[1] is None else (other, one)
    zeros = 0.0 in (a, b)
    kind = "a tensor of zeros" if zeros else "a tensor that is not zero"
    text = f"{none} is None, no gradient at all, where {place} is {kind}"
    if names[1:]:
        text += f", and so on for {len(names) - 1} more"
    if zeros:
        text += ". Where zeros are meant pass materialize_grads=True to autograd.grad"
    found = Difference(
        "different", names[0], (), a, b, None, 0.0, math.inf, math.inf, None, 1, (text,)
    )
    return f"; {text}", found


def _largest(place: str, value: Any) -> float:
    """Return the size of the largest entry; NaN where there is no gradient."""
    if value is None:
        return math.nan
    if not isinstance(value, Tensor):
        floating(value, place)
    ((tensor,),) = (found.values() for found in read_compared({place: value}))
    return float(tensor.double().abs().max()) if tensor.numel() else 0.0


def _with_gradients(value: Any) -> Any:
    """Return a value without what has no gradient."""
    if isinstance(value, Mapping):
        return {key: v for key, v in value.items() if v is not None}
    return {} if value is None else value


def _wrong(text: str, difference: Difference) -> AgreementError:
    error = AgreementError(text, difference=difference)
    error.function = "assert_gradients_close"
    return error
