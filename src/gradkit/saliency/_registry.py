"""The saliency methods, by name, for those who compare them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, cast

from torch import Tensor

from gradkit.errors import InputError
from gradkit.saliency._expected import expected_gradients
from gradkit.saliency._grad_cam import grad_cam
from gradkit.saliency._gradient import gradient, gradient_times_input
from gradkit.saliency._guided import guided_backprop
from gradkit.saliency._integrated import integrated_gradients
from gradkit.saliency._occlusion import occlusion
from gradkit.saliency._smooth import smoothgrad

__all__ = ["METHODS", "Method", "map_of", "read_method", "read_settings"]

Method = Callable[..., Any]

#: Every saliency method, called with ``(model, inputs, objective, **settings)``.
METHODS: Mapping[str, Method] = MappingProxyType(
    {
        method.__name__: method
        for method in (
            gradient,
            gradient_times_input,
            guided_backprop,
            integrated_gradients,
            expected_gradients,
            smoothgrad,
            grad_cam,
            occlusion,
        )
    }
)


def read_method(method: Any) -> tuple[str, Method]:
    """Return the name of a method and what to call; names and functions are taken."""
    if isinstance(method, str) and method in METHODS:
        return method, METHODS[method]
    if callable(method):
        return getattr(method, "__name__", type(method).__name__), method
    raise InputError(
        f"method must be one of {', '.join(map(repr, METHODS))}, or a callable (model,"
        f" inputs, objective, **settings) that returns a map; got {method!r}",
        argument="method",
    )


def read_settings(settings: Any, method: Method, name: str) -> dict[str, Any]:
    """Return what ``method`` is called with besides, ``{}`` for ``None``."""
    if settings is None or isinstance(settings, Mapping):
        found = dict(cast(Mapping[str, Any], settings or {}))
        _refuse_unfit(method, name, found)
        return found
    raise InputError(
        "settings must be a mapping of the method's arguments, such as"
        f" {{'draws': 20}}; got {type(settings).__name__}",
        argument="settings",
    )


def _refuse_unfit(method: Method, name: str, settings: Mapping[str, Any]) -> None:
    """Refuse settings that a method does not take, and the lack of those it needs."""
    try:
        parameters = inspect.signature(method).parameters.values()
    except (TypeError, ValueError):
        return  # written in C, say
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return
    own = {p.name: p for p in list(parameters)[3:]}
    needed = [n for n, p in own.items() if p.default is p.empty and n not in settings]
    unknown = [n for n in settings if n not in own]
    if needed or unknown:
        what = f"give {needed[0]!r}, which" if needed else f"not give {unknown[0]!r}:"
        rest = "needs" if needed else f"takes {', '.join(map(repr, own)) or 'none'}"
        raise InputError(
            f"settings must {what} {name} {rest}",
            argument="settings",
        )


def map_of(found: Any, name: str) -> Tensor:
    """Return the map of a method if it is one floating tensor, detached."""
    if isinstance(found, Tensor) and found.ndim and found.is_floating_point():
        return found.detach()
    kind = type(found).__name__
    raise InputError(
        f"method {name} must return one floating tensor with the samples first; got"
        f" {kind}. Choose one input or submodule with wrt=",
        argument="method",
    )
