"""A second opinion in float64 on rows that differ from the ordinary graph.

In low precision a difference may be rounding that crossed a kink: another kernel
adds in another order, a ReLU's input changes sign, and one entry changes by a lot.
In float64, on private copies, such a crossing is all but impossible, while a
transform that is wrong stays wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from gradkit._call._open import Call, open_call
from gradkit._call._request import Given
from gradkit._dtypes import default_dtype
from gradkit._guards._memory import Known
from gradkit._guards._verify import disagreement, tolerance
from gradkit._methods._collected import collected
from gradkit._methods._method import Method
from gradkit._planner import Planner
from gradkit._problem._inputs import Shared
from gradkit._problem._tree import map_leaves

__all__ = ["agrees_in_double", "converted", "in_double", "reopened"]


def agrees_in_double(call: Call, method: Method) -> bool | None:
    """Return whether ``method`` agrees with the ordinary graph in float64.

    ``None`` where it cannot be told: the model insists on its own precision, or the
    rows would not fit the memory budget.
    """
    task = call.task
    entries = sum(task.sizes) * task.samples * task.rows
    if 8 * entries > call.planner.budget:
        return None
    try:
        # The guard of this call has autocast off, so the next sees none.
        with in_double(call, method) as double:
            return _agrees(double, method)
    except Exception:
        # Whatever a model makes of doubles, it is no verdict on the method.
        return None


@contextmanager
def in_double(call: Call, method: Method) -> Iterator[Call]:
    """Open a call again in float64; what a model makes itself is float64, too.

    Args:
        call: The call. The caller's own values are put back for the time.
        method: What is to serve the other call.
    """
    with (
        default_dtype(torch.float64),
        reopened(call, method, torch.float64) as double,
    ):
        yield double


@contextmanager
def reopened(
    call: Call,
    method: Method,
    dtype: torch.dtype | None = None,
    *,
    objective: bool = False,
) -> Iterator[Call]:
    """Open a call again, on private copies of what it is computed from.

    Args:
        call: The call. The caller's own values are put back for the time.
        method: What is to serve the other call.
        dtype: What the copies are converted to; their own by default.
        objective: Whether the objective is evaluated anew, too; else its cotangent
            is that of the call.
    """
    # The copies are made of the caller's own values, not of what stands in for them.
    call.guard.state.restore()
    try:
        with _opened(call, method, dtype, objective) as other:
            yield other
    finally:
        call.guard.rewind()


def _opened(
    call: Call, method: Method, dtype: torch.dtype | None, objective: bool
) -> AbstractContextManager[Call]:
    cotangent = None if objective else call.task.cotangent
    given = Given(
        mapping={i: converted(v, dtype) for i, v in call.guard.copies().items()},
        parameters=call.parameters,
        cotangent=None if cotangent is None else converted(cotangent.detach(), dtype),
        start=call.guard.start,
        planner=Planner(call.planner.budget, Known()),
        objective=objective,
    )
    inputs = map_leaves(lambda v: converted(v, dtype), call.request.inputs)
    request = replace(call.request, inputs=inputs, method=method)
    return open_call(request, given=given)


def _agrees(double: Call, method: Method) -> bool | None:
    task, sources = double.task, double.task.graph.sources
    if any(t.dtype != torch.float64 for t in (*task.graph.outputs.tensors, *sources)):
        return None
    gap = disagreement(
        collected(method, task),
        lambda weights: task.graph.pull(task.weighted(weights)),
        over_samples=task.kind == "parameters",
        limit=tolerance(torch.float64),
    )
    return gap is None


def converted(value: Any, dtype: torch.dtype | None) -> Any:
    """Return a private copy, floating values in ``dtype``; a parameter stays one."""
    if isinstance(value, Shared):
        return Shared(converted(value.tensor, dtype))
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return value
    copy = value.detach().to(dtype or value.dtype, copy=True)
    if isinstance(value, nn.Parameter):
        return nn.Parameter(copy, requires_grad=value.requires_grad)
    return copy.requires_grad_(value.requires_grad)
