"""Values computed from parameters alone, and rows pulled back through them.

A class token is ``expand`` of a parameter, a LoRA weight a sum of products, a
parametrised weight a quotient by a norm. A row with respect to such a value is pulled
back by the calls that computed it, made once more on private copies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gradkit._rules._arguments import Path, changed
from gradkit._rules._factor import Factor, Owned
from gradkit._rules._recorded import Source, Step

__all__ = ["Derivation", "Pulled"]

#: Calls that move entries, and change and lose none where the number stays.
_MOVES = frozenset(
    ("t", "transpose", "permute", "movedim", "swapaxes", "view", "reshape", "flatten")
) | frozenset(("unsqueeze", "squeeze", "contiguous", "clone", "unflatten", "view_as"))


class Derivation:
    """How one value follows from the parameters it is computed from.

    Args:
        sources: The tape's sources.
        source: Which of them it is.
        count: How many of them are parameters.
        owned: Makes private what the calls need.
    """

    def __init__(
        self, sources: Sequence[Source], source: int, count: int, owned: Owned
    ) -> None:
        self.shape = sources[source].tensor.shape
        # In which rows of the value are computed; the parameters may have another.
        self.dtype = torch.promote_types(sources[source].tensor.dtype, torch.float32)
        self._source = source
        self._steps: dict[int, Step] = {}
        self.values: dict[int, Tensor] = {}
        waiting = [source]
        while waiting:
            i = waiting.pop()
            if i in self._steps or i in self.values:
                continue
            step = sources[i].step
            if step is None:
                self.values[i] = owned(sources[i].tensor)
            else:
                self._steps[i] = _private(step)
                waiting += sources[i].parents
        self.moves = all(map(_moves, self._steps.values())) and (
            sum(v.numel() for v in self.values.values()) == self.shape.numel()
        )
        self.key = tuple(
            (i, step.name, *step.settings()) for i, step in self._steps.items()
        )

    @property
    def parameters(self) -> tuple[int, ...]:
        """The parameters it is computed from."""
        return tuple(self.values)

    def value(self, given: Mapping[int, Tensor]) -> Tensor:
        """Compute the value from the parameters' values."""
        known = dict(given)

        def of(i: int) -> Tensor:
            if i not in known:
                step = self._steps[i]
                values = {path: of(s) for path, s in step.places.items()}
                args, kwargs = changed(step.args, step.kwargs, values.get)
                result = step.function(*args, **kwargs)
                known[i] = result if step.output is None else result[step.output]
            return known[i]

        return of(self._source)

    def repeats(self, value: Tensor) -> bool:
        """Whether the calls give ``value`` again; those that draw numbers do not."""
        before = torch.get_rng_state()
        with torch.no_grad():
            again = self.value(self.values)
        # Two draws may be alike, but not without moving the generator.
        if not torch.equal(before, torch.get_rng_state()):
            return False
        return again.shape == value.shape and torch.allclose(
            again, value.detach(), rtol=1e-3, atol=0.0, equal_nan=True
        )

    def _pullback(self, parameter: int) -> tuple[Tensor, Callable[..., Any]]:
        """Return the value, and its pullback to one parameter."""

        def of(value: Tensor) -> Tensor:
            return self.value({**self.values, parameter: value})

        with torch.enable_grad():
            return torch.func.vjp(of, self.values[parameter])[:2]

    def pull(self, rows: Tensor, parameter: int) -> Tensor:
        """Pull rows ``(M, *shape)`` back to one parameter, ``(M, *p)``."""
        value, pullback = self._pullback(parameter)
        rows = rows.to(value.dtype)
        if rows.shape[0] == 1:
            return pullback(rows[0])[0][None]
        return torch.func.vmap(pullback)(rows)[0]

    def push(self, vector: Tensor, parameter: int) -> Tensor:
        """Return how the value changes along ``vector`` of one parameter."""
        value, pullback = self._pullback(parameter)
        # Twice reverse: forward mode lacks operations that reverse mode has.
        with torch.enable_grad():
            zero = torch.zeros_like(value)
            forward = torch.func.vjp(lambda c: pullback(c)[0], zero)[1]
        return forward(vector.to(self.values[parameter]))[0]

    def held(self) -> list[Tensor]:
        """Return the private values."""
        return list(self.values.values())


