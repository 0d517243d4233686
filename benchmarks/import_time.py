"""What ``import gradkit`` takes beyond ``import torch``: medians of fresh processes.

Processes with and without gradkit run in turn, in an order that is drawn anew each
round. What is timed is the import alone, inside of the process. All of them read
bytecode, as installed packages have it, even where PYTHONDONTWRITEBYTECODE would keep
a checkout from having any. Run as::

    python -m benchmarks.import_time
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from random import Random

import torch

from benchmarks import timing

LEAST_ROUNDS = 15
# Seconds. A program that imports torch waits for more than ten times as long.
AIM = 0.1
STATEMENTS = ("import torch", "import torch, gradkit")


def seconds(statement: str, bytecode: str) -> list[float]:
    """Return what a fresh process takes for a statement, and for what follows torch."""
    clock = "import time; start = time.perf_counter(); import torch"
    between = "torch_there = time.perf_counter(); used = time.process_time()"
    after = "end = time.perf_counter(); used = time.process_time() - used"
    program = f"{clock}; {between}; {statement}; {after}"
    printed = "print(end - start, end - torch_there, used)"
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": bytecode}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    run = subprocess.run(
        [sys.executable, "-c", f"{program}; {printed}"],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    return [float(word) for word in run.stdout.split()]


def measured(rounds: int) -> dict[str, list[list[float]]]:
    """Return the statements with their seconds, of interleaved processes."""
    order = Random(0)
    with tempfile.TemporaryDirectory() as bytecode:
        work = {statement: list[list[float]]() for statement in STATEMENTS}
        # The first round writes the bytecode.
        for round_ in range(rounds + 1):
            for statement in order.sample(STATEMENTS, len(STATEMENTS)):
                found = seconds(statement, bytecode)
                if round_:
                    work[statement].append(found)
    return work


def main() -> int:
    """Measure and print; return 1 if the aim is missed."""
    parser = argparse.ArgumentParser(description="Time `import gradkit`.")
    parser.add_argument("--rounds", type=int, default=25)
    rounds = parser.parse_args().rounds
    if rounds < LEAST_ROUNDS:
        parser.error(f"--rounds must be at least {LEAST_ROUNDS}")
    load = timing.load()
    found = measured(rounds)
    print(f"Imports, medians of {rounds} fresh processes each, interleaved.")
    print(f"{timing.machine(torch.device('cpu'))}.{load}\n")
    medians = {
        statement: [statistics.median(column) for column in zip(*runs, strict=True)]
        for statement, runs in found.items()
    }
    rows = [
        (f"`{statement}`", *(f"{value * 1e3:.0f}" for value in values))
        for statement, values in medians.items()
    ]
    header = ("statement", "all ms", "after torch ms", "of these processor ms")
    print(timing.table(header, rows))
    (plain, *_), (ours, added, _) = medians.values()
    verdict = "reached" if added <= AIM else "missed"
    print(
        f"\ngradkit adds {added * 1e3:.0f} ms in a process that has torch (the two"
        f" medians differ by {(ours - plain) * 1e3:.0f}); at most {AIM * 1e3:.0f} is"
        f" aimed at: {verdict}."
    )
    return int(added > AIM)


if __name__ == "__main__":
    sys.exit(main())
