"""What a check of gradients found, for printing and for programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["Findings", "GradientReport"]


@dataclass(frozen=True, repr=False)
class GradientReport:
    """What ``check_gradients`` looked at; always true, since a mismatch raises.

    Args:
        function: The name of what was checked.
        compared_with: What its derivatives were compared with.
        order: 1, or 2 where the derivative of the derivative was checked too.
        dtype: What it was evaluated in.
        variables: The shapes of the inputs and parameters, by name.
        outputs: The shapes of the floating outputs, by name.
        largest: For each mode, the largest difference, relative to the derivative.
        tolerance: For each mode, what that difference was allowed to be.
        kinks: Where one-sided derivatives differ, and the analytic one is between.
        skipped: What was not checked, and why.
        notes: What else showed.

    Example:
        >>> import torch
        >>> import gradkit.testing
        >>> report = gradkit.testing.check_gradients(torch.tanh, torch.ones(3))
        >>> bool(report), report.order, sorted(report.largest)
        (True, 1, ['forward', 'reverse'])
    """

    function: str
    compared_with: str
    order: int
    dtype: str
    variables: Mapping[str, tuple[int, ...]]
    outputs: Mapping[str, tuple[int, ...]]
    largest: Mapping[str, float]
    tolerance: Mapping[str, float]
    kinks: tuple[str, ...] = ()
    skipped: Mapping[str, str] = field(default_factory=dict[str, str])
    notes: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        lines = [
            f"{self.function}: derivatives agree with {self.compared_with}"
            f" (order {self.order}, {self.dtype})",
            f"  by {_shapes(self.variables)}",
            f"  of {_shapes(self.outputs)}",
        ]
        lines += [
            f"  {mode}: off by {largest:.1e} of the derivative"
            f" (allowed {self.tolerance[mode]:.1e})"
            for mode, largest in self.largest.items()
        ]
        lines += [f"  kink: {kink}" for kink in self.kinks]
        lines += [f"  skipped: {what}: {why}" for what, why in self.skipped.items()]
        lines += [f"  {note}" for note in self.notes]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return plain containers, which ``json.dumps`` takes.

        Returns:
            Every field by its name.
        """
        found = asdict(self)
        for name in ("variables", "outputs"):
            found[name] = {key: list(shape) for key, shape in found[name].items()}
        return found | {"kinks": list(self.kinks), "notes": list(self.notes)}


def _shapes(parts: Mapping[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{name} {tuple(shape)}" for name, shape in parts.items())


@dataclass
class Findings:
    """What is collected while a check goes on."""

    largest: dict[str, float] = field(default_factory=dict[str, float])
    tolerance: dict[str, float] = field(default_factory=dict[str, float])
    kinks: dict[str, None] = field(default_factory=dict[str, None])
    skipped: dict[str, str] = field(default_factory=dict[str, str])
    notes: dict[str, None] = field(default_factory=dict[str, None])
    decided: dict[str, int] = field(default_factory=dict[str, int])

    def record(self, mode: str, apart: float, allowed: float, size: float) -> None:
        """Note how far a comparison that passed was from failing."""
        size = size or 1.0
        self.decided[mode] = self.decided.get(mode, 0) + 1
        if apart / size >= self.largest.get(mode, 0.0):
            self.largest[mode] = apart / size
            self.tolerance[mode] = allowed / size
