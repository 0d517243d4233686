"""The bar of a pass over a data set: rows, rows per second, time left."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gradkit.streaming._ranks import Ranks

__all__ = ["Bar"]


class Bar:
    """A bar on the first process of a run."""

    def __init__(self, ranks: Ranks, *, shown: bool) -> None:
        self._shown = shown and ranks.first
        # A bar shows what this process does; the others do as much beside it.
        self._beside = "" if ranks.count == 1 else f" (rank 0 of {ranks.count})"

    @contextmanager
    def of(self, what: str, total: int | None, unit: str) -> Iterator[Any]:
        """Give a bar with ``update(count)``."""
        from tqdm import tqdm

        bar = tqdm(
            total=total,
            desc=f"{what}{self._beside}",
            unit=f" {unit}",
            unit_scale=True,
            disable=not self._shown,
            delay=1.0,
        )
        with bar:
            yield bar
