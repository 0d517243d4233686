"""The arguments of one call, each read by itself and refused if it cannot be meant."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradkit._call._request import Given, Request
from gradkit._guards._trace import inside_forward
from gradkit._methods import read_method
from gradkit._methods._method import Method
from gradkit._problem._inputs import Inputs, InputTensor, read_inputs
from gradkit._problem._names import Entry, Selector, read_of, read_wrt
from gradkit._problem._parameters import Parameter, read_parameters
from gradkit._problem._target import Target, read_target
from gradkit.errors import InputError, UnsupportedModelError
from gradkit.objectives import as_objective
from gradkit.objectives._losses import TokenLoss

__all__ = ["Arguments", "read_arguments"]


@dataclass(frozen=True, eq=False)
class Arguments:
    """What the caller asked for, before anything has run.

    ``evaluates`` is whether an objective is called; ``objective`` may be ``None`` then,
    where a sample has one output.
    """

    methods: list[Method]
    target: Target
    inputs: Inputs
    selector: Selector
    evaluates: bool
    objective: Callable[[Any], Tensor] | None
    entries: list[Entry]
    form: str
    parameters: tuple[Parameter, ...]


def read_arguments(request: Request, given: Given | None) -> Arguments:
    """Read them in the order in which people look at them."""
    methods = read_method(request.function, request.method)
    target = read_target(request.model)
    inputs = read_inputs(request.inputs, _batched(request))
    objective = None
    evaluates = request.takes_objective and (given is None or given.objective)
    if evaluates:
        labels = request.kind == "inputs"
        objective = as_objective(request.objective, labels_mean_class_score=labels)
    if given is None:
        _warn_of_own_tokens(objective, inputs.tensors)
    selector = read_of(target, request.of)
    entries, form, parameters = [], "inputs", ()
    if request.kind == "inputs":
        if not request.values_only:
            entries, form = read_wrt(target, inputs, request.wrt)
    elif given is None:
        parameters = read_parameters(target, request.parameters)
    else:
        parameters = tuple(_mapped(p, given.mapping) for p in given.parameters)
    _refuse_lost_graph(request, inputs, parameters)
    return Arguments(
        methods, target, inputs, selector, evaluates, objective, entries, form,
        parameters,
    )  # fmt: skip


def _batched(request: Request) -> bool | None:
    """Return ``batched`` as ``read_inputs`` takes it."""
    if request.kind == "parameters":
        return True  # one number per sample is a common input of such models
    if request.batched is None:
        return None
    if isinstance(request.batched, (bool, np.bool_)):
        return bool(request.batched)
    raise InputError(
        f"batched must be True, False or None; got {request.batched!r}",
        argument="batched",
    )


def _warn_of_own_tokens(objective: Any, inputs: Sequence[InputTensor]) -> None:
    """Warn where tokens are scored at their own positions, not where they come next.

    That is another loss than a causal language model's own, and nothing else shows it.
    """
    if not isinstance(objective, TokenLoss) or objective.shift:
        return
    labels = objective.labels
    for given in inputs:
        alike = (
            given.tensor.shape == labels.shape and not given.tensor.is_floating_point()
        )
        # A model that is given its labels, too, knows what it does with them.
        if alike and not any(n in given.path.lower() for n in ("label", "target")):
            break
    else:
        return
    counted = labels != objective.ignore_index
    same = (labels == given.tensor.to(labels.device))[counted]
    # One label for all may be a mask's one, too.
    if bool(same.all()) and len(labels[counted].unique()) > 1:
        warnings.warn(
            "token_loss has the inputs' own tokens as labels. A causal language model"
            " predicts the next token: pass shift=True. If each token's own position"
            " is meant, say so by warnings.filterwarnings('ignore', 'token_loss has')",
            stacklevel=2,
        )


def _mapped(parameter: Parameter, mapping: dict[int, Tensor]) -> Parameter:
    tensor = mapping.get(id(parameter.tensor), parameter.tensor)
    return Parameter(parameter.name, parameter.aliases, tensor, parameter.slots)


def _refuse_lost_graph(
    request: Request, inputs: Inputs, parameters: Sequence[Parameter]
) -> None:
    """Refuse a detached result inside a forward that is itself differentiated."""
    if request.create_graph or not inside_forward() or not torch.is_grad_enabled():
        return
    if parameters:
        raise UnsupportedModelError(
            "it is called inside a model that gradkit differentiates, and its result"
            " has no graph, so its part of the derivative would be lost. Call it"
            " under torch.no_grad() if that is meant"
        )
    if any(t.tensor.requires_grad for t in inputs.tensors):
        raise InputError(
            "create_graph must be True inside a model that gradkit differentiates,"
            " or this call's part of the derivative would be lost. Pass"
            " create_graph=True, or detach the inputs if that is meant",
            argument="create_graph",
        )
