"""Runs of a model on a batch, on its parts, and with other samples in their places."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gradkit._guards._memory import Known
from gradkit._guards._notes import annotate
from gradkit._guards._random import RandomState
from gradkit._guards._starts import nudged, some
from gradkit._guards._trace import Untouched
from gradkit._guards._watch import Watch
from gradkit._problem._inputs import Inputs
from gradkit._problem._target import Target
from gradkit.errors import InputError
from gradkit.numerics._consistency_cells import (
    Cell,
    Cells,
    Columns,
    kept_columns,
    usual_layout,
)
from gradkit.numerics._consistency_rows import Difference, Layout, starts_of
from gradkit.numerics._consistency_trace import Event, Key, Trace
from gradkit.numerics._promoting import promoting

__all__ = ["Findings", "Precision", "survey"]

Watched = Callable[[str, int], Iterator[int]]


@dataclass(frozen=True)
class Precision:
    """What a survey computes in: the model's own where ``dtype`` is ``None``."""

    dtype: torch.dtype | None = None
    mapping: dict[int, Tensor] = field(default_factory=dict)

    def of(self, tensor: Tensor) -> Tensor:
        """Return an input in this precision."""
        if self.dtype is None or not tensor.is_floating_point():
            return tensor
        return tensor.detach().to(self.dtype)


