"""Saliency maps of several methods, beside the pictures that they are of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from gradkit.errors import InputError
from gradkit.plots._pictures import (
    at_most,
    limit,
    read_entries,
    read_images,
    read_maps,
)
from gradkit.plots._sheet import WRONG, drawing, number
from gradkit.plots._table import Head, Note, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["saliency_grid"]

_METHODS = 9


@drawing("plots.saliency_grid")
def saliency_grid(
    images: Tensor,
    maps: Mapping[str, Tensor],
    *,
    labels: Tensor | Sequence[int] | None = None,
    predictions: Tensor | Sequence[int] | None = None,
    scores: Tensor | Sequence[float] | None = None,
) -> Figure:
    """Draw pictures, one per row, and each method's map of them, one per column.

    Methods have different units, so that each method's maps are divided by that
    method's own limit: the 99.8th percentile of their magnitudes over the samples
    drawn, where colours saturate. It stands under the method's title. One scale of
    colours, white at 0, then serves all methods.

    Args:
        images: ``(N, *pic)`` with at most 12 samples, where ``*pic`` is ``(D,)``
            for squares, ``(H, W)``, or ``(C, H, W)``. One channel is drawn with ink
            at the highest value, three in colour.
        maps: At most 9 titles and their ``(N, *pic)``. Several channels are summed.
            A map may be coarser than its picture, as those of Grad-CAM are; it is
            drawn as large.
        labels: ``(N,)`` classes, written at the left.
        predictions: ``(N,)`` classes with the highest score, in red where they are
            not the labels.
        scores: ``(N,)`` numbers, written below them.

    Returns:
        A figure at most 7.2 inches wide.

    Raises:
        InputError: matplotlib is not installed, there is more to draw than can be
            read, or an argument has another shape or number of samples, or holds
            NaN or infinity; the text says which.

    Cost:
        A picture for each sample and map drawn; no model is run.

    Example:
        >>> import torch
        >>> from gradkit import plots
        >>> images = torch.rand(2, 9, requires_grad=True)
        >>> weight = torch.rand(2, 9) - 0.5
        >>> figure = plots.saliency_grid(
        ...     images,
        ...     {"gradient": weight, "gradient × input": weight * images},
        ...     labels=[7, 2],
        ...     predictions=[7, 1],
        ... )
        >>> [text.get_text() for text in figure.texts][-4:]
        ['class 7', 'guess 7', 'class 2', 'guess 1']
        >>> figure.savefig("saliency.pdf")  # doctest: +SKIP
    """
    pictures = read_images(images)
    methods = _read_methods(maps, len(pictures), tuple(images.shape))
    limits = {title: limit(values) for title, values in methods.items()}
    table = Table(
        [Head("image"), *(Head(t, f"±{number(most)}") for t, most in limits.items())],
        _notes(len(pictures), labels, predictions, scores),
        ticks=["−1", "0", "1"],
        label="× limit",
    )
    for row, picture in enumerate(pictures):
        table.image(row, 0, pictures, row)
        for column, (title, values) in enumerate(methods.items(), 1):
            table.map(row, column, values[row] / limits[title], 1.0, picture)
    table.colours()
    return table.figure


def _read_methods(
    maps: Any, samples: int, shape: tuple[int, ...]
) -> dict[str, np.ndarray]:
    if not isinstance(maps, Mapping):
        raise InputError(
            f"maps must be a mapping of titles to tensors; got {type(maps).__name__};"
            " pass {'gradient': x}",
            argument="maps",
        )
    at_most(len(maps), _METHODS, "maps", "methods", "slice it, or draw two figures")
    methods = {}
    for title, values in maps.items():
        place = f"maps[{title!r}]"
        methods[str(title)] = found = read_maps(values, place)
        if len(found) != samples:
            raise InputError(
                f"{place} must have a map for each of the images {shape}; got"
                f" {tuple(values.shape)}; slice both alike",
                argument="maps",
                title=title,
            )
    return methods


def _notes(
    samples: int, labels: Any, predictions: Any, scores: Any
) -> list[list[Note]]:
    classes, guesses, numbers = (
        None if values is None else read_entries(values, argument, samples)
        for values, argument in (
            (labels, "labels"),
            (predictions, "predictions"),
            (scores, "scores"),
        )
    )
    rows: list[list[Note]] = []
    for n in range(samples):
        notes = [] if classes is None else [Note(f"class {classes[n]}")]
        if guesses is not None:
            wrong = classes is not None and guesses[n] != classes[n]
            notes.append(Note(f"guess {guesses[n]}", WRONG if wrong else "black"))
        if numbers is not None:
            notes.append(Note(f"score {number(numbers[n])}"))
        rows.append(notes)
    return rows
