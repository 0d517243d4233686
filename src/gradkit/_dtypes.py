"""Floating dtypes: what they are called, which keeps the fewest digits, the default."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch

__all__ = ["coarsest", "default_dtype", "short"]


def short(value: object) -> str:
    """Return the name of a dtype or layout without ``torch.``."""
    return str(value).removeprefix("torch.")


def coarsest(dtypes: Iterable[torch.dtype]) -> torch.dtype:
    """Return the floating or complex dtype that keeps the fewest digits."""
    return max(dtypes, key=lambda dtype: torch.finfo(dtype).eps)


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Make numbers in ``dtype`` where none is asked for, for the time."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
