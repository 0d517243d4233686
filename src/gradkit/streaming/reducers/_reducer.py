"""What a reducer is: how rows that come batch by batch become one value."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

from torch import Tensor

from gradkit._parameter_jacobian._mapping import ParameterJacobian
from gradkit.errors import InputError

__all__ = ["ALONE", "Place", "Reducer", "read_reducers"]

#: The name of the one reducer that was given by itself.
ALONE = ""


class Place(NamedTuple):
    """Where a batch stands in the data.

    Attributes:
        batch: Its number, from 0.
        first: The index of its first sample.

    Example:
        >>> from gradkit.streaming.reducers import Place
        >>> Place(batch=3, first=96)
        Place(batch=3, first=96)
    """

    batch: int
    first: int


class Reducer(ABC):
    """A way to fold rows that come batch by batch into one value.

    A reducer holds settings only. What it has seen is a state beside it: a plain
    ``dict`` of tensors, numbers, strings, lists and such dicts, so that one reducer
    serves many passes, states of several processes can be merged, and
    ``torch.load(..., weights_only=True)`` reads one back.

    The law of every reducer: however the samples are cut into batches, in whatever
    order their states are merged, the result is the same, to rounding.

    Example:
        >>> import torch
        >>> from dataclasses import dataclass
        >>> from gradkit.streaming.reducers import Place, Reducer
        >>> @dataclass(frozen=True)
        ... class Largest(Reducer):
        ...     def start(self):
        ...         return {"largest": float("-inf")}
        ...
        ...     def add(self, state, rows, place):
        ...         return self.merge(state, {"largest": rows.max().item()})
        ...
        ...     def merge(self, state, other):
        ...         return {"largest": max(state["largest"], other["largest"])}
        ...
        ...     def result(self, state):
        ...         return state["largest"]
        >>> largest = Largest()
        >>> state = largest.add(largest.start(), torch.tensor([3.0, 5.0]), Place(0, 0))
        >>> largest.result(largest.add(state, torch.tensor([4.0]), Place(1, 2)))
        5.0
    """

    @abstractmethod
    def start(self) -> dict[str, Any]:
        """Return the state before any row.

        Returns:
            A plain ``dict``, fresh at each call.
        """

    @abstractmethod
    def add(self, state: dict[str, Any], rows: Tensor, place: Place) -> dict[str, Any]:
        """Return the state with a batch's rows in it.

        Args:
            state: The reducer's own; its tensors may be used again.
            rows: ``(n, *row)``, ``n`` may be 0. Read, never kept.
            place: Where the batch stands.

        Returns:
            The state of all of them.

        Raises:
            InputError: ``rows`` are not what the reducer takes, or of another shape
                than earlier ones.

        Cost:
            Of gradkit's reducers one pass over the rows, in float64 for what is
            summed; ``OuterProduct`` takes ``n D²`` operations, ``TopK`` sorts.
        """

    @abstractmethod
    def merge(self, state: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
        """Return the state of two disjoint sets of samples, either maybe empty.

        Args:
            state: Of the one set.
            other: Of the other.

        Returns:
            The state of both; where one holds no sample, the other itself.

        Raises:
            InputError: The rows of the two have different shapes.

        Cost:
            Of gradkit's reducers at most one pass over both states; ``TopK`` sorts.
        """

    @abstractmethod
    def result(self, state: dict[str, Any]) -> Any:
        """Return the value of all samples in a state.

        Args:
            state: The reducer's own.

        Returns:
            As the reducer says, such as ``(*row)`` of ``Mean``; on memory of its own.

        Raises:
            InputError: The state holds too few samples for a value.

        Cost:
            Of gradkit's reducers one pass over the state; ``Gram`` takes ``N² D``
            operations, ``NoiseScale`` ``groups² P``.
        """

    def add_parameters(
        self, state: dict[str, Any], rows: ParameterJacobian, place: Place
    ) -> dict[str, Any]:
        """Return the state with a batch's rows in it, which need not be formed.

        Args:
            state: The reducer's own; its tensors may be used again.
            rows: One row per sample, ``{name: (n, *p)}``.
            place: Where the batch stands.

        Returns:
            The state of all of them.

        Raises:
            InputError: This reducer takes tensors alone, or ``rows`` has several rows
                per sample.

        Cost:
            That of the rows' ``sum()``, ``second_moment()`` or ``norms()``, whatever
            the reducer needs; ``Variance`` forms the rows, some samples' at a time.
        """
        takers = _takers()
        error = InputError(
            f"rows must be a tensor; got a ParameterJacobian, which {', '.join(takers)}"
            " take. Use rows.flat(), or rows.project(size, seed=0), which gives a"
            " tensor too",
            argument="rows",
            reducers=takers,
        )
        error.function = type(self).__name__
        raise error


def read_reducers(reducer: Any) -> dict[str, Reducer]:
    """Return reducers by name, of one under the name ``ALONE``; or refuse others."""
    several = isinstance(reducer, Mapping)
    given = cast(Mapping[Any, Any], reducer) if several else {ALONE: reducer}
    found = {str(name): value for name, value in given.items()}
    wrong = next((v for v in found.values() if not isinstance(v, Reducer)), None)
    if wrong is not None or not found:
        came = "none" if not found else type(wrong).__name__
        if isinstance(wrong, type):
            came = f"the class {wrong.__name__}, which is called to make one"
        raise InputError(
            "reducer must be one of gk.reducers, such as gk.reducers.Mean(), or a"
            f" mapping from names to some; got {came}",
            argument="reducer",
        )
    return found


def _takers() -> list[str]:
    """Return the names of the reducers that take a ``ParameterJacobian``."""
    # The public module imports this one.
    from gradkit.streaming import reducers

    found = {name: getattr(reducers, name) for name in reducers.__all__}
    return [
        name
        for name, kind in found.items()
        if issubclass(kind, Reducer)
        and kind.add_parameters is not Reducer.add_parameters
    ]
