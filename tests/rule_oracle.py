"""The rows of one torch call with respect to one argument, by ordinary backwards.

Made with torch alone: for each sample and row the cotangent of the whole batch's
output is zero but at that sample's entries, and one backward gives that row.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def owners(output: Tensor, axis: int, before: int, samples: int, after: int) -> Tensor:
    """Return whose each entry is, ``(*output)``; the axis holds before * N * after."""
    place = torch.arange(before * samples * after, device=output.device)
    owner = place.div(after, rounding_mode="floor") % samples
    shape = [1] * output.dim()
    shape[axis] = -1
    return owner.reshape(shape).expand(output.shape)


def rows_by_backward(
    run: Callable[[], Tensor], leaf: Tensor, cotangents: Tensor, owner: Tensor
) -> Tensor:
    """Return the rows ``(N, R, *leaf)`` for cotangents ``(R, *output)``.

    Args:
        run: Returns the output of the whole batch; reads ``leaf``.
        leaf: Requires grad.
        cotangents: One for each row, all samples in it.
        owner: Whose each entry of the output is.
    """
    samples = range(int(owner.max()) + 1) if owner.numel() else range(0)
    found = [
        _row(run, leaf, cotangent * (owner == n))
        for n in samples
        for cotangent in cotangents
    ]
    shape = (len(samples), len(cotangents), *leaf.shape)
    return torch.stack(found).reshape(shape) if found else leaf.new_zeros(shape)


def _row(run: Callable[[], Tensor], leaf: Tensor, cotangent: Tensor) -> Tensor:
    (row,) = torch.autograd.grad(run(), leaf, cotangent, materialize_grads=True)
    return row.detach()
