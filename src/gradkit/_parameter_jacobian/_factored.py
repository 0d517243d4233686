"""Rows as factors: what can be said without forming them is; the rest in pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Size, Tensor

from gradkit._parameter_jacobian._entries import Block, Entry
from gradkit._rules._factor import Factor, Owned, cancels, shared_addresses

__all__ = ["Factored"]

#: Rows that are formed for one parameter at a time; more would leave the caches.
_PIECE_BYTES = 2**25


class Factored(Entry):
    """The rows of some parameters, each the sum of its uses' factors.

    Args:
        shapes: The parameters' own shapes, by name.
        samples: ``N``.
        rows: ``R``.
        factors: The uses of each; none of one that is not used.
        likes: An empty tensor of each parameter's dtype and device.
        budget: Bytes that may be alive at once beside the factors.
    """

    def __init__(
        self,
        shapes: Mapping[str, Size],
        samples: int,
        rows: int,
        factors: Mapping[str, Sequence[Factor]],
        likes: Mapping[str, Tensor],
        budget: int,
    ) -> None:
        super().__init__(shapes, samples, rows)
        self._factors = {n: list(factors[n]) for n in shapes}
        self._likes, self._budget = {n: likes[n] for n in shapes}, budget

    def like(self, name: str) -> Tensor:
        """Return an empty tensor of the parameter's dtype and device."""
        return self._likes[name]

    def make_private(self) -> None:
        """Clone what others hold too, once the call's graph is gone.

        A hook may have kept an activation, a constant may be anybody's: whatever is
        written there later must not reach what was true at the call.
        """
        factors = [f for several in self._factors.values() for f in several]
        held = [t for f in factors for t in f.held()]
        owned = Owned(shared_addresses(held))
        for factor in factors:
            factor.own(owned)

    def _working(self, name: str) -> Tensor:
        """Return an empty tensor of the dtype that factors are held in."""
        like = self._likes[name]
        return like.to(torch.promote_types(like.dtype, torch.float32))

    @property
    def nbytes(self) -> int:
        """The bytes of the factors; memory that several use counts once."""
        storages = {}
        for factors in self._factors.values():
            for tensor in (t for f in factors for t in f.held()):
                storage = tensor.untyped_storage()
                storages[storage.data_ptr()] = storage.nbytes()
        return sum(storages.values())

    def select(self, names: Sequence[str]) -> Factored:
        """Return the factors of some parameters."""
        return Factored(
            {n: self.shapes[n] for n in names}, self.samples, self.rows,
            self._factors, self._likes, self._budget,
        )  # fmt: skip

    def take(self, index: Tensor) -> Factored:
        """Return the factors of some samples."""
        factors = {
            n: [f.take(index) for f in factors] for n, factors in self._factors.items()
        }
        return Factored(
            self.shapes, len(index), self.rows, factors, self._likes, self._budget
        )

    # -- rows, some samples at a time -----------------------------------------

    def _pieces(self, name: str) -> Iterator[slice]:
        """Yield some samples at a time, so that their rows fit."""
        like = self._likes[name]
        width = self.rows * self.shapes[name].numel() * like.element_size()
        count = max(min(self._budget // 4, _PIECE_BYTES) // max(width, 1), 1)
        for start in range(0, self.samples, count):
            yield slice(start, min(start + count, self.samples))

    def _dense(self, name: str, part: slice) -> Tensor:
        """Return the rows ``(n, R, p)`` of some samples of one parameter."""
        like = self._likes[name]
        factors = self._factors[name]
        if not factors:
            shape = (part.stop - part.start, self.rows, self.shapes[name].numel())
            return like.new_zeros(()).expand(shape)
        total = factors[0].dense(part)
        for factor in factors[1:]:
            total = total + factor.dense(part)
        return total.to(like.dtype)

    def blocks(self) -> Iterator[Block]:
        """Yield the rows in order, some samples at a time."""
        widest = max(self.shapes, key=lambda n: self.shapes[n].numel())
        for part in self._pieces(widest):
            yield part, {name: self._dense(name, part) for name in self.names}

    def fold(self, step: Callable[[slice, str, Tensor], object]) -> None:
        """Call ``step`` on every parameter's rows, formed one parameter at a time."""
        for name in self.names:
            self._fold(name, step)

    def _fold(self, name: str, step: Callable[[slice, str, Tensor], object]) -> None:
        for part in self._pieces(name):
            step(part, name, self._dense(name, part))

    # -- quantities -----------------------------------------------------------

    def norms(self) -> dict[str, Tensor]:
        """Return ``(N, R)`` per parameter."""
        found = {}
        for name, factors in self._factors.items():
            squares = _squares(factors)
            if squares is None:
                found[name] = self.select([name])._formed_norms()
            else:
                found[name] = squares.clamp(min=0).sqrt()
        return found

    def _formed_norms(self) -> Tensor:
        (norms,) = super().norms().values()
        return norms

    def gram(self, other: Entry, names: Sequence[str]) -> Tensor:
        """Return ``(N·R, M·R')``: inner products over ``names``."""
        total = self._sums(names, self.samples * self.rows, other.samples * other.rows)
        formed = []
        for name in names:
            part = None
            mine = self._factors[name]
            # Where norms would cancel, inner products do.
            if isinstance(other, Factored) and _squares(mine) is not None:
                part = _gram(mine, other._factors[name])
            if part is None:
                formed.append(name)
            else:
                total += part
        for name in formed:
            total += super().gram(other, [name])
        return total

    def matvec(self, vectors: Mapping[str, Tensor]) -> Tensor:
        """Return ``(N, R)``: each row's inner product with the vectors."""
        total = self._sums(self.names, self.samples, self.rows)
        for name, factors in self._factors.items():
            vector = vectors[name].to(self._working(name)).reshape(self.shapes[name])
            parts = [f.matvec(vector) for f in factors]
            known = [p for p in parts if p is not None]
            if len(known) < len(parts):
                known = [super(Factored, self.select([name])).matvec(vectors)]
            for part in known:
                total += part
        return total

    def rmatvec(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return ``(p,)`` per parameter: the sum of rows weighted by ``(N, R)``."""
        found = {}
        for name, factors in self._factors.items():
            weight = weights[name].reshape(self.samples, self.rows)
            parts = [f.rmatvec(weight.to(self._working(name))) for f in factors]
            found[name] = self._summed(name, parts)
            if found[name] is None:
                found |= super(Factored, self.select([name])).rmatvec(weights)
        return found

    def sum_of_squares(self) -> dict[str, Tensor]:
        """Return ``(p,)`` per parameter: the sum of the rows' squares."""
        found = {}
        for name, factors in self._factors.items():
            # Squares of sums are no sums of squares.
            parts = (
                [f.sum_of_squares() for f in factors] if len(factors) < 2 else [None]
            )
            found[name] = self._summed(name, parts)
            if found[name] is None:
                found |= super(Factored, self.select([name])).sum_of_squares()
        return found

    def _summed(self, name: str, parts: Sequence[Tensor | None]) -> Tensor | None:
        """Add up what factors found, on memory of its own; ``None`` if one did not."""
        like = self._working(name)
        if not parts:
            return like.new_zeros(self.shapes[name].numel())
        total: Tensor | None = None
        for part in parts:
            if part is None:
                return None
            part = part.reshape(-1).to(torch.promote_types(part.dtype, like.dtype))
            total = part if total is None else total + part
        # A rule's sum may be one number, expanded, which nobody could write into.
        return None if total is None else total.contiguous()

    def write(self, targets: Mapping[str, Tensor]) -> None:
        """Write all rows into ``(N, R, *p)`` tensors."""
        for name, factors in self._factors.items():
            target = targets[name]
            plain = self._plain(target, name)
            if len(factors) == 1 and plain is not None and factors[0].write(plain):
                continue
            self._fold(name, lambda part, _, rows, to=target: to[part].copy_(
                rows.reshape(to[part].shape)
            ))  # fmt: skip

    def _plain(self, target: Tensor, name: str) -> Tensor | None:
        """Return the target as ``(N, R, *shape)``, if its strides allow it."""
        shape = (self.samples, self.rows, *self.shapes[name])
        try:
            return target.view(shape)
        except RuntimeError:
            return None


def _squares(factors: Sequence[Factor]) -> Tensor | None:
    """Return the squared norms of a sum of factors, cross terms included."""
    total: Tensor | None = None
    size: Tensor | None = None
    for i, factor in enumerate(factors):
        parts = [factor.squares()]
        parts += [factor.inner(other) for other in factors[:i]]
        for place, part in enumerate(parts):
            if part is None:
                return None
            part = part if place == 0 else 2 * part
            total = part if total is None else total + part
            size = part.abs() if size is None else size + part.abs()
    if total is None or size is None or cancels(total, size):
        return None
    return total


def _gram(mine: Sequence[Factor], theirs: Sequence[Factor]) -> Tensor | None:
    total: Tensor | None = None
    for left in mine:
        for right in theirs:
            part = left.gram(right)
            if part is None:
                return None
            total = part if total is None else total + part
    return total
