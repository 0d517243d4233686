"""Measure gradkit beside its bounds and its peers, and print Markdown tables."""

from __future__ import annotations

import argparse
import sys

import torch

from benchmarks import norm_memory, timing
from benchmarks.comparisons import COMPARISONS
from benchmarks.report import report

MEMORY = "norms-memory"
NOTES = """\
Steady: the median of {rounds} rounds, in each of which every line ran once, in an
order drawn anew; slow lines ran in some of them. First call: with a model that the
library has not seen, set-up or compilation included. The largest difference is from
gradkit's numbers, as a part of their largest. JAX runs in a process of its own; its
ratios are to the same reference measured there. Peers return new memory unless they
are said to reuse it."""


def main() -> int:
    """Print the tables; return 1 if any numbers disagree."""
    options = _options()
    if options.threads:
        torch.set_num_threads(options.threads)
    # Single precision is what is compared; TF32 is less.
    torch.backends.cudnn.allow_tf32 = False
    rounds, device = options.rounds, options.device
    print(f"## gradkit beside its peers\n\n{timing.machine(device)}.{timing.load()}\n")
    print(NOTES.format(rounds=rounds))
    agrees = True
    for name in options.only or [*COMPARISONS, MEMORY]:
        if name == MEMORY:
            found = norm_memory.report(device)
        else:
            found = report(name, COMPARISONS[name], rounds=rounds, device=device)
        print(f"\n{found.text}", flush=True)
        agrees &= found.agrees
    if not agrees:
        print("\n**Numbers disagree**, so the figures above say nothing.")
    return int(not agrees)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--only", action="append", choices=[*COMPARISONS, MEMORY], metavar="NAME",
        help=f"one table, may be repeated: {', '.join([*COMPARISONS, MEMORY])}",
    )  # fmt: skip
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--threads", type=int, help="default: torch's own choice")
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"))
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
