"""Rows of a parameter whose axes stand in another order than its factor's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor

from gradkit._rules._factor import Factor, Owned

__all__ = ["Rearranged"]


class Rearranged(Factor):
    """The rows of another factor with the parameter's axes in their own order.

    Norms and inner products do not depend on the order.

    Args:
        inner_factor: Of shape ``[shape[axis] for axis in order]``.
        shape: The parameter's shape.
        order: Which of the parameter's axes is each of the factor's.
    """

    def __init__(
        self, inner_factor: Factor, shape: Iterable[int], order: Sequence[int]
    ) -> None:
        super().__init__(shape, inner_factor.samples, inner_factor.rows)
        self.factor, self.order = inner_factor, tuple(order)

    def _back(self, rows: Tensor, lead: int) -> Tensor:
        """Return ``(.., p)`` in the factor's order as ``(.., *shape)``, a view."""
        back = sorted(range(len(self.order)), key=self.order.__getitem__)
        rows = rows.unflatten(-1, self.factor.shape)
        return rows.permute(*range(lead), *(lead + axis for axis in back))

    def dense(self, part: slice) -> Tensor:
        """Return the rows ``(n, R, p)`` of some samples."""
        return self._back(self.factor.dense(part), 2).flatten(2)

    def take(self, index: Tensor) -> Rearranged:
        """Return the factor of some samples."""
        return Rearranged(self.factor.take(index), self.shape, self.order)

    def held(self) -> list[Tensor]:
        """Return what the other factor holds."""
        return self.factor.held()

    def own(self, owned: Owned) -> None:
        """Clone what is not our own."""
        self.factor.own(owned)

    def squares(self) -> Tensor | None:
        """Return the rows' squared norms."""
        return self.factor.squares()

    def inner(self, other: Factor) -> Tensor | None:
        """Return inner products with the same rows of another use."""
        if not isinstance(other, Rearranged) or other.order != self.order:
            return None
        return self.factor.inner(other.factor)

    def gram(self, other: Factor) -> Tensor | None:
        """Return inner products with the rows of others."""
        if not isinstance(other, Rearranged) or other.order != self.order:
            return None
        return self.factor.gram(other.factor)

    def matvec(self, vector: Tensor) -> Tensor | None:
        """Return inner products with ``vector``."""
        return self.factor.matvec(vector.reshape(self.shape).permute(self.order))

    def rmatvec(self, weights: Tensor) -> Tensor | None:
        """Return the weighted sum of rows."""
        found = self.factor.rmatvec(weights)
        return None if found is None else self._back(found, 0).flatten()

    def sum_of_squares(self) -> Tensor | None:
        """Return the sum of the rows' squares."""
        found = self.factor.sum_of_squares()
        return None if found is None else self._back(found, 0).flatten()

    def write(self, target: Tensor) -> bool:
        """Let the other factor write, where its axes can be a view of the target."""
        return self.factor.write(target.permute(0, 1, *(2 + a for a in self.order)))
