"""Where the samples stand in a tensor, and how they are brought to the front."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

__all__ = ["Layout"]


@dataclass(frozen=True)
class Layout:
    """The samples' place: within ``axis``, which holds ``before * N * after``.

    ``Layout(0)`` is batch first, ``Layout(1)`` time first; tokens of ``N`` sequences
    of length ``T`` in one axis are ``Layout(0, after=T)``.
    """

    axis: int
    before: int = 1
    after: int = 1

    @property
    def is_batch_first(self) -> bool:
        """Whether the samples are the first axis and nothing else is in it."""
        return self == Layout(0)

    def fits(self, shape: tuple[int, ...], samples: int) -> bool:
        """Whether a tensor of this shape can have the samples here."""
        size = self.before * samples * self.after
        return len(shape) > self.axis and shape[self.axis] == size

    def front(self, tensor: Tensor, samples: int, lead: int = 0) -> Tensor:
        """Return ``tensor`` with the samples first, after ``lead`` other axes.

        What shares the samples' axis becomes axes of its own, in the place where the
        samples stood: ``(T * N, d)`` becomes ``(N, T, d)``.
        """
        axis = self.axis + lead
        if self.before == self.after == 1:
            return tensor.movedim(axis, lead)
        sizes = [self.before, samples, self.after]
        tensor = tensor.reshape(*tensor.shape[:axis], *sizes, *tensor.shape[axis + 1 :])
        tensor = tensor.movedim(axis + 1, lead)
        # (N, .., before, after, ..): one of the two is 1 in every layout that is found
        start = axis + 1
        return tensor.flatten(start, start + 1)
