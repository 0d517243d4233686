"""``loop``: one sample at a time, one output at a time; the reference."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from gradkit._methods._method import Method
from gradkit._methods._task import Task
from gradkit._problem._block import Block

__all__ = ["LOOP"]


def _rows(task: Task) -> Iterator[Block]:
    for n in task.planner.watched("loop", task.samples):
        one = slice(n, n + 1)
        graph = task.forwards.graph(one)
        pulled = [
            graph.pull(task.cotangents(slice(r, r + 1), one)[0])
            for r in range(task.rows)
        ]
        # A gradient of a parameter has no sample axis; here it is one sample's.
        values = tuple(
            torch.stack([v.reshape(1, -1) for v in parts], 1)
            for parts in zip(*pulled, strict=True)
        )
        yield Block(one, slice(0, task.rows), values)


LOOP = Method(
    name="loop",
    mode="reverse",
    summary="one sample and one output at a time: N forwards, N·K backwards;"
    " slow, simple, the reference",
    inputs=_rows,
    parameters=_rows,
)
