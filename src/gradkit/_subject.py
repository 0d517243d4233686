"""What a command line is about: a model, and what to ask it with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, fields
from typing import Any, cast

__all__ = ["Subject"]


@dataclass(frozen=True, repr=False)
class Subject:
    """What the target of a command names: ``gradkit check TARGET``.

    A target is such a value, a mapping with these keys, or a function that returns
    one of them. What a command does not need may be left out; the command names
    what it misses.

    Args:
        model: An ``nn.Module`` or a callable.
        inputs: Inputs for it, samples first: a tensor, a sequence or a mapping.
        targets: Labels or the like, for commands that show them.
        objective: From outputs to one number per sample; for commands that stream,
            from a batch's targets to such a function.
        loader: Batches of a whole data set, for commands that stream.

    Example:
        >>> import torch
        >>> import gradkit as gk
        >>> subject = gk.Subject(torch.nn.Linear(3, 2), torch.zeros(5, 3))
        >>> subject
        Subject(model=Linear, inputs=float32 (5, 3))
    """

    model: Any
    inputs: Any = None
    _: KW_ONLY
    targets: Any = None
    objective: Any = None
    loader: Any = None

    def __repr__(self) -> str:
        given = [(f.name, getattr(self, f.name)) for f in fields(self)]
        shown = [
            f"{name}={_shown(value)}" for name, value in given if value is not None
        ]
        return f"Subject({', '.join(shown)})"


def _shown(value: Any) -> str:
    """Return a short text: a tensor's dtype and shape, a callable's name."""
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is not None and dtype is not None:
        return f"{str(dtype).removeprefix('torch.')} {tuple(shape)}"
    if isinstance(value, Mapping):
        named = cast("Mapping[Any, Any]", value)
        return f"{{{', '.join(f'{k!r}: {_shown(v)}' for k, v in named.items())}}}"
    if isinstance(value, (list, tuple)):
        every = cast("list[Any]", value)
        listed = ", ".join(_shown(v) for v in every[:8])
        return f"[{listed}{', …' if len(every) > 8 else ''}]"
    if type(value).__module__.startswith("gradkit."):
        return repr(value)  # an objective says what it was made with
    called = getattr(value, "__name__", None) if callable(value) else None
    return called or type(value).__name__
