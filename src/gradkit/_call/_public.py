"""What every public function is wrapped in."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from functools import wraps
from typing import ParamSpec, TypeVar

from gradkit._call._request import named, naming
from gradkit.errors import InputError

__all__ = ["public", "public_pass"]

Result = TypeVar("Result")
Given = ParamSpec("Given")

#: What other libraries call an argument, and its name here, in functions that have it.
_ELSEWHERE = {
    "additional_forward_args": "inputs",
    "argnums": "wrt",
    "baseline": "baselines",
    "baselines": "baseline",
    "chunk_size": "max_memory",
    "forward_func": "model",
    "internal_batch_size": "max_memory",
    "layer": "wrt",
    "n_samples": "draws",
    "n_steps": "steps",
    "nt_samples": "draws",
    "sliding_window_shapes": "window",
    "stdevs": "noise",
    "strides": "stride",
    "target": "objective",
    "targets": "objective",
}


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
                _refuse_unknown(function.__name__, names, kwargs)
            return function(*args, **kwargs)

    return wrapped


def _refuse_unknown(function: str, names: set[str], given: Iterable[str]) -> None:
    """Raise Python's own error, with the name that the argument has here, if any."""
    unknown = next(n for n in given if n not in names)
    alike = difflib.get_close_matches(unknown, sorted(names), 1)
    here = [n for n in (_ELSEWHERE.get(unknown), *alike) if n in names]
    raise TypeError(
        f"{function}() got an unexpected keyword argument {unknown!r}"
        + (f"; here it is {here[0]!r}" if here else "")
    )
