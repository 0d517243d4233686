"""The arguments of one call, as they came, and its name in errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from gradkit._guards._notes import add_note
from gradkit._guards._random import RandomState
from gradkit._guards._trace import LOCK
from gradkit._memory_use import ran_out
from gradkit._planner import Planner
from gradkit._problem._parameters import Parameter
from gradkit.errors import GradkitError, OutOfMemoryError

__all__ = ["Given", "Request", "named", "naming"]


#: What helps where memory does not suffice.
LESS = (
    "Ask for less at once: fewer samples; of= or an objective for fewer outputs; wrt="
    " or parameters= for less to differentiate by. max_memory= bounds the work beyond"
    " the result"
)


@contextmanager
def named(function: str) -> Iterator[None]:
    """Put the public function's name into errors; one call at a time."""
    with LOCK, naming(function):
        yield


@contextmanager
def naming(function: str) -> Iterator[None]:
    """Put the public function's name into errors, where no error has one yet.

    For what lasts for hours and makes calls of its own, each of which is ``named``.
    """
    try:
        yield
    except GradkitError as error:
        if error.function is None:
            error.function = function
        raise
    except torch.OutOfMemoryError as error:
        # Programs look for an accelerator's own.
        add_note(error, f"{function}: {LESS}.")
        raise
    except (RuntimeError, MemoryError) as error:
        if not ran_out(error):
            raise
        refused = OutOfMemoryError(
            f"out of memory. {LESS}; {type(error).__name__}: {error}"
        )
        refused.function = function
        raise refused from error


@dataclass(frozen=True)
class Request:
    """The arguments of one call, as they came."""

    function: str
    model: Any
    inputs: Any
    objective: Any = None
    wrt: Any = None
    of: Any = None
    batched: bool | None = None
    seed: int | None = None
    parameters: Any = None
    method: Any = "auto"
    max_memory: Any = None
    create_graph: bool = False
    #: Whether the proof of independence is made again whatever is remembered.
    renew: bool = False
    #: Whether an objective's values are wanted, and no derivative.
    values_only: bool = False

    @property
    def kind(self) -> Literal["inputs", "parameters"]:
        """What the derivative is taken with respect to."""
        by_inputs = self.function in ("jacobian", "input_gradients")
        return "inputs" if by_inputs else "parameters"

    @property
    def takes_objective(self) -> bool:
        """Whether the function differentiates an objective, not every output."""
        return self.function in ("input_gradients", "per_sample_gradients")


@dataclass(frozen=True, eq=False)
class Given:
    """What a call that is made again takes from the first one.

    ``mapping`` puts private copies in place of the modules' tensors, by ``id``;
    ``start`` is the random state that its forward started from. ``cotangent`` is the
    objective's, where it is not evaluated anew.
    """

    mapping: dict[int, Tensor]
    parameters: tuple[Parameter, ...]
    cotangent: Tensor | None
    start: RandomState
    planner: Planner
    #: Whether the objective is evaluated, although a cotangent could be given.
    objective: bool = False
