"""All rows of one method, as they are: without its check, and in no one's shapes."""

from __future__ import annotations

from torch import Size, Tensor

from gradkit._methods._method import Method
from gradkit._methods._task import Task
from gradkit._problem._result import Rows

__all__ = ["collected"]


def collected(method: Method, task: Task) -> list[Tensor]:
    """Return ``(N, R, size)`` per source, detached."""
    like = [(Size([n]), s.dtype, s.device)
            for n, s in zip(task.sizes, task.graph.sources, strict=True)]  # fmt: skip
    rows = Rows(task.samples, task.rows, like)
    for block in method.run(task):
        rows.write(block)
    return [r.detach() for r in rows.flat()]
