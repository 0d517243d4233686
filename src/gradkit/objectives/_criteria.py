"""How a loss reduces, and how to make it not reduce.

The only module that knows torch's losses by name. Everything else asks
``open_criterion``.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradkit.errors import InputError
from gradkit.objectives._scores import ordinary

__all__ = ["OpenCriterion", "criterion_name", "is_torch_loss", "open_criterion"]

# Losses whose integer targets are classes along the second axis of the outputs.
_CLASS_LOSSES = (F.cross_entropy, F.nll_loss, nn.CrossEntropyLoss, nn.NLLLoss)
# Losses that compare entry with entry, so that targets of another rank would be
# broadcast: (N,) against (N, 1) becomes (N, N).
_ENTRYWISE_LOSSES = (
    *(F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss, F.kl_div),
    *(F.binary_cross_entropy, F.binary_cross_entropy_with_logits),
    *(F.poisson_nll_loss, F.gaussian_nll_loss),
    *(F.soft_margin_loss, F.hinge_embedding_loss),
    *(nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss, nn.KLDivLoss),
    *(nn.BCELoss, nn.BCEWithLogitsLoss, nn.PoissonNLLLoss, nn.GaussianNLLLoss),
    *(nn.SoftMarginLoss, nn.HingeEmbeddingLoss),
)
# Losses whose mean is divided by the sum of their entries' weights.
_WEIGHTED_MEANS = (F.mse_loss, F.l1_loss, F.huber_loss)
# Losses that do not put the samples first, or take other things than targets.
_OTHER_LOSSES = (F.ctc_loss, nn.CTCLoss)


@dataclass(frozen=True)
class OpenCriterion:
    """A loss that reduces nothing, with what its own reduction would have been."""

    name: str
    function: Callable[[Any, Any], Any]
    reduction: str
    ignore_index: int | None = None
    mean_weights: Tensor | None = None
    takes_classes: bool = False
    is_entrywise: bool = False


def open_criterion(criterion: Callable[..., Any]) -> OpenCriterion:
    """Return ``criterion`` evaluated without reduction.

    A loss is told ``reduction="none"`` where it has that setting; any other
    callable is taken to reduce nothing already.
    """
    base, keywords = _without_partial(criterion)
    name = criterion_name(criterion)
    kind = _kind(base)
    if kind in _OTHER_LOSSES:
        raise InputError(
            "sample_loss needs a criterion of (outputs, targets) that returns"
            f" (N, ...); {name} has the samples on the second axis and takes lengths."
            " Pass a callable: lambda outputs, targets: F.ctc_loss("
            "outputs.transpose(0, 1), targets, lengths, target_lengths,"
            ' reduction="none").',
            criterion=name,
        )
    if keywords.keys() & {"size_average", "reduce"}:
        raise InputError(
            f"sample_loss takes the setting reduction= of {name};"
            " got the deprecated size_average= or reduce=. Write"
            ' reduction="mean" or reduction="sum".',
            criterion=name,
        )
    settings = {**_settings(base), **keywords}
    if "reduction" not in settings:
        return OpenCriterion(name, criterion, "none", settings.get("ignore_index"))
    return OpenCriterion(
        name=name,
        function=_unreduced(base, keywords),
        reduction=_own_reduction(name, settings["reduction"]),
        ignore_index=settings.get("ignore_index"),
        mean_weights=settings.get("weight") if kind in _WEIGHTED_MEANS else None,
        takes_classes=kind in _CLASS_LOSSES,
        is_entrywise=kind in _ENTRYWISE_LOSSES,
    )


def is_torch_loss(value: Any) -> bool:
    """Whether ``value`` is one of torch's losses, bare, which needs targets."""
    base, _ = _without_partial(value)
    if isinstance(base, type):
        return issubclass(base, nn.Module) and base.__module__ == nn.MSELoss.__module__
    if isinstance(base, nn.Module):
        return _kind(base).__module__ == nn.MSELoss.__module__
    functional = getattr(base, "__module__", None) == F.__name__
    return functional and "reduction" in _settings(base)


def criterion_name(criterion: Any) -> str:
    base, _ = _without_partial(criterion)
    named = base if hasattr(base, "__name__") else type(base)
    return named.__name__


def _without_partial(criterion: Any) -> tuple[Any, Mapping[str, Any]]:
    keywords: Mapping[str, Any] = {}
    if isinstance(criterion, functools.partial) and not criterion.args:
        criterion, keywords = criterion.func, criterion.keywords
    # Setting an attribute on torch.compile's wrapper sets it on the caller's module.
    return getattr(criterion, "_orig_mod", criterion), keywords


def _kind(base: Any) -> Any:
    """Return the torch loss that ``base`` is or derives from, else ``base``."""
    if not isinstance(base, nn.Module):
        return base
    ancestors = type(base).__mro__
    return next(
        (c for c in ancestors if c.__module__ == nn.MSELoss.__module__), type(base)
    )


def _settings(base: Any) -> dict[str, Any]:
    names = ("reduction", "ignore_index", "weight")
    if isinstance(base, nn.Module):
        return {name: getattr(base, name) for name in names if hasattr(base, name)}
    if getattr(base, "__module__", None) == F.__name__:
        return dict(_defaults_of_torch(base))
    return dict(_defaults(base))


@functools.lru_cache(maxsize=256)
def _defaults_of_torch(function: Any) -> Mapping[str, Any]:
    return _defaults(function)


def _defaults(function: Any) -> Mapping[str, Any]:
    names = ("reduction", "ignore_index", "weight")
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # A builtin, which has no signature.
        return {}
    return {name: parameters[name].default for name in names if name in parameters}


def _own_reduction(name: str, reduction: Any) -> str:
    # kl_div's "batchmean" divides a sum by N: on a batch of one, a sum.
    own = {"mean": "mean", "sum": "sum", "none": "none", "batchmean": "sum"}
    if reduction not in own:
        raise InputError(
            f"sample_loss follows a criterion's own reduction if it is one of"
            f" {', '.join(map(repr, own))}; got {reduction!r}, of {name}. Pass a"
            " callable that returns the loss of each sample, (N,).",
            reduction=reduction,
        )
    return own[reduction]


def _unreduced(base: Any, keywords: Mapping[str, Any]) -> Callable[[Any, Any], Any]:
    keywords = {name: ordinary(value) for name, value in keywords.items()}
    if not isinstance(base, nn.Module):
        return functools.partial(base, **{**keywords, "reduction": "none"})
    if isinstance(base, torch.jit.ScriptModule):
        raise InputError(
            "sample_loss needs a criterion whose reduction can be left out; got a"
            f" scripted {base.original_name}, whose reduction is compiled in. Pass the"
            " module that was scripted.",
            criterion=base.original_name,
        )
    # The module's own forward runs, so that a subclass computes what it means to.
    # Its settings are read from a shallow copy: the caller's module stays as it is.
    module: Any = copy.copy(base)
    module.reduction = "none"
    module._buffers = {n: ordinary(buffer) for n, buffer in base._buffers.items()}
    return functools.partial(module, **keywords)
