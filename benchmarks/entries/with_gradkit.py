"""Whole public calls of gradkit, objective and guards included."""

from __future__ import annotations

import torch.nn.functional as F

import gradkit as gk
from benchmarks.entries._entry import Entry, Work
from benchmarks.problems import Problem


def gradients(problem: Problem) -> gk.ParameterJacobian:
    """Return the per-sample gradients, not yet formed."""
    loss = gk.objectives.sample_loss(F.cross_entropy, problem.targets)
    return gk.per_sample_gradients(problem.model, problem.inputs, loss)


def rows(problem: Problem) -> Work:
    """``{name: (N, *p)}`` in buffers that the caller keeps."""
    return Work(lambda: gradients(problem).to_dict(out=problem.buffers))


def fresh_rows(problem: Problem) -> Work:
    """``{name: (N, *p)}`` in new memory, as all peers in torch return them."""
    return Work(lambda: gradients(problem).to_dict())


def norms(problem: Problem) -> Work:
    """``(N,)``."""
    return Work(lambda: gradients(problem).norms())


def kernel(problem: Problem) -> Work:
    """``(N, K, N, K)``: the empirical neural tangent kernel."""
    model, inputs = problem.model, problem.inputs
    return Work(lambda: gk.parameter_jacobian(model, inputs).gram())


def jacobian(problem: Problem) -> Work:
    """``(N, K, D)``."""
    return Work(lambda: gk.jacobian(problem.model, problem.inputs))


ROWS = Entry("**gradkit**, reused buffers", rows)
FRESH_ROWS = Entry("**gradkit**, fresh result", fresh_rows)
NORMS = Entry("**gradkit**", norms)
KERNEL = Entry("**gradkit**", kernel)
JACOBIAN = Entry("**gradkit**", jacobian)
