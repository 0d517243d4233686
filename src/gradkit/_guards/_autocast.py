"""The caller's autocast: on while the model runs, off while derivatives are taken.

A backward runs in the precisions that its forward chose; autocast around it would
round once more, and differently from method to method.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch

__all__ = ["Autocast"]


@dataclass(frozen=True)
class Autocast:
    """Which kinds of devices were under autocast, and in which dtype."""

    regions: tuple[tuple[str, torch.dtype], ...]

    @staticmethod
    def of(devices: Iterable[torch.device]) -> Autocast:
        """Read the regions that the caller is in."""
        kinds = sorted({"cpu", *(d.type for d in devices)} - {"meta"})
        return Autocast(
            tuple(
                (kind, torch.get_autocast_dtype(kind))
                for kind in kinds
                if torch.is_autocast_enabled(kind)
            )
        )

    @contextmanager
    def on(self) -> Iterator[None]:
        """Run a forward as the caller would."""
        with ExitStack() as stack:
            for kind, dtype in self.regions:
                stack.enter_context(torch.autocast(kind, dtype, cache_enabled=False))
            yield

    @contextmanager
    def off(self) -> Iterator[None]:
        """Run arithmetic as it is written."""
        with ExitStack() as stack:
            for kind, _ in self.regions:
                stack.enter_context(torch.autocast(kind, enabled=False))
            yield
