"""The four questions about one model, and models that leave traces."""

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import gradkit as gk

N, FEATURES, OUTPUTS = 4, 3, 2
HOWS = ("auto", *gk.METHODS)


def inputs():
    return torch.randn(N, FEATURES)


def questions(model: Any, x: Any, **how: Any) -> Iterator[tuple[str, Any]]:
    """Yield each question as a call, with the name it goes by."""
    total = gk.objectives.output_sum
    yield "jacobian", lambda: gk.jacobian(model, x, **how)
    yield "input_gradients", lambda: gk.input_gradients(model, x, total, **how)
    yield "parameter_jacobian", lambda: gk.parameter_jacobian(model, x, **how)
    yield (
        "per_sample_gradients",
        lambda: gk.per_sample_gradients(model, x, total, **how),
    )


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(FEATURES, OUTPUTS)


class Counts(Base):
    """A counter, a buffer replaced and one written to, and a tensor kept."""

    replaced: Tensor
    written: Tensor
    written_as_data: Tensor

    def __init__(self):
        super().__init__()
        self.register_buffer("replaced", torch.zeros(()))
        self.register_buffer("written", torch.zeros(2))
        self.register_buffer("written_as_data", torch.zeros(2))
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        self.replaced = self.replaced + 1
        self.written += 1
        self.written_as_data.data.add_(1)
        self.last = self.layer(x)
        return self.last * 2


class DrawsFromAll(Base):
    def forward(self, x):
        scale = random.random() + np.random.rand()
        return self.layer(nn.functional.dropout(x, 0.5)) * scale
