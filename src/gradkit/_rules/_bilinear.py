"""The rule of bilinear maps: rows that are sums of products of three factors."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from gradkit._rules._factor import Owned
from gradkit._rules._outer import Flowing, Outer
from gradkit._rules._rule import Operation, Rule

__all__ = ["BILINEAR"]


class _Pairs(Flowing):
    """Products of two inputs, ``(N, 1, T, i * j)``, of ``(N, T, i)`` and ``(N, T, j)``.

    They are formed when asked for: together the inputs are smaller.
    """

    def __init__(self, left: Tensor, right: Tensor) -> None:
        self.left, self.right = left, right

    def part(self, samples: slice) -> Tensor:
        """Return some samples' products."""
        left, right = self.left[samples], self.right[samples]
        return (left[..., :, None] * right[..., None, :]).flatten(2)[:, None]

    def take(self, index: Tensor) -> _Pairs:
        """Return some samples' part."""
        index = index.to(self.left.device)
        return _Pairs(self.left[index], self.right[index])

    def held(self) -> list[Tensor]:
        """Return the inputs."""
        return [self.left, self.right]

    def own(self, owned: Owned) -> None:
        """Clone what is not our own."""
        self.left, self.right = owned(self.left), owned(self.right)


def _inputs(operation: Operation, argument: str) -> Tensor:
    """Return an argument ``(N, T, i)``."""
    found = operation.samples_first(argument)
    return found.reshape(found.shape[0], prod(found.shape[1:-1]), found.shape[-1])


def _rows_of_weight(operation: Operation, cotangent: Tensor) -> Outer:
    positions = prod(cotangent.shape[2:-1])
    samples, rows, outputs = *cotangent.shape[:2], cotangent.shape[-1]
    return Outer(
        operation.parameters["weight"],
        cotangent.reshape(samples, rows, 1, positions, outputs),
        _Pairs(_inputs(operation, "input1"), _inputs(operation, "input2")),
    )


def _rows_of_bias(operation: Operation, cotangent: Tensor) -> Tensor:
    axes = list(range(2, cotangent.dim() - 1))
    return cotangent.sum(axes) if axes else cotangent


def _refused(operation: Operation) -> str | None:
    if operation.layout.axis == len(operation.shape) - 1:
        return "the samples stand in the axis of its outputs"
    return None


# Multiplies a matrix for each output from both sides: y[t, o] = x[t]ᵀ p[o] z[t] + b[o].
# Jacobian: dy[t, o] / dp[o, i, j] = x[t, i] z[t, j]; dy[t, o] / db[o] = 1.
# Pullback: rows[n, r, o, i, j] = sum_t c[n, r, t, o] x[n, t, i] z[n, t, j];
# rows[n, r, o] = sum_t c[n, r, t, o].
# Covers any leading axes, weight and bias; refused if the samples are the last axis.
# https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.bilinear.html
BILINEAR = Rule(
    "bilinear",
    (torch.bilinear,),
    ("input1", "input2", "weight", "bias"),
    {"weight": _rows_of_weight, "bias": _rows_of_bias},
    _refused,
)
