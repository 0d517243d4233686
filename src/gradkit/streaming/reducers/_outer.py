"""The sum of rows' products with themselves."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from gradkit.streaming.reducers._folding import Folding, State, flat, wide
from gradkit.streaming.reducers._reducer import Place

__all__ = ["OuterProduct"]


@dataclass(frozen=True)
class OuterProduct(Folding):
    """The sum over samples of ``r rᵀ``, of each sample's row with itself.

    Of projected gradients it is the matrix that TRAK inverts. Rows that come by several
    names, a layer each, have a matrix of each: the blocks on the diagonal.

    Returns:
        ``(D, D)`` with ``D`` the entries of a row: float64, or of complex rows
        complex128 with ``r r*``.

    Raises:
        InputError: There are no rows, or rows have different shapes.

    Cost:
        Keeps ``D²`` numbers; three such matrices while a batch is added.

    Example:
        >>> import torch
        >>> from gradkit.streaming.reducers import OuterProduct, Place
        >>> outer = OuterProduct()
        >>> rows = torch.tensor([[1.0, 2.0], [3.0, 0.0]])
        >>> outer.result(outer.add(outer.start(), rows, Place(batch=0, first=0)))
        tensor([[10.,  2.],
                [ 2.,  4.]], dtype=torch.float64)

    Source:
        Park et al., "TRAK: Attributing model behavior at scale" (2023), section 3.
    """

    def _of(self, rows: Tensor, place: Place) -> State:
        matrix = wide(flat(rows))
        return {"total": matrix.T @ matrix.conj()}

    def _merged(self, state: State, other: State) -> State:
        mine = state["total"]
        return {"total": mine + other["total"].to(mine.device)}

    def _finished(self, state: State) -> Tensor:
        return state["total"].clone()
