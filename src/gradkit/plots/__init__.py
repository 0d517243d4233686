"""Figures. They need matplotlib, which is imported when one is drawn.

No global state of matplotlib is used: a figure is a value, with ``savefig``. Every
figure is at most 7.2 inches wide, for two columns of a paper, and is to be printed
at that size. Names that are drawn are plain text, not mathematics.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradkit._offered import offering
from gradkit.plots._cascade import randomization_cascade
from gradkit.plots._curves import curves
from gradkit.plots._digits import digit_gradients
from gradkit.plots._grid import saliency_grid
from gradkit.plots._jacobian import jacobian_rows
from gradkit.plots._ranked import ranked_samples
from gradkit.plots._sheet import require_matplotlib as require_matplotlib

__all__ = [
    "curves",
    "digit_gradients",
    "jacobian_rows",
    "randomization_cascade",
    "ranked_samples",
    "saliency_grid",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = offering(globals())
