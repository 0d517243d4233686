"""Arithmetic on rows that no context changes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import ExitStack
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

import torch

from gradkit._guards._autocast import Autocast
from gradkit._guards._settings import quiet_settings
from gradkit._guards._trace import LOCK
from gradkit._hints import refuse_unknown

__all__ = ["plainly"]

Answer = TypeVar("Answer")
Asked = ParamSpec("Asked")


def plainly(method: Callable[Asked, Answer]) -> Callable[Asked, Answer]:
    """Run arithmetic on rows as it is written, in whatever context it is asked for.

    Autocast would round products, and inference mode would give tensors that no
    later computation may record.
    """
    kinds = inspect.signature(method).parameters.values()
    names = {p.name for p in kinds}
    needed = [
        p.name for p in kinds if p.kind is p.KEYWORD_ONLY and p.default is p.empty
    ]
    function = f"ParameterJacobian.{method.__name__}"
    if "." in method.__qualname__:  # Python names it in errors of its own
        method.__qualname__ = function

    @wraps(method)
    def wrapped(*args: Asked.args, **kwargs: Asked.kwargs) -> Answer:
        if not kwargs.keys() <= names:
            refuse_unknown(function, names, kwargs)
        for name in needed:
            if name not in kwargs:
                raise TypeError(f"{function}() needs {name}=, such as {name}=0")
        device = cast(Any, args[0])._device
        with LOCK, ExitStack() as stack:
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.no_grad())
            stack.enter_context(Autocast.of([device]).off())
            stack.enter_context(quiet_settings())
            return method(*args, **kwargs)

    return wrapped
