"""What every public function is wrapped in."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import wraps
from typing import ParamSpec, TypeVar

from gradkit._call._request import named, naming
from gradkit._hints import refuse_unknown
from gradkit.errors import InputError

__all__ = ["public", "public_pass"]

Result = TypeVar("Result")
Given = ParamSpec("Given")


def public(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """Name the function in its errors, and explain an order that others use.

    Libraries disagree on where a loss and targets go; Python's own message would
    only count arguments.
    """
    return _wrapped(function, named)


def public_pass(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """Do the same for a pass over a data set, whose batches are calls of their own."""
    return _wrapped(function, naming)


def _wrapped(
    function: Callable[Given, Result],
    naming_it: Callable[[str], AbstractContextManager[None]],
) -> Callable[Given, Result]:
    kinds = inspect.signature(function).parameters.values()
    most = sum(p.kind is p.POSITIONAL_OR_KEYWORD for p in kinds)
    order = ", ".join(p.name for p in kinds if p.kind is p.POSITIONAL_OR_KEYWORD)
    names = {p.name for p in kinds}
    takes_any = any(p.kind is p.VAR_KEYWORD for p in kinds)

    @wraps(function)
    def wrapped(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        with naming_it(function.__name__):
            if len(args) > most:
                targets = ""
                if "objective" in order:
                    targets = (
                        "; targets go into the objective,"
                        " gk.objectives.sample_loss(F.cross_entropy, y)"
                    )
                raise InputError(
                    f"takes at most {most} arguments by position, ({order}); got"
                    f" {len(args)}{targets}",
                    argument="args",
                )
            if not (takes_any or kwargs.keys() <= names):
                refuse_unknown(function.__name__, names, kwargs)
            return function(*args, **kwargs)

    return wrapped
