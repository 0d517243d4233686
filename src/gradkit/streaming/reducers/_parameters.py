"""What reducers ask of a ``ParameterJacobian``, without all its rows at once."""

# Arguments are checked whatever their declared types say.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gradkit._parameter_jacobian._mapping import ParameterJacobian
from gradkit._parameter_jacobian._plainly import plainly
from gradkit.errors import InputError

__all__ = ["count_rows", "fold", "shapes", "squares", "sums"]

#: Rows that are widened at a time.
_PIECE_BYTES = 2**25


def count_rows(rows: ParameterJacobian) -> int:
    """Return the number of samples, each of which must have one row.

    Raises:
        InputError: Samples have several rows, or these are no such rows.
    """
    if not isinstance(rows, ParameterJacobian):
        raise InputError(
            f"rows must be a ParameterJacobian; got {type(rows).__name__}. A tensor's"
            " rows go into add()",
            argument="rows",
        )
    lead = rows._lead
    if len(lead) != 1:
        raise InputError(
            "rows must be one per sample, (N,); got a ParameterJacobian with rows"
            f" {lead}, of every output. Use per_sample_gradients with an objective, or"
            " of= for one output",
            argument="rows",
        )
    return lead[0]


def shapes(rows: ParameterJacobian) -> dict[str, list[int]]:
    """Return the shape of each parameter."""
    return {column.name: list(column.shape) for column in rows._columns}


@plainly
def sums(rows: ParameterJacobian) -> dict[str, Tensor]:
    """Return the sum of rows, ``{name: (*p)}`` in float64."""
    # What rows.sum() gives, before it is rounded to the parameters' dtype.
    return _widened(rows, rows._weighted(rows._ones))


@plainly
def squares(rows: ParameterJacobian) -> dict[str, Tensor]:
    """Return the sum of squares of rows, ``{name: (*p)}`` in float64."""
    return _widened(rows, rows._each(lambda entry: entry.sum_of_squares()))


def _widened(rows: ParameterJacobian, found: dict[str, Tensor]) -> dict[str, Tensor]:
    return {
        c.name: found[c.name].reshape(c.shape).to(torch.float64) for c in rows._columns
    }


@plainly
def fold(rows: ParameterJacobian, step: Callable[[str, Tensor], None]) -> None:
    """Call ``step(name, (n, *p))`` on some samples' rows at a time, formed for it."""

    def pieces(samples: slice, name: str, block: Tensor) -> None:
        shape = rows._columns.by_name[name].shape
        count = max(_PIECE_BYTES // max(shape.numel() * 8, 1), 1)
        for piece in block.split(count):
            step(name, piece.reshape(len(piece), *shape))

    for entry in rows._entries:
        entry.fold(pieces)
