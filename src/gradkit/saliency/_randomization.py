"""Whether a map depends on what the model has learned."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from gradkit._call._public import public
from gradkit._planner import watched
from gradkit._problem._names import nearest
from gradkit._problem._target import unwrap
from gradkit.errors import InputError
from gradkit.saliency._arguments import choice, generator, number
from gradkit.saliency._randomization_report import RandomizationReport
from gradkit.saliency._registry import map_of, read_method, read_settings
from gradkit.saliency._similarity import rank_correlation, structural_similarity

__all__ = ["randomization_check"]

_ORDERS = ("cascade", "independent")


@public
def randomization_check(
    method: Any,
    model: nn.Module,
    inputs: Any,
    objective: Any,
    *,
    layers: Sequence[str] | None = None,
    order: str = "cascade",
    threshold: float = 0.5,
    seed: int = 0,
    settings: Mapping[str, Any] | None = None,
) -> RandomizationReport:
    """Say whether a map depends on what the model has learned.

    On a copy of the model the weights are drawn anew, layer by layer, from the output
    to the input, and after each layer the map is compared with that of the trained
    model. A map that stays shows the input, or the architecture, and not what was
    learned.

    Args:
        method: A name in ``gk.saliency.METHODS``, or a callable ``(model, inputs,
            objective, **settings)`` that returns one tensor with the samples first.
        model: An ``nn.Module``, from ``(N, *in)`` to ``(N, *out)``. Read, never
            modified; it is copied.
        inputs: As in ``gradient``.
        objective: As in ``gradient``.
        layers: Dotted names, in the order in which they are drawn anew, each with all
            the parameters below it. ``None``: every submodule with parameters of its
            own, and these alone, the one that is called last first.
        order: ``"cascade"``: what was drawn stays drawn. ``"independent"``: it is
            as trained again.
        threshold: The mean rank correlation from which on the map is said not to
            depend on the model.
        seed: Of the weights. Each parameter is drawn from a normal distribution with
            the mean and the standard deviation of its trained values, so that signals
            keep their size; one whose entries are all equal stays.
        settings: What ``method`` is called with besides, such as ``{"draws": 20}``;
            submodules by their names.

    Returns:
        A ``RandomizationReport``, true where the map depends on the model.

    Raises:
        InputError: As in ``gradient``; and where the model is no ``nn.Module``,
            cannot be copied, has no parameters, or lacks a layer.
        SampleDependenceError: As in ``gradient``.
        UnsupportedModelError: As in ``gradient``.

    Cost:
        A map for each layer, and one more; a copy of the model.

    Example:
        >>> import torch
        >>> import gradkit as gk
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Sequential(
        ...     torch.nn.Linear(9, 20), torch.nn.ReLU(), torch.nn.Linear(20, 3)
        ... )
        >>> x = torch.rand(4, 9)
        >>> bool(gk.saliency.randomization_check("gradient", model, x, 0))
        True
        >>> bool(gk.saliency.randomization_check(lambda f, x, y: x, model, x, 0))
        False

    Source:
        Adebayo, Gilmer, Muelly, Goodfellow, Hardt and Kim, "Sanity checks for saliency
        maps" (2018), sec. 3: rank correlation with and without signs, and SSIM.
    """
    name, compute = read_method(method)
    order = choice("order", order, _ORDERS)
    limit = number("threshold", threshold)
    own = generator(seed)
    given = read_settings(settings, compute, name)
    _refuse_modules(given)
    twin = _copy(model)

    def maps() -> Tensor:
        return map_of(compute(twin, inputs, objective, **given), name)

    with _calls_of(twin) as called:
        found = [maps()]
    names = _layers(twin, called) if layers is None else _named(twin, layers)
    trained = {id(p): p.detach().clone() for p in twin.parameters()}
    for layer in watched(f"randomization of {name}", names):
        if order == "independent":
            _restore(twin, trained)
        module = twin.get_submodule(layer)
        _draw_anew(module.parameters(recurse=layers is not None), trained, own)
        found.append(maps())
    return _report(name, order, limit, names, torch.stack(found))


def _report(
    name: str, order: str, threshold: float, layers: Sequence[str], maps: Tensor
) -> RandomizationReport:
    first, others = maps[0], maps[1:]
    return RandomizationReport(
        method=name,
        order=order,
        layers=tuple(layers),
        rank_correlations=torch.stack([rank_correlation(first, m) for m in others]),
        magnitude_correlations=torch.stack(
            [rank_correlation(first.abs(), m.abs()) for m in others]
        ),
        similarities=torch.stack([structural_similarity(first, m) for m in others]),
        maps=maps,
        threshold=threshold,
    )


def _copy(model: Any) -> nn.Module:
    if not isinstance(model, nn.Module):
        raise InputError(
            "model must be an nn.Module, whose weights can be drawn anew; got"
            f" {type(model).__name__}",
            argument="model",
        )
    try:
        twin = copy.deepcopy(unwrap(model))
    except Exception as error:
        raise InputError(
            f"model must be such that copy.deepcopy(model) works; it raised"
            f" {type(error).__name__}: {error}",
            argument="model",
        ) from error
    if not any(True for _ in twin.parameters()):
        raise InputError(
            "model must have parameters to draw anew; it has none", argument="model"
        )
    return twin


def _refuse_modules(settings: dict[str, Any]) -> None:
    for key, value in settings.items():
        if isinstance(value, nn.Module):
            raise InputError(
                f"settings[{key!r}] must be a submodule's dotted name, since the check"
                f" works on a copy of the model; got the {type(value).__name__} itself",
                argument="settings",
            )


@contextmanager
def _calls_of(twin: nn.Module) -> Iterator[list[str]]:
    """Note the names of the submodules in the order of their first calls."""
    called: list[str] = []
    handles = []
    for name, module in twin.named_modules():

        def note(*_: Any, name: str = name) -> None:
            if name not in called:
                called.append(name)

        handles.append(module.register_forward_pre_hook(note))
    try:
        yield called
    finally:
        for handle in handles:
            handle.remove()


def _layers(twin: nn.Module, called: Sequence[str]) -> list[str]:
    """Return the submodules with parameters of their own, the last called first."""
    own = [
        name
        for name, module in twin.named_modules()
        if any(True for _ in module.parameters(recurse=False))
    ]
    # What is never called by itself, but read by another, comes at its place.
    last = {name: place for place, name in enumerate(called)}
    return sorted(own, key=lambda name: -last.get(name, -1))


def _named(twin: nn.Module, layers: Sequence[str]) -> list[str]:
    known = [name for name, _ in twin.named_modules()]
    names = [layers] if isinstance(layers, str) else list(layers)
    for name in names:
        if name not in known or not any(True for _ in _parameters(twin, name)):
            raise InputError(
                f"layers must name submodules with parameters; got {name!r}"
                f" ({nearest(str(name), known)})",
                argument="layers",
            )
    if not names:
        raise InputError("layers must not be empty", argument="layers")
    return names


def _parameters(twin: nn.Module, name: str) -> Iterator[nn.Parameter]:
    return twin.get_submodule(name).parameters()


@torch.no_grad()
def _restore(twin: nn.Module, trained: dict[int, Tensor]) -> None:
    for parameter in twin.parameters():
        parameter.copy_(trained[id(parameter)])


@torch.no_grad()
def _draw_anew(
    parameters: Iterable[Tensor], trained: dict[int, Tensor], own: torch.Generator
) -> None:
    for parameter in parameters:
        if not parameter.is_floating_point():
            continue
        values = trained[id(parameter)].double()
        draw = torch.randn(
            values.shape, generator=own, dtype=torch.float64, device="cpu"
        )
        spread = values.std(correction=0)
        parameter.copy_(draw.to(values.device) * spread + values.mean())