class Pulled(Factor):
    """Rows with respect to a parameter, through a value computed from it.

    Args:
        inner: The rows with respect to the value.
        derivation: How the value follows from its parameters.
        parameter: Which of them this is.
    """

    def __init__(self, inner: Factor, derivation: Derivation, parameter: int) -> None:
        shape = derivation.values[parameter].shape
        super().__init__(shape, inner.samples, inner.rows)
        self.inner_factor, self.derivation = inner, derivation
        self.parameter = parameter

    def _pull(self, rows: Tensor) -> Tensor:
        rows = rows.reshape(-1, *self.derivation.shape)
        return self.derivation.pull(rows, self.parameter)

    def dense(self, part: slice) -> Tensor:
        """Return the rows ``(n, R, p)`` of some samples."""
        rows = self.inner_factor.dense(part)
        if not rows.shape[0] * rows.shape[1]:
            return rows.new_zeros(*rows.shape[:2], self.shape.numel())
        return self._pull(rows).reshape(*rows.shape[:2], -1)

    def take(self, index: Tensor) -> Pulled:
        """Return the factor of some samples."""
        return Pulled(self.inner_factor.take(index), self.derivation, self.parameter)

    def held(self) -> list[Tensor]:
        """Return what the value's rows are made of, and the private values."""
        return [*self.inner_factor.held(), *self.derivation.held()]

    def own(self, owned: Owned) -> None:
        """Clone what is not our own."""
        self.inner_factor.own(owned)

    def _moves_alike(self, other: Factor) -> bool:
        return (
            isinstance(other, Pulled)
            and self.derivation.moves
            and self.derivation.key == other.derivation.key
        )

    def squares(self) -> Tensor | None:
        """Return squared norms, which moving entries about does not change."""
        return self.inner_factor.squares() if self.derivation.moves else None

    def inner(self, other: Factor) -> Tensor | None:
        """Return inner products, which moving entries alike does not change."""
        if not isinstance(other, Pulled) or not self._moves_alike(other):
            return None
        return self.inner_factor.inner(other.inner_factor)

    def gram(self, other: Factor) -> Tensor | None:
        """Return inner products, which moving entries alike does not change."""
        if not isinstance(other, Pulled) or not self._moves_alike(other):
            return None
        return self.inner_factor.gram(other.inner_factor)

    def matvec(self, vector: Tensor) -> Tensor | None:
        """Return inner products with ``vector``, pushed forward to the value."""
        pushed = self.derivation.push(vector.reshape(self.shape), self.parameter)
        return self.inner_factor.matvec(pushed.to(self.derivation.dtype))

    def rmatvec(self, weights: Tensor) -> Tensor | None:
        """Return the weighted sum of rows: one pull-back of the value's."""
        found = self.inner_factor.rmatvec(weights.to(self.derivation.dtype))
        return None if found is None else self._pull(found[None]).reshape(-1)


def _moves(step: Step) -> bool:
    return step.name in _MOVES or (
        step.name == "__get__"
        and getattr(getattr(step.function, "__self__", None), "__name__", "")
        in ("T", "mT")
    )


def _private(step: Step) -> Step:
    """Return the step with private constants, and without the sources themselves."""

    def change(path: Path, value: Any) -> Any:
        return None if path in step.places else _cloned(value)

    args, kwargs = changed(step.args, step.kwargs, change)
    return Step(step.function, args, kwargs, step.places, [], step.output)


def _cloned(value: Any) -> Any:
    """Clone tensors, since a constant may be anybody's, such as a cache's."""
    if type(value) in (list, tuple):
        return type(value)(map(_cloned, value))
    return value.detach().clone() if isinstance(value, Tensor) else value
