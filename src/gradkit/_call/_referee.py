"""A second opinion in float64 on rows that differ from the ordinary graph.

In low precision a difference may be rounding that crossed a kink: another kernel
adds in another order, a ReLU's input changes sign, and one entry changes by a lot.
In float64, on private copies, such a crossing is all but impossible, while a
transform that is wrong stays wrong.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from gradkit._call._open import Call, open_call
from gradkit._call._request import Given
from gradkit._guards._memory import Known
from gradkit._guards._verify import disagreement, tolerance
from gradkit._methods._method import Method
from gradkit._planner import Planner
from gradkit._problem._inputs import Shared
from gradkit._problem._result import Rows
from gradkit._problem._tree import map_leaves

__all__ = ["agrees_in_double"]


def agrees_in_double(call: Call, method: Method) -> bool | None:
    """Return whether ``method`` agrees with the ordinary graph in float64.

    ``None`` where it cannot be told: the model insists on its own precision, or the
    rows would not fit the memory budget.
    """
    task = call.task
    entries = sum(task.sizes) * task.samples * task.rows
    if 8 * entries > call.planner.budget:
        return None
    before = torch.get_default_dtype()
    # The copies are made of the caller's own values, not of what stands in for them.
    call.guard.state.restore()
    try:
        torch.set_default_dtype(torch.float64)
        # The guard of this call has autocast off, so the next sees none.
        return _compare(call, method)
    except Exception:
        # Whatever a model makes of doubles, it is no verdict on the method.
        return None
    finally:
        torch.set_default_dtype(before)
        call.guard.rewind()


def _compare(call: Call, method: Method) -> bool | None:
    cotangent = call.task.cotangent
    given = Given(
        mapping={i: _double(v) for i, v in call.guard.copies().items()},
        parameters=call.parameters,
        cotangent=None if cotangent is None else cotangent.detach().double(),
        start=call.guard.start,
        planner=Planner(call.planner.budget, Known()),
    )
    inputs = map_leaves(_double, call.request.inputs)
    request = replace(call.request, inputs=inputs, method=method)
    with open_call(request, given=given) as double:
        task, sources = double.task, double.task.graph.sources
        if any(
            t.dtype != torch.float64 for t in (*task.graph.outputs.tensors, *sources)
        ):
            return None
        like = [(torch.Size([n]), torch.float64, s.device)
                for n, s in zip(task.sizes, sources, strict=True)]  # fmt: skip
        rows = Rows(task.samples, task.rows, like)
        for block in method.run(task):
            rows.write(block)
        gap = disagreement(
            rows.flat(),
            lambda weights: task.graph.pull(task.weighted(weights)),
            over_samples=task.kind == "parameters",
            limit=tolerance(torch.float64),
        )
        return gap is None


def _double(value: Any) -> Any:
    if isinstance(value, Shared):
        return Shared(_double(value.tensor))
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return value
    copy = value.detach().to(torch.float64, copy=True)
    if isinstance(value, nn.Parameter):
        return nn.Parameter(copy, requires_grad=value.requires_grad)
    return copy.requires_grad_(value.requires_grad)
