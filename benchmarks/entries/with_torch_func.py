"""``torch.func``: the per-sample derivative of a functional model, vmapped."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call, grad, jacrev, vmap

from benchmarks.entries._entry import Entry, Work
from benchmarks.problems import Problem


def gradients(problem: Problem) -> Callable[[], dict[str, Tensor]]:
    """Return what computes ``{name: (N, *p)}``."""
    model = problem.model
    parameters = {n: p.detach() for n, p in model.named_parameters()}

    def loss(parameters: dict[str, Tensor], inputs: Tensor, target: Tensor) -> Tensor:
        outputs = functional_call(model, parameters, (inputs[None],))
        return F.cross_entropy(outputs, target[None])

    rows = vmap(grad(loss), in_dims=(None, 0, 0))
    return lambda: rows(parameters, problem.inputs, problem.targets)


def rows(problem: Problem) -> Work:
    """``{name: (N, *p)}``."""
    return Work(gradients(problem))


def norms(problem: Problem) -> Work:
    """``(N,)``, from the rows."""
    compute = gradients(problem)

    def call() -> Tensor:
        squares = [row.flatten(1).square().sum(1) for row in compute().values()]
        return torch.stack(squares).sum(0).sqrt()

    return Work(call)


def kernel(problem: Problem) -> Work:
    """``(N, K, N, K)``: the Jacobian, contracted with itself."""
    model = problem.model
    parameters = {n: p.detach() for n, p in model.named_parameters()}

    def outputs(parameters: dict[str, Tensor], inputs: Tensor) -> Tensor:
        return functional_call(model, parameters, (inputs[None],))[0]

    def call() -> Tensor:
        jacobian = vmap(jacrev(outputs), (None, 0))(parameters, problem.inputs)
        flat = [block.flatten(2).flatten(0, 1) for block in jacobian.values()]
        samples, classes = next(iter(jacobian.values())).shape[:2]
        gram = torch.stack([block @ block.mT for block in flat]).sum(0)
        return gram.view(samples, classes, samples, classes)

    return Work(call)


ROWS = Entry("`vmap(grad)`", rows)
NORMS = Entry("`vmap(grad)`, then norms", norms)
KERNEL = Entry("`vmap(jacrev)`, contracted", kernel, every=10)
