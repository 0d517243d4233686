"""Rows of pictures: one per sample or method, with a head over every column."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gradkit.plots._sheet import (
    BAR,
    INK,
    LINE,
    SIGNED,
    WIDTH,
    Sheet,
    text_width,
    wrapped,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage

__all__ = ["Head", "Note", "Table"]

# Inches.
_LARGEST = 1.0
_TALLEST = 8.6
_GAP = 0.04
_EDGE = 0.05
_BAR_TALLEST = 2.0
_SLANT = 40  # degrees


class Head(NamedTuple):
    """What stands over a column: its title, and a line right over the pictures."""

    title: str
    line: str = ""
    slanted: bool = False


class Note(NamedTuple):
    """A line at the left of a row."""

    text: str
    colour: str = "black"


class Table(Sheet):
    """A sheet with rows of square pictures, as large as there is room for.

    Args:
        heads: One per column. If one that may be slanted is wider than its column,
            all that may be are.
        notes: One sequence of lines per row.
        ticks: Of the colours at the right: their least, 0, and their most.
        label: Of the colours.
        title: Stands over all heads.
        margin: Inches between the pictures and the colours.
        below: Inches to be left below the pictures.
        least: The sheet's least width in inches.
    """

    def __init__(
        self,
        heads: Sequence[Head],
        notes: Sequence[Sequence[Note]],
        *,
        ticks: Sequence[str],
        label: str,
        title: str = "",
        margin: float = 0.0,
        below: float = 0.0,
        least: float = 0.0,
    ) -> None:
        self.heads, self.notes, self.title = heads, notes, title
        self.ticks, self.label, self.margin = ticks, label, margin
        widths = [text_width(note.text) for row in notes for note in row]
        self.left = max(widths) + 0.12 if widths else _EDGE
        right = margin + 0.05 + BAR + 0.05 + max(map(text_width, ticks)) + LINE + 0.05
        self.pitch = min(
            _LARGEST,
            (WIDTH - self.left - right) / len(heads),
            (_TALLEST - below) / len(notes),
        )
        self._read_heads()
        width = self.left + len(heads) * self.pitch + right
        super().__init__(
            max(width, least), self.top + len(notes) * self.pitch + _EDGE + below
        )
        self._write()

    @property
    def side(self) -> float:
        """Width and height of a picture."""
        return self.pitch - _GAP

    @property
    def bottom(self) -> float:
        """Where the last row ends, from the top."""
        return self.top + len(self.notes) * self.pitch

    def image(self, row: int, column: int, images: np.ndarray, index: int) -> None:
        """Draw one of several pictures, ink black on white if they have no colours."""
        style: dict[str, Any] = {}
        if images.ndim == 3:
            least, most = min(0.0, float(images.min())), float(images.max())
            style = {"cmap": INK, "vmin": least, "vmax": most}
        self.picture(*self._corner(row, column), self.side, images[index], **style)

    def map(
        self,
        row: int,
        column: int,
        values: np.ndarray,
        most: float,
        over: np.ndarray | None = None,
    ) -> Axes:
        """Draw one signed map, as wide and high as the picture it lies over."""
        height, width = (values if over is None else over).shape[:2]
        self.last_map: AxesImage = self.picture(
            *self._corner(row, column),
            self.side,
            values,
            cmap=SIGNED,
            vmin=-most,
            vmax=most,
            extent=(0, width, height, 0),
        )
        return self.last_map.axes

    def colours(self) -> None:
        """Draw the scale that all maps share at the right."""
        height = min(len(self.notes) * self.pitch - _GAP, _BAR_TALLEST)
        left = self._corner(0, len(self.heads))[0] + self.margin + 0.05
        self.bar(
            self.last_map, left, self.top, height, ticks=self.ticks, label=self.label
        )

    def _corner(self, row: int, column: int) -> tuple[float, float]:
        return self.left + column * self.pitch, self.top + row * self.pitch

    def _read_heads(self) -> None:
        self.slanted = any(
            head.slanted and text_width(head.title) > self.side for head in self.heads
        )
        self.lines = [wrapped(head.title, self.pitch - 0.02) for head in self.heads]
        self.top = LINE * any(head.line for head in self.heads) + _EDGE
        tallest = LINE * max(map(len, self.lines))
        if self.slanted:
            widest = max(text_width(h.title) for h in self.heads if h.slanted)
            tallest = widest * math.sin(math.radians(_SLANT)) + LINE
        self.top += tallest + 0.02 + (LINE if self.title else 0)

    def _write(self) -> None:
        if self.title:
            self.text(self.left, _EDGE, self.title)
        for column, head in enumerate(self.heads):
            self._write_head(column, head)
        for row, notes in enumerate(self.notes):
            left, top = self._corner(row, 0)
            first = top + (self.side - len(notes) * LINE) / 2
            for place, note in enumerate(notes):
                middle = first + (place + 0.5) * LINE
                style = {"ha": "right", "va": "center_baseline", "color": note.colour}
                self.text(left - 0.06, middle, note.text, **style)

    def _write_head(self, column: int, head: Head) -> None:
        left, top = self._corner(0, column)
        middle, base = left + self.side / 2, top - 0.04
        if head.line:
            self.text(middle, base, head.line, ha="center", va="baseline", color="0.4")
        # Titles stand on one line, also over columns without another below.
        base -= LINE * any(head.line for head in self.heads)
        if head.slanted and self.slanted:
            turned = {"rotation": _SLANT, "rotation_mode": "anchor"}
            self.text(middle, base, head.title, va="baseline", **turned)
            return
        for up, line in enumerate(reversed(self.lines[column])):
            self.text(middle, base - up * LINE, line, ha="center", va="baseline")
