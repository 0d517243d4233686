"""Interleaved medians, and what a reader must know to compare them.

Single runs on a busy machine mislead. Here every contender runs once per round, in
an order that is drawn anew each round, and ratios are taken between medians of the
same run.
"""

from __future__ import annotations

import contextlib
import os
import platform
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

import torch


@dataclass
class Contender:
    """One piece of work, and the seconds it took.

    Args:
        name: What the table calls it.
        call: Takes what ``prepare`` returned. Its result is dropped after the clock
            stops, so that freeing it is not counted.
        prepare: Run before each call, outside the clock.
        every: Run in every such round only; for work that is slow.
    """

    name: str
    call: Callable[[object], object]
    prepare: Callable[[], object] = lambda: None
    every: int = 1
    seconds: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """The median of the measured seconds."""
        return statistics.median(self.seconds)


def measure(
    contenders: Sequence[Contender],
    *,
    rounds: int,
    warmup: int,
    device: torch.device,
    seed: int = 0,
) -> None:
    """Run all contenders in turn, ``warmup`` rounds unmeasured and ``rounds`` measured.

    Args:
        contenders: Their ``seconds`` are filled.
        rounds: How often each is measured.
        warmup: Rounds before that: caches fill, proofs become remembered.
        device: Awaited before the clock is read.
        seed: Of the order within a round.
    """
    shuffle = random.Random(seed).shuffle
    for number in range(-warmup, rounds):
        turn = [c for c in contenders if number % c.every == 0]
        shuffle(turn)
        for contender in turn:
            seconds = timed(contender, device)
            if number >= 0:
                contender.seconds.append(seconds)


def timed(contender: Contender, device: torch.device) -> float:
    """Return the seconds of one call."""
    prepared = contender.prepare()
    _wait(device)
    start = time.perf_counter()
    result = contender.call(prepared)
    _wait(device)
    seconds = time.perf_counter() - start
    del result
    return seconds


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table, the first column to the left and others to the right."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        padded = [cells[0].ljust(widths[0])]
        padded += [c.rjust(w) for c, w in zip(cells[1:], widths[1:], strict=True)]
        return f"| {' | '.join(padded)} |"

    rule = [":" + "-" * (widths[0] - 1), *("-" * (w - 1) + ":" for w in widths[1:])]
    return "\n".join([line(header), line(rule), *map(line, rows)])


# Whose versions a reader must know, where they are installed.
DISTRIBUTIONS = (
    "torch", "gradkit", "opacus", "backpack-for-pytorch", "captum", "saliency", "jax",
    "jaxlib",
)  # fmt: skip


def machine(device: torch.device) -> str:
    """Return one line: processor, threads, system, versions."""
    versions = [f"Python {platform.python_version()}"]
    for name in DISTRIBUTIONS:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions.append(f"{name} {metadata.version(name)}")
    place = f"{_processor(device)}, threads: {torch.get_num_threads()}"
    return f"{place}, {platform.system()}; {', '.join(versions)}"


def load() -> str:
    """Return what else the machine was doing, where the system tells."""
    if not hasattr(os, "getloadavg"):
        return ""
    return f" Load average before: {os.getloadavg()[0]:.1f}."


def _processor(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    description = Path("/proc/cpuinfo")
    if description.exists():
        for line in description.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
