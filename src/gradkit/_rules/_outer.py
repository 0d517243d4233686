"""Rows that are sums of outer products: of what flows in and of its cotangent.

For a linear map ``y[t] = W x[t]`` the row of ``W`` is ``sum_t c[t] x[t]ᵀ``. With one
position ``t`` no row need be formed: its norm is ``|c| |x|``, the Gram matrix
``(C Cᵀ) * (X Xᵀ)``. With more, a ``T × T`` form does, where it is the smaller one.

Source: Goodfellow, "Efficient per-example gradient computations" (2015), for one
position; Li, Tramèr, Liang and Hashimoto, "Large language models can be strong
differentially private learners" (2022), sec. 4, for more.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from gradkit._products import product
from gradkit._rules._factor import Factor, Owned, cancels

__all__ = ["Flowing", "Outer", "Stored"]


_LAST = (-1, -2, -3)


class Flowing:
    """What flows into a linear map, ``(N, G, T, i)``; formed when it is asked for."""

    def part(self, samples: slice) -> Tensor:
        """Return ``(n, G, T, i)`` of some samples."""
        raise NotImplementedError

    def take(self, index: Tensor) -> Flowing:
        """Return that of some samples, in the order of ``index``."""
        raise NotImplementedError

    def held(self) -> list[Tensor]:
        """Return the tensors that it holds."""
        raise NotImplementedError

    def own(self, owned: Owned) -> None:
        """Clone what it holds of memory that is not its own."""
        raise NotImplementedError


class Stored(Flowing):
    """A tensor ``(N, G, T, i)`` as it is."""

    def __init__(self, values: Tensor) -> None:
        self.values = values

    def part(self, samples: slice) -> Tensor:
        """Return some samples' part."""
        return self.values[samples]

    def take(self, index: Tensor) -> Stored:
        """Return some samples' part."""
        return Stored(self.values[index.to(self.values.device)])

    def held(self) -> list[Tensor]:
        """Return the tensor."""
        return [self.values]

    def own(self, owned: Owned) -> None:
        """Clone it where it is not our own."""
        self.values = owned(self.values)


