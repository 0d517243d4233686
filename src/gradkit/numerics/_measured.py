"""One method's rows beside the referee's: run, judged, and measured."""

from __future__ import annotations

import time

import torch
from torch import Tensor

from gradkit._call._open import Call
from gradkit._call._proof import describe
from gradkit._call._solve import check_rows, errors_of, reason_for
from gradkit._dtypes import short
from gradkit._explain import sizes_by_name
from gradkit._methods import METHODS
from gradkit._methods._collected import collected
from gradkit._methods._method import Method
from gradkit.errors import InputError, UnsupportedModelError
from gradkit.numerics._hints import hints
from gradkit.numerics._places import unravelled
from gradkit.numerics._report import MethodReport, Place
from gradkit.numerics._truth import Truth
from gradkit.numerics._ulps import ulp_distance
from gradkit.numerics._verdict import Worst, bounds_of, judge

__all__ = ["judged"]


def judged(call: Call, method: Method, truth: Truth) -> MethodReport:
    """Return one method's report; what it cannot serve it is skipped for."""
    reason = reason_for(call, method)
    if reason is None:
        start = time.perf_counter()
        try:
            rows = collected(method, call.task)
        except UnsupportedModelError as error:
            reason = error.message
        except InputError as error:
            if error.argument == "method":
                return MethodReport(method.name, "different", error.message)
            # A call inside the model refuses what torch.func makes of its inputs.
            if not getattr(error, "transformed", False):
                raise
            reason = error.message
        except torch.OutOfMemoryError:
            raise
        except errors_of(method, call.task.kind) as error:
            reason = describe(error)
        else:
            return _measured(call, method, truth, rows, time.perf_counter() - start)
    return MethodReport(method.name, "skipped", reason)


def _measured(
    call: Call, method: Method, truth: Truth, rows: list[Tensor], seconds: float
) -> MethodReport:
    verdict, worst = judge(rows, truth)
    bounds = bounds_of(rows, truth)
    reason, found = None, []
    if verdict == "different":
        names = list(sizes_by_name(call))
        found = hints(
            {n: r.double() for n, r in zip(names, rows, strict=True)},
            dict(zip(names, truth.rows, strict=True)),
            call.task.samples if call.task.batched else None,
            torch.finfo(truth.dtype).eps,
            dict(zip(names, bounds, strict=True)),
        )
        reason = _convention(method, truth)
        verdict = "different" if reason is None else "convention"
        reason = reason or _refused(call, method, rows)
    nothing = verdict == "rounding" and _says_nothing(bounds, truth)
    if verdict == "overflow" or (nothing and truth.overflows):
        verdict, reason = "overflow", _beyond(truth)
    elif nothing:
        reason = (
            "rounding may come to more than the numbers themselves here, so that this"
            " says nothing. Compare in a wider dtype"
        )
    if truth.lower and verdict != "equal":
        verdict = "unresolved"
    error, relative, ulps = _sizes(rows, truth)
    return MethodReport(
        method.name, verdict, reason, seconds, error, relative, ulps,
        None if worst is None else _place(call, worst), tuple(found),
    )  # fmt: skip


def _refused(call: Call, method: Method, rows: list[Tensor]) -> str | None:
    """Return why a call that asks for one of gradkit's methods is refused with it."""
    if METHODS.get(method.name) is not method:
        return None
    reason = check_rows(call, method, rows)
    return None if reason is None else f"a call with it is refused: {reason}"


def _convention(method: Method, truth: Truth) -> str | None:
    """Return the known fork that a difference may come of."""
    for name, text in truth.conventions.items():
        cut = name in ("padding_idx", "no_grad or detach")
        if not cut or method.mode == "forward":
            return f"a convention, not rounding: {text}"
    return None


def _beyond(truth: Truth) -> str:
    places = ", ".join(f"{name} ({n})" for name, n in truth.overflows.items())
    return (
        f"{short(truth.dtype)} cannot hold what is computed in"
        f" {places}, so no method can be right there. Scale the numbers, or compute in"
        " a wider dtype"
    )


def _says_nothing(bounds: list[Tensor], truth: Truth) -> bool:
    """Whether what is allowed is larger than all that is compared."""
    pairs = zip(bounds, truth.rows, strict=True)
    norms = [(float(b.norm()), float(r.norm())) for b, r in pairs if r.numel()]
    right = max((r for _, r in norms), default=0.0)
    return right > 0 and max(b for b, _ in norms) > right


def _sizes(rows: list[Tensor], truth: Truth) -> tuple[float, float, int]:
    error, relative, ulps = 0.0, 0.0, 0
    for row, right in zip(rows, truth.rows, strict=True):
        if not row.numel():
            continue
        gap = (row.double() - right).abs().nan_to_num(nan=0.0, posinf=float("inf"))
        largest = float(right.abs().max())
        error = max(error, float(gap.max()))
        relative = max(relative, float(gap.max()) / largest if largest else 0.0)
        # Of what cancels, units in the last place say nothing.
        large = right.abs() > largest * 2**-10
        distance = ulp_distance(row, right.to(row.dtype))[large]
        ulps = max(ulps, int(distance.max()) if distance.numel() else 0)
    return error, relative, ulps


def _place(call: Call, worst: Worst) -> Place:
    task = call.task
    output: tuple[int, ...] = ()
    sizes = task.graph.outputs.sizes
    if task.cotangent is None and len(sizes) == 1:
        output = unravelled(worst.row, sizes[0])
    elif task.cotangent is None:
        output = (worst.row,)
    shape = task.graph.sources[worst.source].shape
    if task.kind == "inputs" and task.batched:
        shape = shape[1:]
    return Place(
        worst.sample if task.batched else None,
        output,
        list(sizes_by_name(call))[worst.source],
        unravelled(worst.entry, shape),
        worst.found,
        worst.right,
        worst.bound,
    )
