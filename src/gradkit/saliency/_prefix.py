"""The affine beginning of a model, through which a sum is pulled back once.

The derivative of an affine operation is the same at every point. Where a source goes
through nothing but a matrix product or a convolution first, weighted gradients are
summed at its output, and only their sum is pulled back through it: pulling back is
linear. For a network whose first layer is its largest that is half of the work.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from gradkit._guards._graph import Graph
from gradkit._guards._independence import random_cotangent, same
from gradkit._quick import quick_products
from gradkit.saliency._nodes import Users, start_of, users_of

__all__ = ["Prefix", "is_faithful", "prefixes"]

#: Operations that keep the entries of a sample together and in order.
_LAYOUT = re.compile(r"(Clone|View|UnsafeView|ReshapeAlias|Alias)Backward\d")
#: For each affine operation the place of its argument, and what else it keeps.
_AFFINE = {
    "AddmmBackward0": (1, ("mat2", "alpha")),
    "MmBackward0": (0, ("mat2",)),
    "ConvolutionBackward0": (
        0,
        ("weight", "stride", "padding", "dilation", "transposed", "output_padding",
         "groups"),
    ),
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Prefix:
    """The way from one source through layouts to its first, affine operation.

    ``node`` is the operation's; ``kept`` is what its derivative depends on.
    """

    source: Tensor
    node: Any
    kept: tuple[Any, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of what gradients are summed at."""
        return tuple(self.node._input_metadata[0].shape)

    def same(self, other: Prefix | None) -> bool:
        """Whether another forward's has the same derivative."""
        return (
            other is not None
            and self.node.name() == other.node.name()
            and all(map(_equal, self.kept, other.kept))
        )

    def pull(self, summed: Tensor) -> Tensor:
        """Pull a sum ``(N, *)`` at the edge back to the source."""
        edge = GradientEdge(self.node, 0)
        dtype = self.node._input_metadata[0].dtype
        cotangent = summed.reshape(self.shape).to(dtype)
        with quick_products(cotangent, self.source.numel()):
            (found,) = torch.autograd.grad(
                [edge], [self.source], [cotangent], retain_graph=True
            )
        return found


def _equal(first: Any, second: Any) -> bool:
    if not isinstance(first, Tensor):
        return first == second
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    alike = first.data_ptr() == second.data_ptr() and first.stride() == second.stride()
    return alike or torch.equal(first, second)


def prefixes(graph: Graph) -> list[Prefix | None]:
    """Return the affine beginning of each source of a graph, where there is one."""
    users = users_of(graph)
    return [_prefix(source, users) for source in graph.sources]


def _prefix(source: Tensor, users: Users) -> Prefix | None:
    if not source.is_leaf:
        return None
    node = start_of(source, users)
    while node is not None:
        # Used twice, it would reach the outputs by another way as well.
        above = users.get(node, [])
        if len(above) != 1:
            return None
        below = node
        ((node, place),) = above
        if node is None:
            return None  # it is an output itself
        name = node.name()
        if name in _AFFINE:
            argument, names = _AFFINE[name]
            if place != argument:
                return None
            shapes = [tuple(n._input_metadata[0].shape[1:]) for n in (below, node)]
            return Prefix(source, node, (*shapes, *_kept(node, names)))
        if not _LAYOUT.fullmatch(name):
            return None  # a function of the user's has no number in its name
    return None


def _kept(node: Any, names: Sequence[str]) -> tuple[Any, ...]:
    return tuple(getattr(node, f"_saved_{name}") for name in names)


def is_faithful(base: Graph, other: Graph) -> bool:
    """Whether pulling back in two stages gives what one pull-back gives.

    The second stage is that of ``base``. A hook on a tensor, registered in the forward,
    may change gradients on their way; in the second stage it would do so to a sum, once
    more, or by the values of another point.
    """
    if base.dtype == torch.float16:
        return False  # its range is too small for the scaling below
    like = torch.empty((), dtype=base.dtype, device=base.device)
    cotangent = random_cotangent((base.samples, base.outputs.width), like)
    for first, prefix in zip(prefixes(base), prefixes(other), strict=True):
        if first is None or not first.same(prefix) or prefix is None:
            continue
        (whole,) = other.pull_to([prefix.source], cotangent)
        (summed,) = other.pull_to_edges(
            [(prefix.node, 0)], cotangent, several=False, entries=whole.numel()
        )
        assert summed is not None, "the node is of this graph"
        found = first.pull(summed)
        most = 1e4 * torch.finfo(whole.dtype).eps * whole.abs().max()
        if not bool((found - whole).abs().max() <= most.clamp(max=whole.abs().max())):
            return False  # also where there is a NaN
        # Multiplying by a power of two commutes with rounding.
        for factor in (-(2.0**20), 2.0**-20):
            if not bool(same(first.pull(summed * factor), found * factor).all()):
                return False
    return True
