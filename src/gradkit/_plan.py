"""What ``explain`` returns and prints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gradkit._memory_use import format_bytes
from gradkit._tables import Table, html_report

__all__ = ["Path", "Plan"]


@dataclass(frozen=True)
class Path:
    """What serves one parameter.

    Args:
        method: The name of the method.
        holds: What the result keeps of it: ``"factors"`` or ``"rows"``.
        nbytes: The bytes of that.
        cost: What it takes, in words.
        reason: Why rules do not serve it; ``None`` where they do.
    """

    method: str
    holds: str
    nbytes: int
    cost: str
    reason: str | None = None

    def cells(self) -> tuple[str, str, str]:
        """Return the method, what is held, and the cost, as texts."""
        return self.method, f"{self.holds} {format_bytes(self.nbytes)}", self.cost


@dataclass(frozen=True)
class Plan:
    """What serves a call, why, and at what cost; ``print`` it.

    Args:
        function: The public function.
        method: The name of the method that serves it.
        reasons: For every method, why it does not serve, or ``None``.
        samples: ``N``; 1 where no sample axis is assumed.
        outputs: ``K``, the numbers in one sample's output.
        sizes: The entries of each input or parameter, by name.
        result_bytes: The size of the full result.
        budget: The bytes of tensors that may be alive beyond it.
        unit_bytes: The bytes that the smallest piece of work was measured to need,
            where the method measures it.
        chunk: How many rows are computed at once.
        passes: How many backward (or forward-mode) passes that takes.
        paths: For each parameter, what serves it; empty for inputs.
        notes: What else the forward showed.

    Example:
        >>> import torch
        >>> import gradkit as gk
        >>> model = torch.nn.Linear(3, 2)
        >>> plan = gk.explain("parameter_jacobian", model, torch.ones(5, 3))
        >>> plan.method, dict(plan.sizes), plan.result_bytes
        ('rules', {'weight': 6, 'bias': 2}, 320)
        >>> plan.paths["bias"].holds, plan.reasons["rules"]
        ('factors', None)
    """

    function: str
    method: str
    reasons: Mapping[str, str | None]
    samples: int
    outputs: int
    sizes: Mapping[str, int]
    result_bytes: int
    budget: int
    unit_bytes: int | None
    chunk: int
    passes: int
    paths: Mapping[str, Path] = field(default_factory=dict[str, Path])
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        width = max(map(len, self.reasons))
        lines = [self._title(), *(f"  {fact}" for fact in self._facts())]
        lines += [f"  {name:<{width}}  {mark}" for name, mark in self._marks()]
        lines += self._parameter_lines()
        lines += [f"  {note}" for note in self.notes]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        """Return the same as HTML, for notebooks."""
        tables: list[Table] = [(("method", "serves"), self._marks())]
        if self.paths:
            heads = ("parameter", "method", "holds", "cost", "not by rules, because")
            rows = [(n, *p.cells(), p.reason or "") for n, p in self.paths.items()]
            tables.append((heads, rows))
        return html_report(self._title(), [*self._facts(), *self.notes], *tables)

    def _title(self) -> str:
        return f"{self.function} by {self.method!r}"

    def _facts(self) -> list[str]:
        total = sum(self.sizes.values())
        passes = f"{self.passes:,} pass{'es' if self.passes != 1 else ''}"
        if not self.passes:
            passes = "passes of its own"
        measured = (
            ""
            if self.unit_bytes is None
            else (
                f" ({format_bytes(self.unit_bytes)} measured for the smallest piece,"
                f" budget {format_bytes(self.budget)})"
            )
        )
        return [
            f"samples N = {self.samples:,}, outputs K = {self.outputs:,},"
            f" entries = {total:,}; full result {format_bytes(self.result_bytes)}",
            f"{passes} of up to {self.chunk:,} rows{measured}",
        ]

    def _marks(self) -> list[tuple[str, str]]:
        """Return each method, and whether it serves or why not."""
        serving = {p.method for p in self.paths.values()} or {self.method}
        return [
            (name, _mark(name in serving, why)) for name, why in self.reasons.items()
        ]

    def _parameter_lines(self) -> list[str]:
        """Return a line for each parameter, and one for the reason of a detour."""
        if not self.paths:
            return []
        name_width = max(map(len, self.paths))
        method_width = max(len(p.method) for p in self.paths.values())
        lines = ["  parameters:"]
        for name, path in self.paths.items():
            method, held, cost = path.cells()
            lines.append(
                f"    {name:<{name_width}}  {method:<{method_width}}  {held}, {cost}"
            )
            if path.reason is not None:
                lines.append(f"    {'':<{name_width}}  not by rules: {path.reason}")
        return lines


def _mark(serves: bool, reason: str | None) -> str:
    if serves:
        return f"serves some; {reason}" if reason else "serves"
    return reason or "could serve"
