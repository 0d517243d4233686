"""What one model is asked at one batch: values, rows, or the inputs' Jacobian."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from gradkit._call._open import open_call
from gradkit._call._request import Request
from gradkit._jacobian import run
from gradkit._parameter_jacobian._collect import collect
from gradkit._parameter_jacobian._mapping import ParameterJacobian
from gradkit.errors import InputError
from gradkit.objectives import sample_loss
from gradkit.objectives._criteria import criterion_name
from gradkit.objectives._scores import describe
from gradkit.streaming.quantities._batch import Batch, no_targets
from gradkit.streaming.quantities._given import Given

__all__ = ["averaged", "jacobian_numbers", "rows_of", "values_of"]


def values_of(given: Given, model: Any, batch: Batch) -> Tensor:
    """Return the objective of each sample, ``(N,)``; the model is run, not derived."""
    batch = batch.beside(model)
    request = Request(
        "input_gradients", model, batch.inputs, _objective(given, batch), of=given.of,
        batched=True, seed=given.seed, values_only=True,
    )  # fmt: skip
    with open_call(request) as call:
        assert call.values is not None, "an objective was given"
        return call.values.detach().clone()


def rows_of(given: Given, model: Any, batch: Batch) -> ParameterJacobian:
    """Return the gradient of each sample's objective by the parameters."""
    batch = batch.beside(model)
    request = Request(
        "per_sample_gradients", model, batch.inputs, _objective(given, batch),
        of=given.of, parameters=given.parameters, seed=given.seed,
        method=given.method, max_memory=given.max_memory,
    )  # fmt: skip
    return collect(request)


def jacobian_numbers(
    given: Given, batch: Batch, number: Callable[[list[Tensor]], Tensor]
) -> Tensor:
    """Return a number of each sample's input Jacobian, ``(N,)``.

    ``number`` gets it as one block ``(N, K, D)`` per input, of all outputs.
    """
    request = Request(
        "jacobian", given.model, batch.beside(given.model).inputs, wrt=given.wrt,
        of=given.of, batched=True, seed=given.seed, method=given.method,
        max_memory=given.max_memory,
    )  # fmt: skip
    # Within the call, where autocast is off.
    with open_call(request) as call:
        return number(run(call))


def averaged(
    given: Given, batch: Batch, one: Callable[[Given, Any, Batch], Tensor]
) -> Tensor:
    """Return the mean over the models of one number per sample."""
    found = [one(given, model, batch) for model in given.models]
    if len(found) == 1:
        return found[0]
    dtype = reduce(torch.promote_types, [f.dtype for f in found])
    device = found[0].device
    wide = torch.stack([f.to(device, torch.float64) for f in found])
    return wide.mean(0).to(dtype)


def _objective(given: Given, batch: Batch) -> Any:
    if given.objective is None:
        if batch.targets is None:
            name = criterion_name(given.criterion)
            raise no_targets(batch.inputs, f"{name} compares with")
        return sample_loss(given.criterion, batch.targets)
    objective = given.objective(batch.targets)
    if not callable(objective):
        raise InputError(
            "objective must return an objective, a function of the outputs, for a"
            f" batch's targets; it returned {describe(objective)}",
            argument="objective",
        )
    return objective
