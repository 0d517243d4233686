"""The memory that per-sample norms take, each in a fresh process.

A dispatch mode counts the tensors that are alive at once beyond model and batch, the
gradients of the plain step among them; the rise of resident bytes tells what the
system sees. Started by ``python -m benchmarks``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from typing import Any

import torch
from torch import Tensor

from benchmarks import measuring, memory, problems, timing
from benchmarks.entries import (
    Entry,
    Work,
    plain,
    with_backpack,
    with_gradkit,
    with_opacus,
    with_torch_func,
)
from benchmarks.report import TOLERANCE, Report

TITLE = "Peak memory of per-sample gradient norms, MLP 5120-2560-1280, N = 32"
WIDTHS, SAMPLES = (5120, 2560, 1280), 32
REFERENCE, OURS = plain.STEP, with_gradkit.NORMS
PEERS = (with_opacus.NORMS, with_backpack.NORMS, with_torch_func.NORMS)


def measured(entry: Entry, device: torch.device) -> dict[str, Any]:
    """Return bytes and norms, from a fresh process."""
    number = str((REFERENCE, OURS, *PEERS).index(entry))
    threads = str(torch.get_num_threads())
    command = [
        sys.executable, "-m", "benchmarks.norm_memory", number, str(device), threads,
    ]  # fmt: skip
    return json.loads(subprocess.check_output(command, text=True))


def report(device: torch.device) -> Report:
    """Measure all entries."""
    entries = [e for e in (REFERENCE, OURS, *PEERS) if not e.missing]
    found = {entry.name: measured(entry, device) for entry in entries}
    ours = found[OURS.name]["norms"]
    differences = {
        name: measuring.difference(torch.tensor(ours), torch.tensor(figures["norms"]))
        for name, figures in found.items()
        if name not in (REFERENCE.name, OURS.name)
    }
    plain_peak = found[REFERENCE.name]["steady"]
    lines = [
        (
            name,
            _megabytes(figures["resident"]),
            _megabytes(figures["first"]),
            _megabytes(figures["steady"]),
            f"{figures['steady'] / plain_peak:.2f}",
            f"{differences[name]:.1e}" if name in differences else "–",
        )
        for name, figures in found.items()
    ]
    header = (
        "work", "first call, resident MB", "first call, tensors MB",
        "steady, tensors MB", "× plain step", "largest difference",
    )  # fmt: skip
    text = f"### {TITLE}\n\n{timing.table(header, lines)}"
    return Report(text, max(differences.values(), default=0.0) <= TOLERANCE)


def _megabytes(size: int | None) -> str:
    return "–" if size is None else f"{size / 1e6:.1f}"


def _figures(entry: Entry, widths: tuple[int, ...], device: torch.device) -> Any:
    """Return peaks in bytes, and the norms."""
    problem = problems.problem(problems.mlp(*widths), SAMPLES, device)
    resident = _resident(entry.build(problem.copy()), device)
    work = entry.build(problem)
    known = [problem.inputs, problem.targets, *problem.model.parameters()]
    # gradkit proves anew at the second call; the third is like most later ones.
    first, _, steady = (_peak(work, known, device) for _ in range(3))
    result = work.call()
    norms = result.tolist() if isinstance(result, Tensor) else None
    return {"first": first, "steady": steady, "resident": resident, "norms": norms}


def _resident(work: Work, device: torch.device) -> int | None:
    """Return by how much the first call raises the peak of resident bytes."""
    if device.type == "cuda":
        return None
    before = memory.resident_peak()
    work.call()
    rise = memory.resident_peak(start_anew=False) - before
    work.clear()
    return rise


def _peak(work: Work, known: list[Tensor], device: torch.device) -> int:
    """Return the most bytes of tensors that a call has alive at once."""
    work.clear()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        work.call()
        return torch.cuda.max_memory_allocated(device) - before
    with memory.LiveBytes(known) as count:
        work.call()
    return count.peak


def main() -> None:
    """Measure one entry and print its figures as JSON."""
    parser = argparse.ArgumentParser(description="Measure the memory of one entry.")
    parser.add_argument("entry", type=int)
    parser.add_argument("device", type=torch.device)
    parser.add_argument("threads", type=int)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    entry, device = (REFERENCE, OURS, *PEERS)[options.entry], options.device
    # A small call first, so that code and thread pools are in memory.
    _figures(entry, (7, 5, 3), device)
    print(json.dumps(_figures(entry, WIDTHS, device)))


if __name__ == "__main__":
    main()
