"""The referee: rows in float64, what rounding can make of them, and their decisions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from gradkit._call._open import Call
from gradkit._call._referee import reopened
from gradkit._dtypes import coarsest
from gradkit._methods import METHODS
from gradkit._methods._collected import collected
from gradkit._methods._method import Method
from gradkit.errors import InputError
from gradkit.numerics._decisions import Decision, Decisions, flips
from gradkit.numerics._own import Own, Precisions
from gradkit.numerics._promoting import Promoted, widening
from gradkit.numerics._range import Limited
from gradkit.numerics._rounding import Rounding

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
        overflows: The operations whose results the model's own precision cannot hold,
            and how many numbers of theirs.
        limited: Then the rows that come of it.
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
    overflows: dict[str, int] = field(default_factory=dict)
    limited: list[Tensor] | None = None
    scales: list[float | None] = field(default_factory=list)


def truth_of(call: Call, watched: Callable[[int], Iterator[int]]) -> Truth:
    """Return the truth of a call's rows.

    Args:
        call: The call, opened; its caller's values are put back for the time.
        watched: From a count to ``range(count)``, with a bar if it takes long.
    """
    _refuse_too_large(call)
    own = _own(call)
    precisions = Precisions(call.precision, own.steps)
    rows, decisions, seen = _run(call)
    found = Truth(
        rows, [], coarsest([call.precision, *(step.dtype for step in own.steps)]),
        decisions.found, decisions.conventions, lower=dict(seen.lower),
    )  # fmt: skip
    if own.infinite:
        _overflow(call, precisions, found)
    generator = torch.Generator(device="cpu")
    generator.manual_seed(0)
    spread = _Spread(rows, call.task.samples)
    for _ in watched(RUNS):
        moved, other, _ = _run(call, Rounding(precisions, generator))
        counts, touched = flips(found.decisions, other.found, call.task.samples)
        lost = _lost(moved, rows)
        if bool(lost.any()):
            # An error has pushed a root or the like out of its domain.
            counts["", "a number that stays finite"] = int(lost.sum())
            touched = touched | lost
        for place, count in counts.items():
            found.flips[place] = max(found.flips.get(place, 0), count)
        if bool(touched.any()):
            found.others.append((touched, moved))
        spread.add(moved, touched)
    found.unsettled = spread.alike < _FEWEST
    found.spread, found.scales = spread.of_entries(), spread.of_factors()
    return found


def _overflow(call: Call, precisions: Precisions, found: Truth) -> None:
    """Note what becomes of the rows where numbers are beyond the model's precision."""
    limited = Limited(precisions)
    rows, _, _ = _run(call, limited)
    if limited.found:
        found.overflows, found.limited = limited.found, rows


class _Spread:
    """How far runs with errors put in scatter around the referee's rows."""

    def __init__(self, rows: list[Tensor], samples: int) -> None:
        self._rows = rows
        #: Squares of numbers as large as float64 holds are larger.
        self._units = [_largest(r) or 1.0 for r in rows]
        self._alike = [torch.zeros_like(r) for r in rows]
        self._all = [torch.zeros_like(r) for r in rows]
        self._factors: list[list[tuple[bool, float]]] = [[] for _ in rows]
        #: ``(N,)``, how many runs decided as the referee.
        self.alike = torch.zeros(samples)

    def add(self, moved: list[Tensor], touched: Tensor) -> None:
        """Take a run, and for which samples it decided otherwise."""
        self.alike += ~touched
        for i, (now, row) in enumerate(zip(moved, self._rows, strict=True)):
            gap = ((now - row) / self._units[i]).nan_to_num(0.0, 0.0, 0.0)
            self._all[i] += gap.square()
            other = touched[:, None, None].to(row.device)
            self._alike[i] += torch.where(other, 0.0, gap.square())
            square = float((row / self._units[i]).square().sum())
            factor = (
                float((gap * row / self._units[i]).sum()) / square if square else 0.0
            )
            if math.isfinite(factor):
                self._factors[i].append((bool(touched.any()), factor))

    def of_entries(self) -> list[Tensor]:
        """Return root mean squares, of runs with the referee's decisions if any."""
        few, found = self.alike < _FEWEST, []
        for unit, alike, whole in zip(self._units, self._alike, self._all, strict=True):
            lone = few[:, None, None].to(whole.device)
            counts = self.alike.clamp(min=1)[:, None, None].to(whole)
            found.append(unit * torch.where(lone, whole / RUNS, alike / counts).sqrt())
        return found

    def of_factors(self) -> list[float | None]:
        """Return by what factor all entries of a source are moved at once, alike."""
        return [_scale(factors) for factors in self._factors]


def _largest(rows: Tensor) -> float:
    """Return the largest finite entry's size."""
    return float(rows.abs().nan_to_num(0.0, 0.0, 0.0).max()) if rows.numel() else 0.0


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


def _own(call: Call) -> Own:
    """Return what the referee's computation does in the model's own precision."""
    method = _method(call)
    evaluates = call.request.takes_objective
    with (
        sdpa_kernel(SDPBackend.MATH),
        Own() as seen,
        reopened(call, method, objective=evaluates) as own,
    ):
        collected(method, own.task)
    return seen


def _method(call: Call) -> Method:
    return METHODS["onehot" if call.task.kind == "inputs" else "rows"]


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
    call: Call, errors: TorchDispatchMode | None = None
) -> tuple[list[Tensor], Decisions, Promoted]:
    """Return the rows of a float64 run, its decisions, and what it was seen to do."""
    method = _method(call)
    decisions = Decisions(call.target.root)
    with ExitStack() as stack:
        seen = stack.enter_context(widening(call.precision))
        # Fused attention is opened, so that its operations can be met.
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        if errors is not None:
            stack.enter_context(errors)
        # Sees each operation whole, before errors are put into its parts.
        stack.enter_context(decisions)
        evaluates = call.request.takes_objective
        double = stack.enter_context(
            reopened(call, method, torch.float64, objective=evaluates)
        )
        found = [r.double() for r in collected(method, double.task)]
    return found, decisions, seen
