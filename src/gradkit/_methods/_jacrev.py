"""``jacrev``: ``torch.func.vmap(torch.func.jacrev)``, one sample's Jacobian each."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from gradkit._methods._method import Method
from gradkit._methods._reasons import no_transform
from gradkit._methods._task import Task, Values
from gradkit._problem._block import Block

__all__ = ["JACREV"]


def _rows(task: Task) -> Iterator[Block]:
    function, sources, others, dims = task.function()
    # Inputs differ from sample to sample; parameters are the same for all.
    lead = None if task.kind == "parameters" else 0

    def run(samples: slice, rows: slice) -> Values:
        def some_rows(given: Values, rest: Values) -> Tensor:
            value = function(given, rest)
            return value if rows == slice(0, task.rows) else value[rows]

        jacobian = torch.func.jacrev(some_rows)
        with torch.no_grad():
            if not task.batched:
                found = tuple(v[None] for v in jacobian(sources, others))
            else:
                given = sources if lead is None else tuple(s[samples] for s in sources)
                part = task.part(others, dims, samples)
                found = torch.func.vmap(jacobian, in_dims=(lead, dims))(given, part)
        return tuple(v.flatten(2) if v.ndim > 2 else v[..., None] for v in found)

    for samples, rows, values in task.planner.tiles(
        "jacrev", task.samples, task.rows, run
    ):
        yield Block(samples, rows, values)


def _unsupported(task: Task) -> str | None:
    if task.cotangent is not None:
        return "it computes whole Jacobians; an objective needs one pull-back only"
    return no_transform(task)


JACREV = Method(
    name="jacrev",
    mode="reverse",
    summary="torch.func.vmap(jacrev): each sample's Jacobian by reverse mode",
    inputs=_rows,
    parameters=_rows,
    unsupported=_unsupported,
)
