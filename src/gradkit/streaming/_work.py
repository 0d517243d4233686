"""The chunks of a store, shared among the processes of a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any

from gradkit.errors import InputError
from gradkit.streaming._bar import Bar
from gradkit.streaming._batches import OneByOne, Sizes, Step
from gradkit.streaming._manifest import Field
from gradkit.streaming._ranks import Ranks
from gradkit.streaming._store import Computed, Record, Store

__all__ = ["Work"]


class Work:
    """All that is left to do on a store, and this process's part of it.

    Args:
        store: Its metadata are written.
        computing: ``compute`` on the loader's batches.
        ranks: The processes of the run.
        bar: Shows how far this one is.
    """

    def __init__(
        self, store: Store, computing: OneByOne, ranks: Ranks, bar: Bar
    ) -> None:
        self._store = store
        self._computing = computing
        self._ranks = ranks
        self._bar = bar
        self._per_chunk = store.manifest.per_chunk
        self._sizes = Sizes(store.manifest.batch)
        #: One past the number of the last batch, once it is known.
        self._end = computing.total
        self._whole: set[int] = set()
        self._mine: set[int] | None = None
        self._journal: set[int] = set()
        #: Digests of the batches that the journal had when the run began.
        self._noted: dict[int, bytes] = {}
        #: The record that was read last, with its chunk.
        self._record: tuple[int, Record | None] | None = None
        self._pool: Executor
        self._writing: Future[None] | None = None
        #: Dtypes and shapes of rows that were seen to fit.
        self._kinds: dict[str, Any] = {}
        #: Batches of chunks that are not complete yet.
        self._held: dict[int, dict[int, Computed]] = {}

    def run(self) -> None:
        """Do what is left; at the end every chunk is there, and nothing else."""
        self._whole = self._checked()
        with self._ranks.agreed():
            if self._ranks.first:
                self._check_inputs()
        with self._ranks.agreed():
            self._share_out()
            self._compute()
        ends = self._ranks.gather(self._end)
        with self._ranks.agreed():
            if self._ranks.first:
                self._finish(ends)

    # -- what is there ------------------------------------------------------------

    def _checked(self) -> set[int]:
        """Return the chunks that are complete and as they were written."""
        # Processes speak to one another outside of what may fail on one of them.
        recorded: Any = None
        with self._ranks.agreed():
            if self._ranks.first:
                recorded = self._store.recorded()
        recorded = self._ranks.share(recorded)
        mine, damaged = recorded[self._ranks.rank :: self._ranks.count], []
        what = "checking what is stored"
        with self._ranks.agreed(), self._bar.of(what, len(mine), "chunks") as bar:
            for chunk in mine:
                if not self._store.is_whole(chunk):
                    damaged.append(chunk)
                bar.update()
        return set(recorded).difference(*self._ranks.gather(damaged))

    def _check_inputs(self) -> None:
        """Refuse other data than the store's, as far as two batches tell."""
        # Now, before any process adds to a journal, which is read to be mended too.
        for chunk in self._store.journalled():
            self._noted |= {n: b.inputs for n, b in self._store.noted(chunk).items()}
        if not self._computing.indexed:
            return  # all batches will pass by
        there = [chunk * self._per_chunk for chunk in self._whole]
        there += self._noted
        if there:
            numbers = dict.fromkeys([min(there), max(there)])
            for number, inputs in self._computing.inputs_of(numbers).items():
                self._compare(number, inputs)

    def _compare(self, number: int, inputs: bytes) -> None:
        chunk, place = divmod(number, self._per_chunk)
        told = self._noted.get(number)
        if chunk in self._whole:
            if self._record is None or self._record[0] != chunk:
                self._record = chunk, self._store.record(chunk)
            record = self._record[1]
            listed = () if record is None else record.inputs
            told = listed[place] if place < len(listed) else b""
        if told not in (None, inputs):
            raise InputError(
                f"loader's batch {number} is not the one that store"
                f" {self._store.folder.address} has rows of: these are other data, or"
                " they come in another order. Name another folder, or give the data as"
                " they were",
                argument="loader",
                batch=number,
            )

    # -- what is to do ------------------------------------------------------------

    def _share_out(self) -> None:
        """Say which chunks are this process's."""
        self._journal = set(self._store.journalled())
        if self._computing.total is not None:
            count = -(-self._computing.total // self._per_chunk)
            pending = [c for c in range(count) if c not in self._whole]
            self._mine = set(pending[self._ranks.rank :: self._ranks.count])

    def _is_mine(self, chunk: int) -> bool:
        if self._mine is not None:
            return chunk in self._mine
        return (
            chunk not in self._whole and chunk % self._ranks.count == self._ranks.rank
        )

    def _compute(self) -> None:
        with (
            ThreadPoolExecutor(1, "gradkit-writer") as self._pool,
            self._bar.of("streaming", self._samples(), "rows") as bar,
        ):
            steps = self._computing.steps(self._wanted(), self._is_wanted)
            number = -1
            for step in steps:
                self._ranks.check()
                number = step.number
                if step.rows is not None:
                    bar.update(self._take(step))
                else:
                    self._pass_by(step)
                self._settle(self._chunk(number))
            if self._end is None:
                # Now it is known which batch is the last.
                self._end, self._sizes.short = number + 1, None
                for chunk in list(self._held):
                    self._settle(chunk)
            self._written()
            if not self._end:
                raise InputError("loader gives no batches", argument="loader")
        if self._held or self._mine:
            raise InputError(
                "loader ended before the batches that its length promises; the next"
                f" would have been of chunk {min(self._held or self._mine or [0])}",
                argument="loader",
            )

    def _pass_by(self, step: Step) -> None:
        """Look at a batch that others have done, or an earlier run."""
        if step.samples is not None:
            self._sizes.check(step.number, step.samples, last=step.last)
        if self._ranks.first:
            self._compare(step.number, step.inputs)

    def _samples(self) -> int | None:
        """Return how many samples are left to this process, nearly."""
        if self._mine is None:
            return None
        rows = len(self._mine) * self._store.manifest.chunk
        return min(rows, self._store.manifest.samples or rows)

    def _chunk(self, number: int) -> int:
        return number // self._per_chunk

    def _wanted(self) -> Iterator[int]:
        """Yield the batches that this process computes, if all is known before."""
        for chunk in sorted(self._mine or ()):
            for number in self._numbers(chunk):
                if not self._recalled(number):
                    yield number
            self._settle(chunk)

    def _is_wanted(self, number: int) -> bool:
        manifest = self._store.manifest
        if manifest.samples is not None and number * manifest.batch >= manifest.samples:
            raise InputError(
                f"loader gives more than the {manifest.samples} samples that store"
                f" {self._store.folder.address} has rows of: these are other data",
                argument="loader",
                batch=number,
            )
        short = self._sizes.short
        if short is not None:  # it was not the last
            self._sizes.check(number, self._sizes.full, last=None)
        return self._is_mine(self._chunk(number)) and not self._recalled(number)

    def _numbers(self, chunk: int) -> range:
        first = chunk * self._per_chunk
        last = first + self._per_chunk
        return range(first, last if self._end is None else min(last, self._end))

    def _recalled(self, number: int) -> bool:
        """Whether the journal has a batch, which is then held."""
        chunk = self._chunk(number)
        if chunk in self._journal:
            self._journal.discard(chunk)
            self._held.setdefault(chunk, {}).update(self._store.noted(chunk))
        return number in self._held.get(chunk, {})

    def _take(self, step: Step) -> int:
        """Keep a computed batch, at once where it can be found again."""
        kinds = {n: (v.dtype, v.shape[1:]) for n, v in step.rows.items()}
        if kinds != self._kinds:
            self._refuse_other_kinds(step)
            self._kinds = kinds
        batch = Computed.of(step.rows, step.inputs)
        self._sizes.check(step.number, batch.samples, last=step.last)
        self._held.setdefault(self._chunk(step.number), {})[step.number] = batch
        if self._per_chunk > 1:
            self._store.note(step.number, batch)
        return batch.samples

    def _refuse_other_kinds(self, step: Step) -> None:
        """Refuse rows that the store's arrays are not of."""
        fields = self._store.manifest.fields
        for name in {**fields, **step.rows}:
            rows = step.rows.get(name)
            came = None if rows is None else Field.of(rows)
            if came != fields.get(name):
                raise InputError(
                    "compute must return the same for every batch; at batch"
                    f" {step.number}, {name!r} is {_shown(came)}, and it is"
                    f" {_shown(fields.get(name))} in the store",
                    argument="compute",
                    batch=step.number,
                )

    def _settle(self, chunk: int) -> None:
        """Write a chunk if all its batches are there."""
        held = self._held.get(chunk, {})
        numbers = self._numbers(chunk)
        if self._sizes.short in numbers:
            return  # it may not be the last, and then it is none
        if held and len(held) == len(numbers):
            del self._held[chunk]
            if self._mine is not None:
                self._mine.discard(chunk)
            self._written()
            batches = [held[number] for number in numbers]
            self._writing = self._pool.submit(self._store.write, chunk, batches)
            if self._per_chunk == 1:
                # Nothing else has the batch yet, and no second one may be lost.
                self._written()

    def _written(self) -> None:
        """Wait for the chunk that is being written; raise what that raised."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    # -- the end ------------------------------------------------------------------

    def _finish(self, ends: list[Any]) -> None:
        (end, *others) = ends
        if any(other != end for other in others):
            raise InputError(
                "loader must give every process the same batches; they got"
                f" {', '.join(map(str, ends))} of them",
                argument="loader",
            )
        manifest = self._store.manifest
        chunks = -(-end // self._per_chunk)
        record = self._store.record(chunks - 1)
        if self._store.recorded() != list(range(chunks)) or record is None:
            raise InputError(
                f"store {self._store.folder.address} does not hold what was written to"
                " it: something else removes or adds files there",
                argument="store",
            )
        samples = (chunks - 1) * manifest.chunk + record.samples
        if manifest.samples not in (None, samples):
            raise InputError(
                f"loader promised {manifest.samples} samples, and gave {samples}",
                argument="loader",
            )
        if manifest.samples is None:
            whole = dataclasses.replace(manifest, samples=samples)
            Store(self._store.folder, whole).write_metadata()
        self._store.tidy()


def _shown(field: Field | None) -> str:
    return "not there" if field is None else f"{field.dtype} {field.shape} a sample"
