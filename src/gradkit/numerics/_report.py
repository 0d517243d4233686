"""What ``compare_methods`` returns and prints."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gradkit._offered import no_attribute
from gradkit._tables import html_report, markdown, table

__all__ = ["AgreementReport", "MethodReport", "Place"]

HEADS = (
    "method", "verdict", "time", "largest error", "relative", "ULPs", "error / allowed"
)  # fmt: skip
_LEFT = 2
#: What is asked of a report by other names.
_ELSEWHERE = {
    **dict.fromkeys(("ok", "passed"), "write bool(report)"),
    **dict.fromkeys(
        ("verdict", "verdicts"), "write {m.name: m.verdict for m in report}"
    ),
}


@dataclass(frozen=True)
class Place:
    """One entry of a derivative, and what was found there.

    Args:
        sample: ``n``; ``None`` where no sample axis is assumed.
        output: The output's index; empty for an objective.
        name: The input or parameter.
        index: Where in it (in one sample's part, for an input).
        found: What the method gives.
        right: What the referee gives.
        allowed: What rounding may come to there.
    """

    sample: int | None
    output: tuple[int, ...]
    name: str
    index: tuple[int, ...]
    found: float
    right: float
    allowed: float

    def __str__(self) -> str:
        where = [] if self.sample is None else [f"sample {self.sample}"]
        if self.output:
            where.append(f"output {list(self.output)}")
        where.append(f"{self.name}{list(self.index) if self.index else ''}")
        return (
            f"{', '.join(where)}: {self.found:.9g} against {self.right:.9g}"
            f" (difference {self.found - self.right:+.2e}, allowed {self.allowed:.1e})"
        )

    @property
    def ratio(self) -> float:
        """The error as a part of what is allowed: at most 1 is rounding."""
        gap = abs(self.found - self.right)
        # NaN beside NaN, and an infinity beside itself, differ by nothing.
        alike = self.found == self.right or (
            math.isnan(self.found) and math.isnan(self.right)
        )
        if alike:
            return 0.0
        return gap / self.allowed if gap < math.inf else math.inf


@dataclass(frozen=True)
class MethodReport:
    """One method beside the referee.

    Args:
        name: The method.
        verdict: ``"equal"``, ``"rounding"``, ``"branch"``, ``"convention"``,
            ``"overflow"``, ``"unresolved"``, ``"different"``, or ``"skipped"``.
        reason: Why it was skipped, or what the convention is.
        seconds: What one run took, without the forward that all methods share.
        error: The largest absolute error.
        relative: The largest error, as a part of the largest entry of its source.
        ulps: The largest distance, in units in the last place of the method's dtype,
            among the entries that are not small.
        worst: The entry that is farthest beyond (or nearest to) what is allowed: the
            one with the largest ratio of error to allowed, which the table shows.
        hints: What could explain a difference.
    """

    name: str
    verdict: str
    reason: str | None = None
    seconds: float | None = None
    error: float | None = None
    relative: float | None = None
    ulps: int | None = None
    worst: Place | None = None
    hints: tuple[str, ...] = ()

    @property
    def ratio(self) -> float | None:
        """The largest ratio of an entry's error to what is allowed there."""
        return None if self.worst is None else self.worst.ratio

    def cells(self) -> list[str]:
        """Return the texts of its line in a table."""
        if self.verdict == "skipped":
            return [self.name, "skipped", "", "", "", "", ""]
        ratio = "" if self.ratio is None else f"{self.ratio:.2g}"
        return [
            self.name,
            self.verdict,
            f"{1000 * (self.seconds or 0):.3g} ms",
            f"{self.error or 0:.1e}",
            f"{self.relative or 0:.1e}",
            f"{self.ulps or 0:,}",
            ratio,
        ]


@dataclass(frozen=True)
class AgreementReport:
    """Methods beside a float64 referee; ``print`` it.

    True when all that apply agree, and one does.

    Args:
        function: The public function.
        referee: What is taken for the truth, in words.
        dtype: The coarsest dtype that the model computes in.
        samples: ``N``.
        methods: One report for each method.
        branches: Where rounding changes decisions, ``"module: operation"``, and how
            many of them in one run.
        conventions: Known forks in the definition of a derivative that the forward
            meets.
        lower: The operations that the referee itself computed below float64.
        custom: The custom ``autograd.Function`` classes of the forward, whose backward
            every method and the referee share.

    Example:
        >>> import torch
        >>> import gradkit as gk
        >>> model, x = torch.nn.Linear(3, 2), torch.ones(5, 3)
        >>> report = gk.compare_methods("jacobian", model, x, methods=["loop"])
        >>> bool(report), report.samples, report.disagreeing
        (True, 5, ())
        >>> report["loop"].verdict, report.to_dict()["dtype"]
        ('equal', 'float32')
    """

    function: str
    referee: str
    dtype: str
    samples: int
    methods: tuple[MethodReport, ...]
    branches: Mapping[str, int] = field(default_factory=dict[str, int])
    conventions: tuple[str, ...] = ()
    lower: Mapping[str, int] = field(default_factory=dict[str, int])
    custom: tuple[str, ...] = ()

    @property
    def disagreeing(self) -> tuple[MethodReport, ...]:
        """The methods that differ by more than rounding."""
        return tuple(
            m
            for m in self.methods
            if m.verdict in ("different", "convention", "overflow")
        )

    def __bool__(self) -> bool:
        compared = any(m.verdict != "skipped" for m in self.methods)
        return compared and not self.disagreeing

    def __len__(self) -> int:
        return len(self.methods)

    def __iter__(self) -> Iterator[MethodReport]:
        return iter(self.methods)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            where = f"{type(self).__name__!r} object"
            raise no_attribute(self, where, name, dir(type(self)), _ELSEWHERE)

    def __getitem__(self, name: str) -> MethodReport:
        return {m.name: m for m in self.methods}[name]

    def __str__(self) -> str:
        lines = table(HEADS, self._lines(), _LEFT, ruled=False)
        return "\n".join([self._title(), lines, *(f"  {n}" for n in self.notes())])

    def __repr__(self) -> str:
        return str(self)

    def _title(self) -> str:
        return (
            f"{self.function} in {self.dtype}, N = {self.samples}, beside"
            f" {self.referee}"
        )

    def _lines(self) -> list[list[str]]:
        return [m.cells() for m in self.methods]

    def notes(self) -> list[str]:
        """Return what stands below the table.

        Returns:
            One sentence each: why methods were skipped, the worst entries, hints.
        """
        found: list[str] = []
        for m in self.methods:
            if m.verdict == "skipped":
                found.append(f"{m.name} skipped: {m.reason}")
                continue
            if m.worst is not None and m.verdict not in ("equal", "rounding"):
                found.append(f"{m.name}, worst: {m.worst}")
            if m.reason:
                found.append(f"{m.name}: {m.reason}")
            found += [f"{m.name}: {hint}" for hint in m.hints]
        found += [
            f"rounding changes decisions in {place} ({count} in one run)"
            for place, count in self.branches.items()
        ]
        if self.lower:
            listed = ", ".join(f"{n} ({c})" for n, c in self.lower.items())
            found.append(f"the referee stayed below float64 in {listed}")
        if self.custom:
            found.append(
                f"custom Function {', '.join(self.custom)}: every method uses its"
                " backward, so a wrong one agrees with itself;"
                " gk.testing.check_gradients compares it with differences"
            )
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, which ``json.dumps`` takes.

        Returns:
            Every field by its name, and ``agrees``: whether the report is true. Each
            method also has ``ratio``, its largest error in units of what is allowed.
        """
        return {
            "function": self.function,
            "referee": self.referee,
            "dtype": self.dtype,
            "samples": self.samples,
            "agrees": bool(self),
            "methods": [_plain(m) for m in self.methods],
            "branches": dict(self.branches),
            "conventions": list(self.conventions),
            "lower": dict(self.lower),
            "custom": list(self.custom),
        }

    def to_markdown(self) -> str:
        """Return the table and its notes as Markdown.

        Returns:
            A table with a line per method, and a list of the notes.
        """
        lines = markdown(HEADS, self._lines(), _LEFT)
        return "\n".join([*lines, "", *(f"- {note}" for note in self.notes())]).rstrip()

    def _repr_html_(self) -> str:
        """Return the table as HTML, for notebooks."""
        return html_report(self._title(), self.notes(), (HEADS, self._lines()))


def _plain(method: MethodReport) -> dict[str, Any]:
    values = dict(vars(method))
    values["worst"] = None if method.worst is None else dict(vars(method.worst))
    values["hints"] = list(method.hints)
    values["ratio"] = method.ratio
    return values
