"""Maps by several methods, and what the honesty checks say of each."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gradkit import saliency
from gradkit._planner import watched
from gradkit._tables import table
from gradkit.saliency import Curve, RandomizationReport
from gradkit.saliency._baseline import read_baselines
from gradkit.saliency._completeness import gap_of
from gradkit.saliency._field import open_field

__all__ = ["Asked", "Checks", "checked", "checks_text", "maps_of", "title"]

#: Methods whose entries are shares of the objective, so that they may add up to it.
_COMPLETE = ("gradient_times_input", "integrated_gradients")


@dataclasses.dataclass(frozen=True)
class Asked:
    """What maps are of.

    Attributes:
        model: The model.
        inputs: Its inputs.
        objective: From outputs to one number per sample.
        settings: For each method what it is called with besides.
        baseline: What deletion and completeness are relative to.
        seed: Of what the checks draw.
    """

    model: Any
    inputs: Any
    objective: Any
    settings: Mapping[str, Mapping[str, Any]]
    baseline: Any = 0.0
    seed: int = 0


@dataclasses.dataclass(frozen=True)
class Checks:
    """What the checks say, by method; what does not apply to a method is left out.

    Attributes:
        gaps: ``(N,)``, completeness gaps as shares of the differences explained.
        curves: Deletion curves.
        sensitivities: ``(N,)``.
        reports: Whether maps depend on the model.
    """

    gaps: dict[str, Tensor]
    curves: dict[str, Curve]
    sensitivities: dict[str, Tensor]
    reports: dict[str, RandomizationReport]

    @property
    def findings(self) -> list[str]:
        """The methods whose maps do not depend on what the model has learned."""
        return [name for name, report in self.reports.items() if not report.depends]

    def to_dict(self) -> dict[str, Any]:
        """Return medians over the samples, and reports, as JSON has them."""
        return {
            "completeness": {n: _median(g.abs()) for n, g in self.gaps.items()},
            "deletion_area": {n: float(c.area.mean()) for n, c in self.curves.items()},
            "sensitivity": {n: _median(s) for n, s in self.sensitivities.items()},
            "randomization": {n: r.to_dict() for n, r in self.reports.items()},
        }


def title(method: str) -> str:
    """Return a method's name as people write it.

    Example:
        >>> title("integrated_gradients"), title("grad_cam"), title("smoothgrad")
        ('integrated gradients', 'Grad-CAM', 'SmoothGrad')
    """
    known = {"grad_cam": "Grad-CAM", "smoothgrad": "SmoothGrad"}
    return known.get(method, method.replace("_", " ").replace("times", "×"))


def maps_of(asked: Asked, methods: Sequence[str]) -> dict[str, Any]:
    """Return what each method gives."""
    return {
        name: saliency.METHODS[name](
            asked.model, asked.inputs, asked.objective, **asked.settings[name]
        )
        for name in watched("maps", methods)
    }


def checked(asked: Asked, maps: Mapping[str, Any]) -> Checks:
    """Return what every check says of every map that it applies to."""
    given = (asked.model, asked.inputs, asked.objective)
    found = Checks({}, {}, {}, {})
    alike = {n: m for n, m in maps.items() if _is_like(m, asked.inputs)}
    for name in watched("checks", list(maps)):
        settings = asked.settings[name]
        places = {k: v for k, v in settings.items() if k in ("wrt", "of")}
        if name in _COMPLETE:
            found.gaps[name] = _gap(asked, maps[name], places)
        if name in alike:
            found.curves[name] = saliency.deletion_curve(
                maps[name], *given, baseline=asked.baseline, of=settings.get("of")
            )
        if _is_floating(asked.inputs):
            found.sensitivities[name] = saliency.sensitivity(
                name, *given, seed=asked.seed, settings=settings
            )
        if isinstance(asked.model, torch.nn.Module) and isinstance(maps[name], Tensor):
            found.reports[name] = saliency.randomization_check(
                name, *given, seed=asked.seed, settings=settings
            )
    return found


def _gap(asked: Asked, maps: Any, places: Mapping[str, Any]) -> Tensor:
    """Return the gaps as shares of the differences of the objective."""
    given = (asked.model, asked.inputs, asked.objective)
    with open_field(*given, **places) as field:
        baselines = read_baselines(field, asked.baseline)
        gap, difference = gap_of(field, field.given(maps, "maps"), baselines)
    return gap / difference.abs()


def _is_like(maps: Any, inputs: Any) -> bool:
    return (
        isinstance(maps, Tensor)
        and isinstance(inputs, Tensor)
        and maps.shape == inputs.shape
    )


def _is_floating(inputs: Any) -> bool:
    return isinstance(inputs, Tensor) and inputs.is_floating_point()


def checks_text(checks: Checks, methods: Sequence[str]) -> str:
    """Return the table of what the checks say, and the verdicts in words."""
    rows = []
    for name in methods:
        report = checks.reports.get(name)
        rows.append(
            [
                title(name),
                _cell(checks.gaps, name, lambda g: f"{_median(g.abs()):.1e}"),
                _cell(checks.curves, name, lambda c: f"{float(c.area.mean()):.3g}"),
                _cell(checks.sensitivities, name, lambda s: f"{_median(s):.3f}"),
                "–" if report is None else f"{report.correlation:.2f}",
                "–" if report is None else ("yes" if report.depends else "no"),
            ]
        )
    heads = ["map", "gap", "deletion", "sensitivity", "correlation", "depends"]
    lines = [
        "What the checks say of saliency maps: medians over the samples",
        table(heads, rows),
        "  gap: of the map's sum from the difference to the baseline, as its share",
        "  deletion: mean area below the curve, small where the map finds what matters",
        "  sensitivity: how far the map moves under noise of 2% of the range",
        "  correlation: of ranks, with maps of re-drawn weights",
        "  depends: whether the map depends on what was learned",
    ]
    if any("–" in row for row in rows):
        lines.append(
            "  –: does not apply; a gap is of maps that are shares of a difference,"
            " deletion of maps\n     shaped like the inputs, sensitivity of floating"
            " inputs"
        )
    if checks.findings:
        names = ", ".join(map(title, checks.findings))
        lines.append(f"  Not of the model, but of the input or architecture: {names}.")
    return "\n".join(lines)


def _cell(values: Mapping[str, Any], name: str, text: Any) -> str:
    return text(values[name]) if name in values else "–"


def _median(values: Tensor) -> float:
    return float(values.double().quantile(0.5))
