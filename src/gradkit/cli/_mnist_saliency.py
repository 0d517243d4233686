"""Saliency maps of the digits, by several methods, and what the checks say."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from gradkit import plots
from gradkit.cli._files import Writer
from gradkit.cli._mnist_measures import Measures
from gradkit.cli._saliency_checks import Asked, Checks, checked, maps_of, title
from gradkit.cli._saliency_figures import check_files, figure_files

__all__ = ["looked_at", "saliency_files"]

_METHODS = (
    "gradient",
    "gradient_times_input",
    "guided_backprop",
    "integrated_gradients",
    "smoothgrad",
)


def _asked(network: nn.Module, measures: Measures, seed: int) -> Asked:
    settings = {name: {} for name in _METHODS}
    settings["smoothgrad"] = {"seed": seed}
    return Asked(network, measures.images, measures.labels, settings, seed=seed)


def looked_at(
    network: nn.Module, measures: Measures, seed: int
) -> tuple[dict[str, Tensor], Checks]:
    """Return maps of the score of each digit's own class, and the checks of them."""
    asked = _asked(network, measures, seed)
    maps = maps_of(asked, _METHODS)
    return maps, checked(asked, maps)


def saliency_files(
    folder: Path, measures: Measures, maps: dict[str, Tensor], checks: Checks
) -> dict[Path, Writer]:
    """Return what draws the grid, one digit of each class, and the checks."""
    labels = measures.labels.cpu()
    shown = torch.tensor([int((labels == k).nonzero()[0]) for k in labels.unique()])
    own = measures.outputs.cpu().gather(1, labels[:, None])[:, 0]
    grid = plots.saliency_grid(
        measures.images.cpu()[shown],
        {title(name): value.cpu()[shown] for name, value in maps.items()},
        labels=labels[shown],
        predictions=measures.outputs.cpu().argmax(1)[shown],
        scores=own[shown],
    )
    files = figure_files(folder, "saliency", grid)
    return files | check_files(folder, measures.images.cpu(), checks)
