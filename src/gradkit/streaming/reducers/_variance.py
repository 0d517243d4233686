"""The variance over samples, without cancellation."""

# Arguments are checked whatever their declared types say.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from gradkit._call._request import naming
from gradkit._parameter_jacobian._mapping import ParameterJacobian
from gradkit.errors import InputError
from gradkit.streaming.reducers._folding import wide
from gradkit.streaming.reducers._moments import Moment, Parts, square
from gradkit.streaming.reducers._parameters import fold

__all__ = ["Variance"]


@dataclass(frozen=True)
class Variance(Moment):
    """The variance of all rows, entry by entry.

    Args:
        correction: What is taken from ``N`` in the denominator: 1 for the unbiased
            estimate, 0 for the mean of squared distances from the mean.

    Returns:
        ``(*row)`` in float64; of complex rows that of ``|x - mean|²``. Of a
        ``ParameterJacobian`` ``{name: (*p)}``.

    Raises:
        InputError: There are no rows, no more than ``correction``, or of different
            shapes; or ``correction`` is negative.

    Cost:
        Keeps two rows, and works on two copies of a batch in float64. The rows of a
        ``ParameterJacobian`` are formed, some samples' at a time: its sums of squares
        would cancel where the mean is large.

    Example:
        >>> import torch
        >>> from gradkit.streaming.reducers import Place, Variance
        >>> variance = Variance()
        >>> rows = torch.tensor([[1.0, 2.0], [3.0, 6.0]]) + 1e6
        >>> variance.result(variance.add(variance.start(), rows, Place(0, first=0)))
        tensor([2., 8.], dtype=torch.float64)

    Source:
        Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for
        computing sample variances" (1979), equations (2.1); within a batch the
        corrected two-pass algorithm of Chan, Golub and LeVeque, "Algorithms for
        computing the sample variance" (1983), equation (1.7).
    """

    correction: float = 1

    def __post_init__(self) -> None:
        given = self.correction
        number = isinstance(given, (int, float)) and not isinstance(given, bool)
        if not number or not 0 <= given < math.inf:
            with naming("Variance"):
                raise InputError(
                    f"correction must be a number of at least 0; got {given!r}",
                    argument="correction",
                )

    def _parts(self, rows: Tensor) -> Parts:
        rows = wide(rows)
        mean = rows.mean(0)
        distances = rows - mean
        # What rounding left in the mean.
        shift = distances.mean(0)
        squares = square(distances).sum(0) - square(shift) * len(rows)
        return {"mean": mean + shift, "squares": squares.clamp(min=0)}

    def _of_parameters(self, rows: ParameterJacobian) -> dict[str, Parts]:
        found: dict[str, Parts] = {}
        counts: dict[str, int] = dict.fromkeys(rows, 0)

        def step(name: str, piece: Tensor) -> None:
            parts, count = self._parts(piece), counts[name]
            if count:
                parts = self._both(found[name], parts, (count, len(piece)))
            found[name], counts[name] = parts, count + len(piece)

        fold(rows, step)
        return found

    def _both(self, mine: Parts, theirs: Parts, counts: tuple[int, int]) -> Parts:
        ours, others = counts
        share = others / (ours + others)
        apart = theirs["mean"] - mine["mean"]
        return {
            "mean": mine["mean"] + apart * share,
            "squares": mine["squares"]
            + theirs["squares"]
            + square(apart) * (ours * share),
        }

    def _value(self, parts: Parts, count: int) -> Tensor:
        if count <= self.correction:
            raise InputError(
                f"there must be more samples than correction={self.correction}; got"
                f" {count}. Pass correction=0 for the mean of squared distances",
                argument="correction",
            )
        return parts["squares"] / (count - self.correction)
