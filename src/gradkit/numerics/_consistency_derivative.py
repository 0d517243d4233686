"""Rows of a derivative in the whole batch, and in slices of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from gradkit._call._open import Call, open_call
from gradkit._call._request import Given, Request
from gradkit._call._solve import solve
from gradkit._explain import sizes_by_name
from gradkit._guards._memory import Known
from gradkit._guards._random import RandomState
from gradkit._planner import Planner
from gradkit._problem._inputs import Inputs, Shared
from gradkit._problem._parameters import Parameter
from gradkit._problem._result import Rows
from gradkit._problem._tree import map_leaves
from gradkit.numerics._consistency_rows import Difference, starts_of
from gradkit.numerics._consistency_runs import Precision
from gradkit.numerics._promoting import promoting

__all__ = ["DerivativeRows", "derivative_rows"]

Watched = Callable[[str, int], Iterator[int]]


@dataclass(eq=False)
class DerivativeRows:
    """The differences of a derivative's rows, by batch size and name."""

    found: dict[int, dict[str, Difference]] = field(default_factory=dict)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    cotangent: Tensor | None = None
    parameters: tuple[Parameter, ...] = ()


def derivative_rows(
    request: Request,
    inputs: Inputs,
    samples: int,
    sizes: Sequence[int],
    precision: Precision,
    watched: Watched,
    like: DerivativeRows | None = None,
) -> DerivativeRows:
    """Compare the rows of the whole batch with those of its slices.

    The objective is called once, on the outputs of the whole batch in the model's own
    precision, and what slices are given is their part of its cotangent.

    Args:
        request: The public call. Its inputs are the batch.
        inputs: The inputs, read.
        samples: ``N``.
        sizes: The batch sizes.
        precision: What is computed in.
        watched: From a name and a count to ``range(count)``, with a bar.
        like: What was found in the model's own precision; its cotangent is used.
    """
    found = DerivativeRows()
    every = torch.arange(samples, device="cpu")
    wide = precision.dtype == torch.float64
    with promoting() if wide else nullcontext():
        if like is None:
            with open_call(_part(request, inputs, every, precision)) as call:
                found.cotangent, found.parameters = call.task.cotangent, call.parameters
                names, whole = list(sizes_by_name(call)), _rows(call)
        else:
            found.cotangent, found.parameters = like.cotangent, like.parameters
            names, whole = _again(request, inputs, every, precision, found)
        found.shapes = {n: tuple(r.shape) for n, r in zip(names, whole, strict=True)}
        for size in sizes:
            differences = found.found[size] = {name: Difference() for name in names}
            starts = starts_of(samples, size)
            for i in watched(f"{request.function} of {size}", len(starts)):
                index = every[starts[i] : starts[i] + size]
                _, part = _again(request, inputs, index, precision, found)
                for name, rows, other in zip(names, whole, part, strict=True):
                    differences[name].add(rows[index.to(rows.device)], other)
    return found


def _again(
    request: Request,
    inputs: Inputs,
    index: Tensor,
    precision: Precision,
    found: DerivativeRows,
) -> tuple[list[str], list[Tensor]]:
    """Return names and rows of some samples, with their part of the cotangent."""
    cotangent = found.cotangent
    if cotangent is not None:
        cotangent = precision.of(cotangent[index.to(cotangent.device)].detach())
    given = Given(
        mapping=dict(precision.mapping),
        parameters=found.parameters,
        cotangent=cotangent,
        start=RandomState([]),
        planner=Planner(2**31, Known()),
    )
    part = _part(request, inputs, index, precision)
    with open_call(part, given=given) as call:
        return list(sizes_by_name(call)), _rows(call)


def _part(
    request: Request, inputs: Inputs, index: Tensor, precision: Precision
) -> Request:
    def some(value: Any) -> Any:
        if isinstance(value, Shared):
            return Shared(precision.of(value.tensor))
        if not isinstance(value, Tensor):
            return value
        value = precision.of(value)
        if not value.ndim:
            return value
        return value[index.to(value.device) % value.shape[0]]

    return replace(request, inputs=map_leaves(some, request.inputs))


def _rows(call: Call) -> list[Tensor]:
    """Return ``(N, R, size)`` per input or parameter."""
    task, lead = call.task, 1 if call.task.kind == "inputs" else 0
    like = [(s.shape[lead:], s.dtype, s.device) for s in task.graph.sources]
    if call.methods[0].by_rules and len(call.methods) > 1:
        # Rules keep factors; what they are of is compared by the next method.
        call = replace(call, methods=call.methods[1:])
    flat, _ = solve(call, lambda: Rows(task.samples, task.rows, like))
    return [f.detach() for f in flat]
