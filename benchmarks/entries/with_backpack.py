"""BackPACK: an extended backward pass that also yields rows or squared norms."""

# pyright: reportMissingImports=false

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.entries._entry import Entry, Work, ignore_hook_warning
from benchmarks.problems import Problem


def _work(problem: Problem, extension: Any, field: str) -> tuple[Any, Any]:
    """Return what runs the extended backward, and what drops all it left."""
    from backpack import backpack, extend

    ignore_hook_warning()
    warnings.filterwarnings("ignore", "Extension saving to .* does not have")
    model = extend(problem.model)
    loss = extend(nn.CrossEntropyLoss(reduction="sum"))
    parameters = dict(problem.model.named_parameters())

    def run() -> dict[str, Tensor]:
        with backpack(extension):
            loss(model(problem.inputs), problem.targets).backward()
        _check_served(problem.model, field)
        return {n: vars(p)[field] for n, p in parameters.items()}

    def clear() -> None:
        for parameter in parameters.values():
            parameter.grad = None
            vars(parameter).pop(field, None)

    return run, clear


def _check_served(model: nn.Module, field: str) -> None:
    """Raise where BackPACK passed over a layer, of which it only warns."""
    unserved = {
        type(module).__name__
        for module in model.modules()
        for parameter in module.parameters(recurse=False)
        if field not in vars(parameter)
    }
    if unserved:
        raise NotImplementedError(f"no extension for {', '.join(sorted(unserved))}")


def rows(problem: Problem) -> Work:
    """``{name: (N, *p)}``."""
    from backpack.extensions import BatchGrad

    return Work(*_work(problem, BatchGrad(), "grad_batch"))


def norms(problem: Problem) -> Work:
    """``(N,)``."""
    from backpack.extensions import BatchL2Grad

    run, clear = _work(problem, BatchL2Grad(), "batch_l2")
    return Work(lambda: torch.stack([*run().values()]).sum(0).sqrt(), clear)


ROWS = Entry("BackPACK `BatchGrad`", rows, needs="backpack")
NORMS = Entry("BackPACK `BatchL2Grad`", norms, needs="backpack")
