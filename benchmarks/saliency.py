"""SmoothGrad and integrated gradients beside their bound and their peers.

Each with 50 draws or steps, of the score of each sample's own class. Their bound is 50
forward and backward passes of the batch, with nothing else. Run as::

    python -m benchmarks.saliency
    python -m benchmarks.saliency --stacks   # how many steps gradkit is to stack
"""

from __future__ import annotations

import argparse
import sys

import torch
from torch import Tensor

from benchmarks import (
    measuring,
    problems,
    saliency_memory,
    saliency_stacks,
    timing,
)
from benchmarks.entries import Entry
from benchmarks.problems import Problem
from benchmarks.report import Report
from benchmarks.saliency_networks import NETWORKS, Network
from benchmarks.saliency_peers import BOUND, METHODS, Method
from benchmarks.timing import Contender

SAMPLES = 100
#: How many times gradkit's time the peers' is to be.
TARGETS = {"defaults": 2.0, "best": 1.5, "PAIR": 1.0}
SEARCHED = 3  # rounds for each of captum's internal sizes
NOTES = """\
Medians of interleaved rounds: {rounds} of the MLP, {fewer} of the CNN; PAIR, which
takes sample after sample, runs in one of ten. captum's best is the fastest of its
internal sizes in {searched} rounds before. The last column compares numbers with
gradkit's; `smoothgrad`'s are random, and their difference is divided by what the draws'
variance makes of it, so that 1 is agreement. PAIR integrates by another rule."""


def report(
    name: str, network: Network, method: Method, rounds: int, device: torch.device
) -> Report:
    """Measure one kind of map of one network."""
    problem = problems.problem(network.make, SAMPLES, device)
    rounds = network.rounds(rounds)
    searched, peers = _peers(method, problem, device)
    ours = measuring.values(method.ours, problem)
    assert isinstance(ours, Tensor)
    apart = {key: _apart(e, method, problem, ours) for key, e in peers.items()}
    bound, mine = _later(BOUND, problem), _later(method.ours, problem)
    theirs = {
        # PAIR's is the slowest by far.
        key: _later(entry, problem, every=10 if key == "PAIR" else 1)
        for key, entry in peers.items()
    }
    first = Contender(
        f"{method.ours.name}, first call with a model",
        lambda fresh: method.ours.build(_as_problem(fresh)).call(),
        prepare=problem.copy,
        every=5,
    )
    work = [bound, mine, first, *theirs.values()]
    timing.measure(work, rounds=rounds, warmup=2, device=device)

    header = (
        "work", "median ms", "fastest ms", "× bound", "× gradkit", "target",
        method.column,
    )  # fmt: skip
    rows = [_row(line, bound, mine) for line in (bound, mine, first)]
    agrees = True
    for key, line in theirs.items():
        least, most = method.bounds[key == "PAIR"]
        within = least <= apart[key] <= most
        agrees &= within
        figure = f"{apart[key]:.2g}" + ("" if within else " **disagrees**")
        rows.append(_row(line, bound, mine, TARGETS[key], figure))
    text = [
        f"### {method.title}, {name}, N = {SAMPLES}",
        timing.table(header, rows),
        *([searched] if searched else []),
    ]
    return Report("\n\n".join(text), agrees)


def _peers(
    method: Method, problem: Problem, device: torch.device
) -> tuple[str, dict[str, Entry]]:
    """Return captum's times by internal sizes, and who is compared."""
    searched, peers = "", {}
    if not method.captum(None).missing:
        work = {s: _later(method.captum(s), problem) for s in method.sizes}
        timing.measure(list(work.values()), rounds=SEARCHED, warmup=1, device=device)
        best = min(work, key=lambda size: work[size].median)
        times = [f"{size}: {line.median * 1e3:.0f}" for size, line in work.items()]
        searched = f"captum by internal size, ms: {', '.join(times)}."
        peers = {"defaults": method.captum(None), "best": method.captum(best)}
    if not method.pair.missing:
        peers["PAIR"] = method.pair
    return searched, peers


def _later(entry: Entry, problem: Problem, every: int = 1) -> Contender:
    work = entry.build(problem.copy())
    return Contender(entry.name, lambda _: work.call(), every=every)


def _as_problem(fresh: object) -> Problem:
    assert isinstance(fresh, Problem)
    return fresh


def _apart(entry: Entry, method: Method, problem: Problem, ours: Tensor) -> float:
    theirs = measuring.values(entry, problem)
    assert isinstance(theirs, Tensor)
    return method.apart(problem, ours, theirs.detach())


def _row(
    line: Contender,
    bound: Contender,
    mine: Contender,
    target: float | None = None,
    figure: str = "–",
) -> tuple[str, ...]:
    ratio = line.median / mine.median
    verdict = "–"
    if target is not None:
        verdict = f"≥ {target:g}: {'met' if ratio >= target else 'MISSED'}"
    return (
        line.name,
        f"{line.median * 1e3:.1f}",
        f"{min(line.seconds) * 1e3:.1f}",
        f"{line.median / bound.median:.2f}",
        f"{ratio:.2f}",
        verdict,
        figure,
    )


def main() -> int:
    """Measure and print; return 1 if any numbers disagree."""
    options = _options()
    if options.threads:
        torch.set_num_threads(options.threads)
    # Single precision is what is compared; TF32 is less.
    torch.backends.cudnn.allow_tf32 = False
    rounds, device = options.rounds, options.device
    print(f"## Saliency maps\n\n{timing.machine(device)}.{timing.load()}\n")
    if options.stacks:
        print(saliency_stacks.report(rounds, device))
        return 0
    fewer = NETWORKS["small CNN"].rounds(rounds)
    print(NOTES.format(rounds=rounds, fewer=fewer, searched=SEARCHED))
    agrees = True
    for name, network in NETWORKS.items():
        for method in METHODS.values():
            # captum draws from torch's own generator, PAIR from NumPy's.
            torch.manual_seed(0)
            found = report(name, network, method, rounds, device)
            print(f"\n{found.text}", flush=True)
            agrees &= found.agrees
        problem = problems.problem(network.make, SAMPLES, device)
        print(f"\n{saliency_memory.report(name, problem)}", flush=True)
    if not agrees:
        print("\n**Numbers disagree**, so the figures above say nothing.")
    return int(not agrees)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.saliency", description="Time saliency maps."
    )
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, help="default: torch's own choice")
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"))
    parser.add_argument(
        "--stacks", action="store_true",
        help="instead: gradkit's time by how many steps it stacks",
    )  # fmt: skip
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
