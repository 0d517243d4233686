"""A reducer whose state is kept on disk while a pass goes on."""

# Arguments are checked whatever their declared types say.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gradkit._call._request import naming
from gradkit.errors import InputError
from gradkit.streaming._folder import open_folder
from gradkit.streaming.reducers._reducer import Reducer, read_reducers

__all__ = ["Checkpointed"]


@dataclass(frozen=True)
class Checkpointed:
    """A reduction that goes on where an earlier one with the same folder ended.

    Args:
        reducer: What ``gk.reduce`` takes: a ``Reducer``, or several by name.
        folder: Where its state is kept: a path, or an address that fsspec knows. One
            folder per reduction.
        every: Batches between two writes. A run that dies loses at most so many per
            process.
        identity: As in ``gk.stream``: what the rows depend on. ``gk.quantities`` say
            it themselves.

    Raises:
        InputError: ``reducer`` is none, or ``every`` is not positive.

    Example:
        >>> import tempfile, torch
        >>> import gradkit as gk
        >>> data = torch.arange(6.0).split(2)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     mean = gk.reducers.Checkpointed(gk.reducers.Mean(), folder, identity={})
        ...     gk.reduce(lambda x: x, data, mean, progress=False)
        tensor(2.5000, dtype=torch.float64)
    """

    reducer: Reducer | Mapping[str, Reducer]
    folder: Any
    every: int = 100
    identity: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        with naming("Checkpointed"):
            read_reducers(self.reducer)
            if isinstance(self.every, bool) or not (
                isinstance(self.every, int) and self.every >= 1
            ):
                raise InputError(
                    f"every must be a whole number of at least 1; got {self.every!r}",
                    argument="every",
                )
            open_folder(self.folder)
