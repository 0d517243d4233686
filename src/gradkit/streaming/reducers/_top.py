"""The samples whose numbers are largest, or smallest."""

# Arguments are checked whatever their declared types say.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from gradkit._call._request import naming
from gradkit._problem._inputs import as_position
from gradkit.errors import InputError
from gradkit.streaming.reducers._folding import Folding, State, refuse_complex
from gradkit.streaming.reducers._reducer import Place

__all__ = ["Top", "TopK"]


class Top(NamedTuple):
    """What ``TopK`` found, best first.

    Attributes:
        values: ``(k',)``, in the dtype of the rows.
        samples: ``(k',)``, int64: where the samples stand in the data.

    Example:
        >>> import torch
        >>> from gradkit.streaming.reducers import Top
        >>> top = Top(torch.tensor([7.0, 3.0]), torch.tensor([2, 0]))
        >>> data = torch.tensor([3.0, 1.0, 7.0])
        >>> torch.equal(data[top.samples], top.values)
        True
    """

    values: Tensor
    samples: Tensor


@dataclass(frozen=True)
class TopK(Folding):
    """The samples with the largest numbers, or the smallest.

    Of equal numbers the sample that stands earlier in the data is better, whatever the
    order in which batches come or states are merged.

    Args:
        k: How many.
        largest: Whether the largest are wanted.

    Returns:
        ``Top(values (k',), samples (k',))`` with ``k' = min(k, N)``, best first.

    Raises:
        InputError: There are no rows, rows are not one real number per sample, or a
            sample's number is NaN, which has no order.

    Cost:
        Keeps ``k`` numbers and sorts ``n + k`` for a batch of ``n``.

    Example:
        >>> import torch
        >>> from gradkit.streaming.reducers import Place, TopK
        >>> top = TopK(2)
        >>> rows = torch.tensor([3.0, 1.0, 7.0, 3.0])
        >>> top.result(top.add(top.start(), rows, Place(batch=0, first=0)))
        Top(values=tensor([7., 3.]), samples=tensor([2, 0]))
    """

    k: int
    largest: bool = True

    def __post_init__(self) -> None:
        k = as_position(self.k)
        with naming("TopK"):
            if k is None or k < 1:
                raise InputError(
                    f"k must be a whole number of at least 1; got {self.k!r}",
                    argument="k",
                )
            if not isinstance(self.largest, bool):
                raise InputError(
                    f"largest must be True or False; got {self.largest!r}",
                    argument="largest",
                )
        object.__setattr__(self, "k", k)

    def _of(self, rows: Tensor, place: Place) -> State:
        refuse_complex(rows, "ordered")
        if rows.dim() != 1:
            raise InputError(
                "rows must be one number per sample, (n,); got shape"
                f" {tuple(rows.shape)}. Return a number of each, rows.flatten(1).norm("
                "dim=1) for example",
                argument="rows",
            )
        samples = torch.arange(len(rows), device=rows.device) + place.first
        _refuse_nan(rows, samples)
        return self._best(rows, samples)

    def _merged(self, state: State, other: State) -> State:
        parts: list[Tensor] = []
        for name in ("values", "samples"):
            mine = state[name]
            parts.append(torch.cat([mine, other[name].to(mine.device)]))
        return self._best(*parts)

    def _best(self, values: Tensor, samples: Tensor) -> State:
        # Both sorts are stable: what the second finds equal stays in the data's order.
        order = samples.argsort(stable=True)
        ranks = values[order].argsort(descending=self.largest, stable=True)
        best = order[ranks[: self.k]]
        return {"values": values[best], "samples": samples[best]}

    def _finished(self, state: State) -> Top:
        return Top(state["values"].clone(), state["samples"].clone())


def _refuse_nan(rows: Tensor, samples: Tensor) -> None:
    wrong = samples[rows.isnan()]
    if len(wrong):
        raise InputError(
            f"rows must be numbers that have an order; got NaN for sample"
            f" {wrong[0].item()}{_others(len(wrong) - 1)}. Use rows.nan_to_num(), or"
            " leave the samples out",
            argument="rows",
            sample=int(wrong[0]),
        )


def _others(count: int) -> str:
    return f" and {count} more of its batch" if count else ""
