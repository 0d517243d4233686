"""How work is cut to fit the memory budget."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from gradkit._guards._memory import Known
from gradkit._memory_use import TensorBytes, format_bytes, ran_out
from gradkit._methods._task import Values
from gradkit.errors import InputError

__all__ = ["Planner", "Probe", "watched"]

Item = TypeVar("Item")
Run = Callable[[slice, slice], Values]


class Planner:
    """Cuts a rectangle of work into tiles that fit ``budget`` bytes.

    The bytes of one unit are measured once on the smallest tile, and remembered in
    ``known``. A measured tile is computed again with the rest, so that the first
    call and later ones cut alike and agree to the last bit.
    """

    def __init__(self, budget: int, known: Known, *, strict: bool = False) -> None:
        self.budget, self.known, self.strict = budget, known, strict
        #: Whether what is remembered of the model is to be proved anew.
        self.renew = False

    def units(self, name: str, run: Run) -> int:
        """Return how many units of ``name`` fit at once; at least one."""
        size = self.known.bytes_per_unit.get(name)
        if size is None:
            with TensorBytes() as count:
                run(slice(0, 1), slice(0, 1))
            size = max(count.peak, 1)
            self.known.bytes_per_unit[name] = size
        if self.strict and size > self.budget:
            raise InputError(
                f"max_memory must hold one row at least; got {self.budget:,} bytes,"
                f" and method {name!r} needs {size:,} for one"
                f" ({format_bytes(size)}); raise max_memory, or choose another method",
                argument="max_memory",
                needed=size,
            )
        return max(self.budget // size, 1)

    def tiles(
        self, name: str, first: int, second: int, run: Run
    ) -> Iterator[tuple[slice, slice, Values]]:
        """Yield ``(first, second, run(first, second))`` over the whole rectangle.

        The second axis is cut only where one unit of the first does not fit.
        Running out of memory halves the tile and goes on.
        """
        if not first * second:
            return
        tall, wide, count = _cut(self.units(name, run), first, second)
        bar = _bar(name, count)
        row = 0
        while row < first:
            rows, column = slice(row, min(row + tall, first)), 0
            while column < second:
                columns = slice(column, min(column + wide, second))
                try:
                    values = run(rows, columns)
                except Exception as error:
                    if not ran_out(error) or (tall, wide) == (1, 1):
                        raise
                    if tall > 1 and column == 0:
                        tall = max(tall // 2, 1)
                        rows = slice(row, min(row + tall, first))
                    else:
                        wide = max(wide // 2, 1)
                    continue
                yield rows, columns, values
                del values
                column = columns.stop
                bar.update()
            row = rows.stop
        bar.close()

    def watched(self, name: str, count: int) -> Iterator[int]:
        """Yield ``range(count)``, with a progress bar if it takes long."""
        return watched(name, range(count))


def _cut(units: int, first: int, second: int) -> tuple[int, int, int]:
    """Return how tall and wide a tile of ``units`` is, and how many there are."""
    tall = min(max(units // max(second, 1), 1), max(first, 1))
    wide = min(units, max(second, 1))
    return tall, wide, -(-first // tall) * -(-second // wide)


class Probe:
    """Stands in for a planner: counts the passes, and runs one unit of them."""

    def __init__(self, planner: Planner) -> None:
        self._planner = planner
        self.budget, self.known, self.renew = (
            planner.budget, planner.known, planner.renew,
        )  # fmt: skip
        self.passes = 0

    def tiles(
        self, name: str, first: int, second: int, run: Run
    ) -> Iterator[tuple[slice, slice, Values]]:
        """Measure one unit, count the tiles, and yield none."""
        if first * second:
            units = self._planner.units(name, run)
            self.passes += _cut(units, first, second)[2]
        return iter(())

    def watched(self, name: str, count: int) -> Iterator[int]:
        """Count the steps, and yield none."""
        self.passes += count
        return iter(())


def watched(name: str, items: Sequence[Item]) -> Iterator[Item]:
    """Yield the items, with a progress bar if it takes long."""
    bar = _bar(name, len(items))
    for item in items:
        yield item
        bar.update()
    bar.close()


class _NoBar:
    def update(self) -> None: ...

    def close(self) -> None: ...


def _bar(name: str, count: int) -> Any:
    """Return a bar that shows itself after two seconds, on a terminal alone."""
    if count < 2:
        return _NoBar()
    from tqdm import tqdm

    return tqdm(
        total=count, desc=f"gradkit: {name}", delay=2, disable=None, leave=False
    )
