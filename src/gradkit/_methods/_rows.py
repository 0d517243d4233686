"""``rows``: one batched backward over the samples of the ordinary graph."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from gradkit._methods._method import Method
from gradkit._methods._task import Task, Values
from gradkit._problem._block import Block

__all__ = ["ROWS"]


def _rows(task: Task) -> Iterator[Block]:
    def run(samples: slice, rows: slice) -> Values:
        """Pull back cotangents that are zero but for one sample's row each."""
        own = task.cotangents(rows, samples)  # (r, n, K)
        width, count, outputs = own.shape
        alone = own.new_zeros(count, width, task.samples, outputs)
        index = torch.arange(count, device=own.device)
        alone[index, :, samples.start + index] = own.transpose(0, 1)
        alone = alone.reshape(count * width, task.samples, outputs)
        return tuple(v.reshape(count, width, -1) for v in _pull(task, alone))

    for samples, rows, values in task.planner.tiles(
        "rows", task.samples, task.rows, run
    ):
        yield Block(samples, rows, values)


def _pull(task: Task, cotangents: torch.Tensor) -> Values:
    """Pull all back at once, or one by one where torch cannot vmap an operation."""
    if len(cotangents) > 1:
        try:
            return task.graph.pull_many(cotangents)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:
            pass  # the next lines raise again what is not about vmap
    pulled = [task.graph.pull(c) for c in cotangents]
    return tuple(torch.stack(parts) for parts in zip(*pulled, strict=True))


ROWS = Method(
    name="rows",
    mode="reverse",
    summary="one batched backward over the samples of the ordinary graph; costs a"
    " whole backward per row, and serves models that draw random numbers",
    parameters=_rows,
    through_graph=("parameters",),
)
