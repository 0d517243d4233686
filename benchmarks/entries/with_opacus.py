"""Opacus: hooks on modules that form rows, and its ghost norms."""

# pyright: reportMissingImports=false

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor

from benchmarks.entries._entry import Entry, Work, ignore_hook_warning
from benchmarks.problems import Problem


def _backward(problem: Problem, hooked: Any) -> None:
    problem.loss(hooked(problem.inputs)).backward()


def rows(problem: Problem) -> Work:
    """``{name: (N, *p)}``."""
    from opacus import GradSampleModule

    ignore_hook_warning()
    hooked = GradSampleModule(problem.model, loss_reduction="sum")

    def call() -> dict[str, Any]:
        _backward(problem, hooked)
        return {n: vars(p)["grad_sample"] for n, p in problem.model.named_parameters()}

    return Work(call, clear=partial(hooked.zero_grad, set_to_none=True))


def norms(problem: Problem) -> Work:
    """``(N,)``, as its ghost clipping finds them."""
    from opacus.grad_sample import GradSampleModuleFastGradientClipping

    ignore_hook_warning()
    hooked = GradSampleModuleFastGradientClipping(
        problem.model, loss_reduction="sum", use_ghost_clipping=True
    )

    def call() -> Tensor:
        _backward(problem, hooked)
        return hooked.get_norm_sample()

    return Work(call, clear=partial(hooked.zero_grad, set_to_none=True))


ROWS = Entry("Opacus, hooks", rows, needs="opacus")
NORMS = Entry("Opacus, ghost norms", norms, needs="opacus")
