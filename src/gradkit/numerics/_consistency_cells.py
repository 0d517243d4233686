"""Comparisons of one tensor in the whole batch and in runs of other batches."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from gradkit._problem._inputs import Inputs
from gradkit.numerics._consistency_rows import Difference, Layout, layouts
from gradkit.numerics._consistency_trace import Key

__all__ = ["Cell", "Cells", "Columns", "kept_columns", "usual_layout"]


class Columns(NamedTuple):
    """The steps that a mask keeps of a batch: ``first`` to ``stop`` of ``total``."""

    first: int
    stop: int
    total: int

    @property
    def length(self) -> int:
        """How many steps are kept."""
        return self.stop - self.first

    def of(self, tensor: Tensor) -> Tensor:
        """Return these steps of a tensor that has all of them on its second axis."""
        if tensor.ndim < 2 or tensor.shape[1] != self.total:
            return tensor
        return tensor[:, self.first : self.stop]


def kept_columns(inputs: Inputs, index: Tensor) -> Columns | None:
    """Return what ``attention_mask`` keeps of some samples, where it keeps less.

    A batch is padded to its longest sample. Samples by themselves would come with
    less padding, and a model that ignores padding cannot tell.
    """
    for entry in inputs.tensors:
        mask = entry.tensor
        if entry.path != "['attention_mask']" or mask.ndim != 2:
            continue
        if entry.role != "sample":
            continue
        kept = (mask[index.to(mask.device) % len(mask)] != 0).any(0).nonzero().flatten()
        if len(kept) and len(kept) < mask.shape[1]:
            return Columns(int(kept[0]), int(kept[-1]) + 1, mask.shape[1])
    return None


def usual_layout(tensor: Tensor, samples: int) -> Layout | None:
    """Return the usual layout, where no batch of another size has told."""
    usual = tensor.ndim > 0 and tensor.shape[0] == samples
    return Layout(0) if usual else None


@dataclass(eq=False)
class Cell:
    """One tensor of one event: its rows' differences for each layout that may be.

    Attributes:
        found: By layout.
        times: How often each layout fitted.
        why: Why rows cannot be told.
        reshaped: How another axis than the samples' changed, if one did.
    """

    found: dict[Layout, Difference] = field(default_factory=dict)
    times: Counter[Layout] = field(default_factory=Counter)
    why: str | None = None
    reshaped: str | None = None

    def layout(self) -> Layout | None:
        """Return the layout that explains the rows best, if there is one."""
        if self.why is not None or not self.found:
            return None
        most = max(self.times.values())
        every = [layout for layout in self.found if self.times[layout] == most]
        return min(every, key=lambda at: (self.found[at].gap, at.axis or 0))

    def compare(
        self,
        whole: Tensor,
        part: Tensor | None,
        index: Tensor,
        samples: int,
        columns: Columns | None,
    ) -> None:
        """Compare the rows of a slice with the batch's, in every layout that may be."""
        if self.why is not None:
            return
        if part is None:
            self.why = "it is not called alike in a smaller batch"
            return
        if whole.layout is not torch.strided or whole.is_quantized:
            self.why = "its memory is not that of an ordinary tensor"
            return
        found = layouts(whole.shape, part.shape, samples, len(index))
        if isinstance(found, str):
            self.why, self.found = found, {}
            return
        for layout in found:
            first, second, reshaped = _in_common(whole, part, layout, columns)
            rows = layout.rows(first, samples)
            other = layout.rows(second, len(index))
            difference = self.found.setdefault(layout, Difference())
            difference.add(rows[index.to(rows.device)], other, rows)
            self.times[layout] += 1
            if reshaped:
                self.reshaped = (
                    f"its shape {tuple(whole.shape)} in the batch is"
                    f" {tuple(part.shape)} for {len(index)} of the {samples} samples"
                )


def _in_common(
    whole: Tensor, part: Tensor, layout: Layout, columns: Columns | None
) -> tuple[Tensor, Tensor, bool]:
    """Return what both have of the other axes, and whether the model cut one."""
    reshaped = False
    if layout.axis is None:
        return whole, part, reshaped
    for axis in range(whole.ndim):
        here, there = whole.shape[axis], part.shape[axis]
        if axis == layout.axis or here == there:
            continue
        start, length = 0, min(here, there)
        if columns is not None and (here, there) == (columns.total, columns.length):
            start = columns.first
        else:
            reshaped = True
        whole = whole.narrow(axis, start, length)
        part = part.narrow(axis, 0, length)
    return whole, part, reshaped


Cells = dict[tuple[Key, str], Cell]
