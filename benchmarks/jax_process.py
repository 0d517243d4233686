"""JAX in a process of its own, beside the reference measured in that process.

Two thread pools in one process disturb each other; so JAX's figures are compared by
their ratio to the same reference. Started by ``python -m benchmarks``.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import measuring
from benchmarks.comparisons import COMPARISONS
from benchmarks.entries import Result
from benchmarks.measuring import Timing

# The file of a result that is one tensor.
ALONE = "(result)"


def installed() -> bool:
    """Return whether JAX can be measured."""
    return find_spec("jax") is not None


def measured(
    name: str, rounds: int, threads: int, ours: Result
) -> list[tuple[Timing, float]]:
    """Return the timings of JAX's entries, and their differences from our result."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable, "-m", "benchmarks.jax_process", name, folder,
            f"--rounds={rounds}", f"--threads={threads}",
        ]  # fmt: skip
        # Waiting threads of torch must leave the processors to JAX's.
        environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE"}
        figures = json.loads(subprocess.check_output(command, env=environment))
        return [
            (Timing(**figure), measuring.difference(ours, _load(Path(folder, str(i)))))
            for i, figure in enumerate(figures)
        ]


def _save(result: Any, path: Path) -> None:
    tensors = result if isinstance(result, dict) else {ALONE: result}
    path.mkdir()
    for name, tensor in tensors.items():
        np.save(path / f"{name}.npy", np.asarray(tensor))


def _load(path: Path) -> Result:
    tensors = {f.stem: torch.from_numpy(np.load(f)) for f in path.iterdir()}
    return tensors[ALONE] if set(tensors) == {ALONE} else tensors


def main() -> None:
    """Measure, save what was computed, and print the timings as JSON."""
    parser = argparse.ArgumentParser(description="Measure JAX's part of one table.")
    parser.add_argument("name", choices=COMPARISONS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    options = parser.parse_args()
    _limit(options.threads)
    # Imported late: JAX counts the processors when it is.
    from benchmarks.entries import with_jax

    comparison, device = COMPARISONS[options.name], torch.device("cpu")
    problem = comparison.problem(device)
    entries = [getattr(with_jax, entry) for entry in comparison.jax]
    for i, entry in enumerate(entries):
        _save(measuring.values(entry, problem), options.folder / str(i))
    _, *timings = measuring.timings(
        problem, comparison.reference, entries, rounds=options.rounds, device=device
    )
    print(json.dumps([dataclasses.asdict(timing) for timing in timings]))


def _limit(threads: int) -> None:
    """Keep both libraries to a number of threads; JAX only where the system can."""
    torch.set_num_threads(threads)
    if hasattr(os, "sched_setaffinity"):
        allowed = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, allowed[:threads])


if __name__ == "__main__":
    main()
