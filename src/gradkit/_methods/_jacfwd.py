"""``jacfwd``: ``torch.func.vmap(torch.func.jacfwd)``; cost grows with the inputs."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from gradkit._methods._method import Method
from gradkit._methods._reasons import no_transform
from gradkit._methods._task import Task, Values
from gradkit._problem._block import Block

__all__ = ["JACFWD"]


def _columns(task: Task) -> Iterator[tuple[slice, slice, Tensor]]:
    """Yield ``(n, K, c)``: some columns of some samples, sources side by side."""
    function, sources, others, dims = task.function()
    total = sum(task.sizes)

    def run(samples: slice, columns: slice) -> Values:
        width = columns.stop - columns.start
        zero = torch.zeros(width, dtype=task.graph.dtype, device=task.graph.device)

        def shifted(given: Values, rest: Values) -> Tensor:
            """Push all tangents of these columns through one sample's function."""

            def along(step: Tensor) -> Tensor:
                padded = F.pad(step, (columns.start, total - columns.stop))
                moved = tuple(
                    s + part.to(s.dtype).reshape(s.shape)
                    for s, part in zip(given, padded.split(task.sizes), strict=True)
                )
                return function(moved, rest)

            return torch.func.jacfwd(along)(zero)

        # The fused attention kernels have no forward mode.
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
            if not task.batched:
                return (shifted(sources, others)[None],)
            given = tuple(s[samples] for s in sources)
            part = task.part(others, dims, samples)
            return (torch.func.vmap(shifted, in_dims=(0, dims))(given, part),)

    for samples, columns, (values,) in task.planner.tiles(
        "jacfwd", task.samples, total, run
    ):
        yield samples, columns, values


def _rows(task: Task) -> Iterator[Block]:
    rows, total = slice(0, task.rows), sum(task.sizes)
    if not total:
        shape = (task.samples, task.rows, 0)
        empty = tuple(s.new_zeros(shape) for s in task.graph.sources)
        yield Block(slice(0, task.samples), rows, empty)
    parts: list[Tensor] = []
    for samples, columns, values in _columns(task):
        parts.append(values)
        if columns.stop == total:
            joined = torch.cat(parts, -1) if len(parts) > 1 else parts[0]
            yield Block(samples, rows, joined.split(task.sizes, -1))
            parts = []


def _unsupported(task: Task) -> str | None:
    if task.cotangent is not None:
        return "it computes whole Jacobians; an objective needs one pull-back only"
    return no_transform(task)


JACFWD = Method(
    name="jacfwd",
    mode="forward",
    summary="torch.func.vmap(jacfwd): one forward-mode pass per input entry; a good"
    " choice for few inputs and many outputs",
    inputs=_rows,
    unsupported=_unsupported,
)
