"""What ``batch_consistency`` returns and prints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from gradkit._tables import Table, html_report, markdown, table

__all__ = ["BatchConsistencyReport", "ConsistencyRow"]

_HEADS = (
    "batch", "submodule", "type", "shape", "entries", "differ", "share", "ULPs",
    "relative", "of max", "in float64", "verdict",
)  # fmt: skip
_LEFT = 4


@dataclass(frozen=True)
class ConsistencyRow:
    """What one call of a submodule returned, or one derivative, for one batch size.

    Args:
        batch_size: The size of the slices that the whole batch is compared with.
        name: The submodule's dotted name, ``""`` for the model; or what the
            derivative is with respect to.
        type: The class of the submodule; of a derivative, the public function.
        call: Which call of the submodule it is, from 0.
        shapes: The shapes of its tensors in the whole batch.
        entries: How many entries of the rows were compared.
        differing: How many of them are not the same number.
        share: ``differing / entries``.
        ulps: The largest distance in units in the last place.
        relative: The largest ``|a - b| / max(|a|, |b|)``.
        of_max: The largest ``|a - b|`` over the largest ``|a|``.
        in_float64: The same in float64, which the verdict rests on; ``None`` where
            it was not computed.
        moved: How many entries moved when only other samples were replaced, at the
            same batch shape.
        verdict: ``"equal"``, ``"rounding"``, ``"branch"``, ``"coupled"``,
            ``"unresolved"`` or ``"skipped"``.
        is_first: Whether the first difference arises in it (in its own ``forward``).
        is_source: Whether the coupling arises in it.
        note: Why it was skipped, or what else there is to say.
    """

    batch_size: int
    name: str
    type: str
    call: int
    shapes: tuple[tuple[int, ...], ...]
    entries: int
    differing: int
    share: float
    ulps: int
    relative: float
    of_max: float
    in_float64: float | None
    moved: int
    verdict: str
    is_first: bool = False
    is_source: bool = False
    note: str | None = None

    @property
    def label(self) -> str:
        """The name as it is printed."""
        name = self.name or "(model)"
        return f"{name} #{self.call}" if self.call else name

    def cells(self) -> tuple[str, ...]:
        """Return the texts of its line in a table."""
        shapes = ", ".join("×".join(map(str, s)) or "()" for s in self.shapes)
        mark = " ← first" if self.is_first else ""
        mark += " ← coupling" if self.is_source else ""
        head = (f"{self.batch_size}", self.label, self.type, shapes)
        if self.verdict == "skipped":
            return (*head, *[""] * 7, f"skipped: {self.note}{mark}")
        ulps = "max" if self.ulps >= 2**63 - 1 else f"{self.ulps:,}"
        sizes = map(_ratio, (self.relative, self.of_max, self.in_float64))
        counts = (f"{self.entries:,}", f"{self.differing:,}", f"{self.share:.1%}")
        return (*head, *counts, ulps, *sizes, f"{self.verdict}{mark}")


@dataclass(frozen=True)
class BatchConsistencyReport:
    """How a model's rows depend on the batch they travel in; ``print`` it.

    It is true where nothing is coupled.

    Args:
        model: The class, or the function's name.
        samples: ``N``; a batch of one is repeated, and counts 2.
        dtype: The coarsest dtype that the model is seen to compute in.
        slices: For each batch size, how many slices ran, and of how many.
        rows: One for each call of a submodule, for each batch size, in the order in
            which the calls returned; the model as a whole comes last.
        derivative: The public function whose rows are compared, if any.
        derivative_rows: One for each input or parameter, for each batch size.
        verdict: ``"equal"``, ``"rounding"``, ``"branch"`` (rounding made the model
            decide otherwise), ``"coupled"``, or ``"unresolved"`` (float64 is out of
            reach, so that rounding and coupling look alike).
        first: Where the first difference in any bit arises, or ``None``.
        coupled: Where coupling arises, or ``None``.
        evidence: What the verdict rests on.
        notes: What else there is to say.

    Example:
        >>> import torch
        >>> import gradkit as gk
        >>> layer, x = torch.nn.Linear(3, 2), torch.ones(5, 3)
        >>> report = gk.batch_consistency(layer, x, batch_sizes=(1, 2))
        >>> bool(report), report.samples, report.coupled
        (True, 5, None)
        >>> report.slices  # of five samples three slices of two, the last of one
        {1: (5, 5), 2: (3, 3)}
    """

    model: str
    samples: int
    dtype: str
    slices: Mapping[int, tuple[int, int]]
    rows: tuple[ConsistencyRow, ...]
    verdict: str
    first: str | None
    coupled: str | None
    evidence: str
    derivative: str | None = None
    derivative_rows: tuple[ConsistencyRow, ...] = ()
    notes: tuple[str, ...] = field(default=())

    def __bool__(self) -> bool:
        return self.verdict != "coupled"

    def __str__(self) -> str:
        lines = [self._title(), *(f"  {line}" for line in self._facts())]
        lines += ["", _aligned(self.rows)]
        if self.derivative_rows:
            lines += ["", f"  {self.derivative}:", _aligned(self.derivative_rows)]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return str(self)

    def _title(self) -> str:
        return f"batch_consistency of {self.model}: {self.verdict}"

    def _facts(self) -> list[str]:
        sizes = "; ".join(
            f"{ran:,} of {every:,} slices of {size:,}"
            for size, (ran, every) in self.slices.items()
        )
        facts = [f"{self.samples:,} samples, {self.dtype}; {sizes}"]
        if self.first is not None:
            facts.append(f"first difference {self.first}")
        if self.coupled is not None:
            facts.append(f"samples are coupled {self.coupled}")
        return [*facts, self.evidence, *self.notes]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, which ``json.dumps`` takes.

        Returns:
            Every field by its name; an infinite ratio, which JSON has not, is ``None``.
        """
        found = asdict(self)
        found["slices"] = {
            str(size): {"ran": ran, "of": every}
            for size, (ran, every) in self.slices.items()
        }
        for name in ("rows", "derivative_rows"):
            found[name] = [_plain(row) for row in found[name]]
        return found | {"notes": list(self.notes)}

    def to_markdown(self) -> str:
        """Return a heading, the facts, and a table for each kind of rows.

        Returns:
            Markdown.
        """
        lines = [f"**{self._title()}**", "", *(f"- {f}" for f in self._facts())]
        for heads, rows in self._tables():
            lines += ["", *markdown(heads, rows, _LEFT)]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Return the facts and the tables as HTML, for notebooks."""
        return html_report(self._title(), self._facts(), *self._tables())

    def _tables(self) -> list[Table]:
        return [
            (_HEADS, [row.cells() for row in rows])
            for rows in (self.rows, self.derivative_rows)
            if rows
        ]


def _aligned(rows: tuple[ConsistencyRow, ...]) -> str:
    # The last column may hold a sentence.
    return table(_HEADS, [row.cells() for row in rows], _LEFT, tail=True)


def _ratio(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.1e}" if value else "0"


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    # JSON has no infinity.
    for name in ("relative", "of_max", "in_float64"):
        row[name] = row[name] if row[name] != float("inf") else None
    return row | {"shapes": [list(s) for s in row["shapes"]]}
