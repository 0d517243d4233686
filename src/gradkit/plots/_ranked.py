"""Pictures in the order of a number that each of them has."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from gradkit.plots._pictures import read_entries, read_images
from gradkit.plots._sheet import (
    INK,
    POINTS,
    TITLE_POINTS,
    WIDTH,
    WRONG,
    Sheet,
    drawing,
    number,
    wrapped,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["ranked_samples"]

_MOST = 50
_COLUMNS = 10
# Inches.
_LEFT = 0.8
_PITCH = 0.63
_PICTURE = 0.58
_TITLE = 0.3
_LINE = 0.13


@drawing("plots.ranked_samples")
def ranked_samples(
    images: Tensor,
    values: Tensor | Sequence[float],
    *,
    samples: Tensor | Sequence[int],
    name: str = "value",
    title: str = "",
    labels: Tensor | Sequence[int] | None = None,
    predictions: Tensor | Sequence[int] | None = None,
) -> Figure:
    """Draw the samples that a number ranks first, ten in a row.

    Args:
        images: ``(N, *pic)`` of at most 50 samples in their order, as
            ``plots.saliency_grid`` takes them.
        values: ``(N,)`` what they are ranked by, written over each.
        samples: ``(N,)`` which samples of the data they are.
        name: Of the values.
        title: Over the figure.
        labels: ``(N,)`` classes.
        predictions: ``(N,)`` classes with the highest score, in red where they are
            not the labels.

    Returns:
        A figure 7.2 inches wide.

    Raises:
        InputError: matplotlib is not installed, there is more to draw than can be
            read, or an argument has another shape or number of samples; the text says
            which.

    Cost:
        A picture for each sample; no model is run.

    Example:
        >>> import torch
        >>> from gradkit import plots
        >>> figure = plots.ranked_samples(
        ...     torch.rand(3, 9),
        ...     [5.0, 4.0, 3.5],
        ...     samples=[17, 3, 90],
        ...     name="norm",
        ...     labels=[1, 7, 2],
        ...     predictions=[1, 1, 2],
        ... )
        >>> [text.get_text() for text in figure.texts if "→" in text.get_text()]
        ['1 → 1', 'true → guess', '7 → 1', '2 → 2']
        >>> figure.savefig("ranked.pdf")  # doctest: +SKIP
    """
    pictures = read_images(images, count=_MOST)
    count = len(pictures)
    lines = _lines(count, values, samples, name, labels, predictions)
    height = _PICTURE + len(lines) * _LINE + 0.1
    top = _TITLE if title else 0.08
    sheet = Sheet(WIDTH, top + math.ceil(count / _COLUMNS) * height)
    # Titles are larger than what text is measured at.
    (short,) = wrapped(title, (WIDTH - _LEFT) * POINTS / TITLE_POINTS, 1)
    sheet.text(_LEFT, 0.08, short, size=TITLE_POINTS)
    for n, picture in enumerate(pictures):
        row, column = divmod(n, _COLUMNS)
        left, down = _LEFT + column * _PITCH, top + row * height
        for line, (label, texts, colours) in enumerate(lines):
            at = down + line * _LINE
            style: dict[str, Any] = {"ha": "center", "color": colours[n]}
            sheet.text(left + _PICTURE / 2, at, texts[n], **style)
            if not column:
                sheet.text(_LEFT - 0.1, at, label, ha="right")
        under = down + len(lines) * _LINE
        most = float(pictures.max())
        sheet.picture(left, under, _PICTURE, picture, cmap=INK, vmin=0, vmax=most)
    return sheet.figure


def _lines(
    count: int, values: Any, samples: Any, name: str, labels: Any, predictions: Any
) -> list[tuple[str, list[str], list[str]]]:
    """Return what is written over pictures: a label, the texts and their colours."""
    black = ["black"] * count
    ranks = [number(v) for v in read_entries(values, "values", count)]
    places = [str(int(v)) for v in read_entries(samples, "samples", count)]
    (short,) = wrapped(name, _LEFT - 0.15, 1)
    lines = [("sample", places, black), (short, ranks, black)]
    if labels is None:
        return lines
    true = read_entries(labels, "labels", count)
    if predictions is None:
        return [*lines, ("class", [str(t) for t in true], black)]
    guesses = read_entries(predictions, "predictions", count)
    texts = [f"{t} → {g}" for t, g in zip(true, guesses, strict=True)]
    pairs = zip(true, guesses, strict=True)
    colours = [WRONG if t != g else "black" for t, g in pairs]
    return [*lines, ("true → guess", texts, colours)]
