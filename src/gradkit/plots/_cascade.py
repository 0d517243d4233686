"""How maps change as a model's layers are re-drawn, one after the other."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from gradkit.plots._panel import Legend, line_style, panel
from gradkit.plots._pictures import doubles, limit, read_images
from gradkit.plots._report import Randomization, read_layers, read_order, read_sample
from gradkit.plots._sheet import POINTS, WRONG, drawing, text_width, wrapped
from gradkit.plots._table import Head, Note, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

__all__ = ["randomization_cascade"]

_LAYERS = 9
_TICKS = 10
_VERDICTS = {True: ("depends", "black"), False: ("does not", WRONG)}
_ORDERS = {
    "cascade": (
        "Parameters re-drawn up to and including the layer named",
        "layers re-drawn",
    ),
    "independent": (
        "Parameters re-drawn in the layer named alone",
        "number of the layer re-drawn",
    ),
}
_PANELS = {"rank_correlations": "rank correlation", "similarities": "SSIM"}

# Inches.
_NAME = 1.0
_HEAD = 1.3
_LEAST = 4.6
_GAP = 0.22
_HEIGHT = 1.25
_LEFT = 0.55
_BETWEEN = 0.55
_RIGHT = 0.12
_BELOW = 0.4


@drawing("plots.randomization_cascade")
def randomization_cascade(
    reports: Mapping[str, Randomization],
    *,
    sample: int = 0,
    image: Tensor | None = None,
) -> Figure:
    """Draw a sample's maps as layers are re-drawn, and how alike they stay.

    Above, one row per method: its map of the trained model, and after each layer.
    New parameters change a map's scale, so that each map is divided by its own
    limit, the 99.8th percentile of its magnitudes. Of more than nine layers nine
    are drawn, evenly spaced and the last among them. Below, the median over all
    samples of the maps' similarity to those of the trained model.

    Args:
        reports: At most 9 names of methods and their reports, each with the
            attributes ``layers``, ``L`` names in the order they were re-drawn,
            the same in all; ``maps``, ``(L+1, N, *pic)`` with the trained model's
            first, where ``*pic`` is ``(D,)`` for squares, ``(H, W)``, or
            ``(C, H, W)``, whose channels are summed; ``rank_correlations`` and
            ``similarities``, ``(L, N)``, where NaN leaves a gap; and ``depends``,
            which is written at the right. An attribute ``order``,
            ``"independent"``, says that only one layer at a time was re-drawn.
        sample: The number of the sample whose maps are drawn.
        image: ``(*pic)``, its picture.

    Returns:
        A figure at most 7.2 inches wide.

    Raises:
        InputError: matplotlib is not installed, a report is not as above, or the
            layers of two differ, or ``sample`` is none; the text says which.

    Cost:
        A picture for each method and layer drawn; no model is run.

    Example:
        >>> from types import SimpleNamespace
        >>> import torch
        >>> from gradkit import plots
        >>> report = SimpleNamespace(
        ...     layers=("fc2", "fc1"),
        ...     maps=torch.randn(3, 4, 9),
        ...     rank_correlations=torch.tensor([[0.4] * 4, [0.1] * 4]),
        ...     similarities=torch.tensor([[0.5] * 4, [0.2] * 4]),
        ...     depends=True,
        ... )
        >>> figure = plots.randomization_cascade(
        ...     {"gradient": report}, sample=2, image=torch.rand(9)
        ... )
        >>> [text.get_text() for text in figure.texts][2:]
        ['trained', 'fc2', 'fc1', 'gradient', 'depends']
        >>> figure.savefig("cascade.pdf")  # doctest: +SKIP
    """
    layers, order = read_layers(reports), read_order(reports)
    chosen = _spaced(len(layers))
    shown = {
        name: read_sample(f"reports[{name!r}]", report, sample)[[0, *chosen]]
        for name, report in reports.items()
    }
    pictures = None if image is None else read_images(_one(image), "image")
    names = [Head(_shortened(layers[place - 1]), slanted=True) for place in chosen]
    heads = [*([] if pictures is None else [Head("image")]), Head("trained"), *names]
    title, xlabel = _ORDERS[order]
    table, legend = _laid_out(title, heads, list(map(str, reports)))
    reported = list(reports.values())
    for row, (report, maps) in enumerate(zip(reported, shown.values(), strict=True)):
        _draw_maps(table, row, maps, pictures)
        _write_verdict(table, row, bool(report.depends))
    table.colours()
    lines = [
        _draw_panel(table, place, xlabel, label, [getattr(r, key) for r in reported])
        for place, (key, label) in enumerate(_PANELS.items())
    ]
    legend.draw(table, lines[0], _LEFT, table.bottom + _GAP + _HEIGHT + _BELOW)
    return table.figure


def _one(image: Any) -> Any:
    # What is no tensor is refused by name.
    return image.unsqueeze(0) if isinstance(image, Tensor) else image


def _spaced(layers: int) -> list[int]:
    """Return which layers are drawn, by their place in ``maps``."""
    return np.linspace(1, layers, min(layers, _LAYERS)).round().astype(int).tolist()


def _laid_out(title: str, heads: list[Head], names: list[str]) -> tuple[Table, Legend]:
    """Return an empty table with room for two panels, and for their legend."""
    # A lower legend leaves room for wider pictures, never for narrower ones.
    tall = _table(title, heads, names, Legend(names, _LEAST - _LEFT - _RIGHT))
    legend = Legend(names, tall.width - _LEFT - _RIGHT)
    return _table(title, heads, names, legend), legend


def _table(title: str, heads: list[Head], names: list[str], legend: Legend) -> Table:
    verdicts = max(text_width(text) for text, _ in _VERDICTS.values())
    return Table(
        heads,
        [[Note(line) for line in wrapped(name, _NAME, 3)] for name in names],
        title=title,
        ticks=["−1", "0", "1"],
        label="× own limit",
        margin=verdicts + 0.12,
        below=_GAP + _HEIGHT + _BELOW + legend.height,
        least=_LEAST,
    )


def _shortened(layer: str) -> str:
    """Return a layer's name with its middle left out where it is long."""
    # The model itself has the empty name.
    shorter, half = layer or "(the model)", len(layer) // 2
    while text_width(shorter) > _HEAD:
        shorter, half = f"{layer[:half]}…{layer[-half:]}", half - 1
    return shorter


