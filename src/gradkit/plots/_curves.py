"""How scores fall or rise as entries are deleted or inserted."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from torch import Tensor

from gradkit.errors import InputError
from gradkit.plots._panel import Legend, line_style, panel
from gradkit.plots._pictures import dense, numbers
from gradkit.plots._sheet import TITLE_POINTS, Sheet, drawing, number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

__all__ = ["Curve", "curves"]

_ATTRIBUTES = ("kind", "fractions", "values", "area")
_KINDS = {"deletion": "deleted", "insertion": "inserted"}

# Inches.
_SLOT = 3.5
_LEFT = 0.55
_RIGHT = 0.15
_TOP = 0.14
_TITLE = 0.18
_HEIGHT = 1.9
_BELOW = 0.42
_EDGE = 0.05


class Curve(Protocol):
    """What is read of a deletion or insertion curve."""

    @property
    def kind(self) -> str:
        """``"deletion"`` or ``"insertion"``."""
        ...

    @property
    def fractions(self) -> Tensor:
        """``(S+1,)`` shares of the entries, from 0."""
        ...

    @property
    def values(self) -> Tensor:
        """``(N, S+1)`` scores."""
        ...

    @property
    def area(self) -> Tensor:
        """``(N,)`` areas under them."""
        ...


class _Drawn(NamedTuple):
    kind: str
    fractions: np.ndarray
    means: np.ndarray
    errors: np.ndarray
    name: str


@drawing("plots.curves")
def curves(
    curves: Mapping[str, Curve], *, ylabel: str = "score", title: str | None = None
) -> Figure:
    """Draw deletion and insertion curves, the mean over samples of each.

    A band around each line is one standard error of that mean wide on either side;
    one sample has none. The mean area under a curve stands beside its name.

    Args:
        curves: Names and their curves, each with the attributes ``kind``,
            ``"deletion"`` or ``"insertion"``, ``fractions``, ``(S+1,)``,
            ``values``, ``(N, S+1)``, and ``area``, ``(N,)``. Numbers of samples and
            of steps may differ. The two kinds are drawn side by side.
        ylabel: What the values are.
        title: Stands over the figure.

    Returns:
        A figure 3.5 inches wide, for one column of a paper, or 7 for two kinds.

    Raises:
        InputError: matplotlib is not installed, or a curve is not as above, or
            holds NaN or infinity; the text says which.

    Cost:
        One pass over the values; no model is run.

    Example:
        >>> from types import SimpleNamespace
        >>> import torch
        >>> from gradkit import plots
        >>> values = torch.rand(4, 6).sort(1, descending=True).values
        >>> deletion = SimpleNamespace(
        ...     kind="deletion",
        ...     fractions=torch.linspace(0, 1, 6),
        ...     values=values,
        ...     area=values.mean(1),
        ... )
        >>> figure = plots.curves({"gradient": deletion}, ylabel="class score")
        >>> figure.axes[0].get_xlabel(), figure.axes[0].get_ylabel()
        ('share of entries deleted', 'class score')
        >>> figure.savefig("curves.pdf")  # doctest: +SKIP
    """
    drawn = _read(curves)
    kinds = [kind for kind in _KINDS if any(d.kind == kind for d in drawn)]
    chosen = [[d for d in drawn if d.kind == kind] for kind in kinds]
    width = _SLOT - _LEFT - _RIGHT
    legends = [Legend([d.name for d in each], width) for each in chosen]
    top = _TOP + (_TITLE if title else 0)
    below = top + _HEIGHT + _BELOW
    height = below + max(legend.height for legend in legends) + _EDGE
    sheet = Sheet(_SLOT * len(kinds), height)
    if title:
        sheet.text(_LEFT, 0.06, title, size=TITLE_POINTS)
    for place, (kind, each, legend) in enumerate(
        zip(kinds, chosen, legends, strict=True)
    ):
        left = place * _SLOT + _LEFT
        label = f"share of entries {_KINDS[kind]}"
        axes = panel(sheet, left, top, width, _HEIGHT, xlabel=label, ylabel=ylabel)
        legend.draw(sheet, _draw(axes, each), left, below)
    _share_height(sheet.figure.axes)
    return sheet.figure


def _read(curves: Any) -> list[_Drawn]:
    if not isinstance(curves, Mapping) or not curves:
        got = "an empty one" if isinstance(curves, Mapping) else type(curves).__name__
        raise InputError(
            f"curves must be a mapping of names to curves; got {got}; pass"
            " {'gradient': curve}",
            argument="curves",
        )
    return [_read_one(str(name), curve) for name, curve in curves.items()]


def _read_one(name: str, curve: Any) -> _Drawn:
    place = f"curves[{name!r}]"
    lacking = [key for key in _ATTRIBUTES if not hasattr(curve, key)]
    if lacking:
        raise InputError(
            f"{place} must have {', '.join(_ATTRIBUTES)}; got"
            f" {type(curve).__name__} without {', '.join(lacking)}; pass a curve",
            argument="curves",
        )
    if curve.kind not in _KINDS:
        raise InputError(
            f"{place}.kind must be 'deletion' or 'insertion'; got {curve.kind!r};"
            " name one of them",
            argument="curves",
        )
    _check_shapes(place, curve)
    fractions, values, area = (
        numbers(getattr(curve, key), f"{place}.{key}") for key in _ATTRIBUTES[1:]
    )
    samples = len(values)
    errors = values.std(0) / math.sqrt(samples) if samples > 1 else values[0] * 0
    label = f"{name}, area {number(float(area.mean()))}"
    return _Drawn(
        curve.kind, fractions.numpy(), values.mean(0).numpy(), errors.numpy(), label
    )


def _check_shapes(place: str, curve: Any) -> None:
    fractions, values, area = (
        tuple(dense(getattr(curve, key), f"{place}.{key}").shape)
        for key in _ATTRIBUTES[1:]
    )
    if not values[1:] or 0 in values or (area, fractions) != (values[:1], values[1:]):
        raise InputError(
            f"{place} must have fractions (S+1,), values (N, S+1) and area (N,); got"
            f" {fractions}, {values} and {area}; keep the sample axis",
            argument="curves",
        )


def _draw(axes: Axes, drawn: list[_Drawn]) -> list[Line2D]:
    lines = []
    for index, one in enumerate(drawn):
        style = line_style(index, len(one.fractions))
        lines += axes.plot(one.fractions, one.means, **style)
        if one.errors.any():
            least, most = one.means - one.errors, one.means + one.errors
            colour = style["color"]
            axes.fill_between(
                one.fractions, least, most, color=colour, alpha=0.15, linewidth=0
            )
    axes.set_xlim(0, 1)
    return lines


def _share_height(panels: list[Axes]) -> None:
    # Both kinds are of the same scores.
    limits = [axes.get_ylim() for axes in panels]
    for axes in panels:
        axes.set_ylim(min(low for low, _ in limits), max(high for _, high in limits))
