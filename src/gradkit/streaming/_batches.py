"""A loader's batches given to ``compute`` one by one, without a trace."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from gradkit._guards._random import RandomState
from gradkit.errors import InputError
from gradkit.streaming._digest import digest_batch
from gradkit.streaming._loader import Batches, Numbered
from gradkit.streaming._rows import count_samples

__all__ = ["OneByOne", "Sizes", "Step", "one_by_one"]

#: Batches of which one is looked at, where it is not likely that numbers are drawn.
_SELDOM = 16

Read = Callable[[Any, "int | None"], Any]


class Step(NamedTuple):
    """A batch that was passed: its rows, or ``None`` where they were not wanted."""

    number: int
    last: bool | None
    inputs: bytes
    rows: Any
    #: Of a batch that was not wanted, where it says so.
    samples: int | None = None


class OneByOne:
    """``compute`` on the batches of one loader.

    Args:
        compute: The caller's function.
        batches: Of the loader.
        read: Makes of what ``compute`` returned what is wanted of it.
        drawn: Whether a loader may draw random numbers for its batches.
    """

    def __init__(
        self,
        compute: Callable[[Any], Any],
        batches: Batches,
        read: Read,
        *,
        drawn: bool = False,
    ) -> None:
        self._compute = compute
        self._batches = batches
        self._read = read
        self._drawn = drawn
        self._first: Step | None = None
        self._state: RandomState | None = None
        self._unseen = 0
        self.total = batches.total
        self.count = batches.count
        self.indexed = batches.indexed

    def first(self) -> Any:
        """Return the rows of batch 0, which are not computed again.

        Raises:
            InputError: There is none.
        """
        if self._first is None:
            numbered = self._batches.first()
            if numbered is None:
                raise InputError("loader gives no batches", argument="loader")
            self._first = self._step(numbered)
            if digest_batch(numbered.batch) != self._first.inputs:
                raise InputError(
                    "compute changes its batch in place, so that nobody can say what"
                    " its rows are of; let it work on a clone",
                    argument="compute",
                )
        return self._first.rows

    def inputs_of(self, numbers: Iterable[int]) -> dict[int, bytes]:
        """Return the digests of some batches, whose numbers increase."""
        taken = self._batches.take(numbers, apart=True)
        return {n.number: digest_batch(n.batch) for n in taken}

    def steps(
        self, wanted: Iterable[int], is_wanted: Callable[[int], bool]
    ) -> Iterator[Step]:
        """Yield batches in their order, with the rows of those that are wanted.

        Args:
            wanted: The numbers, increasing; those that a loader need not be gone
                through for.
            is_wanted: Says of every batch that passes whether it is.
        """
        self._state = None  # since loaders draw when they begin
        for numbered in self._batches.take(wanted):
            if self.indexed or is_wanted(numbered.number):
                yield self._wanted(numbered)
            else:
                number, batch, last = numbered
                samples = count_samples(batch)
                yield Step(number, last, digest_batch(batch), None, samples)

    def _wanted(self, numbered: Numbered) -> Step:
        if self._first is None or numbered.number:
            return self._step(numbered)
        first, self._first = self._first, None
        if digest_batch(numbered.batch) != first.inputs:
            raise InputError(
                "loader gave another batch 0 the second time; what differs from pass to"
                " pass cannot be gone on with. Draw what is random by a sample's index",
                argument="loader",
            )
        return first._replace(last=numbered.last)

    def _step(self, numbered: Numbered) -> Step:
        number, batch = numbered.number, numbered.batch
        count = count_samples(batch)
        before = self._state or _random_state()
        # Before compute, which may write to what it is given.
        inputs = digest_batch(batch)
        rows = self._read(self._compute(batch), count)
        moved = self._moved_since(before, last=numbered.last)
        if moved:
            raise InputError(
                f"random numbers were drawn ({', '.join(moved)}) by batch {number}, by"
                " compute or by the loader's data set, so that rows would depend on"
                " where a run began. Give gradkit's functions a seed; draw what else is"
                " random, such as augmentation, from a generator that is seeded by the"
                " sample's index",
                argument="compute",
                batch=number,
            )
        return Step(number, numbered.last, inputs, rows)

    def _moved_since(self, before: RandomState, *, last: bool | None) -> list[str]:
        """Return which random numbers were drawn since batches began to be looked at.

        Where compute puts back what it draws itself, and the loader alone is in
        question, it is looked at in some batches only: states tell of all before.
        """
        self._unseen += 1
        kept = getattr(self._compute, "keeps_random_state", False)
        seldom = kept and self._unseen < _SELDOM
        if self._drawn or (seldom and not last and self._state is not None):
            return []
        self._unseen, self._state = 0, _random_state()
        return before.moved(self._state)


class Sizes:
    """All batches but the last have one size, or samples would have no numbers."""

    def __init__(self, full: int) -> None:
        self.full = full
        #: The number of a smaller batch that nobody knows yet to be the last.
        self.short: int | None = None
        self._samples = 0

    def check(self, number: int, samples: int, *, last: bool | None) -> None:
        """Refuse a batch that is too large, empty, or smaller and not the last."""
        if self.short is not None:
            number, samples, last = self.short, self._samples, False
        if (
            samples > self.full
            or not samples
            or (samples < self.full and last is False)
        ):
            raise InputError(
                "loader must give batches of one size, of which the last alone may be"
                f" smaller; batch {number} has {samples} samples, and the first has"
                f" {self.full}",
                argument="loader",
                batch=number,
            )
        if samples < self.full and last is None:
            self.short, self._samples = number, samples


def _random_state() -> RandomState:
    devices = []
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        devices = [torch.device("cuda", torch.cuda.current_device())]
    return RandomState(devices)


@contextmanager
def one_by_one(
    compute: Callable[[Any], Any],
    batches: Batches,
    read: Read,
    *,
    drawn: bool = False,
) -> Iterator[OneByOne]:
    """Give ``compute`` on batches; the process's random state is put back after it."""
    before = _random_state()
    try:
        yield OneByOne(compute, batches, read, drawn=drawn)
    finally:
        before.restore()
