"""Puts a report together from what a check collected."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

from gradkit._dtypes import short
from gradkit.testing._arguments import MODES
from gradkit.testing._report import Findings, GradientReport
from gradkit.testing._subject import Subject

__all__ = ["report_of"]

_LABELS = (*MODES, "reverse, order 2")
_MOST_KINKS = 8


def _title(function: Any) -> str:
    """Return what a function is called: ``Square.apply`` for a custom one."""
    if isinstance(function, nn.Module):
        return type(function).__name__
    owner = getattr(function, "__self__", None)
    name = getattr(function, "__name__", type(function).__name__)
    if isinstance(owner, type):
        return f"{owner.__name__}.{name}" if name == "apply" else name
    return name


def _some(kinks: Iterable[str]) -> tuple[str, ...]:
    shown = list(kinks)
    more = len(shown) - _MOST_KINKS
    if more > 0:
        shown[_MOST_KINKS:] = [f"and {more} more"]
    return tuple(shown)


def report_of(
    function: Any, subject: Subject, compared_with: str, order: int, findings: Findings
) -> GradientReport:
    """Put together what was found."""
    for name in subject.frozen:
        findings.skipped[name] = "it does not require grad; name it in wrt= to check it"
    for variable in subject.variables:
        if variable.fixed is not None:
            findings.skipped[f"the padding row of {variable.name}"] = (
                "torch gives it no gradient, by convention"
            )
        if not variable.value.numel():
            findings.notes.setdefault(f"{variable.name} has no entries")
    for name in sorted(subject.written):
        findings.notes.setdefault(f"the function writes to {name} in place")
    dtypes = sorted({short(v.value.dtype) for v in subject.variables})
    return GradientReport(
        _title(function),
        compared_with,
        order,
        ", ".join(dtypes),
        {v.name: tuple(v.value.shape) for v in subject.variables},
        {part.name: tuple(part.shape) for part in subject.outputs},
        {m: findings.largest[m] for m in _LABELS if m in findings.largest},
        findings.tolerance,
        _some(findings.kinks),
        findings.skipped,
        tuple(findings.notes),
    )
