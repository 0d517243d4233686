"""What ``import gradkit`` adds to ``import torch``, in fresh processes.

Run as::

    python -m benchmarks.import_time
"""

from __future__ import annotations

import argparse
import subprocess
import sys

import torch

from benchmarks import timing
from benchmarks.timing import Contender

#: What is imported, and what the table calls it.
STATEMENTS = {
    "import torch": "import torch",
    "import torch, gradkit": "import torch, gradkit",
    "import torch, tqdm, numpy": "import torch, tqdm, numpy",
}


def imported(statement: str) -> float:
    """Return the seconds of a statement in a process of its own."""
    clock = (
        "import time; begin = time.perf_counter();"
        f" {statement}; print(time.perf_counter() - begin)"
    )
    printed = subprocess.run(
        [sys.executable, "-c", clock], capture_output=True, text=True, check=True
    ).stdout
    return float(printed)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Time the import.")
    parser.add_argument("--rounds", type=int, default=25)
    rounds = parser.parse_args().rounds
    contenders = [Contender(name, lambda _: None) for name in STATEMENTS]
    for number in range(-1, rounds):
        for contender in contenders:
            seconds = imported(STATEMENTS[contender.name])
            # The first fills the system's cache of files.
            if number >= 0:
                contender.seconds.append(seconds)
    plain = contenders[0].median
    print(
        f"Medians of {rounds} interleaved fresh processes.{timing.load()}\n"
        f"{timing.machine(torch.device('cpu'))}\n"
    )
    rows = [
        (c.name, f"{c.median * 1e3:.0f}", f"{(c.median - plain) * 1e3:+.0f}")
        for c in contenders
    ]
    print(timing.table(("statement", "ms", "beside torch alone, ms"), rows))


if __name__ == "__main__":
    main()
