"""What bit-equal rows cost: networks inside ``batch_invariant`` and outside.

Forward passes, and a training step's forward and backward. Run as::

    python -m benchmarks.batch_invariant
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from torch import nn

from benchmarks import problems, timing
from benchmarks.problems import Problem, step
from benchmarks.timing import Contender
from gradkit.numerics._invariant import batch_invariant

#: Networks, and how many samples they are given.
NETWORKS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "MLP 784-500-10": (problems.mlp(784, 500, 10), 100),
    "small CNN": (problems.cnn, 100),
    "4-layer transformer": (problems.transformer, 16),
}


def forward(problem: Problem) -> object:
    """Return the outputs, without a graph."""
    with torch.no_grad():
        return problem.model(problem.inputs)


def inside(work: Callable[[Problem], object]) -> Callable[[Problem], object]:
    """Return the same work inside the context, whose entry is counted."""

    def invariant(problem: Problem) -> object:
        with batch_invariant():
            return work(problem)

    return invariant


def pairs(device: torch.device) -> list[tuple[str, Contender, Contender]]:
    """Return each piece of work, outside and inside."""
    found = []
    for name, (make, samples) in NETWORKS.items():
        problem = problems.problem(make, samples, device)
        for work in (forward, step):
            label = f"{name}, N = {samples}, {work.__name__}"
            outside, within = (
                Contender(label, lambda _, p=problem, call=call: call(p))
                for call in (work, inside(work))
            )
            found.append((label, outside, within))
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Time bit-equal rows.")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    device = torch.device("cpu")
    work = pairs(device)
    contenders = [contender for _, *both in work for contender in both]
    timing.measure(contenders, rounds=options.rounds, warmup=3, device=device)
    header = ("work", "plain ms", "invariant ms", "ratio")
    rows = [
        (
            label,
            f"{outside.median * 1e3:.2f}",
            f"{within.median * 1e3:.2f}",
            f"{within.median / outside.median:.2f}",
        )
        for label, outside, within in work
    ]
    print(
        f"Rows inside `batch_invariant`, float32; medians of {options.rounds}"
        f" interleaved rounds.\n{timing.machine(device)}\n"
    )
    print(timing.table(header, rows))


if __name__ == "__main__":
    main()
