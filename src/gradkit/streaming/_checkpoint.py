"""What a reduction has done so far, kept in a folder beside it.

Each process of a run keeps a file of its own; a run's files have its number. The
first process of the next run puts them together into its own first file, in one write,
and only then are they removed: whenever it dies, no batch is lost or counted twice.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gradkit.errors import InputError
from gradkit.streaming._about import listed
from gradkit.streaming._digest import SIZE, digest_bytes
from gradkit.streaming._folder import SCRATCH, Folder
from gradkit.streaming._settings import differences

__all__ = ["Checkpoint", "Progress"]

_FILE = re.compile(r"run-(\d+)-rank-(\d+)\.reduction")


@dataclass
class Progress:
    """What has been done: a state, and which batches it has.

    ``batch`` is the size of all batches but the last; ``inputs`` are the digests of
    what the batches held, ``(batches, 16)``.
    """

    state: Any
    done: Tensor
    inputs: Tensor
    batch: int = 0

    @classmethod
    def none(cls, state: Any) -> Progress:
        """Return what has been done before anything is."""
        nothing = torch.zeros(0, SIZE, dtype=torch.uint8)
        return cls(state, torch.zeros(0, dtype=torch.bool), nothing)

    def mark(self, number: int, inputs: bytes) -> None:
        """Count a batch among those that are done."""
        missing = number + 1 - len(self.done)
        if missing > 0:
            count = len(self.done) + max(missing, len(self.done))
            self.done = _longer(self.done, count)
            self.inputs = _longer(self.inputs, count)
        self.done[number] = True
        self.inputs[number] = torch.tensor(list(inputs), dtype=torch.uint8)

    def has(self, number: int) -> bool:
        """Whether a batch is done."""
        return number < len(self.done) and bool(self.done[number])

    def told(self, number: int) -> bytes:
        """Return the digest of what a batch held that is done."""
        return bytes(self.inputs[number].tolist())


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
        files = sorted(self._files())
        # The first process's file has all that runs before it did.
        runs = [run for run, rank in files if rank == 0]
        if not runs:
            return None
        self._run = max(runs)
        found: Progress | None = None
        for run, rank in files:
            if run == self._run:
                one = self._load(_name(run, rank))
                found = one if found is None else _joined(found, one, merge)
        return found

    def begin(self, progress: Progress) -> None:
        """Begin a run: keep what was done before it in one file, and no other."""
        self._run += 1
        self.write(progress, 0)
        for run, rank in self._files():
            if run != self._run:
                self._folder.delete(_name(run, rank))

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
        self._folder.write(_name(self._run, rank), data + digest_bytes(data))

    def _files(self) -> list[tuple[int, int]]:
        """Return the runs and ranks that have a file.

        Raises:
            InputError: The folder holds other things.
        """
        names = self._folder.names("")
        found = [_FILE.fullmatch(name) for name in names]
        others = [
            name
            for name, match in zip(names, found, strict=True)
            if match is None and name != SCRATCH and not name.startswith(".")
        ]
        if others:
            raise InputError(
                f"checkpoint's folder {self._folder.address} holds other things"
                f" ({', '.join(others[:3])}); name one that is new or empty",
                argument="reducer",
            )
        return [(int(m[1]), int(m[2])) for m in found if m is not None]

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


def _name(run: int, rank: int) -> str:
    return f"run-{run}-rank-{rank}.reduction"


def _joined(
    one: Progress, other: Progress, merge: Callable[[Any, Any], Any]
) -> Progress:
    size = max(len(one.done), len(other.done))
    return Progress(
        merge(one.state, other.state),
        _longer(one.done, size) | _longer(other.done, size),
        # Where a batch is not done there are zeros.
        _longer(one.inputs, size) | _longer(other.inputs, size),
        one.batch or other.batch,
    )


def _longer(values: Tensor, count: int) -> Tensor:
    more = torch.zeros(count - len(values), *values.shape[1:], dtype=values.dtype)
    return torch.cat([values, more])


def _on_cpu(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.cpu().clone()  # a view would save all that it is a view of
    if isinstance(value, dict):
        return {k: _on_cpu(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_on_cpu(v) for v in value)
    return value
