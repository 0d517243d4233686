"""The referee: rows in float64, what rounding can make of them, and their decisions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from gradkit._call._open import Call
from gradkit._call._referee import in_double
from gradkit._methods import METHODS
from gradkit._methods._collected import collected
from gradkit.errors import InputError
from gradkit.numerics._decisions import Decision, Decisions, flips
from gradkit.numerics._promoting import Promoted, promoting
from gradkit.numerics._rounding import Rounding
from gradkit.numerics._ulps import unit_roundoff

__all__ = ["Truth", "truth_of"]

#: Runs with errors put in, of which the spread is taken.
RUNS = 16
#: Of so few runs whose decisions are the referee's, a sample's spread is not known.
_FEWEST = 4


@dataclass(eq=False)
class Truth:
    """What a call's rows are, and what rounding makes of them.

    Attributes:
        rows: ``(N, R, size)`` per source, float64.
        spread: The root mean square of what rounding moves them by, alike.
        dtype: The coarsest dtype the model computes in.
        decisions: The referee's.
        conventions: Known forks that the forward meets.
        others: For samples whose decisions rounding changes: the rows that come of
            the others, as ``(samples, rows of each source)``.
        flips: Where decisions change with rounding, and how many.
        unsettled: ``(N,)``, the samples whose decisions nearly always change.
        lower: The operations that stayed below float64.
        scales: By what factor rounding moves all entries of a source at once, the
            root mean square; ``None`` where decisions change in every run.
    """

    rows: list[Tensor]
    spread: list[Tensor]
    dtype: torch.dtype
    decisions: list[Decision]
    conventions: dict[str, str]
    others: list[tuple[Tensor, list[Tensor]]] = field(default_factory=list)
    flips: dict[tuple[str, str], int] = field(default_factory=dict)
    unsettled: Tensor | None = None
    lower: dict[str, int] = field(default_factory=dict)
    scales: list[float | None] = field(default_factory=list)


def truth_of(call: Call, watched: Callable[[int], Iterator[int]]) -> Truth:
    """Return the truth of a call's rows.

    Args:
        call: The call, opened; its caller's values are put back for the time.
        watched: From a count to ``range(count)``, with a bar if it takes long.
    """
    _refuse_too_large(call)
    rows, decisions, seen = _run(call, None)
    coarsest = {call.precision, *_computed_in(call)}
    dtype = max(coarsest, key=lambda d: torch.finfo(d).eps)
    found = Truth(
        rows, [torch.zeros_like(r) for r in rows], dtype, decisions.found,
        decisions.conventions, lower=dict(seen.lower),
    )  # fmt: skip
    samples = call.task.samples
    alike = torch.zeros(samples)
    every = [torch.zeros_like(r) for r in rows]
    factors: list[list[tuple[bool, float]]] = [[] for _ in rows]
    generator = torch.Generator(device="cpu")
    generator.manual_seed(0)
    for _ in watched(RUNS):
        moved, other, _ = _run(call, Rounding(unit_roundoff(dtype), generator))
        counts, touched = flips(found.decisions, other.found, samples)
        lost = _lost(moved, rows)
        if bool(lost.any()):
            # An error has pushed a root or the like out of its domain.
            counts["", "a number that stays finite"] = int(lost.sum())
            touched = touched | lost
        for place, count in counts.items():
            found.flips[place] = max(found.flips.get(place, 0), count)
        if bool(touched.any()):
            found.others.append((touched, moved))
        for place, (now, row) in enumerate(zip(moved, rows, strict=True)):
            factor = _factor(now, row)
            if math.isfinite(factor):
                factors[place].append((bool(touched.any()), factor))
        alike += ~touched
        for total, whole, now, row in zip(
            found.spread, every, moved, rows, strict=True
        ):
            squared = (now - row).square().nan_to_num(nan=0.0, posinf=0.0)
            whole += squared
            total += torch.where(touched[:, None, None].to(row.device), 0.0, squared)
    found.scales = [_scale(several) for several in factors]
    few = alike < _FEWEST
    found.unsettled = few
    for i, (total, whole) in enumerate(zip(found.spread, every, strict=True)):
        lone = few[:, None, None].to(total.device)
        counts = alike.clamp(min=1)[:, None, None].to(total)
        found.spread[i] = torch.where(lone, whole / RUNS, total / counts).sqrt()
    return found


def _scale(factors: list[tuple[bool, float]]) -> float | None:
    """Return the root mean square, of runs with the referee's decisions if any."""
    settled = [factor for touched, factor in factors if not touched]
    chosen = settled if len(settled) >= _FEWEST else [f for _, f in factors]
    if len(chosen) < _FEWEST:
        return None
    return (sum(f * f for f in chosen) / len(chosen)) ** 0.5


def _lost(moved: list[Tensor], rows: list[Tensor]) -> Tensor:
    """Return which samples have entries that errors made infinite, or NaN."""
    return torch.stack(
        [(~now.isfinite() & row.isfinite()).flatten(1).any(1).cpu()
         for now, row in zip(moved, rows, strict=True)]
    ).any(0)  # fmt: skip


def _factor(moved: Tensor, rows: Tensor) -> float:
    """Return by what factor all entries were moved at once."""
    square = float(rows.square().sum())
    return float(((moved - rows) * rows).sum()) / square if square else 0.0


class _Dtypes(TorchDispatchMode):
    """Collects the dtypes that floating numbers are computed in from others."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[torch.dtype] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        floating = any(isinstance(a, Tensor) and a.is_floating_point() for a in args)
        if floating and isinstance(result, Tensor) and result.is_floating_point():
            self.found.add(result.dtype)
        return result


def _computed_in(call: Call) -> set[torch.dtype]:
    """Return the dtypes of a plain forward, also of autocast inside the model."""
    with _Dtypes() as seen:
        call.task.forwards.graph(slice(None) if call.inputs.batched else None)
    return seen.found


def _refuse_too_large(call: Call) -> None:
    task = call.task
    needed = 8 * sum(task.sizes) * task.samples * task.rows * 6
    if needed > call.planner.budget:
        raise InputError(
            f"max_memory must hold six copies of the rows in float64, {needed:,} bytes;"
            f" got {call.planner.budget:,}. Compare on fewer samples, or raise it",
            argument="max_memory",
            needed=needed,
        )


def _run(
    call: Call, rounding: Rounding | None
) -> tuple[list[Tensor], Decisions, Promoted]:
    """Return the rows of a float64 run, its decisions, and what it was seen to do."""
    method = METHODS["onehot" if call.task.kind == "inputs" else "rows"]
    decisions = Decisions(call.target.root)
    with ExitStack() as stack:
        seen = stack.enter_context(promoting(call.task.graph.dtype))
        # Fused attention is opened, so that its operations can be met.
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        if rounding is not None:
            stack.enter_context(rounding)
        # Sees each operation whole, before errors are put into its parts.
        stack.enter_context(decisions)
        double = stack.enter_context(
            in_double(call, method, objective=call.request.takes_objective)
        )
        found = [r.double() for r in collected(method, double.task)]
    return found, decisions, seen
