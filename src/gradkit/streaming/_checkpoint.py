"""What a reduction has done so far, kept in a folder beside it.

Each process of a run keeps a file of its own; a run's files have its number. The
first process of the next run puts them together into its own first file, in one write,
and only then are they removed: whenever it dies, no batch is lost or counted twice.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gradkit.errors import InputError
from gradkit.streaming._about import listed
from gradkit.streaming._digest import digest_bytes
from gradkit.streaming._folder import Folder
from gradkit.streaming._settings import differences

__all__ = ["Checkpoint", "Progress"]


@dataclass
class Progress:
    """What has been done: a state, and which batches it has.

    ``batch`` is the size of all batches but the last; ``inputs`` is the number of one
    that is done, with the digest of what it held.
    """

    state: Any
    done: Tensor
    batch: int = 0
    inputs: tuple[int, str] | None = None

    @classmethod
    def none(cls, state: Any) -> Progress:
        """Return what has been done before anything is."""
        return cls(state, torch.zeros(0, dtype=torch.bool))

    def mark(self, number: int) -> None:
        """Count a batch among those that are done."""
        missing = number + 1 - len(self.done)
        if missing > 0:
            more = torch.zeros(max(missing, len(self.done)), dtype=torch.bool)
            self.done = torch.cat([self.done, more])
        self.done[number] = True

    def has(self, number: int) -> bool:
        """Whether a batch is done."""
        return number < len(self.done) and bool(self.done[number])


class Checkpoint:
    """The files of one reduction.

    Args:
        folder: Where they are.
        about: What the result depends on.
    """

    def __init__(self, folder: Folder, about: dict[str, Any]) -> None:
        self._folder = folder
        self._about = json.loads(json.dumps(about))
        self._run = 0

    def read(self, merge: Callable[[Any, Any], Any]) -> Progress | None:
        """Return what earlier runs have done, put together; ``None`` if nothing.

        Raises:
            InputError: It was another reduction, or a file is damaged.
        """
        files = sorted(
            (int(run), int(rank))
            for run, _, rank in (n.partition("-") for n in self._folder.names(""))
            if run.isdecimal() and rank.isdecimal()
        )
        # The first process's file has all that runs before it did.
        runs = [run for run, rank in files if rank == 0]
        if not runs:
            return None
        self._run = max(runs)
        found: Progress | None = None
        for run, rank in files:
            if run == self._run:
                one = self._load(f"{run}-{rank}")
                found = one if found is None else _joined(found, one, merge)
        return found

    def begin(self, progress: Progress) -> None:
        """Begin a run: keep what was done before it in one file, and no other."""
        self._run += 1
        self.write(progress, 0)
        for name in self._folder.names(""):
            if name.partition("-")[0].isdecimal() and name != f"{self._run}-0":
                self._folder.delete(name)

    def join(self, run: int) -> None:
        """Take part in a run that another process has begun."""
        self._run = run

    @property
    def run(self) -> int:
        """The number of this run."""
        return self._run

    def write(self, progress: Progress, rank: int) -> None:
        """Keep what a process has done."""
        held = io.BytesIO()
        plain = {**vars(progress), "about": json.dumps(self._about)}
        torch.save(_on_cpu(plain), held)
        data = held.getvalue()
        self._folder.write(f"{self._run}-{rank}", data + digest_bytes(data))

    def _load(self, name: str) -> Progress:
        data = self._folder.read(name) or b""
        body, told = data[:-16], data[-16:]
        if digest_bytes(body) != told:
            raise InputError(
                f"checkpoint {self._folder.address}/{name} is damaged; remove the"
                " folder to begin again",
                argument="reducer",
            )
        plain = torch.load(io.BytesIO(body), weights_only=True)
        unlike = differences(json.loads(plain.pop("about")), self._about)
        if unlike:
            raise InputError(
                f"checkpoint {self._folder.address} is of another reduction:"
                f" {listed(unlike)}. Make these as they were to go on, or name"
                " another folder",
                argument="reducer",
                differences=unlike,
            )
        return Progress(**plain)


def _joined(
    one: Progress, other: Progress, merge: Callable[[Any, Any], Any]
) -> Progress:
    size = max(len(one.done), len(other.done))
    done = torch.zeros(size, dtype=torch.bool)
    done[: len(one.done)] |= one.done
    done[: len(other.done)] |= other.done
    state = merge(one.state, other.state)
    return Progress(state, done, one.batch or other.batch, one.inputs or other.inputs)


def _on_cpu(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.cpu().clone()  # a view would save all that it is a view of
    if isinstance(value, dict):
        return {k: _on_cpu(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_on_cpu(v) for v in value)
    return value
