"""Jacobians of scores, row by row, beside the pictures that they are of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from gradkit.errors import InputError
from gradkit.plots._pictures import (
    at_most,
    dense,
    limit,
    read_entries,
    read_images,
    read_maps,
)
from gradkit.plots._sheet import drawing, number
from gradkit.plots._table import Head, Note, Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["jacobian_rows"]

_OUTPUTS = 10


@drawing("plots.jacobian_rows")
def jacobian_rows(
    images: Tensor,
    jacobian: Tensor,
    *,
    labels: Tensor | Sequence[int] | None = None,
) -> Figure:
    """Draw pictures, one per row, and the gradient of each output, one per column.

    All gradients share one scale, white at 0; its colours saturate at the 99.8th
    percentile of the magnitudes drawn.

    Args:
        images: ``(N, *pic)`` with at most 12 samples, where ``*pic`` is ``(D,)``
            for squares, ``(H, W)``, or ``(C, H, W)``. One channel is drawn with ink
            at the highest value, three in colour.
        jacobian: ``(N, K, *pic)`` of at most 10 outputs. Several channels are
            summed.
        labels: ``(N,)`` classes. They are written at the left, and the gradient of
            each sample's own class is framed.

    Returns:
        A figure at most 7.2 inches wide.

    Raises:
        InputError: matplotlib is not installed, there is more to draw than can be
            read, or an argument has another shape or number of samples, or holds
            NaN or infinity; or a label is no output's number.

    Cost:
        A picture for each sample and output drawn; no model is run.

    Example:
        >>> import torch
        >>> from gradkit import plots
        >>> images = torch.rand(2, 9)
        >>> layer = torch.nn.Linear(9, 5)
        >>> figure = plots.jacobian_rows(
        ...     images, layer.weight.expand(2, 5, 9), labels=torch.tensor([4, 0])
        ... )
        >>> [text.get_text() for text in figure.texts][-3:]
        ['output 4', 'class 4', 'class 0']
        >>> figure.savefig("jacobian.pdf")  # doctest: +SKIP
    """
    pictures = read_images(images)
    rows = _read_rows(jacobian, len(pictures), tuple(images.shape))
    outputs = rows.shape[1]
    classes = _read_labels(labels, len(pictures), outputs)
    most = limit(rows)
    table = Table(
        [Head("image"), *(Head(f"output {k}") for k in range(outputs))],
        [[Note(f"class {k}")] for k in classes] or [[] for _ in pictures],
        ticks=[f"−{number(most)}", "0", number(most)],
        label="gradient",
    )
    for row, picture in enumerate(pictures):
        table.image(row, 0, pictures, row)
        for column in range(outputs):
            axes = table.map(row, column + 1, rows[row, column], most, picture)
            if classes and classes[row] == column:
                _frame(axes)
    table.colours()
    return table.figure


def _read_rows(jacobian: Any, samples: int, shape: tuple[int, ...]) -> np.ndarray:
    """Return the maps of all outputs, ``(N, K, H, W)``."""
    batch = dense(jacobian, "jacobian")
    if batch.dim() < 3 or len(batch) != samples:
        raise InputError(
            f"jacobian must be (N, K, *pic) for images {shape}; got"
            f" {tuple(batch.shape)}; take gradkit.jacobian of the images drawn",
            argument="jacobian",
        )
    outputs = batch.shape[1]
    at_most(outputs, _OUTPUTS, "jacobian", "outputs", "slice jacobian[:, :10]")
    maps = [read_maps(batch[:, k], f"jacobian[:, {k}]") for k in range(outputs)]
    return np.stack(maps, axis=1)


def _read_labels(labels: Any, samples: int, outputs: int) -> list[int]:
    classes = [] if labels is None else read_entries(labels, "labels", samples)
    others = [k for k in classes if k not in range(outputs)]
    if others:
        raise InputError(
            f"labels must be numbers of outputs, 0 to {outputs - 1}; got {others[0]};"
            " pass the outputs of these classes too, or no labels",
            argument="labels",
        )
    return classes


def _frame(axes: Axes) -> None:
    for spine in axes.spines.values():
        spine.set(linewidth=1.5, color="black")
