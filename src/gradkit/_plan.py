"""What ``explain`` returns and prints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gradkit._memory_use import format_bytes

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
        lines = [
            f"{self.function} by {self.method!r}",
            f"  samples N = {self.samples:,}, outputs K = {self.outputs:,},"
            f" entries = {total:,}; full result {format_bytes(self.result_bytes)}",
            f"  {passes} of up to {self.chunk:,} rows{measured}",
        ]
        width = max(map(len, self.reasons))
        serving = {p.method for p in self.paths.values()} or {self.method}
        for name, reason in self.reasons.items():
            mark = "serves" if name in serving else "could serve"
            if reason and name in serving:
                mark = f"serves some; {reason}"
            elif reason:
                mark = reason
            lines.append(f"  {name:<{width}}  {mark}")
        lines += self._parameter_lines()
        lines += [f"  {note}" for note in self.notes]
        return "\n".join(lines)

    def _parameter_lines(self) -> list[str]:
        """Return a line for each parameter, and one for the reason of a detour."""
        if not self.paths:
            return []
        name_width = max(map(len, self.paths))
        method_width = max(len(p.method) for p in self.paths.values())
        lines = ["  parameters:"]
        for name, path in self.paths.items():
            held = f"{path.holds} {format_bytes(path.nbytes)}"
            lines.append(
                f"    {name:<{name_width}}  {path.method:<{method_width}}  {held},"
                f" {path.cost}"
            )
            if path.reason is not None:
                lines.append(f"    {'':<{name_width}}  not by rules: {path.reason}")
        return lines

    def __repr__(self) -> str:
        return str(self)
