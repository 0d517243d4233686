"""What a command line is about: a model, and what to ask it with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["Subject"]


@dataclass(frozen=True)
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
        >>> subject.objective is None
        True
    """

    model: Any
    inputs: Any = None
    targets: Any = None
    objective: Any = None
    loader: Any = None
