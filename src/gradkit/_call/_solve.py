"""Which method serves a call, and the check on what it gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from gradkit._call._open import Call
from gradkit._call._proof import describe
from gradkit._call._referee import agrees_in_double
from gradkit._call._room import beyond_memory
from gradkit._guards._verify import disagreement, tolerance
from gradkit._memory_use import ran_out
from gradkit._methods._method import Method
from gradkit._problem._result import Rows
from gradkit.errors import GradkitError, InputError, UnsupportedModelError

__all__ = ["check_rows", "reason_for", "refusal", "serve", "solve"]

Result = TypeVar("Result")
Attempt = tuple[Result, str | None]
Served = tuple[Result, Method]


def reason_for(call: Call, method: Method) -> str | None:
    """Return why ``method`` cannot serve ``call``, or ``None``."""
    reason = method.reason(call.task)
    if reason is None and not call.proved and call.task.kind in method.through_graph:
        return (
            "independence of the samples can be read nowhere in its graph: no input"
            " is floating, and no look-up by the integers has the samples first"
        )
    return reason


def serve(call: Call, attempt: Callable[[Method], Attempt[Result]]) -> Served[Result]:
    """Return what the first method that can serves, and the method.

    Methods are tried in order. What a method cannot do, or gets wrong by its check,
    is a reason; with one explicit method the reason is the error.

    Args:
        call: The call.
        attempt: From a method to its result and the reason why it does not count.
    """
    reasons: dict[str, str] = {}
    last: Exception | None = None
    spent = doubted = False
    for method in call.methods:
        reason = reason_for(call, method)
        if reason is None and doubted and call.task.kind in method.through_graph:
            reason = (
                "rows from elsewhere differ from its graph, so one of them is wrong"
            )
        if reason is None:
            try:
                result, reason = attempt(method)
                if reason is None:
                    return result, method
                # For parameters the batch's own graph is no arbiter: an operation
                # may count over the batch, as scale_grad_by_freq does.
                doubted = call.task.kind == "parameters"
            except UnsupportedModelError as error:
                reason, last = error.message, error
            except InputError as error:
                # A call inside the model refuses what torch.func makes of its inputs.
                if not getattr(error, "transformed", False):
                    raise
                reason, last = error.message, error
            except (GradkitError, torch.OutOfMemoryError):
                raise
            except errors_of(method, call.task.kind) as error:
                reason, last = describe(error), error
                spent = spent or ran_out(error)
        reasons[method.name] = reason
    raise (beyond_memory(call, reasons) if spent else refusal(reasons)) from last


def solve(call: Call, sink: Callable[[], Rows]) -> Served[list[Tensor]]:
    """Return the flat rows, and the method that computed them."""

    def attempt(method: Method) -> Attempt[list[Tensor]]:
        rows = sink()
        for block in method.run(call.task):
            rows.write(block)
        flat = rows.flat()
        return flat, check_rows(call, method, flat)

    return serve(call, attempt)


def errors_of(method: Method, kind: str) -> tuple[type[Exception], ...]:
    """Return the exceptions that say that a method cannot serve a model.

    A method that runs the model's own graph meets only what autograd raises; one
    that transforms the model meets whatever its Python code makes of wrappers.
    """
    if kind in method.through_graph:
        return (RuntimeError,)
    return (RuntimeError, ValueError, TypeError, AttributeError, IndexError)


def refusal(reasons: dict[str, str]) -> UnsupportedModelError:
    """Return the error that no method serves the model."""
    if len(reasons) == 1:
        ((name, reason),) = reasons.items()
        return UnsupportedModelError(
            f"method {name!r} cannot serve this model: {reason.rstrip('.')}."
            " Use method='auto', which takes one that can",
            reasons=reasons,
        )
    each = "; ".join(f"{name!r}: {reason}" for name, reason in reasons.items())
    return UnsupportedModelError(
        f"no method can serve this model ({each})", reasons=reasons
    )


def _spoiled(samples: int, flat: Sequence[Tensor]) -> str | None:
    """Return that rows may be spoiled by another sample's infinity, if they may.

    Through a graph that samples share, a cotangent of zero times an infinite
    derivative is NaN, and lands in every sample's row.
    """
    if samples < 2:
        return None
    for rows in flat:
        if rows.numel() and not bool(
            torch.isfinite(torch.linalg.vector_norm(rows, float("inf"), -1)).all()
        ):
            return (
                "a derivative is not finite, and in a graph that samples share one"
                " sample's infinity or NaN spoils the others' rows"
            )
    return None


def _first_limit(precision: torch.dtype) -> float:
    """Return the difference from which on more is asked."""
    if precision == torch.float64:
        return tolerance(precision)
    eps = torch.finfo(precision).eps
    return (2 if eps > 1e-4 else 64) * eps


def _is_rounding(
    call: Call, method: Method, gap: float, precision: torch.dtype
) -> bool:
    """Whether a small difference in low precision is rounding, also across a kink."""
    if precision == torch.float64:
        return False
    coarse = torch.finfo(precision).eps > 1e-4
    if gap > 0.05 and not coarse:
        return False  # no rounding; and a fault of this precision alone stays one
    verdict = agrees_in_double(call, method)
    limit = 0.05 if coarse else tolerance(precision)
    return gap <= limit if verdict is None else verdict


def check_rows(
    call: Call,
    method: Method,
    flat: Sequence[Tensor],
    *,
    start: int = 0,
) -> str | None:
    """Return by how much rows from elsewhere differ from the ordinary graph.

    Rows pulled back through the realised forward itself are checked only where a
    vmapped backward made them, and only when the proof is renewed.
    """
    task = call.task
    if task.kind in method.through_graph:
        if task.kind == "parameters":
            return _spoiled(task.samples, flat)
        if not (method.name == "vmap" and call.proof_due):
            return None
    precision = call.precision
    gap = disagreement(
        flat,
        lambda weights: task.graph.pull(task.weighted(weights)),
        over_samples=task.kind == "parameters",
        limit=_first_limit(precision),
        start=start,
        samples=task.samples,
    )
    if gap is None or _is_rounding(call, method, gap, precision):
        return None
    return (
        f"its result differs from the ordinary backward by {gap:.1e} of its size."
        " A torch.no_grad block or detach in the model (which forward mode sees"
        " through), an operation that torch transforms wrongly, or an output that"
        " depends on the batch it travels in can cause this"
    )
