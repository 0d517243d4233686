"""The pullback of a function as a function itself, for second derivatives."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradkit.testing._subject import Subject
from gradkit.testing._variables import Part, Variable

__all__ = ["Second"]


class Second:
    """``(x, v) -> J(x)ᵀ v``, with the cotangents as further variables.

    A backward that keeps an intermediate instead of the input is right as a value and
    wrong as a function of ``x``; one that is not linear in ``v`` shows here too.
    """

    def __init__(self, subject: Subject, cotangents: Sequence[Tensor]) -> None:
        self._subject = subject
        self._count = len(subject.variables)
        self.lowest = subject.lowest
        self.outputs = tuple(
            Part(f"(gradient by {v.name})", v.value.shape) for v in subject.variables
        )
        self.variables = subject.variables + tuple(
            Variable(f"the cotangent of {part.name}", (), cotangent)
            for part, cotangent in zip(subject.outputs, cotangents, strict=True)
        )

    def evaluate(self, values: Sequence[Tensor]) -> list[Tensor]:
        """Return ``Jᵀ v``."""
        points, cotangents = values[: self._count], values[self._count :]
        found = self._subject.pullback(points, cotangents)
        return [
            torch.zeros_like(p) if g is None else g.detach()
            for p, g in zip(points, found, strict=True)
        ]

    def pullback(
        self, values: Sequence[Tensor], cotangents: Sequence[Tensor]
    ) -> list[Tensor | None]:
        """Return the gradient of ``<z, Jᵀ v>`` by ``x`` and by ``v``."""

        def then(
            points: list[Tensor], seeds: list[Tensor], found: list[Tensor | None]
        ) -> list[Tensor | None]:
            pairs = [
                (g, z)
                for g, z in zip(found, cotangents, strict=True)
                if g is not None and g.requires_grad
            ]
            for gradient, _ in pairs:
                _refuse_once(gradient)
            if not pairs:
                return [None] * len(values)
            return list(
                torch.autograd.grad(
                    [g for g, _ in pairs],
                    [*points, *seeds],
                    [z.to(g) for g, z in pairs],
                    allow_unused=True,
                )
            )

        points, seeds = values[: self._count], values[self._count :]
        return self._subject.pullback(points, seeds, then)

    def pushforward(
        self, values: Sequence[Tensor], tangents: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[Tensor | None]]:
        """Not offered: forward mode over reverse mode."""
        raise NotImplementedError("second derivatives are taken in reverse mode")


def _refuse_once(gradient: Tensor) -> None:
    """Raise what torch would raise if it did not leave out paths that end nowhere.

    A backward marked ``once_differentiable`` hands out leaves of its own behind a node
    that raises; asked for other leaves, torch never comes to it and returns nothing.
    """
    waiting, seen = [gradient.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if node.name() in _RAISING:
            raise NotImplementedError(
                "a backward has no derivative of its own (once_differentiable)"
            )
        waiting += [further for further, _ in node.next_functions]


_RAISING = ("Error", "DelayedError", "NotImplemented", "torch::autograd::Error")
