"""Lines over an axis, that can be told apart in print and without colours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gradkit.plots._sheet import LINE, POINTS, Sheet, text_width, wrapped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

__all__ = ["Legend", "line_style", "panel"]

# Okabe and Ito's palette, without the yellow that white paper swallows.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#56B4E9", "#E69F00")
_DASHES: tuple[Any, ...] = (
    "solid",
    (0, (5, 1.5)),
    (0, (1.2, 1.2)),
    (0, (6, 1.5, 1.2, 1.5)),
    (0, (3, 1)),
)
_MARKERS = "os^DvX"
_MARKED = 7  # places of a line

# Inches.
_HANDLE = 0.36
_PAD = 0.05
_BETWEEN = 0.18


def line_style(index: int, points: int) -> dict[str, Any]:
    """Return how the line of that number is drawn, over so many points.

    Colours, dashes and markers come round after 7, 5 and 6, so that lines differ by
    the last two alone as well. Markers of lines that meet lie beside one another.
    """
    step = max(1, round(points / _MARKED))
    return {
        "color": _COLOURS[index % len(_COLOURS)],
        "linestyle": _DASHES[index % len(_DASHES)],
        "marker": _MARKERS[index % len(_MARKERS)],
        "markevery": (index % step, step),
        "linewidth": 1.1,
        "markersize": 3,
    }


def panel(
    sheet: Sheet,
    left: float,
    top: float,
    width: float,
    height: float,
    *,
    xlabel: str,
    ylabel: str,
) -> Axes:
    """Return axes for lines, with as little ink as reads them."""
    axes = sheet.axes(left, top, width, height)
    axes.set_xlabel(xlabel, size=POINTS, labelpad=2, parse_math=False)
    axes.set_ylabel(ylabel, size=POINTS, labelpad=2, parse_math=False)
    axes.tick_params(labelsize=POINTS, length=2, width=0.5, pad=2)
    axes.yaxis.get_offset_text().set(fontsize=POINTS)
    axes.grid(axis="y", color="0.9", linewidth=0.5)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set(linewidth=0.5)
    return axes


class Legend:
    """The names of lines, in as many columns as fit the width.

    Args:
        names: What stands beside each line, broken where it is too long.
        width: Inches that there are.
    """

    def __init__(self, names: Sequence[str], width: float) -> None:
        most = width - _HANDLE - _PAD
        self.names = ["\n".join(wrapped(name, most)) for name in names]
        lines = [line for name in self.names for line in name.split("\n")]
        entry = max(map(text_width, lines)) + _HANDLE + _PAD
        fitting = max(1, int((width + _BETWEEN) / (entry + _BETWEEN)))
        # As many rows as these columns need, and then no column that stays empty.
        rows = math.ceil(len(names) / min(fitting, len(names)))
        self.columns = math.ceil(len(names) / rows)
        # Filled column by column, as matplotlib does.
        columns = np.array_split(
            [name.count("\n") + 1 for name in self.names], self.columns
        )
        self.height = LINE * max(int(column.sum()) for column in columns) + _PAD

    def draw(
        self, sheet: Sheet, lines: Sequence[Line2D], left: float, top: float
    ) -> None:
        """Draw it with its upper left corner there."""
        size = POINTS / 72
        legend = sheet.figure.legend(
            lines,
            # The names come below: one that begins with "_" would be left out.
            [str(place) for place in range(len(lines))],
            loc="upper left",
            bbox_to_anchor=(left / sheet.width, 1 - top / sheet.height),
            borderaxespad=0,
            borderpad=0,
            fontsize=POINTS,
            frameon=False,
            ncols=self.columns,
            columnspacing=_BETWEEN / size,
            handlelength=(_HANDLE - 0.05) / size,
            handletextpad=0.05 / size,
            labelspacing=0.3,
        )
        for text, name in zip(legend.get_texts(), self.names, strict=True):
            text.set(text=name, parse_math=False)
