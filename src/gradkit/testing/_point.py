"""A function at one point: its derivatives along flat directions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from gradkit.errors import InputError
from gradkit.numerics._bounds import gamma
from gradkit.numerics._ulps import unit_roundoff
from gradkit.testing._differences import Differences, differences
from gradkit.testing._variables import Part, Variable

__all__ = ["Point", "Problem", "flat"]


class Problem(Protocol):
    """A differentiable map between lists of tensors."""

    variables: tuple[Variable, ...]
    outputs: tuple[Part, ...]
    lowest: torch.dtype | None

    def evaluate(self, values: Sequence[Tensor]) -> list[Tensor]: ...

    def pullback(
        self, values: Sequence[Tensor], cotangents: Sequence[Tensor]
    ) -> list[Tensor | None]: ...

    def pushforward(
        self, values: Sequence[Tensor], tangents: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[Tensor | None]]: ...


def flat(tensors: Sequence[Tensor | None], parts: Sequence[Part]) -> Tensor:
    """Return all entries in a row, float64 on the CPU; zeros where there is nothing."""
    rows = [
        torch.zeros(part.size, dtype=torch.float64)
        if tensor is None
        else tensor.detach().to("cpu", torch.float64).reshape(-1)
        for tensor, part in zip(tensors, parts, strict=True)
    ]
    return torch.cat([torch.zeros(0, dtype=torch.float64), *rows])


def _parted(row: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    pieces = row.split([t.numel() for t in like]) if like else []
    return [p.reshape(t.shape).to(t) for p, t in zip(pieces, like, strict=True)]


class Point:
    """A problem at one place.

    Args:
        problem: What is differentiated.
        values: Where, one tensor per variable.
        dtype: What it is evaluated in.
        moved: Whether it is beside the place that the caller gave.
    """

    def __init__(
        self,
        problem: Problem,
        values: Sequence[Tensor],
        dtype: torch.dtype,
        *,
        moved: bool = False,
    ) -> None:
        self.problem, self.values, self.moved = problem, list(values), moved
        self.inputs = tuple(v.part for v in problem.variables)
        self.dtype = dtype
        self.like = problem.evaluate(self.values)
        self.outputs = problem.outputs
        self.centre = flat(self.like, self.outputs)
        self.scale = torch.cat([torch.zeros(0), *map(_scale, problem.variables)])

    @property
    def coarse(self) -> bool:
        """Whether anything is computed in a lower precision on the way."""
        return self.problem.lowest not in (None, self.dtype)

    def along(self, direction: Tensor, *, start: float = 1.0) -> Differences:
        """Return differences along ``direction``, ``(D,)``."""
        tangents = _parted(direction, self.values)

        def values(step: float) -> Tensor:
            places = [v + step * t for v, t in zip(self.values, tangents, strict=True)]
            try:
                return flat(self.problem.evaluate(places), self.outputs)
            except Exception as error:
                raise _beside(self.inputs, direction, error) from error

        return differences(
            values, self.centre, self.dtype, coarse=self.coarse, start=start
        )

    def cotangents(self, row: Tensor) -> list[Tensor]:
        """Return ``(K,)`` as one tensor per output."""
        return _parted(row, self.like)

    def gradient(self, cotangent: Tensor) -> Tensor:
        """Return ``Jᵀ v`` by reverse mode, ``(D,)``."""
        cotangents = self.cotangents(cotangent)
        return flat(self.problem.pullback(self.values, cotangents), self.inputs)

    def tangent(self, direction: Tensor) -> Tensor:
        """Return ``J u`` by forward mode, ``(K,)``."""
        tangents = _parted(direction, self.values)
        values, found = self.problem.pushforward(self.values, tangents)
        if not self.same(values):
            raise NotImplementedError(
                "the function has other values there: it takes another path, or draws"
                " its random numbers in another order"
            )
        return flat(found, self.outputs)

    def same(self, values: Sequence[Tensor]) -> bool:
        """Whether outputs are those of this point, to rounding."""
        row = flat(values, self.outputs)
        size = float(self.centre.abs().nan_to_num(0.0, 0.0).sum())
        room = gamma(len(row) + 100, self.dtype) * size
        return torch.allclose(row, self.centre, rtol=0.0, atol=room, equal_nan=True)

    def rounding(self, terms: Tensor) -> float:
        """Return what rounding of a sum of ``terms`` may come to."""
        number = int(terms.count_nonzero()) + len(self.inputs)
        return gamma(number, self.dtype) * float(terms.abs().nan_to_num(0.0).sum())

    def rounding_of(self, values: Tensor) -> Tensor:
        """Return what rounding of single values may come to, at the least."""
        return unit_roundoff(self.dtype) * values.abs()

    def shifted(self, generator: torch.Generator) -> Point:
        """Return a place nearby, off a kink that this one may be on."""
        noise = _signs(len(self.scale), generator) * self.scale / 16
        pieces = _parted(noise, self.values)
        places = [v + p for v, p in zip(self.values, pieces, strict=True)]
        return Point(self.problem, places, self.dtype, moved=True)

    def direction(self, generator: torch.Generator) -> Tensor:
        """Return a random direction of the size of the values, ``(D,)``."""
        return _signs(len(self.scale), generator) * self.scale

    def cotangent(self, slopes: Tensor, generator: torch.Generator) -> Tensor:
        """Return random weights that give each output tensor the same say, ``(K,)``."""
        signs = _signs(len(self.centre), generator)
        pieces = slopes.abs().nan_to_num(0.0, 0.0).split([p.size for p in self.outputs])
        sizes = [float(p.mean()) if len(p) else 0.0 for p in pieces]
        floor = 1e-6 * max(sizes, default=0.0) or 1.0
        weights = [
            torch.full((part.size,), 1 / max(size, floor), dtype=torch.float64)
            for part, size in zip(self.outputs, sizes, strict=True)
        ]
        return signs * torch.cat([signs[:0], *weights])

    def block(self, variable: int) -> Tensor:
        """Return the positions of one variable."""
        start = sum(part.size for part in self.inputs[:variable])
        return torch.arange(start, start + self.inputs[variable].size)


def _beside(inputs: Sequence[Part], direction: Tensor, error: Exception) -> Exception:
    names = [
        part.name
        for part, piece in zip(
            inputs, direction.split([p.size for p in inputs]), strict=True
        )
        if piece.any()
    ]
    return InputError(
        f"function must run beside the given values too; with {', '.join(names)} moved"
        f" by a little it raised {type(error).__name__}: {error}. Name in wrt= what may"
        " be moved, or check at values inside the domain",
        argument="wrt",
    )


def _scale(variable: Variable) -> Tensor:
    """Return the usual size of a variable's entries; 0 for those that stay."""
    value = variable.value.detach().to("cpu", torch.float64)
    usual = float(value.square().mean().sqrt()) if value.numel() else 0.0
    scale = torch.full(value.shape, usual or 1.0, dtype=torch.float64)
    if variable.fixed is not None:
        scale[variable.fixed.cpu()] = 0.0
    return scale.reshape(-1)


def _signs(count: int, generator: torch.Generator) -> Tensor:
    """Return numbers between 1/2 and 1 in size, so that none is lost beside another."""
    sizes = torch.rand(2, count, generator=generator, dtype=torch.float64)
    return (0.5 + sizes[0] / 2) * torch.where(sizes[1] < 0.5, -1.0, 1.0)
