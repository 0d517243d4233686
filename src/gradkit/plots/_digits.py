"""Digits, their signed saliency, and the rows of their Jacobians."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gradkit.errors import InputError
from gradkit.plots._pictures import PERCENTILE, dense
from gradkit.plots._sheet import (
    INK,
    SIGNED,
    TITLE_POINTS,
    WIDTH,
    WRONG,
    Sheet,
    drawing,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

__all__ = ["digit_gradients"]

# Inches.
_LEFT = 0.8
_PITCH = 0.58
_PICTURE = 0.55
_TITLE = 0.25
_CAPTION = 0.16
_GAP = 0.2

_COLUMNS = 10
_JACOBIANS = 3


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
        InputError: matplotlib is not installed; or something is no tensor, has
            another number of samples or pixels, or no square pictures.

    Cost:
        A picture for each digit, gradient and row drawn; no model is run.

    Example:
        >>> import torch
        >>> from gradkit import plots
        >>> images = torch.rand(4, 9)
        >>> layer = torch.nn.Linear(9, 5)
        >>> figure = plots.digit_gradients(
        ...     images,
        ...     torch.tensor([0, 1, 2, 1]),
        ...     torch.tensor([0, 1, 2, 2]),
        ...     score_gradients=layer.weight[[0, 1, 2, 1]],
        ...     loss_gradients=torch.rand(4, 9) - 0.5,
        ...     norms=torch.tensor([1.0, 2.0, 3.0, 4.0]),
        ...     jacobian=layer.weight.expand(4, 5, 9),
        ... )
        >>> [text.get_text() for text in figure.texts if "→" in text.get_text()]
        ['1 → 2', '2 → 2', '1 → 1', '0 → 0', 'true → guess']
        >>> figure.savefig("digits.pdf")  # doctest: +SKIP
    """
    with drawing("plots.digit_gradients"):
        _check(
            {
                "images": images,
                "labels": labels,
                "predictions": predictions,
                "score_gradients": score_gradients,
                "loss_gradients": loss_gradients,
                "norms": norms,
                "jacobian": jacobian,
            }
        )
    shown = _one_per_class(labels)
    hardest = norms.argsort(descending=True)[:_COLUMNS]
    # The hardest digit beside ordinary ones, on one scale.
    worst = int(hardest[0])
    detailed = [worst, *(n for n in shown.tolist() if n != worst)][:_JACOBIANS]
    score_scale = _limit(score_gradients[shown], jacobian[detailed])
    loss_scale = _limit(loss_gradients[hardest])

    sheet = _Digits(rows=4 + len(detailed), captions=4, parts=3)
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
        [WRONG if t != p else "black" for t, p in zip(true, predicted, strict=True)],
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


def _check(given: Mapping[str, Any]) -> None:
    shapes = {name: tuple(dense(value, name).shape) for name, value in given.items()}
    count, *pixels = shapes["images"] or (0,)
    side = math.isqrt(pixels[0]) if len(pixels) == 1 else 0
    if not count or not side or side**2 != pixels[0]:
        raise InputError(
            "images must be (N, D), with D a square number and N at least 1; got"
            f" {shapes['images']}",
            argument="images",
        )
    rows = shapes["jacobian"][1:2] if len(shapes["jacobian"]) == 3 else ()
    expected = {
        **dict.fromkeys(("labels", "predictions", "norms"), (count,)),
        **dict.fromkeys(("score_gradients", "loss_gradients"), (count, *pixels)),
        "jacobian": (count, *(rows if rows and rows[0] else ("K",)), *pixels),
    }
    for name, shape in expected.items():
        if shapes[name] != shape:
            told = ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "")
            raise InputError(
                f"{name} must be ({told}) beside images {shapes['images']}; got"
                f" {shapes[name]}",
                argument=name,
            )


class _Digits(Sheet):
    """A sheet that is filled from top to bottom."""

    def __init__(self, rows: int, captions: int, parts: int) -> None:
        lines = parts * (_TITLE + _GAP) + captions * _CAPTION
        super().__init__(WIDTH, rows * _PITCH + lines)
        self.top = 0.0

    def part(self, letter: str, title: str) -> None:
        """Begin a part with its title."""
        self.top += _GAP if self.top else 0
        down = self.top + 0.05
        self.text(0.08, down, f"({letter})", weight="bold", size=TITLE_POINTS)
        self.text(0.32, down, title, size=TITLE_POINTS)
        self.top += _TITLE

    def captions(
        self, captions: Sequence[str], label: str, colours: Sequence[str] = ()
    ) -> None:
        """Write a line over the pictures of the next row."""
        for column, caption in enumerate(captions):
            colour = colours[column] if colours else "black"
            middle = _left(column) + _PICTURE / 2
            self.text(middle, self.top, caption, ha="center", color=colour)
        self.text(_LEFT - 0.1, self.top, label, ha="right")
        self.top += _CAPTION

    def digits(self, images: Tensor) -> None:
        """Draw a row of digits, ink black on white."""
        for column, image in enumerate(images):
            self._square(_left(column), image, INK, 0, float(images.max()))
        self.top += _PITCH

    def gradients(self, gradients: Tensor, limit: float, label: str) -> None:
        """Draw a row of signed pictures on the scale from ``-limit`` to ``limit``."""
        for column, gradient in enumerate(gradients[:_COLUMNS]):
            self.last_gradient = self._square(
                _left(column), gradient, SIGNED, -limit, limit
            )
        middle = self.top + _PICTURE / 2
        self.text(_LEFT - 0.1, middle, label, ha="right", va="center")
        self.top += _PITCH

    def beside(self, image: Tensor) -> None:
        """Draw a digit left of the row that was drawn last."""
        self.top -= _PITCH
        self._square(_left(-1) - 0.06, image, INK, 0, float(image.max()))
        self.top += _PITCH

    def colours(self, limit: float, rows: int) -> None:
        """Draw the scale of the last ``rows`` rows of gradients at their right."""
        self.bar(
            self.last_gradient,
            _left(_COLUMNS) + 0.05,
            self.top - rows * _PITCH,
            rows * _PITCH - (_PITCH - _PICTURE),
            ticks=[f"−{limit:.2g}", "0", f"{limit:.2g}"],
        )

    def _square(
        self, left: float, values: Tensor, colours: str, least: float, most: float
    ) -> AxesImage:
        side = math.isqrt(values.numel())
        picture = values.detach().cpu().reshape(side, -1).numpy()
        return self.picture(
            left, self.top, _PICTURE, picture, cmap=colours, vmin=least, vmax=most
        )


def _left(column: int) -> float:
    return _LEFT + column * _PITCH


def _one_per_class(labels: Tensor) -> Tensor:
    classes = labels.unique()[:_COLUMNS]
    first = [int((labels == label).nonzero()[0]) for label in classes]
    return torch.tensor(first, device=labels.device)


def _limit(*gradients: Tensor) -> float:
    # A few extreme pixels must not turn all others white; 0 has no scale.
    values = torch.cat([g.detach().flatten().cpu().double().abs() for g in gradients])
    return float(values.quantile(PERCENTILE)) or 1.0
