"""The arguments of a maker, checked when it is called, long before a batch comes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from inspect import signature
from typing import Any

import torch.nn.functional as F
from torch import nn

from gradkit._memory_use import budget
from gradkit._methods import read_method
from gradkit._problem._inputs import as_position
from gradkit._problem._parameters import read_parameters
from gradkit._problem._target import read_target
from gradkit.errors import InputError
from gradkit.objectives import output_sum, sample_loss
from gradkit.objectives._criteria import (
    criterion_name,
    is_torch_loss,
    open_criterion,
)
from gradkit.objectives._losses import SampleLoss, TokenLoss
from gradkit.objectives._scores import ClassScore, WeightedSum, describe
from gradkit.streaming.quantities._batch import Split

__all__ = ["Given", "read_given"]


@dataclass(frozen=True, eq=False)
class Given:
    """What a maker was given; what it doesn't take keeps its default here.

    ``several`` is whether the models came as a sequence; ``options`` are what one
    maker alone takes.
    """

    models: tuple[Any, ...]
    several: bool = False
    criterion: Any = None
    objective: Callable[[Any], Any] | None = None
    of: Any = None
    wrt: Any = None
    parameters: Any = None
    split: Split | None = None
    seed: int | None = None
    method: Any = "auto"
    max_memory: Any = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def model(self) -> Any:
        """The model, of which there is one where a mean makes no sense."""
        return self.models[0]

    def identity(self) -> dict[str, Any]:
        """Return what decides the rows, to their last bit."""
        return {
            "model": list(self.models) if self.several else self.model,
            "criterion": self.criterion,
            "objective": self.objective,
            "of": self.of,
            "wrt": self.wrt,
            "parameters": self.parameters,
            "split": self.split,
            "seed": self.seed,
            "method": getattr(self.method, "name", self.method),
            "max_memory": self.max_memory,
            **self.options,
        }


def read_given(
    model: Any, *, question: str | None = None, several: bool = False, **arguments: Any
) -> Given:
    """Check what a maker was given.

    Args:
        model: One, or, where ``several`` may be given, a sequence of them.
        question: The function that will be asked, if a derivative is.
        several: Whether a sequence will do.
        **arguments: Fields of ``Given``.

    Raises:
        InputError: An argument is not what the maker takes.
    """
    sequence = several and isinstance(model, (list, tuple, nn.ModuleList))
    models = tuple(model) if sequence else (model,)
    if not models:
        raise InputError(
            "model must be a model or a sequence of some; got an empty one",
            argument="model",
        )
    given = Given(models, sequence, **arguments)
    for each in models:
        target = read_target(each)
        if question == "per_sample_gradients":
            read_parameters(target, given.parameters)
    _check_settings(given, question)
    return _with_one_objective(given)


def _check_settings(given: Given, question: str | None) -> None:
    if question is not None:
        read_method(question, given.method)
    if not isinstance(given.options.get("per_parameter", False), bool):
        raise InputError(
            "per_parameter must be True or False; got"
            f" {describe(given.options['per_parameter'])}",
            argument="per_parameter",
        )
    if given.max_memory is not None:
        budget(given.max_memory, ())
    if given.split is not None and not callable(given.split):
        raise InputError(
            "split must be a function batch -> (inputs, targets); got"
            f" {describe(given.split)}",
            argument="split",
        )
    if given.seed is not None and as_position(given.seed) is None:
        raise InputError(
            f"seed must be a whole number; got {describe(given.seed)}", argument="seed"
        )


def _refuse_model(criterion: Any) -> None:
    """Refuse a model where the loss belongs: a loss takes outputs and targets."""
    if not isinstance(criterion, nn.Module) or is_torch_loss(criterion):
        return
    try:
        signature(criterion.forward).bind(None, None)
    except ValueError:  # it has no signature to be read
        return
    except TypeError:
        name = criterion_name(criterion)
        raise InputError(
            "criterion must be a loss of outputs and targets; got the model"
            f" {name}. Several models go in a list, [model, other]",
            argument="criterion",
            criterion=name,
        ) from None


def _with_one_objective(given: Given) -> Given:
    """Return the arguments with an objective, or else a criterion, or neither."""
    if given.objective is None:
        if given.criterion is not None:
            _refuse_model(given.criterion)
            sample_loss(given.criterion, None)
            open_criterion(given.criterion)
        return given
    # The default can't be told from the same loss given.
    if given.criterion is not None and given.criterion is not F.cross_entropy:
        raise InputError(
            "criterion and objective are two ways to say the same; give one",
            argument="objective",
            criterion=criterion_name(given.criterion),
        )
    ready = (ClassScore, WeightedSum, SampleLoss, TokenLoss)
    is_ready = isinstance(given.objective, ready) or given.objective is output_sum
    if is_ready or not callable(given.objective):
        got = describe(given.objective)
        if is_ready:
            got = "an objective itself. Pass objective=lambda targets: ..."
        raise InputError(
            "objective must be a function of a batch's targets that returns an"
            " objective, such as lambda labels:"
            f" gk.objectives.token_loss(labels, shift=True); got {got}",
            argument="objective",
        )
    return replace(given, criterion=None)
