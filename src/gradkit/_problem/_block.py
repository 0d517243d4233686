"""What a method hands over: some rows of some samples, flat."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

__all__ = ["Block"]


class Block(NamedTuple):
    """Some rows of some samples, as a method yields them.

    Attributes:
        samples: Which samples, of the ``N`` of a task.
        rows: Which rows of each of them, of the task's ``R``.
        values: One ``(n, r, size)`` tensor per input, submodule output or parameter
            that is differentiated with respect to; ``size`` is the number of entries
            of one sample's input, or of the parameter.

    Example:
        >>> import torch
        >>> import gradkit as gk
        >>> block = gk.Block(slice(0, 2), slice(1, 4), (torch.zeros(2, 3, 7),))
        >>> block.covers(samples=2, rows=4), block.values[0].shape
        (False, torch.Size([2, 3, 7]))
    """

    samples: slice
    rows: slice
    values: tuple[Tensor, ...]

    def covers(self, samples: int, rows: int) -> bool:
        """Return whether this block is everything.

        Args:
            samples: ``N`` of the task.
            rows: ``R`` of the task.

        Returns:
            Whether it begins at 0 and ends at ``N`` and ``R``.
        """
        return (self.samples, self.rows) == (slice(0, samples), slice(0, rows))
