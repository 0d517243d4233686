"""Figures. They need matplotlib, which is imported when one is drawn.

No global state of matplotlib is used: a figure is a value, with ``savefig``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gradkit.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

__all__ = ["digit_gradients"]

# Inches, for two columns of a paper.
_WIDTH = 7.2
_LEFT = 0.8
_PITCH = 0.58
_PICTURE = 0.55
_TITLE = 0.25
_CAPTION = 0.16
_GAP = 0.2

_COLUMNS = 10
_JACOBIANS = 3
_WRONG = "#b2182b"
_SIGNED = "RdBu_r"  # white at 0
_PERCENTILE = 0.998
_TITLE_POINTS = 8.5
_POINTS = 7


def digit_gradients(
    images: Tensor,
    labels: Tensor,
    predictions: Tensor,
    *,
    score_gradients: Tensor,
    loss_gradients: Tensor,
    norms: Tensor,
    jacobian: Tensor,
) -> Figure:
    """Draw digits, their signed saliency, and the rows of their Jacobians.

    Three parts: (a) one digit of each class and the gradient of its own class's
    score; (b) the digits with the largest parameter gradients and the gradients
    of their losses; (c) the Jacobians of three digits, row by row. Score gradients
    and Jacobian rows share one colour scale, loss gradients have their own; both
    are white at 0 and saturate at the 99.8th percentile of the magnitudes shown.

    Args:
        images: ``(N, D)`` square pictures, drawn with ink at the highest value.
        labels: ``(N,)`` classes.
        predictions: ``(N,)`` classes with the highest score.
        score_gradients: ``(N, D)`` of the score of each digit's own class.
        loss_gradients: ``(N, D)`` of each digit's loss.
        norms: ``(N,)`` of each digit's parameter gradient.
        jacobian: ``(N, K, D)`` of the scores; the first ten rows are drawn.

    Returns:
        A figure 7.2 inches wide, for two columns of a paper.

    Raises:
        InputError: matplotlib is not installed.

    Example:
        >>> import torch
        >>> from gradkit import plots
        >>> images = torch.rand(4, 9)
        >>> layer = torch.nn.Linear(9, 5)
        >>> figure = plots.digit_gradients(
        ...     images,
        ...     torch.tensor([0, 1, 2, 1]),
        ...     layer(images).argmax(1),
        ...     score_gradients=layer.weight[[0, 1, 2, 1]],
        ...     loss_gradients=torch.rand(4, 9) - 0.5,
        ...     norms=torch.rand(4),
        ...     jacobian=layer.weight.expand(4, 5, 9),
        ... )
        >>> figure.savefig("digits.pdf")  # doctest: +SKIP
    """
    require_matplotlib("plots.digit_gradients")
    shown = _one_per_class(labels)
    hardest = norms.argsort(descending=True)[:_COLUMNS]
    # The hardest digit beside ordinary ones, on one scale.
    worst = int(hardest[0])
    detailed = [worst, *(n for n in shown.tolist() if n != worst)][:_JACOBIANS]
    score_scale = _limit(score_gradients[shown], jacobian[detailed])
    loss_scale = _limit(loss_gradients[hardest])

    sheet = _Sheet(rows=4 + len(detailed), captions=4, parts=3)
    sheet.part("a", "One digit of each class, and what would raise its own score")
    sheet.captions([str(k) for k in labels[shown].tolist()], "class")
    sheet.digits(images[shown])
    sheet.gradients(score_gradients[shown], score_scale, "gradient\nof its\nscore")
    sheet.colours(score_scale, rows=1)

    sheet.part("b", "The digits that the network learns most from")
    true, predicted = labels[hardest].tolist(), predictions[hardest].tolist()
    sheet.captions(
        [f"{t} → {p}" for t, p in zip(true, predicted, strict=True)],
        "true → guess",
        [_WRONG if t != p else "black" for t, p in zip(true, predicted, strict=True)],
    )
    sheet.captions([f"{norm:#.3g}" for norm in norms[hardest].tolist()], "norm")
    sheet.digits(images[hardest])
    sheet.gradients(loss_gradients[hardest], loss_scale, "gradient\nof its\nloss")
    sheet.colours(loss_scale, rows=1)

    several = f"Jacobians of {len(detailed)} digits" if detailed[1:] else "A Jacobian"
    sheet.part("c", f"{several}: the gradient of every class score")
    scores = min(jacobian.shape[1], _COLUMNS)
    sheet.captions([str(k) for k in range(scores)], "score of")
    for n in detailed:
        sheet.gradients(jacobian[n], score_scale, "")
        sheet.beside(images[n])
    sheet.colours(score_scale, rows=len(detailed))
    return sheet.figure


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


class _Sheet:
    """A figure that is filled from top to bottom, in inches."""

    def __init__(self, rows: int, captions: int, parts: int) -> None:
        from matplotlib.figure import Figure

        lines = parts * (_TITLE + _GAP) + captions * _CAPTION
        self.height = rows * _PITCH + lines
        self.figure = Figure(figsize=(_WIDTH, self.height), facecolor="white")
        self.top = 0.0

    def part(self, letter: str, title: str) -> None:
        """Begin a part with its title."""
        self.top += _GAP if self.top else 0
        self.text(0.08, 0.05, f"({letter})", weight="bold", size=_TITLE_POINTS)
        self.text(0.32, 0.05, title, size=_TITLE_POINTS)
        self.top += _TITLE

    def captions(
        self, captions: Sequence[str], label: str, colours: Sequence[str] = ()
    ) -> None:
        """Write a line over the pictures of the next row."""
        for column, caption in enumerate(captions):
            colour = colours[column] if colours else "black"
            middle = _left(column) + _PICTURE / 2
            self.text(middle, 0, caption, ha="center", color=colour)
        self.text(_LEFT - 0.1, 0, label, ha="right")
        self.top += _CAPTION

    def digits(self, images: Tensor) -> None:
        """Draw a row of digits, ink black on white."""
        for column, image in enumerate(images):
            self.picture(_left(column), image, "gray_r", 0, float(images.max()))
        self.top += _PITCH

    def gradients(self, gradients: Tensor, limit: float, label: str) -> None:
        """Draw a row of signed pictures on the scale from ``-limit`` to ``limit``."""
        for column, gradient in enumerate(gradients[:_COLUMNS]):
            self.last_gradient = self.picture(
                _left(column), gradient, _SIGNED, -limit, limit
            )
        self.text(_LEFT - 0.1, _PICTURE / 2, label, ha="right", va="center")
        self.top += _PITCH

    def beside(self, image: Tensor) -> None:
        """Draw a digit left of the row that was drawn last."""
        self.top -= _PITCH
        self.picture(_left(-1) - 0.06, image, "gray_r", 0, float(image.max()))
        self.top += _PITCH

    def colours(self, limit: float, rows: int) -> None:
        """Draw the scale of the last ``rows`` rows of gradients at their right."""
        height = rows * _PITCH - (_PITCH - _PICTURE)
        self.top -= rows * _PITCH
        axes = self.axes(_left(_COLUMNS) + 0.05, 0.08, height)
        self.top += rows * _PITCH
        bar = self.figure.colorbar(self.last_gradient, cax=axes, extend="both")
        bar.set_ticks([-limit, 0, limit], labels=[f"−{limit:.2g}", "0", f"{limit:.2g}"])
        bar.ax.tick_params(labelsize=_POINTS, length=2, pad=1.5)
        bar.outline.set_linewidth(0.4)

    def picture(
        self, left: float, values: Tensor, colours: str, least: float, most: float
    ) -> AxesImage:
        """Draw one square picture."""
        axes = self.axes(left, _PICTURE, _PICTURE)
        side = math.isqrt(values.numel())
        image = axes.imshow(
            values.detach().cpu().reshape(side, -1).numpy(),
            cmap=colours,
            vmin=least,
            vmax=most,
            interpolation="nearest",
        )
        axes.set(xticks=[], yticks=[])
        for spine in axes.spines.values():
            spine.set(linewidth=0.4, color="0.6")
        return image

    def axes(self, left: float, width: float, height: float) -> Axes:
        """Return axes whose upper edge is where the sheet is filled to."""
        bottom = self.height - self.top - height
        box = (left / _WIDTH, bottom / self.height)
        return self.figure.add_axes((*box, width / _WIDTH, height / self.height))

    def text(self, left: float, down: float, text: str, **style: Any) -> None:
        """Write at ``left``, ``down`` below where the sheet is filled to."""
        style = {"size": _POINTS, "va": "top", **style}
        y = 1 - (self.top + down) / self.height
        self.figure.text(left / _WIDTH, y, text, **style)


def _left(column: int) -> float:
    return _LEFT + column * _PITCH


def _one_per_class(labels: Tensor) -> Tensor:
    classes = labels.unique()[:_COLUMNS]
    first = [int((labels == label).nonzero()[0]) for label in classes]
    return torch.tensor(first, device=labels.device)


def _limit(*gradients: Tensor) -> float:
    # A few extreme pixels must not turn all others white; 0 has no scale.
    values = torch.cat([g.detach().flatten().cpu().double().abs() for g in gradients])
    return float(values.quantile(_PERCENTILE)) or 1.0
