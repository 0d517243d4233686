"""Rows of a product of two tensors, one of them a parameter: over its axes' letters.

A letter names an axis, as in ``torch.einsum``: ``x[n, t, i] w[o, i] -> y[n, t, o]``.
Which of the three have a letter says what its axis does in a row of the weight:

==== ====== ====== ================================================================
flow weight output
==== ====== ====== ================================================================
yes  yes    yes    a group: one outer product for each
yes  no     yes    a position: outer products are summed over it
no   yes    yes    an output: on the cotangent's side of an outer product
yes  yes    no     an input: on the other side
yes  no     no     summed before the product
no   yes    no     summed in the weight alone: a row is the same all along it
==== ====== ====== ================================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import torch
from torch import Size, Tensor

from gradkit._rules._aligned import aligned, without_own_samples
from gradkit._rules._factor import Factor
from gradkit._rules._outer import Outer
from gradkit._rules._rearranged import Rearranged
from gradkit._rules._rule import Operation

__all__ = ["Product", "broadcast_reason", "foreign_reason", "fresh_letters"]

_ALONG = "the parameter has an axis along the samples"


def foreign_reason(operation: Operation) -> str | None:
    """Return why a call on such tensors is not covered by any rule of products."""
    if operation.dtype.is_complex:
        return "its numbers are complex"
    tensors = [t for t in operation.arguments.values() if isinstance(t, Tensor)]
    if any(t.layout is not torch.strided or t.is_nested for t in tensors):
        return "a tensor of it is sparse or nested"
    return None


def fresh_letters(count: int) -> str:
    """Return letters that no einsum equation has."""
    return "".join(chr(0x100 + i) for i in range(count))


class Product:
    """One call's product, and the parameter in it.

    Axes of one entry are broadcast, as torch does: they are dropped where the other
    tensor has more.

    Args:
        operation: The call.
        flow: What the parameter is multiplied with, and the letters of its axes.
        weight: The parameter's shape, and its letters.
        output: The output's letters.
    """

    def __init__(
        self,
        operation: Operation,
        flow: tuple[Tensor, str],
        weight: tuple[Size, str],
        output: str,
    ) -> None:
        self.operation, self.shape, self.output = operation, weight[0], output
        pairs = [*zip(flow[1], flow[0].shape, strict=True)]
        pairs += zip(weight[1], self.shape, strict=True)
        self.sizes: dict[str, int] = {}
        for letter, size in pairs:
            known = self.sizes.get(letter, 1)
            self.sizes[letter] = known if size == 1 else size
        kept = self._kept(flow[1], flow[0].shape)
        self.flow = flow[0].reshape([flow[0].shape[axis] for axis in kept])
        self.flow_axes = "".join(flow[1][axis] for axis in kept)
        self.kept = self._kept(weight[1], self.shape)
        self.weight_axes = "".join(weight[1][axis] for axis in self.kept)

    def _kept(self, letters: str, shape: Size) -> list[int]:
        """Return the axes that are as long as their letter."""
        pairs = enumerate(zip(letters, shape, strict=True))
        return [axis for axis, (letter, size) in pairs if size == self.sizes[letter]]

    def reason(self) -> str | None:
        """Return why its rows cannot be told apart by sample, or ``None``."""
        if self.operation.samples == 1:
            return None  # wherever the sample stands, all is its own
        sample = self.output[self.operation.layout.axis]
        return _ALONG if sample in self.weight_axes else None

    def rows(self, cotangent: Tensor) -> Factor | Tensor:
        """Return the parameter's rows for a cotangent ``(N, R, ..)``, samples first."""
        c, c_axes = self._cotangent(cotangent)
        x, x_axes = self._samples_first(cotangent)
        weight = self.weight_axes
        lonely = [a for a in x_axes if a not in weight and a not in c_axes]
        if lonely:
            x = x.sum([1 + x_axes.index(a) for a in lonely])
            x_axes = "".join(a for a in x_axes if a not in lonely)
        groups = [a for a in weight if a in c_axes and a in x_axes]
        outputs = [a for a in weight if a in c_axes and a not in x_axes]
        inputs = [a for a in weight if a not in c_axes and a in x_axes]
        positions = [a for a in c_axes if a not in weight]
        c = _arranged(c, c_axes, 2, (groups, positions, outputs))
        x = _arranged(x, x_axes, 1, (groups, positions, inputs))
        order = [*groups, *outputs, *inputs]
        if len(order) < len(weight) or not outputs + inputs:
            return self._formed(c, x, order)
        if weight == "".join(order):
            return Outer(self.shape, c, x)
        if weight == "".join([*groups, *inputs, *outputs]):
            return Outer(self.shape, c, x, inputs_first=True)
        return self._rearranged(c, x, order)

    def _cotangent(self, c: Tensor) -> tuple[Tensor, str]:
        """Return the cotangent and the letters of its axes after the first two."""
        layout, axes = self.operation.layout, self.output
        whole = layout.before * layout.after == 1
        if self.operation.samples == 1:
            return (c.unsqueeze(2 + layout.axis) if whole else c), axes
        return c, axes.replace(axes[layout.axis], "") if whole else axes

    def _samples_first(self, like: Tensor) -> tuple[Tensor, str]:
        """Return what flows in, ``(N, ..)``, and the letters after the first."""
        x, layout, axes = self.flow.to(like), self.operation.layout, self.flow_axes
        if self.operation.samples == 1:
            return x.unsqueeze(0), axes
        sample = self.output[layout.axis]
        place = replace(layout, axis=axes.index(sample))
        x = place.front(x, self.operation.samples)
        return x, axes.replace(
            sample, ""
        ) if layout.before * layout.after == 1 else axes

    def _formed(self, c: Tensor, x: Tensor, order: list[str]) -> Tensor:
        """Return rows ``(N, R, *shape)`` that are no outer products."""
        rows = torch.einsum("nrgto,ngti->nrgoi", c, x)
        rows = rows.reshape(*c.shape[:2], *(self.sizes[a] for a in order))
        present = [a for a in self.weight_axes if a in order]
        rows = rows.permute(0, 1, *(2 + order.index(a) for a in present))
        for axis, letter in enumerate(self.weight_axes):
            if letter not in order:  # summed in the weight alone
                rows = rows.unsqueeze(2 + axis)
        sizes = [self.sizes[a] for a in self.weight_axes]
        return rows.expand(*c.shape[:2], *sizes).reshape(*c.shape[:2], *self.shape)

    def _rearranged(self, c: Tensor, x: Tensor, order: list[str]) -> Rearranged:
        """Return outer products over axes that lie in another order in the weight."""
        axes = [axis for axis in range(len(self.shape)) if axis not in self.kept]
        axes += [self.kept[self.weight_axes.index(a)] for a in order]
        outer = Outer([self.shape[axis] for axis in axes], c, x)
        return Rearranged(outer, self.shape, axes)


def _arranged(
    tensor: Tensor, axes: str, lead: int, parts: Sequence[Sequence[str]]
) -> Tensor:
    """Return a tensor with one axis for each part, after ``lead`` axes."""
    order = [lead + axes.index(letter) for part in parts for letter in part]
    sizes = [
        prod(tensor.shape[lead + axes.index(letter)] for letter in part)
        for part in parts
    ]
    tensor = tensor.permute(*range(lead), *order)
    return tensor.reshape(*tensor.shape[:lead], *sizes)


def broadcast_reason(operation: Operation, shape: Size) -> str | None:
    """Return why a parameter broadcast to the output has no rows, or ``None``."""
    place = aligned(operation, shape)
    return None if without_own_samples(operation, [place]) is None else _ALONG
