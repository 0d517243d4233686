"""What all reducers here share: checks, empty batches, and states that are counted."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Size, Tensor

from gradkit._call._request import naming
from gradkit.errors import InputError
from gradkit.objectives._scores import describe
from gradkit.streaming.reducers._reducer import Place, Reducer

__all__ = [
    "Folding",
    "Row",
    "State",
    "flat",
    "plain",
    "read_tensor",
    "refuse_complex",
    "wide",
]

State = dict[str, Any]
#: A sample's own axes, or those of each parameter.
Row = list[int] | dict[str, list[int]]


class Folding(Reducer):
    """A reducer whose batches have states of their own, which are merged.

    A state holds ``count``, the samples seen, and with one also ``row`` and what the
    subclass makes of rows. Nothing is written in place: a state that somebody keeps
    stays true.
    """

    def start(self) -> State:
        return {"count": 0}

    def add(self, state: State, rows: Tensor, place: Place) -> State:
        with plain(self):
            rows = read_tensor(rows)
            # No rows say nothing, not even by their shape: an empty list's is (0,).
            if not len(rows):
                return state
            row = list(rows.shape[1:])
            self._check(state, row, f"batch {place.batch}")
            batch = {"count": len(rows), "row": row, **self._of(rows, place)}
            return self._joined(state, batch)

    def merge(self, state: State, other: State) -> State:
        with plain(self):
            if other["count"]:
                self._check(state, other["row"], "the state to merge")
            return self._joined(state, other)

    def result(self, state: State) -> Any:
        with plain(self):
            if not state["count"]:
                raise InputError(
                    "there must be rows to reduce; got no rows, whose shape is unknown."
                    " Check that the data has samples"
                )
            return self._finished(state)

    # -- what a subclass knows ----------------------------------------------------

    @abstractmethod
    def _of(self, rows: Tensor, place: Place) -> State:
        """Return what is kept of one or more rows, on memory of its own."""

    @abstractmethod
    def _merged(self, state: State, other: State) -> State:
        """Return what is kept of two sets of samples, neither of them empty."""

    @abstractmethod
    def _finished(self, state: State) -> Any:
        """Return the value of one or more samples, on memory of its own."""

    # -- what follows from it -----------------------------------------------------

    def _joined(self, state: State, other: State) -> State:
        if not other["count"]:
            return state
        if not state["count"]:
            return other
        count = state["count"] + other["count"]
        return {"count": count, "row": state["row"], **self._merged(state, other)}

    def _check(self, state: State, row: Row, where: str) -> None:
        """Refuse rows of a shape that earlier ones have not."""
        if not state["count"] or state["row"] == row:
            return
        before, now = _told(state["row"], row), _told(row, state["row"])
        raise InputError(
            "rows must have one shape in all batches, but for the number of samples;"
            f" got {now} in {where} beside {before} earlier. Reduce rows of different"
            " shapes apart",
            argument="rows",
        )


@contextmanager
def plain(reducer: Reducer) -> Iterator[None]:
    """Compute what any later computation may use, with the reducer's name in errors."""
    # A tensor made in inference mode could not be used where gradients are recorded.
    with naming(type(reducer).__name__), torch.inference_mode(False):
        yield


def read_tensor(rows: Any) -> Tensor:
    """Return rows that are a tensor with the samples first, or refuse them."""
    if not isinstance(rows, Tensor) or not rows.dim():
        raise InputError(
            f"rows must be a tensor with the samples first; got {describe(rows)}",
            argument="rows",
        )
    return rows.detach()


def _told(row: Row, other: Row) -> str:
    """Name a row's shape, of parameters those that the other has not alike."""
    if not isinstance(row, dict):
        return f"rows of shape {tuple(row)}"
    if not isinstance(other, dict):
        return "a ParameterJacobian"
    parts = [f"{n!r} {tuple(s)}" for n, s in row.items() if other.get(n) != s]
    return f"parameters {', '.join(parts)}" if parts else "no other parameters"


def wide(rows: Tensor) -> Tensor:
    """Return rows in float64 or complex128: themselves, if they are."""
    return rows.to(torch.complex128 if rows.is_complex() else torch.float64)


def flat(rows: Tensor) -> Tensor:
    """Return rows as ``(n, D)``; ``reshape(n, -1)`` fails where there is no entry."""
    return rows.reshape(len(rows), Size(rows.shape[1:]).numel())


def refuse_complex(rows: Tensor, what: str) -> None:
    """Refuse complex rows where ``what`` is asked for, which needs an order."""
    if rows.is_complex():
        raise InputError(
            f"rows must be real to be {what}; got {describe(rows)}. Use rows.abs(), or"
            " rows.real and rows.imag apart",
            argument="rows",
        )
