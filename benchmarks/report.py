"""A comparison carried out, as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from benchmarks import jax_process, measuring, timing
from benchmarks.comparisons import Comparison
from benchmarks.entries import Entry, Result
from benchmarks.measuring import Timing
from benchmarks.problems import Problem

# A part of the largest entry, in single precision; beyond it, numbers are wrong.
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Report:
    """A table with its title, and whether all numbers in it agree."""

    text: str
    agrees: bool


def report(
    name: str, comparison: Comparison, *, rounds: int, device: torch.device
) -> Report:
    """Compare what the entries compute, then measure them."""
    problem = comparison.problem(device)
    best, *others = comparison.ours
    ours = measuring.values(best, problem)
    differences = {e.name: _difference(e, problem, ours) for e in others}
    peers, left_out = _agreeing(comparison.peers, problem, ours, differences)
    jax = _jax(name, rounds, device, ours, differences)
    if not jax:
        left_out.append("JAX: not installed, or not on this device")
    lines = measuring.timings(
        problem,
        comparison.reference,
        [*comparison.ours, *peers],
        rounds=rounds,
        device=device,
    )
    text = [
        f"### {_title(comparison, problem)}",
        _table([*lines, *jax], differences),
        *(f"Left out: {reason}." for reason in left_out),
    ]
    agrees = max(differences.values(), default=0.0) <= TOLERANCE
    return Report("\n\n".join(text), agrees)


def _agreeing(
    peers: Sequence[Entry],
    problem: Problem,
    ours: Result,
    differences: dict[str, float],
) -> tuple[list[Entry], list[str]]:
    """Note the peers' differences; return those that computed, and why others not."""
    served, left_out = [], []
    for entry in peers:
        try:
            differences[entry.name] = _difference(entry, problem, ours)
            served.append(entry)
        except Exception as error:
            left_out.append(f"{entry.name}: {_reason(error)}")
    return served, left_out


def _jax(
    name: str,
    rounds: int,
    device: torch.device,
    ours: Result,
    differences: dict[str, float],
) -> list[Timing]:
    if device.type != "cpu" or not jax_process.installed():
        return []
    found = jax_process.measured(name, rounds, torch.get_num_threads(), ours)
    differences |= {line.name: difference for line, difference in found}
    return [line for line, _ in found]


def _difference(entry: Entry, problem: Problem, ours: Result) -> float:
    if entry.missing:
        raise ModuleNotFoundError(f"{entry.needs} is not installed")
    return measuring.difference(ours, measuring.values(entry, problem))


def _reason(error: Exception) -> str:
    first, *_ = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {first}".rstrip(".")


def _title(comparison: Comparison, problem: Problem) -> str:
    title = f"{comparison.title}, N = {comparison.samples}"
    if comparison.returns_rows:
        size = sum(buffer.nbytes for buffer in problem.buffers.values())
        title += f", {size / 1e6:.0f} MB of rows"
    return title


def _table(lines: Sequence[Timing], differences: dict[str, float]) -> str:
    """Return the table; the reference is the first line, gradkit the second."""
    reference, ours, *_ = lines
    bound, _, _ = reference.name.partition(":")
    header = (
        "work", "first call ms", "steady ms", "fastest ms", f"× {bound}", "× gradkit",
        "largest difference",
    )  # fmt: skip
    rows = []
    for line in lines:
        apart = differences.get(line.name)
        rows.append(
            (
                line.name,
                f"{line.first * 1e3:.1f}",
                f"{line.steady * 1e3:.2f}",
                f"{line.fastest * 1e3:.2f}",
                f"{line.ratio:.2f}",
                f"{line.ratio / ours.ratio:.2f}",
                "–" if apart is None else f"{apart:.1e}",
            )
        )
    return timing.table(header, rows)
