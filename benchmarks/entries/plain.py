"""What bounds a derivative: an ordinary training step, and writing the result."""

from __future__ import annotations

from functools import partial

import torch

from benchmarks.entries._entry import Entry, Work
from benchmarks.problems import Problem


def step(problem: Problem) -> Work:
    """Forward and backward, with the gradients of all weights."""
    model = problem.model

    def call() -> None:
        problem.loss(model(problem.inputs)).backward()

    return Work(call, clear=partial(model.zero_grad, set_to_none=True))


def write(problem: Problem) -> Work:
    """Fill the buffers, which no method that returns rows can do without."""

    def call() -> None:
        for buffer in problem.buffers.values():
            buffer.fill_(1.0)

    return Work(call)


def product(problem: Problem) -> Work:
    """One cotangent per output of each sample, times the first layer's weight."""
    (weight, *_) = (p.detach() for p in problem.model.parameters())
    outputs = problem.model(problem.inputs[:1]).shape[-1]
    rows = len(problem.inputs) * outputs
    cotangents = torch.randn(rows, len(weight), device=weight.device)
    return Work(lambda: cotangents @ weight)


STEP = Entry("plain step: forward and backward", step)
WRITE = Entry("bound: write the result", write)
PRODUCT = Entry("bound: its one large product", product)
