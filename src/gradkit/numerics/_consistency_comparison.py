"""One comparison of a model's batches: the surveys that it takes, and what they say."""

from __future__ import annotations

from collections.abc import Callable

import torch

from gradkit._call._referee import converted
from gradkit._call._request import Request
from gradkit._dtypes import coarsest, short
from gradkit._guards._memory import Known
from gradkit._planner import Planner
from gradkit._problem._inputs import Inputs
from gradkit._problem._target import Target
from gradkit.errors import InputError
from gradkit.numerics._consistency_derivative import DerivativeRows, derivative_rows
from gradkit.numerics._consistency_report import BatchConsistencyReport, ConsistencyRow
from gradkit.numerics._consistency_rows import Difference
from gradkit.numerics._consistency_runs import Findings, Precision, survey
from gradkit.numerics._consistency_trace import Event, Key
from gradkit.numerics._consistency_verdict import (
    VERDICTS,
    Judge,
    Verdict,
    judged,
)
from gradkit.numerics._ulps import unit_roundoff

__all__ = ["Comparison"]

_MODEL = Key("", 0, "out")


class Comparison:
    """One call: the surveys that it takes, and what they say."""

    def __init__(
        self, target: Target, inputs: Inputs, samples: int, sizes: tuple[int, ...]
    ) -> None:
        self.target, self.inputs = target, inputs
        self.samples, self.sizes = samples, sizes
        self._watched = Planner(2**31, Known()).watched
        self._notes: list[str] = []
        if inputs.samples == 1:
            self._notes.append("a batch of one: [x, x] is compared with x alone")
        self._derivative: str | None = None
        self._rows: list[ConsistencyRow] = []

    def judge(self) -> None:
        """Survey the model in the precisions that it takes to tell."""
        self._own = self._survey(Precision())
        if not any(e.tensors for e in self._own.events if e.key == _MODEL):
            raise InputError("model must return a tensor", argument="model")
        dtypes = {t.dtype for e in self._own.events for t in e.tensors.values()}
        self._dtype = coarsest([*filter(_is_floating, dtypes)] or [torch.float64])
        self._judge = Judge(self._own, None, self._own, unit_roundoff(self._dtype))
        if self._differs():
            self._judge.fine = self._try(torch.float64)
            self._settle()
        self._found = {size: self._judge.events(size) for size in self.sizes}
        self._refuse_no_samples()

    def _survey(self, precision: Precision) -> Findings:
        return survey(
            self.target, self.inputs, self.samples, self.sizes, precision, self._watched
        )

    def _differs(self) -> bool:
        every = [c for cells in self._own.parts.values() for c in cells.values()]
        found = [d for cell in every for d in cell.found.values()]
        return any(d.differing for d in (*found, *self._own.moved.values()))

    def _settle(self) -> None:
        """Find a coarser precision to tell by, where the model's is float64."""
        fine = self._judge.fine
        asked = set() if fine is None else fine.asked
        self._dtype = coarsest([self._dtype, *filter(_is_floating, asked)])
        self._judge.unit = unit_roundoff(self._dtype)
        if self._dtype != torch.float64:
            return
        # Bit-equal at the least, float32 could tell this from rounding.
        self._judge.unit = unit_roundoff(torch.float32)
        found = [self._judge.events(size)[_MODEL].word for size in self.sizes]
        if "coupled" in found:
            self._judge.coarse = self._try(torch.float32)

    def _precision(self, dtype: torch.dtype) -> Precision:
        copies = self._own.copies.items()
        return Precision(dtype, {i: converted(v, dtype) for i, v in copies})

    def _try(self, dtype: torch.dtype) -> Findings | None:
        try:
            return self._survey(self._precision(dtype))
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            name = short(dtype)
            self._notes.append(f"the model does not run in {name}: {error}")
            return None

    def _refuse_no_samples(self) -> None:
        words = {found[_MODEL].word for found in self._found.values()}
        if words == {"skipped"}:
            why = self._found[self.sizes[0]][_MODEL].why
            raise InputError(
                f"model must return its samples in rows; of its output, {why}",
                argument="model",
            )

    def differentiate(self, request: Request) -> None:
        """Compare the rows of a derivative, too."""
        self._derivative = request.function
        own = self._rows_of(request, Precision())
        fine = coarse = None
        if any(d.differing for found in own.found.values() for d in found.values()):
            fine = self._rows_in(torch.float64, request, own)
            coarse = own
            if self._dtype == torch.float64:
                coarse = self._rows_in(torch.float32, request, own)
        dtype = torch.float32 if self._dtype == torch.float64 else self._dtype
        unit = unit_roundoff(dtype)
        for size in self.sizes:
            for name, given in own.found[size].items():
                finer = None if fine is None else fine.found[size][name]
                coarser = None if coarse is None else coarse.found[size][name]
                verdict = Verdict(judged(given, finer, coarser, unit), None, given)
                verdict.fine = None if finer is None else finer.of_size
                shapes = (own.shapes[name],)
                row = _row(size, name, request.function, 0, shapes, verdict)
                self._rows.append(row)

    def _rows_of(
        self, request: Request, precision: Precision, like: DerivativeRows | None = None
    ) -> DerivativeRows:
        batch = request, self.inputs, self.samples, self.sizes
        return derivative_rows(*batch, precision, self._watched, like)

    def _rows_in(
        self, dtype: torch.dtype, request: Request, own: DerivativeRows
    ) -> DerivativeRows | None:
        try:
            return self._rows_of(request, self._precision(dtype), own)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            name = short(dtype)
            self._notes.append(f"no derivative in {name}: {error}")
            return None

    # -- the report ------------------------------------------------------------

    def report(self) -> BatchConsistencyReport:
        """Return what was found."""
        events = {event.key: event for event in self._own.events}
        first = self._where(lambda v: v.differs or v.word == "coupled")
        source = self._where(lambda v: v.word == "coupled")
        rows = [
            _row(
                size, key.name, events[key].kind, key.call,
                tuple(tuple(t.shape) for t in events[key].tensors.values()), verdict,
                is_first=first is not None and _responsible(first) == key,
                is_source=source is not None and _responsible(source) == key,
            )
            for size, found in self._found.items()
            for key, verdict in found.items()
            if key.side == "out"
        ]  # fmt: skip
        verdict = self._verdict(rows)
        return BatchConsistencyReport(
            model=events[_MODEL].kind,
            samples=self.samples,
            dtype=short(self._dtype),
            slices=dict(self._own.counts),
            rows=tuple(rows),
            verdict=verdict,
            first=self._place(first, lambda row: row.differing > 0),
            coupled=self._place(source, lambda row: row.verdict == "coupled"),
            evidence=self._evidence(verdict),
            derivative=self._derivative,
            derivative_rows=tuple(self._rows),
            notes=(*self._notes, *self._own.notes, *self._remarks()),
        )

    def _where(self, test: Callable[[Verdict], bool]) -> Event | None:
        """Return the first event with such a verdict, at any batch size."""
        for event in self._own.events:
            if any(test(f[event.key]) for f in self._found.values()):
                return event
        return None

    def _place(
        self, event: Event | None, test: Callable[[ConsistencyRow], bool]
    ) -> str | None:
        """Return where the event is, or the first row of a derivative that passes."""
        if event is not None:
            return event.place
        rows = [row for row in self._rows if test(row)]
        return f"in {rows[0].type} of {rows[0].name!r}" if rows else None

    def _verdict(self, rows: list[ConsistencyRow]) -> str:
        outcomes = [f[_MODEL].word for f in self._found.values()]
        outcomes += [row.verdict for row in self._rows]
        outcomes += [r.verdict for r in rows if r.verdict in ("rounding", "branch")]
        return max(outcomes, key=VERDICTS.index)

    def _evidence(self, verdict: str) -> str:
        by_values = any(f[_MODEL].moved.differing for f in self._found.values())
        if verdict == "coupled" and not by_values:
            return _BY_SHAPE
        return _EVIDENCE[verdict]

    def _remarks(self) -> list[str]:
        remarks = []
        if self._own.trimmed:
            remarks.append("slices are cut to what their attention_mask keeps")
        if not self._own.repeats:
            remarks.append("the batch itself does not give the same bits twice")
        fine = self._judge.fine
        if fine is not None and fine.lower:
            remarks.append(f"not in float64 throughout: {', '.join(fine.lower)}")
        return remarks


