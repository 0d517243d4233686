"""Building blocks that say whether a difference is rounding."""

from typing import TYPE_CHECKING

from gradkit._offered import offering
from gradkit.numerics._bounds import dot_error_bound, gamma, linear_error_bound
from gradkit.numerics._difference import Difference, explain_difference
from gradkit.numerics._promoting import promoting
from gradkit.numerics._ulps import ulp_distance, unit_roundoff

__all__ = [
    "Difference",
    "dot_error_bound",
    "explain_difference",
    "gamma",
    "linear_error_bound",
    "promoting",
    "ulp_distance",
    "unit_roundoff",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = offering(globals())
