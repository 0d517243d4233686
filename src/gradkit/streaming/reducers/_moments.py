"""Sums over samples: of the rows, and of their squares."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gradkit._parameter_jacobian._mapping import ParameterJacobian
from gradkit.errors import InputError
from gradkit.streaming.reducers._folding import Folding, State, plain, wide
from gradkit.streaming.reducers._parameters import count_rows, shapes, squares, sums
from gradkit.streaming.reducers._reducer import Place

__all__ = ["Mean", "Moment", "Parts", "SecondMoment", "Sum", "square"]

#: What is known of the rows of one tensor, or of one parameter: ``(*row)`` each.
Parts = dict[str, Tensor]

#: The name under which the parts of rows that are a tensor stand.
_ALONE = ""


class Moment(Folding):
    """Adds up over samples, entry by entry, rows of a tensor or of parameters."""

    def add_parameters(
        self, state: State, rows: ParameterJacobian, place: Place
    ) -> State:
        with plain(self):
            count, row = count_rows(rows), shapes(rows)
            if not count:
                return state
            self._check(state, row, f"batch {place.batch}")
            parts = self._of_parameters(rows)
            return self._joined(state, {"count": count, "row": row, "parts": parts})

    @abstractmethod
    def _parts(self, rows: Tensor) -> Parts:
        """Return what is known of one or more rows."""

    @abstractmethod
    def _of_parameters(self, rows: ParameterJacobian) -> dict[str, Parts]:
        """Return the same of each parameter's rows."""

    def _both(self, mine: Parts, theirs: Parts, counts: tuple[int, int]) -> Parts:
        """Return what is known of two sets of samples, on one device."""
        return {name: mine[name] + theirs[name] for name in mine}

    @abstractmethod
    def _value(self, parts: Parts, count: int) -> Tensor:
        """Return the result, on memory of its own."""

    def _of(self, rows: Tensor, place: Place) -> State:
        return {"parts": {_ALONE: self._parts(rows)}}

    def _merged(self, state: State, other: State) -> State:
        counts = state["count"], other["count"]
        parts = {}
        for name, mine in state["parts"].items():
            # A state may come from another process's device, or a checkpoint.
            device = next(iter(mine.values())).device
            theirs = {n: t.to(device) for n, t in other["parts"][name].items()}
            parts[name] = self._both(mine, theirs, counts)
        return {"parts": parts}

    def _finished(self, state: State) -> Any:
        count = state["count"]
        found = {n: self._value(p, count) for n, p in state["parts"].items()}
        return found if isinstance(state["row"], dict) else found[_ALONE]


@dataclass(frozen=True)
class Sum(Moment):
    """The sum of all rows.

    Returns:
        ``(*row)``: float64, or complex128 of complex rows. Of whole numbers and
        booleans int64, and exact. Of a ``ParameterJacobian`` ``{name: (*p)}``.

    Raises:
        InputError: There are no rows, rows have different shapes, or a sum of whole
            numbers does not fit in int64.

    Cost:
        Keeps one row. A ``ParameterJacobian`` is summed without forming its rows, a
        batch in the precision of ``rows.sum()``, batches in float64.

    Example:
        >>> import torch
        >>> from gradkit.streaming.reducers import Place, Sum
        >>> rows = torch.tensor([[1.0, 2.0], [3.0, 6.0]])
        >>> total = Sum()
        >>> state = total.add(total.start(), rows, Place(batch=0, first=0))
        >>> total.result(total.add(state, rows, Place(batch=1, first=2)))
        tensor([ 8., 16.], dtype=torch.float64)
    """

    def _parts(self, rows: Tensor) -> Parts:
        total = wide(rows).sum(0)
        if rows.is_floating_point() or rows.is_complex():
            return {"total": total}
        # The second tells of a sum that has left the range of the first.
        return {"whole": rows.to(torch.int64).sum(0), "total": total}

    def _of_parameters(self, rows: ParameterJacobian) -> dict[str, Parts]:
        return {name: {"total": total} for name, total in sums(rows).items()}

    def _both(self, mine: Parts, theirs: Parts, counts: tuple[int, int]) -> Parts:
        # Whole numbers that meet others are whole no more.
        names = [name for name in mine if name in theirs]
        return {name: mine[name] + theirs[name] for name in names}

    def _value(self, parts: Parts, count: int) -> Tensor:
        if "whole" not in parts:
            return parts["total"].clone()
        whole = parts["whole"]
        # Additions of int64 wrap around, by a multiple of 2^64; a sum that comes back
        # into the range is right again.
        if ((whole - parts["total"]).abs() >= 2.0**63).any():
            raise InputError(
                "sums of whole numbers must fit in int64; got about"
                f" {parts['total'].abs().max().item():.4g}. Pass rows.double()",
                argument="rows",
            )
        return whole.clone()


@dataclass(frozen=True)
class Mean(Moment):
    """The mean of all rows.

    Returns:
        ``(*row)``: float64, or complex128 of complex rows. Of a ``ParameterJacobian``
        ``{name: (*p)}``.

    Raises:
        InputError: There are no rows, or rows have different shapes.

    Cost:
        As ``Sum``.

    Example:
        >>> import torch
        >>> from gradkit.streaming.reducers import Mean, Place
        >>> mean = Mean()
        >>> rows = torch.tensor([[1.0, 2.0], [3.0, 6.0]])
        >>> mean.result(mean.add(mean.start(), rows, Place(batch=0, first=0)))
        tensor([2., 4.], dtype=torch.float64)
    """

    def _parts(self, rows: Tensor) -> Parts:
        return {"total": wide(rows).sum(0)}

    def _of_parameters(self, rows: ParameterJacobian) -> dict[str, Parts]:
        return {name: {"total": total} for name, total in sums(rows).items()}

    def _value(self, parts: Parts, count: int) -> Tensor:
        return parts["total"] / count


@dataclass(frozen=True)
class SecondMoment(Moment):
    """The mean of all rows' squares, entry by entry.

    Of per-sample gradients of the log likelihood this is the diagonal of the empirical
    Fisher matrix.

    Returns:
        ``(*row)`` in float64; of complex rows the mean of ``|x|²``. Of a
        ``ParameterJacobian`` ``{name: (*p)}``.

    Raises:
        InputError: There are no rows, or rows have different shapes.

    Cost:
        Keeps one row. Of a ``ParameterJacobian`` rows are formed only where
        ``rows.second_moment()`` forms them; a batch is in its precision.

    Example:
        >>> import torch
        >>> from gradkit.streaming.reducers import Place, SecondMoment
        >>> moment = SecondMoment()
        >>> rows = torch.tensor([[1.0, 2.0], [3.0, 6.0]])
        >>> moment.result(moment.add(moment.start(), rows, Place(batch=0, first=0)))
        tensor([ 5., 20.], dtype=torch.float64)
    """

    def _parts(self, rows: Tensor) -> Parts:
        return {"total": square(wide(rows)).sum(0)}

    def _of_parameters(self, rows: ParameterJacobian) -> dict[str, Parts]:
        return {name: {"total": total} for name, total in squares(rows).items()}

    def _value(self, parts: Parts, count: int) -> Tensor:
        return parts["total"] / count


def square(x: Tensor) -> Tensor:
    """Return ``|x|²``, real."""
    return x.real.square() + x.imag.square() if x.is_complex() else x.square()
