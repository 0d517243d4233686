"""One line of a table, before it is measured."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

from torch import Tensor

from benchmarks.problems import Problem

# Numbers to be compared between libraries: one tensor, or one per parameter.
Result = Tensor | dict[str, Tensor]


def nothing() -> None:
    """Leave everything as it is."""


def ignore_hook_warning() -> None:
    """Keep torch from warning that a hooked model's inputs require no gradient."""
    warnings.filterwarnings("ignore", "Full backward hook is firing")


@dataclass(frozen=True)
class Work:
    """What one library is asked to do, set up for one model.

    Args:
        call: What is timed.
        clear: Run before each call, outside the clock: drops what the last call left
            on the model, so that freeing it costs the library nothing.
    """

    call: Callable[[], Result | None]
    clear: Callable[[], object] = nothing


@dataclass(frozen=True)
class Entry:
    """A line of a table.

    Args:
        name: What the table calls it.
        build: Sets a library up for a problem; the clock of the first call covers it.
        needs: The module without which the entry is left out.
        every: Measured in every such round only; for work that is slow.
    """

    name: str
    build: Callable[[Problem], Work]
    needs: str = "torch"
    every: int = 1

    @property
    def missing(self) -> bool:
        """Whether the library is not installed."""
        return find_spec(self.needs) is None
