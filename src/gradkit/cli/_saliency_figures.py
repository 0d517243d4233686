"""The figures of maps and of their checks, as files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gradkit import plots
from gradkit.cli._files import Writer
from gradkit.cli._saliency_checks import Checks, title
from gradkit.errors import GradkitError

__all__ = [
    "CHECK_FIGURES",
    "DOTS_PER_INCH",
    "check_files",
    "figure_files",
    "is_picture",
]

DOTS_PER_INCH = 200
#: Of the checks, where there is something to draw.
CHECK_FIGURES = ("deletion", "randomization")


def figure_files(folder: Path, name: str, figure: Any) -> dict[Path, Writer]:
    """Return what writes a figure as PNG and as SVG."""
    return {
        folder / f"{name}.png": lambda stream: figure.savefig(
            stream, format="png", dpi=DOTS_PER_INCH
        ),
        folder / f"{name}.svg": lambda stream: figure.savefig(stream, format="svg"),
    }


def is_picture(inputs: Any) -> bool:
    """Whether the inputs may be pictures: one floating tensor, or one of bytes."""
    if not isinstance(inputs, Tensor):
        return False
    return inputs.is_floating_point() or inputs.dtype == torch.uint8


def check_files(folder: Path, inputs: Any, checks: Checks) -> dict[Path, Writer]:
    """Return what draws the deletion curves and the cascade, where there are any."""
    files: dict[Path, Writer] = {}
    deletion, randomization = CHECK_FIGURES
    if checks.curves:
        named = {title(name): curve for name, curve in checks.curves.items()}
        files |= figure_files(folder, deletion, plots.curves(named))
    if checks.reports:
        reports = {title(name): report for name, report in checks.reports.items()}
        try:
            figure = plots.randomization_cascade(
                reports, image=inputs[0] if is_picture(inputs) else None
            )
            files |= figure_files(folder, randomization, figure)
        except (GradkitError, TypeError) as error:
            print(f"No figure of the cascade: {getattr(error, 'message', error)}")
    return files
