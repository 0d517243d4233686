"""What the tests of saliency share: sizes, comparisons, loops, small models.

Nothing here comes from the library.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

#: Samples, entries of a sample, classes.
N, D, C = 4, 5, 3
LABELS = [2, 0, 1, 2]


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def assert_close(found: Any, expected: Any, rtol: float = 1e-12):
    assert found.shape == expected.shape
    assert not found.requires_grad
    size = expected.abs().max()
    assert size > 0
    assert (found - expected).abs().max() <= rtol * size


def smooth_net() -> Any:
    return nn.Sequential(nn.Linear(D, 7), nn.Tanh(), nn.Linear(7, C)).double()


def slope(model: Any, point: Tensor, label: int) -> Tensor:
    """Return the gradient of one sample, by one ordinary backward."""
    point = point.detach().clone().requires_grad_()
    model(point[None])[0, label].backward(inputs=[point])
    assert point.grad is not None
    return point.grad


class Seen:
    """An objective of an identity: it is given the points themselves, and keeps them.

    The first are the inputs'.
    """

    def __init__(self) -> None:
        self.points: list[Tensor] = []

    def __call__(self, outputs: Tensor) -> Tensor:
        self.points.append(outputs.detach().clone())
        return outputs.pow(3).sum(1)

    @property
    def slopes(self) -> Tensor:
        """The gradients at all points but the first, in order."""
        return 3 * torch.stack(self.points[1:]).square()


def cubes(x: Tensor) -> Tensor:
    return x.pow(3).sum(1)


def squares(x: Tensor) -> Tensor:
    return x.square().sum(1)
