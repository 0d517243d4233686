"""Where an entry stands, by its axes."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["unravelled"]


def unravelled(flat: int, shape: Sequence[int]) -> tuple[int, ...]:
    """Return the index in ``shape`` of the entry at ``flat``."""
    found: list[int] = []
    for size in reversed(shape):
        found.append(flat % size)
        flat //= size
    return tuple(reversed(found))
