"""Arithmetic on rows that no context changes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

import torch

from gradkit._guards._autocast import Autocast
from gradkit._guards._settings import quiet_settings
from gradkit._guards._trace import LOCK

__all__ = ["plainly"]

Answer = TypeVar("Answer")
Asked = ParamSpec("Asked")


def plainly(method: Callable[Asked, Answer]) -> Callable[Asked, Answer]:
    """Run arithmetic on rows as it is written, in whatever context it is asked for.

    Autocast would round products, and inference mode would give tensors that no
    later computation may record.
    """

    @wraps(method)
    def wrapped(*args: Asked.args, **kwargs: Asked.kwargs) -> Answer:
        device = cast(Any, args[0])._device
        with LOCK, ExitStack() as stack:
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.no_grad())
            stack.enter_context(Autocast.of([device]).off())
            stack.enter_context(quiet_settings())
            return method(*args, **kwargs)

    return wrapped
