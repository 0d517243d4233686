"""Two gradients held against one another, with a verdict instead of a tolerance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from gradkit.errors import AgreementError, InputError
from gradkit.numerics import Difference, explain_difference

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
            as ``torch.autograd.grad`` returns.
        expected: The same, of the same names and shapes.
        terms: The length of the longest sum that makes an entry, such as the samples
            of a batch times the positions of a sequence; by default guessed from the
            shapes, as :func:`gradkit.numerics.explain_difference` says.
        referee: The same in a higher precision; then each of the two is held against
            it, and the one that is wrong is known.

    Returns:
        The ``Difference``, whose verdict is ``"equal"`` or ``"rounding"``.

    Raises:
        AgreementError: They are *different*. The text names the tensor and index of
            the worst entry, both values, what is allowed, and what the difference
            looks like; ``difference`` holds it all.
        InputError: Names, lengths, shapes or kinds do not belong together.

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
    first, second = _by_name(actual, "actual"), _by_name(expected, "expected")
    third = None if referee is None else _by_name(referee, "referee")
    for name, value in (("expected", second), ("referee", third)):
        if value is not None and isinstance(first, Tensor) != isinstance(value, Tensor):
            raise _refused(
                f"{name} must be of the kind of actual; got"
                f" {_kind(value)} and {_kind(first)}",
                name,
            )
    try:
        found = explain_difference(first, second, third, terms=terms)
    except InputError as error:
        words = error.message.replace("b must", "expected must", 1)
        raise _refused(words.replace(" of a;", " of actual;"), "expected") from None
    if found:
        return found
    wrong = AgreementError(
        f"actual must be expected but for rounding; it is {found}", difference=found
    )
    wrong.function = "assert_gradients_close"
    raise wrong


def _by_name(value: Any, argument: str) -> Tensor | Mapping[str, Tensor]:
    if isinstance(value, (list, tuple)):
        value = {str(i): v for i, v in enumerate(value)}
    if isinstance(value, Tensor):
        return value
    if isinstance(value, Mapping) and all(
        isinstance(v, Tensor) for v in value.values()
    ):
        return value
    raise _refused(
        f"{argument} must be a tensor, or a mapping or sequence of tensors; got"
        f" {type(value).__name__}",
        argument,
    )


def _kind(value: Any) -> str:
    return "a tensor" if isinstance(value, Tensor) else f"{len(value)} tensors by name"


def _refused(text: str, argument: str) -> InputError:
    error = InputError(text, argument=argument)
    error.function = "assert_gradients_close"
    return error