def _draw_maps(
    table: Table, row: int, maps: np.ndarray, pictures: np.ndarray | None
) -> None:
    over = None
    if pictures is not None:
        over = pictures[0]
        table.image(row, 0, pictures, 0)
    for column, values in enumerate(maps, 0 if over is None else 1):
        table.map(row, column, values / limit(values), 1.0, over)


def _write_verdict(table: Table, row: int, depends: bool) -> None:
    text, colour = _VERDICTS[depends]
    left = table.left + len(table.heads) * table.pitch + 0.04
    middle = table.top + row * table.pitch + table.side / 2
    table.text(left, middle, text, va="center_baseline", color=colour)


def _draw_panel(
    table: Table, place: int, xlabel: str, label: str, similarities: list[Tensor]
) -> list[Line2D]:
    width = (table.width - _LEFT - _BETWEEN - _RIGHT) / 2
    axes = panel(
        table,
        _LEFT + place * (width + _BETWEEN),
        table.bottom + _GAP,
        width,
        _HEIGHT,
        xlabel=xlabel,
        ylabel=label,
    )
    axes.axhline(0, color="0.4", linewidth=0.7, linestyle=(0, (4, 3)))
    # Not torch's median, which is the lower of the two middle ones.
    medians = [np.median(doubles(s, label).numpy(), axis=1) for s in similarities]
    layers = len(medians[0])
    lines = []
    for index, each in enumerate(medians):
        lines += axes.plot(range(1, layers + 1), each, **line_style(index, layers))
    if np.isnan(medians).all():
        style = {"ha": "center", "size": POINTS, "transform": axes.transAxes}
        axes.text(0.5, 0.5, "undefined", **style)
    axes.set_xticks(range(1, layers + 1, math.ceil(layers / _TICKS)))
    axes.set_xlim(0.5, layers + 0.5)
    axes.set_ylim(min(0.0, float(np.nan_to_num(medians).min())) - 0.1, 1.05)
    return lines
