"""Several reducers at once, each on every field of what ``compute`` returns."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from gradkit.errors import InputError
from gradkit.streaming.reducers._reducer import ALONE, Place, Reducer

__all__ = ["ALONE", "PARAMETERS", "Fold"]

#: The field of rows that were not formed; ``ALONE`` is that of rows without a name.
PARAMETERS = "\0"


@dataclass(frozen=True)
class Fold:
    """Several reducers, each on every field of what ``compute`` returns.

    A state is ``{reducer: {field: state}}``.
    """

    reducers: dict[str, Reducer]

    def start(self) -> dict[str, Any]:
        return {name: {} for name in self.reducers}

    def add(self, state: dict[str, Any], rows: dict[str, Any], place: Place) -> None:
        for name, reducer in self.reducers.items():
            mine = state[name]
            if mine and mine.keys() != rows.keys():
                raise InputError(
                    "compute must return the same names for every batch; got"
                    f" {_shown(rows)} at batch {place.batch}, and {_shown(mine)}"
                    " before",
                    argument="compute",
                )
            for field, value in rows.items():
                held = mine[field] if field in mine else reducer.start()
                add = reducer.add_parameters if field == PARAMETERS else reducer.add
                mine[field] = add(held, value, place)

    def merge(self, state: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
        found = {}
        for name, reducer in self.reducers.items():
            mine, theirs = state[name], other[name]
            found[name] = {
                field: reducer.merge(
                    mine.get(field, reducer.start()), theirs.get(field, reducer.start())
                )
                for field in {**mine, **theirs}
            }
        return found

    def result(self, state: dict[str, Any]) -> Any:
        results = {}
        for name, reducer in self.reducers.items():
            found = {field: reducer.result(s) for field, s in state[name].items()}
            lone = list(found) in ([ALONE], [PARAMETERS])
            results[name] = next(iter(found.values())) if lone else found
        return results[ALONE] if list(results) == [ALONE] else results


def _shown(names: Iterable[str]) -> str:
    lone = {ALONE: "a tensor", PARAMETERS: "a ParameterJacobian"}
    return ", ".join(lone.get(name, name) for name in names)
