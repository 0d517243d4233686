"""Normalisations of one sample, whose derivative torch 2.13 gets wrong."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from gradkit._guards._walk import nodes_below

__all__ = ["straighten"]

#: What takes the memory of a batch of one for channels-last when its cotangent lies
#: as a transposed one does, and then mixes up channels.
_MISTAKEN = "BatchNorm"


def straighten(outputs: Iterable[Tensor], sources: Iterable[Tensor]) -> None:
    """Give normalisations of one sample cotangents that lie in order in memory.

    ``batch_norm`` outside training and ``instance_norm``, which calls it, differentiate
    one sample of images wrongly by orders of one, for the inputs and the weight, after
    ``y.flatten(2).transpose(1, 2)``. Above ``sources`` nodes are the caller's.
    """
    stop = {s.grad_fn for s in sources if s.grad_fn is not None}
    for node in nodes_below((t.grad_fn for t in outputs), stop):
        if _MISTAKEN in node.name():
            node.register_prehook(_in_order)


def _in_order(cotangents: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(c.contiguous() if isinstance(c, Tensor) else c for c in cotangents)
