"""What rows are kept as: factors, from which every quantity is computed.

A factor answers for one parameter at one of its uses. What it can say without
forming its rows it overrides; what it answers with ``None`` is computed from rows
that are formed some samples at a time and let go.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Size, Tensor

__all__ = ["Dense", "Factor", "Owned", "cancels", "shared_addresses"]


class Factor:
    """The rows of one use of a parameter: ``R`` for each of ``N`` samples.

    Args:
        shape: The parameter's own shape.
        samples: ``N``.
        rows: ``R``.
    """

    def __init__(self, shape: Iterable[int], samples: int, rows: int) -> None:
        self.shape, self.samples, self.rows = Size(shape), samples, rows

    # -- what a factor must know --------------------------------------------------

    def dense(self, part: slice) -> Tensor:
        """Return the rows ``(n, R, p)`` of some samples."""
        raise NotImplementedError

    def take(self, index: Tensor) -> Factor:
        """Return the factor of some samples, in the order of ``index``."""
        raise NotImplementedError

    def held(self) -> list[Tensor]:
        """Return the tensors that it holds."""
        raise NotImplementedError

    def own(self, owned: Owned) -> None:
        """Clone what it holds of memory that is not its own."""
        raise NotImplementedError

    # -- what it may answer without forming rows ----------------------------------

    def squares(self) -> Tensor | None:
        """Return the rows' squared norms ``(N, R)``."""
        return self.inner(self)

    def inner(self, other: Factor) -> Tensor | None:
        """Return inner products ``(N, R)`` with the same rows of another use."""
        return None

    def gram(self, other: Factor) -> Tensor | None:
        """Return inner products ``(N * R, M * S)`` with the rows of others."""
        return None

    def matvec(self, vector: Tensor) -> Tensor | None:
        """Return inner products ``(N, R)`` with ``vector`` ``(*shape)``."""
        return None

    def rmatvec(self, weights: Tensor) -> Tensor | None:
        """Return ``(p,)``: the sum of rows weighted by ``(N, R)``."""
        return None

    def sum_of_squares(self) -> Tensor | None:
        """Return ``(p,)``: the sum of the rows' squares."""
        return None

    def write(self, target: Tensor) -> bool:
        """Write all rows into ``(N, R, *shape)``; return whether it could."""
        return False


def cancels(total: Tensor, size: Tensor) -> bool:
    """Whether a sum is so small beside its terms that it is made of their rounding."""
    return bool((total < 0.01 * size).any())


class Owned:
    """Makes tensors private: clones what lies on memory of the caller's.

    Args:
        addresses: Where the caller's values lie.
    """

    def __init__(self, addresses: Iterable[int] = ()) -> None:
        self._addresses = frozenset(addresses)

    def __call__(self, tensor: Tensor) -> Tensor:
        """Return ``tensor``, or a clone of one that is not ours."""
        tensor = tensor.detach()
        if tensor.layout is not torch.strided:
            return tensor.clone()
        if tensor.untyped_storage().data_ptr() in self._addresses:
            return tensor.clone()
        return tensor


def shared_addresses(held: Iterable[Tensor]) -> set[int]:
    """Return where memory lies that others than ``held`` refer to as well."""
    own: dict[int, tuple[Tensor, dict[int, Tensor]]] = {}
    for tensor in held:
        if tensor.layout is not torch.strided or not tensor.numel():
            continue
        own.setdefault(_start(tensor), (tensor, {}))
        ours = own[_start(tensor)][1]
        # A view keeps what it is a view of.
        for one in (tensor, tensor._base if tensor._is_view() else None):
            if one is not None:
                ours[id(one)] = one
    return {
        start
        for start, (tensor, ours) in own.items()
        # Memory of numpy's cannot be resized, and numpy is not counted.
        if _users(tensor) > len(ours) or not tensor.untyped_storage().resizable()
    }


def _start(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _users(tensor: Tensor) -> int:
    """Return how many tensors lie on the memory of ``tensor``."""
    storage = tensor.untyped_storage()
    # The storage's own Python object is one more.
    return torch._C._storage_Use_Count(storage._cdata) - 1


class Dense(Factor):
    """Rows that are held as they are: ``(N, R, *shape)``.

    For parameters that have few entries beside what they act on: biases, scales.
    """

    def __init__(self, values: Tensor, shape: Iterable[int]) -> None:
        super().__init__(shape, values.shape[0], values.shape[1])
        size = self.shape.numel()
        self.values = values.reshape(self.samples, self.rows, size)

    def dense(self, part: slice) -> Tensor:
        """Return the rows ``(n, R, p)`` of some samples."""
        return self.values[part]

    def take(self, index: Tensor) -> Dense:
        """Return the rows of some samples."""
        return Dense(self.values[index.to(self.values.device)], self.shape)

    def held(self) -> list[Tensor]:
        """Return the rows."""
        return [self.values]

    def own(self, owned: Owned) -> None:
        """Clone rows that lie on the caller's memory."""
        self.values = owned(self.values)

    def squares(self) -> Tensor:
        """Return the rows' squared norms."""
        return torch.linalg.vector_norm(self.values, dim=-1).square()

    def inner(self, other: Factor) -> Tensor | None:
        """Return inner products with rows that are held too."""
        if not isinstance(other, Dense):
            return None
        return (self.values * other.values).sum(-1)

    def gram(self, other: Factor) -> Tensor | None:
        """Return inner products with rows that are held too."""
        if not isinstance(other, Dense):
            return None
        return self.values.flatten(0, 1) @ other.values.flatten(0, 1).T

    def matvec(self, vector: Tensor) -> Tensor:
        """Return inner products with ``vector``."""
        return self.values @ vector.reshape(-1)

    def rmatvec(self, weights: Tensor) -> Tensor:
        """Return the weighted sum of rows."""
        return weights.reshape(-1) @ self.values.flatten(0, 1)

    def sum_of_squares(self) -> Tensor:
        """Return the sum of the rows' squares."""
        return self.values.flatten(0, 1).square().sum(0)

    def write(self, target: Tensor) -> bool:
        """Copy the rows."""
        target.copy_(self.values.reshape(target.shape))
        return True
