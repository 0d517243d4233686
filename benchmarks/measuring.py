"""From entries to figures: agreement, first call, steady state."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks import timing
from benchmarks.entries import Entry, Result
from benchmarks.problems import Problem
from benchmarks.timing import Contender

WARMUP = 10


@dataclass(frozen=True)
class Timing:
    """Seconds of one entry, and those of the reference in the same process.

    Args:
        name: The entry's.
        first: The first call with a model that is new to the library, set-up included.
        steady: Any later call.
        fastest: The fastest of these.
        reference: The reference's later calls.
    """

    name: str
    first: float
    steady: float
    fastest: float
    reference: float

    @property
    def ratio(self) -> float:
        """How many times the reference's time."""
        return self.steady / self.reference


def values(entry: Entry, problem: Problem) -> Result:
    """Return what an entry computes, on a model of its own."""
    result = entry.build(problem.copy()).call()
    assert result is not None
    return result


def difference(ours: Result, theirs: Result) -> float:
    """Return the largest difference, as a part of our largest entry."""
    left, right = _tensors(ours), _tensors(theirs)
    if {n: t.shape for n, t in left.items()} != {n: t.shape for n, t in right.items()}:
        raise ValueError("names or shapes differ")
    scale = max(tensor.abs().max().item() for tensor in left.values())
    largest = [(left[n] - right[n]).abs().max().item() for n in left]
    # A NaN must not vanish in a maximum.
    return math.inf if any(map(math.isnan, largest)) else max(largest) / scale


def _tensors(result: Result) -> Mapping[str, Tensor]:
    return {"": result} if isinstance(result, Tensor) else result


def timings(
    problem: Problem,
    reference: Entry,
    entries: Sequence[Entry],
    *,
    rounds: int,
    device: torch.device,
) -> list[Timing]:
    """Measure all entries, interleaved in this process; the reference comes first."""
    everyone = (reference, *entries)
    # A few first calls are enough: compiling takes seconds.
    rarely = math.ceil((WARMUP + rounds) / 5)
    first = [_first_calls(entry, problem, rarely) for entry in everyone]
    steady = [_later_calls(entry, problem) for entry in everyone]
    timing.measure([*first, *steady], rounds=rounds, warmup=WARMUP, device=device)
    bound = steady[0].median
    return [
        Timing(entry.name, begin.median, later.median, min(later.seconds), bound)
        for entry, begin, later in zip(everyone, first, steady, strict=True)
    ]


def _first_calls(entry: Entry, problem: Problem, rarely: int) -> Contender:
    def call(fresh: object) -> object:
        assert isinstance(fresh, Problem)
        work = entry.build(fresh)
        return work.call(), work

    every = max(entry.every, rarely)
    return Contender(entry.name, call, prepare=problem.copy, every=every)


def _later_calls(entry: Entry, problem: Problem) -> Contender:
    work = entry.build(problem.copy())
    return Contender(
        entry.name, lambda _: work.call(), prepare=work.clear, every=entry.every
    )
