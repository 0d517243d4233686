"""Checks for other people's unit tests: each raises, and says where."""

from typing import TYPE_CHECKING

from gradkit._offered import offering
from gradkit.testing._check import check_gradients
from gradkit.testing._close import assert_gradients_close
from gradkit.testing._no_trace import assert_no_trace
from gradkit.testing._report import GradientReport

__all__ = [
    "GradientReport",
    "assert_gradients_close",
    "assert_no_trace",
    "check_gradients",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = offering(globals())
