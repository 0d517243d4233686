"""What a method hands over: some rows of some samples, flat."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

__all__ = ["Block"]


class Block(NamedTuple):
    """Rows ``rows`` of samples ``samples``.

    ``values`` has one ``(samples, rows, size)`` tensor per input, submodule output
    or parameter that is differentiated with respect to; ``size`` is the number of
    entries of one sample's input, or of the parameter.
    """

    samples: slice
    rows: slice
    values: tuple[Tensor, ...]

    def covers(self, samples: int, rows: int) -> bool:
        """Whether this block is everything."""
        return (self.samples, self.rows) == (slice(0, samples), slice(0, rows))
