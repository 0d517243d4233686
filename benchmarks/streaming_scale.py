"""What a store costs by itself, up to a billion samples, with nothing to compute.

The samples are numbers that are made when they are asked for, and their rows are the
numbers again: all that remains is reading, digesting, writing and checking. Run as::

    python -m benchmarks.streaming_scale --samples 1e9
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, overload

import torch
from torch import Tensor

import gradkit as gk
from benchmarks import timing


class Numbers(Sequence[Tensor]):
    """Batches of numbers, made when they are asked for."""

    def __init__(self, samples: int, batch: int) -> None:
        self._samples, self._batch = samples, batch

    def __len__(self) -> int:
        return -(-self._samples // self._batch)

    @overload
    def __getitem__(self, index: int) -> Tensor: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Tensor]: ...
    def __getitem__(self, index: int | slice) -> Tensor | Sequence[Tensor]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        start = index * self._batch
        end = min(start + self._batch, self._samples)
        return _exact(torch.arange(start, end))


def _exact(numbers: Tensor) -> Tensor:
    """Return numbers that float32 holds."""
    return (numbers % 2**24).float()


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _timed(call: Callable[[], object]) -> tuple[float, object]:
    begin = time.perf_counter()
    found = call()
    return time.perf_counter() - begin, found


def measured(samples: int, batch: int) -> list[str]:
    """Return one line of the table: a run, the next call, a random read, sizes."""
    numbers = Numbers(samples, batch)

    def run(store: str) -> Any:
        identity = {"rows": "the numbers themselves"}
        return gk.stream(lambda x: x, numbers, store, identity=identity, progress=False)

    with tempfile.TemporaryDirectory() as folder:
        store = f"{folder}/rows"
        few = Numbers(10 * batch, batch)
        gk.stream(lambda x: x, few, f"{folder}/few", progress=False)  # imports
        before = _peak()
        first, _ = _timed(lambda: run(store))
        again, _ = _timed(lambda: run(store))
        wanted = torch.randint(samples, (100,)).tolist()
        read, found = _timed(lambda: gk.open_rows(store)[wanted])
        assert isinstance(found, Tensor)
        assert torch.equal(found, _exact(torch.tensor(wanted)))
        files = [p for p in Path(store).rglob("*") if p.is_file()]
        size = sum(p.stat().st_size for p in files)
        return [
            f"{samples:,}", f"{batch:,}", f"{len(numbers):,}", f"{len(files):,}",
            f"{size / 1e9:.2f}", f"{first:.1f}", f"{1e3 * first / len(numbers):.2f}",
            f"{again:.1f}", f"{1e3 * read:.0f}", f"{_peak() - before:+.0f}",
        ]  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=float, nargs="+", default=[1e6, 1e7, 1e8])
    parser.add_argument("--batch", type=int, default=10_000)
    options = parser.parse_args(arguments)
    header = [
        "samples", "batch", "batches", "files", "GB", "seconds", "ms per batch",
        "next call, seconds", "100 random rows, ms", "peak MiB, more",
    ]  # fmt: skip
    rows = [measured(int(count), options.batch) for count in options.samples]
    print(f"{timing.machine(torch.device('cpu'))}, {os.cpu_count()} cores\n")
    print(timing.table(header, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
