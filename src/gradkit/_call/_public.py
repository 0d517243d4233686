"""What every public function is wrapped in."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from gradkit._call._request import named
from gradkit.errors import InputError

__all__ = ["public"]

Result = TypeVar("Result")
Given = ParamSpec("Given")


def public(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """Name the function in its errors, and explain an order that others use.

    Libraries disagree on where a loss and targets go; Python's own message would
    only count arguments.
    """
    kinds = inspect.signature(function).parameters.values()
    most = sum(p.kind is p.POSITIONAL_OR_KEYWORD for p in kinds)
    order = ", ".join(p.name for p in kinds if p.kind is p.POSITIONAL_OR_KEYWORD)

    @wraps(function)
    def wrapped(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        with named(function.__name__):
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
            return function(*args, **kwargs)

    return wrapped
