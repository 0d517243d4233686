"""Rows of look-ups: a cotangent for each index, and zero everywhere else."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from gradkit._rules._factor import Factor, Owned

__all__ = ["Lookup"]


class Lookup(Factor):
    """Rows with ``sum_t c[n, r, t]`` at the entries ``index[n, t]`` of ``V``.

    Args:
        shape: The table's shape ``(V, ..)``, ``d`` numbers at each index.
        cotangent: ``(N, R, T, d)``; zero where an index is not to be counted.
        index: ``(N, T)``.
    """

    def __init__(self, shape: Iterable[int], cotangent: Tensor, index: Tensor) -> None:
        super().__init__(shape, cotangent.shape[0], cotangent.shape[1])
        self.cotangent, self.index = cotangent, index.contiguous()

    def dense(self, part: slice) -> Tensor:
        """Return the rows ``(n, R, p)`` of some samples."""
        return self._scattered(self.cotangent[part], self.index[part], self.shape[0])

    def _scattered(self, c: Tensor, index: Tensor, size: int) -> Tensor:
        """Add up each sample's cotangents by their index."""
        count, rows, positions, width = c.shape
        found = c.new_zeros(count, rows, size, width)
        where = index[:, None, :, None].expand(count, rows, positions, width)
        return found.scatter_add_(2, where, c).flatten(2)

    def take(self, index: Tensor) -> Lookup:
        """Return the factor of some samples."""
        index = index.to(self.index.device)
        return Lookup(self.shape, self.cotangent[index], self.index[index])

    def held(self) -> list[Tensor]:
        """Return the cotangent and the indices."""
        return [self.cotangent, self.index]

    def own(self, owned: Owned) -> None:
        """Clone what is not our own."""
        self.cotangent, self.index = owned(self.cotangent), owned(self.index)

    def inner(self, other: Factor) -> Tensor | None:
        """Return inner products with the same rows: over pairs of equal indices."""
        if not isinstance(other, Lookup):
            return None
        same = self.index[:, :, None] == other.index[:, None, :]  # (N, T, T')
        pairs = self.cotangent @ other.cotangent.transpose(-1, -2)
        return (pairs * same[:, None]).sum((-1, -2))

    def gram(self, other: Factor) -> Tensor | None:
        """Return inner products with the rows of others, over used indices alone."""
        if not isinstance(other, Lookup):
            return None
        used = torch.cat([self.index.reshape(-1), other.index.reshape(-1)]).unique()
        mine = self._scattered(
            self.cotangent, torch.searchsorted(used, self.index), len(used)
        )
        theirs = other._scattered(
            other.cotangent, torch.searchsorted(used, other.index), len(used)
        )
        return mine.flatten(0, 1) @ theirs.flatten(0, 1).T

    def matvec(self, vector: Tensor) -> Tensor:
        """Return inner products with ``vector``."""
        looked_up = vector.reshape(self.shape[0], -1).to(self.cotangent)[self.index]
        return torch.einsum("nrtd,ntd->nr", self.cotangent, looked_up)

    def rmatvec(self, weights: Tensor) -> Tensor:
        """Return the weighted sum of rows."""
        pulled = torch.einsum("nr,nrtd->ntd", weights, self.cotangent).flatten(0, 1)
        found = pulled.new_zeros(self.shape[0], pulled.shape[-1])
        return found.index_add_(0, self.index.reshape(-1), pulled).reshape(-1)

    def sum_of_squares(self) -> Tensor:
        """Return the sum of the rows' squares; one sample's indices add up first."""
        key = torch.arange(self.samples, device=self.index.device)[:, None]
        key = (key * self.shape[0] + self.index).reshape(-1)
        pairs, place = key.unique(return_inverse=True)
        c = self.cotangent.transpose(1, 2).flatten(0, 1)  # (N * T, R, d)
        added = c.new_zeros(len(pairs), *c.shape[1:]).index_add_(0, place, c)
        found = c.new_zeros(self.shape[0], c.shape[-1])
        return found.index_add_(
            0, pairs % self.shape[0], added.square().sum(1)
        ).reshape(-1)
