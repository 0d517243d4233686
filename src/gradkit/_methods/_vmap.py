"""``vmap``: the cotangents in one vmapped backward; parameters one sample at a time.

For inputs the backward of the one realised forward is vmapped over cotangents
(``is_grads_batched``). For parameters each sample's own pullback is vmapped over
the samples (``torch.func.vmap`` of ``torch.func.vjp``).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from gradkit._methods._method import Method
from gradkit._methods._reasons import no_transform
from gradkit._methods._task import Task, Values
from gradkit._problem._block import Block

__all__ = ["VMAP"]


def _input_rows(task: Task) -> Iterator[Block]:
    def run(_: slice, rows: slice) -> Values:
        pulled = task.graph.pull_many(task.cotangents(rows))
        return tuple(p.transpose(0, 1) for p in pulled)

    for _, rows, values in task.planner.tiles("vmap", 1, task.rows, run):
        yield Block(slice(0, task.samples), rows, values)


def _parameter_rows(task: Task) -> Iterator[Block]:
    function, sources, others, dims = task.function()

    def pulled(cotangents: Tensor, rest: Values) -> Values:
        """Pull one sample's cotangents ``(r, K)`` back to ``(r, p)`` per source."""

        def of_parameters(*values: Tensor) -> Tensor:
            return function(values, rest)

        value, pullback = torch.func.vjp(of_parameters, *sources)[:2]
        cotangents = cotangents.to(value.dtype)
        if cotangents.shape[0] == 1:
            found = pullback(cotangents[0])
            return tuple(g.reshape(1, -1) for g in found)
        found = torch.func.vmap(pullback)(cotangents)
        return tuple(g.flatten(1) for g in found)

    def run(samples: slice, rows: slice) -> Values:
        cotangents = task.cotangents(rows, samples).transpose(0, 1)
        if not task.batched:
            return tuple(v[None] for v in pulled(cotangents[0], others))
        part = task.part(others, dims, samples)
        with torch.no_grad():
            return torch.func.vmap(pulled, in_dims=(0, dims))(cotangents, part)

    for samples, rows, values in task.planner.tiles(
        "vmap", task.samples, task.rows, run
    ):
        yield Block(samples, rows, values)


def _unsupported(task: Task) -> str | None:
    return no_transform(task) if task.kind == "parameters" else None


VMAP = Method(
    name="vmap",
    mode="reverse",
    summary="inputs: all cotangents in one vmapped backward; parameters: each"
    " sample's pullback, vmapped over samples; fast where torch can vmap the model",
    inputs=_input_rows,
    parameters=_parameter_rows,
    unsupported=_unsupported,
    through_graph=("inputs",),
)
