"""What a ``ParameterJacobian`` is made of: the rows of some parameters.

An entry answers for its parameters alone; whatever is asked of the whole is a sum
or a union over entries. The defaults here form the rows block by block. An entry
that holds factors instead of rows overrides what factors answer faster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

import torch
from torch import Size, Tensor

from gradkit._parameter_jacobian._projection import signs

__all__ = ["Block", "Entry", "Held"]

#: ``(samples, {name: (n, R, p)})``: all rows of some samples.
Block = tuple[slice, dict[str, Tensor]]


class Entry:
    """The rows of some parameters: ``R`` per sample, flat.

    Args:
        shapes: The parameters' own shapes, by name.
        samples: ``N``.
        rows: ``R``.
    """

    def __init__(self, shapes: Mapping[str, Size], samples: int, rows: int) -> None:
        self.shapes = dict(shapes)
        self.samples, self.rows = samples, rows

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters that this entry answers for."""
        return tuple(self.shapes)

    # -- what an entry must know --------------------------------------------------

    def blocks(self) -> Iterator[Block]:
        """Yield the rows in order, some samples at a time."""
        raise NotImplementedError

    def like(self, name: str) -> Tensor:
        """Return an empty tensor of the parameter's dtype and device."""
        raise NotImplementedError

    @property
    def nbytes(self) -> int:
        """The bytes that this entry holds."""
        raise NotImplementedError

    def select(self, names: Sequence[str]) -> Entry:
        """Return an entry for some of the parameters."""
        raise NotImplementedError

    def take(self, index: Tensor) -> Entry:
        """Return an entry for some of the samples, in the order of ``index``."""
        raise NotImplementedError

    def make_private(self) -> None:
        """Clone what others hold too; rows that are formed nobody else holds."""

    # -- what follows from it -----------------------------------------------------

    def fold(self, step: Callable[[slice, str, Tensor], Any]) -> None:
        """Call ``step(samples, name, rows)`` for every block of every parameter."""
        with closing(self.blocks()) as blocks:  # pyright: ignore[reportArgumentType]
            for samples, block in blocks:
                for name, rows in block.items():
                    step(samples, name, rows)

    def _sums(self, names: Sequence[str], *shape: int) -> Tensor:
        """Return zeros to add up in; narrower than float32 a running sum stalls."""
        like = self.like(names[0])
        dtype = torch.float32
        for name in names:
            dtype = torch.promote_types(dtype, self.like(name).dtype)
        return like.new_zeros(shape, dtype=dtype)

    def _each(self, *shape: int) -> dict[str, Tensor]:
        """Return one tensor to add up in per parameter, ``(*shape)`` or ``(p,)``."""
        return {
            name: self._sums([name], *(shape or (size.numel(),)))
            for name, size in self.shapes.items()
        }

    def norms(self) -> dict[str, Tensor]:
        """Return ``(N, R)`` per parameter."""
        found = self._each(self.samples, self.rows)

        def step(samples: slice, name: str, rows: Tensor) -> None:
            target = found[name]
            target[samples] = torch.linalg.vector_norm(rows, dim=-1, dtype=target.dtype)

        self.fold(step)
        return found

    def gram(self, other: Entry, names: Sequence[str]) -> Tensor:
        """Return ``(N·R, M·R')``: inner products over ``names``."""
        width = other.samples * other.rows
        found = self._sums(names, self.samples * self.rows, width)
        mine, theirs = self.select(names), other.select(names)
        # Every pair of blocks once: a block may cost a pass through the model.
        with closing(mine.blocks()) as blocks:  # pyright: ignore[reportArgumentType]
            for samples, block in blocks:
                band = found[samples.start * self.rows : samples.stop * self.rows]

                def inner(
                    others: slice,
                    name: str,
                    columns: Tensor,
                    band: Tensor = band,
                    block: dict[str, Tensor] = block,
                ) -> None:
                    part = slice(others.start * other.rows, others.stop * other.rows)
                    left = block[name].flatten(0, 1).to(band.dtype)
                    band[:, part] += left @ columns.flatten(0, 1).to(left).T

                theirs.fold(inner)
        return found

    def matvec(self, vectors: Mapping[str, Tensor]) -> Tensor:
        """Return ``(N, R)``: each row's inner product with the vectors."""
        found = self._sums(self.names, self.samples, self.rows)

        def step(samples: slice, name: str, rows: Tensor) -> None:
            found[samples] += rows.to(found.dtype) @ vectors[name].reshape(-1).to(found)

        self.fold(step)
        return found

    def rmatvec(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return ``(p,)`` per parameter: the sum of rows weighted by ``(N, R)``."""
        found = self._each()

        def step(samples: slice, name: str, rows: Tensor) -> None:
            weight = weights[name][samples].reshape(-1).to(found[name])
            found[name] += weight @ rows.flatten(0, 1).to(weight.dtype)

        self.fold(step)
        return found

    def sum_of_squares(self) -> dict[str, Tensor]:
        """Return ``(p,)`` per parameter: the sum of the rows' squares."""
        found = self._each()

        def step(samples: slice, name: str, rows: Tensor) -> None:
            # One sample's at a time, so that no second copy of the rows is held.
            for row in rows:
                found[name] += row.to(found[name].dtype).square().sum(0)

        self.fold(step)
        return found

    def project(self, size: int, seed: int) -> dict[str, Tensor]:
        """Return ``(N, R, size)`` per parameter, by random signs over ``√size``."""
        found = self._each(self.samples, self.rows, size)

        def step(samples: slice, name: str, rows: Tensor) -> None:
            part = found[name][samples]
            for entries, drawn in signs(seed, name, self.shapes[name], size):
                part += rows[..., entries].to(part.dtype) @ drawn.to(part)

        self.fold(step)
        return {name: total / size**0.5 for name, total in found.items()}

    def write(self, targets: Mapping[str, Tensor]) -> None:
        """Copy all rows into ``(N, R, *p)`` tensors."""

        def step(samples: slice, name: str, rows: Tensor) -> None:
            target = targets[name][samples]
            target.copy_(rows.reshape(target.shape))

        self.fold(step)


class Held(Entry):
    """Rows that are held as they are: one ``(N, R, p)`` tensor per parameter."""

    def __init__(self, shapes: Mapping[str, Size], rows: Mapping[str, Tensor]) -> None:
        first = next(iter(rows.values()))
        super().__init__(shapes, first.shape[0], first.shape[1])
        self._rows = dict(rows)

    def blocks(self) -> Iterator[Block]:
        """Yield everything at once."""
        yield slice(0, self.samples), self._rows

    def like(self, name: str) -> Tensor:
        """Return an empty tensor of the parameter's dtype and device."""
        return self._rows[name].new_empty(0)

    @property
    def nbytes(self) -> int:
        """The bytes of the rows."""
        return sum(r.numel() * r.element_size() for r in self._rows.values())

    def select(self, names: Sequence[str]) -> Held:
        """Return the same rows of some parameters."""
        return Held(
            {n: self.shapes[n] for n in names}, {n: self._rows[n] for n in names}
        )

    def take(self, index: Tensor) -> Held:
        """Return copies of some samples' rows."""
        rows = {n: r[index.to(r.device)] for n, r in self._rows.items()}
        return Held(self.shapes, rows)
