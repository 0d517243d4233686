"""JAX: the per-sample derivative of a pure function, vmapped and compiled."""

# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from torch import Tensor

from benchmarks.entries._entry import Entry, Work
from benchmarks.entries.jax_networks import Parameters, network
from benchmarks.problems import Problem


def _array(tensor: Tensor) -> Any:
    return jax.device_put(tensor.detach().cpu().numpy())


def _arrays(problem: Problem) -> tuple[dict[str, Any], Any, Any]:
    parameters = {n: _array(p) for n, p in problem.model.named_parameters()}
    return parameters, _array(problem.inputs), _array(problem.targets)


def _loss(problem: Problem) -> Callable[[Parameters, Any, Any], Any]:
    outputs = network(problem.model)

    def loss(parameters: Parameters, inputs: Any, target: Any) -> Any:
        return -jax.nn.log_softmax(outputs(parameters, inputs))[target]

    return loss


def _rows(problem: Problem) -> Callable[..., Any]:
    return jax.vmap(jax.grad(_loss(problem)), in_axes=(None, 0, 0))


def _compiled(function: Callable[..., Any], *arrays: Any) -> Work:
    compiled = jax.jit(function)
    return Work(lambda: jax.block_until_ready(compiled(*arrays)))


def rows(problem: Problem) -> Work:
    """``{name: (N, *p)}``."""
    return _compiled(_rows(problem), *_arrays(problem))


def donated_rows(problem: Problem) -> Work:
    """``{name: (N, *p)}``, written into the last call's result, which is given up."""
    compute, arrays = _rows(problem), _arrays(problem)

    def function(parameters: Any, inputs: Any, targets: Any, spare: Any) -> Any:
        return compute(parameters, inputs, targets)

    compiled = jax.jit(function, donate_argnums=(3,), keep_unused=True)
    spare = [{n: jnp.zeros(b.shape) for n, b in problem.buffers.items()}]

    def call() -> Any:
        spare.append(jax.block_until_ready(compiled(*arrays, spare.pop())))
        return spare[-1]

    return Work(call)


def norms(problem: Problem) -> Work:
    """``(N,)``, from rows that the compiler may or may not form."""
    compute = _rows(problem)

    def function(*arrays: Any) -> Any:
        squares = [(row**2).reshape(len(row), -1) for row in compute(*arrays).values()]
        return jnp.sqrt(sum(square.sum(axis=1) for square in squares))

    return _compiled(function, *_arrays(problem))


def kernel(problem: Problem) -> Work:
    """``(N, K, N, K)``: the Jacobian, contracted with itself."""
    compute = jax.vmap(jax.jacrev(network(problem.model)), in_axes=(None, 0))

    def function(parameters: Any, inputs: Any) -> Any:
        jacobian = compute(parameters, inputs)
        flat = [j.reshape(*j.shape[:2], -1) for j in jacobian.values()]
        return sum(jnp.einsum("nkp,mlp->nkml", j, j) for j in flat)

    parameters, inputs, _ = _arrays(problem)
    return _compiled(function, parameters, inputs)


def jacobian(problem: Problem) -> Work:
    """``(N, K, D)``."""
    compute = jax.jacrev(network(problem.model), argnums=1)
    parameters, inputs, _ = _arrays(problem)
    return _compiled(jax.vmap(compute, in_axes=(None, 0)), parameters, inputs)


ROWS = Entry("JAX, jitted", rows)
DONATED_ROWS = Entry("JAX, jitted, reused buffers (donated)", donated_rows)
NORMS = Entry("JAX, jitted", norms)
KERNEL = Entry("JAX, jitted, contracted", kernel, every=10)
JACOBIAN = Entry("JAX, jitted", jacobian)
