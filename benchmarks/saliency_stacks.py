"""How many steps to stack: gradkit's time by the bytes that a stack may take.

On a CPU, steps are stacked up to a constant of ``gradkit.saliency._passes``, which
stands for the caches. Here it is set to other values.
"""

from __future__ import annotations

from unittest import mock

import torch

from benchmarks import problems, saliency_peers, timing
from benchmarks.problems import Problem
from benchmarks.saliency_networks import NETWORKS
from benchmarks.timing import Contender
from gradkit.saliency import _passes, _runs

SAMPLES = (10, 100, 1000)
SIZES = tuple(2**k for k in range(22, 29))


def report(rounds: int, device: torch.device) -> str:
    """Measure integrated gradients of every network, and return a table."""
    rows = []
    for name, network in NETWORKS.items():
        for samples in SAMPLES:
            problem = problems.problem(network.make, samples, device)
            cells = _cells(problem, network.rounds(rounds), device)
            rows.append((f"{name}, N = {samples}", *cells))
    header = ("ms (steps stacked)", *(f"{size / 2**20:.0f} MiB" for size in SIZES))
    return (
        "### Integrated gradients, by the bytes that a stack may take\n\n"
        f"{timing.table(header, rows)}\n\n"
        f"Today's constant: {_passes._CACHED / 2**20:.0f} MiB. `–`: not measured, since"
        " all stack alike."
    )


def _cells(problem: Problem, rounds: int, device: torch.device) -> list[str]:
    steps = [_stacked(problem, size) for size in SIZES]
    # What stacks alike is the same work.
    work = {
        count: Contender(str(count), lambda _, size=size: _call(problem, size))
        for count, size in zip(steps, SIZES, strict=True)
    }
    if len(work) == 1:
        return [f"– ({steps[0]})" for _ in SIZES]
    timing.measure(list(work.values()), rounds=rounds, warmup=1, device=device)
    return [f"{work[count].median * 1e3:.1f} ({count})" for count in steps]


def _call(problem: Problem, size: int) -> object:
    with mock.patch.object(_passes, "_CACHED", size):
        return saliency_peers.integrated(problem)


def _stacked(problem: Problem, size: int) -> int:
    """Return how many steps the model is run on at once."""
    run = _runs.Runs.graph
    with mock.patch.object(
        _runs.Runs, "graph", autospec=True, side_effect=run
    ) as graph:
        _call(problem, size)
    return max(len(call.args[1]) for call in graph.call_args_list)