@dataclass(eq=False)
class Findings:
    """What a survey saw.

    Attributes:
        events: Of the whole batch, in the order they happened.
        parts: Per batch size, slices of the batch against the batch.
        moved: The batch with other samples beside these, against the batch.
        counts: Per batch size, how many slices ran, and of how many.
        notes: What could not be run, and why.
        lower: Operations that stayed below float64 where it was promoted.
        asked: The dtypes that the model asked for inside.
        repeats: Whether the batch gave the same bits twice.
        trimmed: Whether slices were cut to what their mask keeps.
        copies: Private copies of what the modules hold, by ``id``.
    """

    events: list[Event] = field(default_factory=list)
    parts: dict[int, Cells] = field(default_factory=dict)
    moved: dict[tuple[Key, str], Difference] = field(default_factory=dict)
    counts: dict[int, tuple[int, int]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    lower: list[str] = field(default_factory=list)
    asked: set[torch.dtype] = field(default_factory=set)
    repeats: bool = True
    trimmed: bool = False
    copies: dict[int, Tensor] = field(default_factory=dict)

    def layout(self, at: tuple[Key, str]) -> Layout | None:
        """Return where the samples of one tensor lie, as any batch size told."""
        for cells in self.parts.values():
            cell = cells.get(at)
            if cell is not None and (layout := cell.layout()) is not None:
                return layout
        return None


@dataclass(eq=False)
class _Survey:
    target: Target
    inputs: Inputs
    samples: int
    precision: Precision
    guard: Untouched
    found: Findings = field(default_factory=Findings)

    def run(
        self,
        index: Tensor,
        nudge: float = 0.0,
        rows: Tensor | None = None,
        columns: Columns | None = None,
    ) -> Trace:
        """Run the model on some of its samples, some moved, or some of the steps."""
        given = []
        for entry in self.inputs.tensors:
            tensor = self.precision.of(entry.tensor)
            if entry.role == "sample":
                tensor = some(tensor, index % entry.tensor.shape[0])
                if nudge and tensor.is_floating_point():
                    tensor = nudged(tensor, nudge, rows)
                tensor = tensor if columns is None else columns.of(tensor)
            given.append(tensor.detach().clone().requires_grad_(_asks(entry.tensor)))
        given = [t.clone() if t.requires_grad else t for t in given]

        def forward() -> object:
            with Watch(self.guard.state), self.guard.autocast.on():
                return self.inputs.call(self.target.call, given)

        try:
            if self.precision.dtype != torch.float64:
                return Trace(self.target).run(self.guard, forward)
            with promoting() as seen:
                trace = Trace(self.target).run(self.guard, forward)
            lower = {*self.found.lower, *seen.lower, *_below(trace)}
            self.found.lower = sorted(lower)
            self.found.asked |= seen.asked
            return trace
        except Exception as error:
            annotate(error, self.inputs, self.target)
            raise

    def whole(self) -> Trace:
        """Run the batch, and refuse a model that draws."""
        every = torch.arange(self.samples, device="cpu")
        trace = self.run(every)
        drew = self.guard.start.moved(
            RandomState(self.guard.devices, self.guard.state.generators)
        )
        if drew:
            raise InputError(
                f"model must not draw random numbers; it draws ({', '.join(drew)}), and"
                " batches of other sizes draw others. Call model.eval() first, or set"
                " the rate of what draws to 0",
                argument="model",
                drew=drew,
            )
        self.found.events = trace.events
        again = self.run(every).by_key
        self.found.repeats = all(
            not _difference(e.tensors[p], again[e.key].tensors[p]).differing
            for e in trace.events
            for p in e.tensors
            if e.key in again and p in again[e.key].tensors
        )
        self.found.copies = self.guard.copies()
        return trace

    def slices(self, size: int, watched: Watched) -> None:
        """Run slices of the batch and compare them with it."""
        starts = starts_of(self.samples, size)
        cells = self.found.parts[size] = {
            (event.key, path): Cell()
            for event in self.found.events
            for path in event.tensors
        }
        ran = 0
        for i in watched(f"batches of {size}", len(starts)):
            index = torch.arange(starts[i], min(starts[i] + size, self.samples))
            columns = kept_columns(self.inputs, index)
            self.found.trimmed |= columns is not None
            try:
                part = self.run(index, columns=columns).by_key
            except torch.OutOfMemoryError:
                raise
            except Exception as error:
                self._note(f"the model refuses a batch of {len(index)}", error)
                continue
            ran += 1
            for event in self.found.events:
                for path, tensor in event.tensors.items():
                    other = part.get(event.key)
                    other = None if other is None else other.tensors.get(path)
                    cell = cells[event.key, path]
                    cell.compare(tensor, other, index, self.samples, columns)
        self.found.counts[size] = (ran, -(-self.samples // size))

    def replaced(self, watched: Watched) -> None:
        """Run the batch with others in the places of some, and compare the rest.

        The shape is the same, so the same kernels run, and what is left of a
        difference is what one sample has to do with another.
        """
        generator = torch.Generator(device="cpu")
        generator.manual_seed(0)
        order = torch.randperm(self.samples, generator=generator, device="cpu")
        first, second = order[: self.samples // 2], order[self.samples // 2 :]
        # Slightly and grossly others, since a branch may not tell slight ones apart.
        trials = (
            (first, second, 2**-4),
            (second, first, -2.0),
            (order[:1], order[1:], 4.0),
        )
        for i in watched("others replaced", len(trials)):
            kept, changed, nudge = trials[i]
            index = torch.arange(self.samples, device="cpu")
            index[changed] = kept[torch.arange(len(changed)) % len(kept)]
            try:
                trace = self.run(index, nudge, changed)
            except torch.OutOfMemoryError:
                raise
            except Exception as error:
                self._note("the model refuses other samples beside these", error)
                continue
            self._compare_kept(trace, kept)

    def _compare_kept(self, trace: Trace, kept: Tensor) -> None:
        there = trace.by_key
        for event in self.found.events:
            for path, tensor in event.tensors.items():
                at = (event.key, path)
                layout = self.found.layout(at) or usual_layout(tensor, self.samples)
                same = there.get(event.key)
                other = None if same is None else same.tensors.get(path)
                if layout is None or other is None or other.shape != tensor.shape:
                    continue
                place = kept.to(tensor.device)
                before, after = (layout.rows(t, self.samples) for t in (tensor, other))
                difference = self.found.moved.setdefault(at, Difference())
                difference.add(after[place], before[place], after)

    def _note(self, text: str, error: Exception) -> None:
        lines = str(error).strip().splitlines()
        note = f"{text} ({type(error).__name__}: {lines[0] if lines else 'no message'})"
        if note not in self.found.notes:
            self.found.notes.append(note)


def _below(trace: Trace) -> Iterator[str]:
    """Yield which dtypes below float64 come from where no promotion reaches."""
    for dtype in trace.dtypes:
        if dtype.is_floating_point and dtype != torch.float64:
            yield f"a tensor of {str(dtype).removeprefix('torch.')}"


def _asks(tensor: Tensor) -> bool:
    return tensor.requires_grad and tensor.is_floating_point()


def _difference(first: Tensor, second: Tensor) -> Difference:
    difference = Difference()
    if first.shape == second.shape:
        difference.add(first, second)
    return difference


def survey(
    target: Target,
    inputs: Inputs,
    samples: int,
    sizes: Sequence[int],
    precision: Precision,
    watched: Watched,
) -> Findings:
    """Run a model in one precision, and compare what all its submodules return."""
    guard = Untouched(
        target,
        [t.tensor for t in inputs.tensors],
        batched=False,
        objects=inputs.objects,
        mapping=dict(precision.mapping),
    )
    with guard:
        guard.look(Known(), closely=True)
        each = _Survey(target, inputs, samples, precision, guard)
        each.whole()
        for size in sizes:
            each.slices(size, watched)
        each.replaced(watched)
    return each.found