_BY_SHAPE = (
    "in float64 the difference stays; other values in the same places move nothing, so"
    " it is the number of samples, their places or their padding that does"
)
_EVIDENCE = {
    "equal": "every row has the same bits in every batch",
    "rounding": "in float64 the differences shrink with the unit roundoff",
    "branch": "in float64 the differences are gone; in the model's precision rounding"
    " makes it decide otherwise",
    "coupled": "in float64 the difference stays, and other samples move a row in a"
    " batch of the same shape",
    "unresolved": "rounding and coupling cannot be told apart, since float64 is out of"
    " reach",
}


def _responsible(event: Event) -> Key:
    """Return the call in whose own ``forward`` something arose."""
    key = event.key if event.key.side == "out" else event.frame
    return key._replace(side="out")


def _row(
    size: int,
    name: str,
    kind: str,
    call: int,
    shapes: tuple[tuple[int, ...], ...],
    verdict: Verdict,
    **marks: bool,
) -> ConsistencyRow:
    parts: Difference = verdict.parts
    return ConsistencyRow(
        batch_size=size, name=name, type=kind, call=call, shapes=shapes,
        entries=parts.entries, differing=parts.differing,
        share=parts.differing / max(parts.entries, 1), ulps=parts.ulps,
        relative=parts.relative,
        of_max=max(parts.of_size, verdict.moved.of_size),
        in_float64=verdict.fine, moved=verdict.moved.differing, verdict=verdict.word,
        note=verdict.why, **marks,
    )  # fmt: skip


def _is_floating(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point
