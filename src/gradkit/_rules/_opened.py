"""Functions of ``torch.nn.functional`` run so that their own torch calls are seen.

Such a function first asks whether a mode wants to take it whole, and a mode that does
sees nothing of its body. A copy of it with that question answered by no is its body
alone, whose torch calls the mode then meets one by one: attention becomes its
projections, ``F.layer_norm`` the kernel that does the work.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from types import FunctionType
from typing import Any

__all__ = ["opened"]

_QUESTIONS = ("has_torch_function", "has_torch_function_unary")
_QUESTIONS += ("has_torch_function_variadic",)


def _no(*_: Any) -> bool:
    return False


@lru_cache(maxsize=512)
def _is_composite(function: Callable[..., Any]) -> bool:
    return (
        isinstance(function, FunctionType)
        and function.__module__ == "torch.nn.functional"
        and any(name in function.__code__.co_names for name in _QUESTIONS)
    )


def opened(function: Callable[..., Any]) -> Callable[..., Any] | None:
    """Return the body of a composite function, or ``None`` if it is no such function.

    Its globals are those of now, since people replace what stands there.

    Args:
        function: What a mode was handed.
    """
    if not isinstance(function, FunctionType) or not _is_composite(function):
        return None
    scope = function.__globals__ | dict.fromkeys(_QUESTIONS, _no)
    body = FunctionType(
        function.__code__,
        scope,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    body.__kwdefaults__ = function.__kwdefaults__
    return body
