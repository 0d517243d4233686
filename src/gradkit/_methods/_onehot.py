"""``onehot``: one backward per output, its one-hot cotangent shared by all samples."""

from __future__ import annotations

from collections.abc import Iterator

from gradkit._methods._method import Method
from gradkit._methods._task import Task
from gradkit._problem._block import Block

__all__ = ["ONEHOT"]


def _rows(task: Task) -> Iterator[Block]:
    for r in task.planner.watched("onehot", task.rows):
        row = slice(r, r + 1)
        pulled = task.graph.pull(task.cotangents(row)[0])
        yield Block(slice(0, task.samples), row, tuple(p[:, None] for p in pulled))


ONEHOT = Method(
    name="onehot",
    mode="reverse",
    summary="one backward per output for all samples at once: K backwards;"
    " works with every operation",
    inputs=_rows,
    through_graph=("inputs",),
)