class Outer(Factor):
    """Rows ``sum_t c[n, r, g, t, o] x[n, g, t, i]``, for each of ``G`` groups.

    Args:
        shape: The parameter's shape: ``(G * o, i..)``, or ``(G * i, o..)`` if
            ``inputs_first``.
        cotangent: ``(N, R, G, T, o)``.
        flowing: ``(N, G, T, i)``.
        inputs_first: Whether the parameter has its inputs first.
    """

    def __init__(
        self,
        shape: Iterable[int],
        cotangent: Tensor,
        flowing: Flowing | Tensor,
        *,
        inputs_first: bool = False,
    ) -> None:
        super().__init__(shape, cotangent.shape[0], cotangent.shape[1])
        self.cotangent = cotangent
        self.flowing = Stored(flowing) if isinstance(flowing, Tensor) else flowing
        self.inputs_first = inputs_first
        self.groups, self.positions, self.outputs = cotangent.shape[2:]

    @property
    def inputs(self) -> int:
        """``i``: what flows into each group."""
        if not self.shape.numel():
            return self.flowing.part(slice(0, 0)).shape[-1]
        return self.shape.numel() // (self.groups * self.outputs)

    def dense(self, part: slice) -> Tensor:
        """Return the rows ``(n, R, p)`` of some samples."""
        c, x = self.cotangent[part], self.flowing.part(part)
        return self._outer(c, x[:, None]).flatten(2)

    def _outer(self, c: Tensor, x: Tensor, out: Tensor | None = None) -> Tensor:
        """Multiply ``(n, R, G, T, o)`` and ``(n, 1, G, T, i)`` over positions."""
        left, right = (x, c) if self.inputs_first else (c, x)
        if self.positions == 1:
            left, right = left.transpose(-1, -2), right
            return torch.mul(left, right, out=out)
        return torch.matmul(left.transpose(-1, -2), right, out=out)

    def take(self, index: Tensor) -> Outer:
        """Return the factor of some samples."""
        cotangent = self.cotangent[index.to(self.cotangent.device)]
        return Outer(
            self.shape,
            cotangent,
            self.flowing.take(index),
            inputs_first=self.inputs_first,
        )

    def held(self) -> list[Tensor]:
        """Return the cotangent and what flows in."""
        return [self.cotangent, *self.flowing.held()]

    def own(self, owned: Owned) -> None:
        """Clone what is not our own."""
        self.cotangent = owned(self.cotangent)
        self.flowing.own(owned)

    # -- without rows -------------------------------------------------------------

    def _is_small(self) -> bool:
        """Whether ``T × T`` products are smaller than the rows."""
        return 2 * self.positions**2 <= self.outputs * self.inputs

    def squares(self) -> Tensor | None:
        """Return the rows' squared norms."""
        if self.positions == 1 and self.groups == 1:
            c = torch.linalg.vector_norm(self.cotangent[:, :, 0, 0], dim=-1)
            x = self.flowing.part(slice(None))[:, 0, 0]
            return (c * torch.linalg.vector_norm(x, dim=-1)[:, None]).square()
        terms = self._terms(self)
        if terms is None or cancels(terms.sum(_LAST), terms.abs().sum(_LAST)):
            return None
        return terms.sum(_LAST)

    def _like(self, other: Factor) -> bool:
        return (
            isinstance(other, Outer)
            and self.groups == other.groups
            and self.inputs_first == other.inputs_first
        )

    def inner(self, other: Factor) -> Tensor | None:
        """Return inner products with the same rows of another use."""
        terms = self._terms(other)
        return None if terms is None else terms.sum(_LAST)

    def _terms(self, other: Factor) -> Tensor | None:
        """Return ``(N, R, G, T, T')``, whose sums are inner products of rows."""
        if not isinstance(other, Outer) or not self._like(other):
            return None
        if not (self._is_small() and other._is_small()):
            return None
        whole = slice(None)
        x, y = self.flowing.part(whole), other.flowing.part(whole)
        flows = (x @ y.transpose(-1, -2))[:, None]  # (N, 1, G, T, T')
        return (self.cotangent @ other.cotangent.transpose(-1, -2)) * flows

    def gram(self, other: Factor) -> Tensor | None:
        """Return inner products with the rows of others."""
        if not isinstance(other, Outer) or not self._like(other):
            return None
        # Of every sample with every other: rows are formed once for all of them.
        pairs = self.positions * other.positions
        if pairs > 1 and pairs * (self.outputs + self.inputs) > (
            self.outputs * self.inputs
        ):
            return None
        whole = slice(None)
        x, y = self.flowing.part(whole), other.flowing.part(whole)
        if pairs * self.groups != 1:
            return self._gram_of_positions(other, x, y)
        flows = x.flatten(1) @ y.flatten(1).T  # (N, M)
        pulls = self.cotangent.flatten(0, 3) @ other.cotangent.flatten(0, 3).T
        shape = (self.samples, self.rows, other.samples, other.rows)
        return (pulls.view(shape) * flows[:, None, :, None]).reshape(pulls.shape)

    def _gram_of_positions(self, other: Outer, x: Tensor, y: Tensor) -> Tensor:
        """Return the same with positions; one of our samples at a time."""
        width = other.samples * other.rows
        bands = []
        for n in range(self.samples):
            flows = torch.einsum("gai,mgbi->mgab", x[n], y)
            pulls = torch.einsum(
                "rgto,mqgso->rmqgts", self.cotangent[n], other.cotangent
            )
            band = torch.einsum("rmqgts,mgts->rmq", pulls, flows)
            bands.append(band.reshape(self.rows, width))
        return torch.cat(bands) if bands else x.new_zeros(0, width)

    def _flat(self) -> tuple[Tensor, Tensor]:
        """Return the cotangent ``(N, R, T, o)`` and flow ``(N, T, i)`` of one group."""
        return self.cotangent[:, :, 0], self.flowing.part(slice(None))[:, 0]

    def matvec(self, vector: Tensor) -> Tensor | None:
        """Return inner products with ``vector``."""
        if self.groups > 1:
            return None
        c, x = self._flat()
        if self.inputs_first:
            matrix = vector.reshape(self.inputs, self.outputs)
        else:
            matrix = vector.reshape(self.outputs, self.inputs).T
        moved = product(x.flatten(0, 1), matrix.to(x)).unflatten(0, x.shape[:2])
        return (c * moved[:, None]).sum((-1, -2))

    def rmatvec(self, weights: Tensor) -> Tensor | None:
        """Return the weighted sum of rows."""
        if self.groups > 1:
            return None
        c, x = self._flat()
        pulled = (weights[..., None, None] * c).sum(1).flatten(0, 1)
        x = x.flatten(0, 1)
        left, right = (x, pulled) if self.inputs_first else (pulled, x)
        return product(left.T, right).reshape(-1)

    def sum_of_squares(self) -> Tensor | None:
        """Return the sum of the rows' squares; of more positions it is not known."""
        if self.groups > 1 or self.positions != 1:
            return None
        c, x = self._flat()
        pulled, x = c[:, :, 0].square().sum(1), x[:, 0].square()
        left, right = (x, pulled) if self.inputs_first else (pulled, x)
        return product(left.T, right).reshape(-1)

    def write(self, target: Tensor) -> bool:
        """Multiply straight into the target."""
        shape = (self.samples, self.rows, self.groups, self.outputs, self.inputs)
        if self.inputs_first:
            shape = (*shape[:3], self.inputs, self.outputs)
        try:
            view = target.view(shape)
        except RuntimeError:
            return False  # its strides do not allow it
        x = self.flowing.part(slice(None))[:, None]
        if view.dtype != self.cotangent.dtype or view.dtype != x.dtype:
            return False
        self._outer(self.cotangent, x, out=view)
        return True
