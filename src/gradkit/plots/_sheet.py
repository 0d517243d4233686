"""What every figure is drawn on: a sheet that is measured in inches.

Sizes in inches keep text and pictures as large on paper however many there are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from gradkit.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

__all__ = [
    "BAR",
    "INK",
    "LINE",
    "POINTS",
    "SIGNED",
    "TITLE_POINTS",
    "WIDTH",
    "WRONG",
    "Sheet",
    "drawing",
    "number",
    "require_matplotlib",
    "text_width",
    "wrapped",
]

WIDTH = 7.2
LINE = 0.13
BAR = 0.08
POINTS = 7
TITLE_POINTS = 8.5
INK = "gray_r"
SIGNED = "RdBu_r"  # white at 0
WRONG = "#b2182b"
_INCH = 72  # points
# After a space or a joint, and before a capital in the middle of a name.
_PARTS = re.compile(r"(?<=[ _./-])|(?<=[a-z])(?=[A-Z])")


def require_matplotlib(function: str = "plots") -> None:
    """Raise what every figure raises where matplotlib is missing.

    Args:
        function: The public function that the error is to name.

    Raises:
        InputError: matplotlib cannot be imported.
    """
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        missing = InputError(
            f"figures are drawn by matplotlib, which cannot be imported ({error})."
            ' Run pip install "gradkit[plot]"',
            extra="plot",
        )
        missing.function = function
        raise missing from error


@contextmanager
def drawing(function: str) -> Iterator[None]:
    """Require matplotlib, and name the public function in errors."""
    require_matplotlib(function)
    try:
        yield
    except InputError as error:
        error.function = function
        raise


class Sheet:
    """A figure that is filled in inches from its upper left corner."""

    def __init__(self, width: float, height: float) -> None:
        from matplotlib.figure import Figure

        self.width, self.height = width, height
        self.figure: Figure = Figure(figsize=(width, height), facecolor="white")

    def axes(self, left: float, top: float, width: float, height: float) -> Axes:
        """Return axes whose upper left corner is there."""
        bottom = self.height - top - height
        box = (left / self.width, bottom / self.height)
        return self.figure.add_axes((*box, width / self.width, height / self.height))

    def text(self, left: float, top: float, text: str, **style: Any) -> None:
        """Write plain text whose upper left corner is there, unless styled."""
        style = {"size": POINTS, "va": "top", "parse_math": False, **style}
        self.figure.text(left / self.width, 1 - top / self.height, text, **style)

    def picture(
        self, left: float, top: float, side: float, values: np.ndarray, **style: Any
    ) -> AxesImage:
        """Draw one picture into a square."""
        axes = self.axes(left, top, side, side)
        image = axes.imshow(values, interpolation="nearest", **style)
        axes.set(xticks=[], yticks=[])
        for spine in axes.spines.values():
            spine.set(linewidth=0.4, color="0.6")
        return image

    def bar(
        self,
        image: AxesImage,
        left: float,
        top: float,
        height: float,
        *,
        ticks: Sequence[str],
        label: str = "",
    ) -> None:
        """Draw the colours of a signed picture, with its ends and 0 as ticks."""
        axes = self.axes(left, top, BAR, height)
        bar = self.figure.colorbar(image, cax=axes, extend="both")
        least, most = image.get_clim()
        bar.set_ticks([least, 0, most], labels=ticks)
        bar.ax.tick_params(labelsize=POINTS, length=2, pad=1.5)
        bar.set_label(label, size=POINTS, labelpad=1)
        bar.outline.set_linewidth(0.4)


def number(value: float) -> str:
    """Return a number in as few characters as say its size."""
    whole = 99.5 <= abs(value) < 9999.5
    text = f"{value:.0f}" if whole else f"{value:#.2g}".rstrip(".")
    # An exponent's zeros and plus only cost width.
    return re.sub(r"e([+-])0*", r"e\1", text).replace("e+", "e").replace("-", "−")


def text_width(text: str, size: float = POINTS) -> float:
    """Return how many inches wide a line of text is drawn."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    font = FontProperties(size=size)
    width, _, _ = text_to_path.get_text_width_height_descent(text, font, ismath=False)
    return width / _INCH


def wrapped(text: str, width: float, most: int = 4) -> list[str]:
    """Break text into at most so many lines of at most so many inches.

    It breaks after a space and between the parts of names, or else inside a word.
    What does not fit is left out, with an ellipsis in its place.
    """
    lines = [""]
    for piece in _PARTS.split(text.replace("\n", " ")):
        if lines[-1] and text_width((lines[-1] + piece).rstrip()) > width:
            lines.append("")
        for letter in piece:
            if lines[-1] and text_width((lines[-1] + letter).rstrip()) > width:
                lines.append("")
            lines[-1] += letter
    lines = [line.rstrip() for line in lines]
    if len(lines) > most:
        lines = [*lines[: most - 1], f"{lines[most - 1][:-1]}…"]
    return lines
