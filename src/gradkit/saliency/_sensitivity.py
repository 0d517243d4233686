"""How much a map moves when its input hardly does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from gradkit._call._public import public
from gradkit._planner import watched
from gradkit._problem._inputs import Inputs, read_inputs
from gradkit._problem._tree import flatten, pairs
from gradkit.errors import InputError
from gradkit.numerics._arguments import whole
from gradkit.saliency._arguments import (
    generator,
    number,
    per_sample,
    rows_of,
    spread,
)
from gradkit.saliency._field import ids_beside
from gradkit.saliency._registry import map_of, read_method, read_settings
from gradkit.saliency._sums import wide

__all__ = ["sensitivity"]


@public
def sensitivity(
    method: Any,
    model: Any,
    inputs: Any,
    objective: Any,
    *,
    noise: float | tuple[Any, ...] | Mapping[str, Any] = 0.02,
    draws: int = 10,
    seed: int = 0,
    settings: Mapping[str, Any] | None = None,
) -> Tensor:
    """Return how much a map moves, at most, under small noise on the inputs.

    For each draw the inputs get uniform noise of up to ``noise`` times each sample's
    largest minus smallest entry, and the distance of the new map from the map of the
    inputs themselves is taken, as a share of the latter's norm. What a method draws
    itself it draws alike every time.

    Args:
        method: A name in ``gk.saliency.METHODS``, or a callable ``(model, inputs,
            objective, **settings)`` that returns one tensor with the samples first.
        model: As in ``gradient``.
        inputs: As in ``gradient``, with floating tensors, which all get noise.
        objective: As in ``gradient``.
        noise: The largest noise, as a share of each sample's range; or numbers in a
            tuple or mapping like the inputs, ``(None, 0.02)``, which names what gets
            it. A mask of two values beside token ids gets none unless it is named.
        draws: How many noisy copies.
        seed: Of the noise.
        settings: What ``method`` is called with besides, such as ``{"draws": 20}``.

    Returns:
        ``(N,)``, in float32 at least, the largest share over the draws; 0 for a map
        that does not move, and infinity where the map itself is 0 and a noisy one is
        not.

    Raises:
        InputError: As in ``gradient``; and where no input is floating, or the
            method returns something else than a tensor.
        SampleDependenceError: As in ``gradient``.
        UnsupportedModelError: As in ``gradient``.

    Cost:
        ``draws + 1`` maps.

    Example:
        >>> import torch
        >>> import gradkit as gk
        >>> layer, x = torch.nn.Linear(3, 2), torch.rand(4, 3)
        >>> gk.saliency.sensitivity("gradient", layer, x, 1)  # a constant map
        tensor([0., 0., 0., 0.])

    Source:
        Yeh, Hsieh, Suggala, Inouye and Ravikumar, "On the (in)fidelity and sensitivity
        of explanations" (2019), definition 1.2, estimated by drawing as there.
    """
    name, compute = read_method(method)
    count = whole(draws, "draws")
    own = generator(seed)
    given = read_settings(settings, compute, name)
    read = read_inputs(inputs, None)
    shares = _shares(noise, read)
    base = map_of(compute(model, inputs, objective, **given), name)
    _refuse_other_rows(base, read.samples, name)
    size = _norms(base)
    worst = torch.zeros_like(size)
    for _ in watched(f"sensitivity of {name}", range(count)):
        moved = _noisy(inputs, shares, own)
        found = map_of(compute(model, moved, objective, **given), name)
        _refuse_other_rows(found, read.samples, name)
        distance = _norms(wide(found) - wide(base))
        relative = torch.where(distance > 0, distance / size, 0.0)
        worst = torch.maximum(worst, relative)
    return worst


def _refuse_other_rows(found: Tensor, samples: int, name: str) -> None:
    if len(found) != samples:
        raise InputError(
            f"method {name} must return one map per sample, {samples}; got a tensor of"
            f" shape {tuple(found.shape)}",
            argument="method",
        )


def _norms(values: Tensor) -> Tensor:
    return torch.linalg.vector_norm(rows_of(wide(values)), dim=1)


def _shares(noise: Any, read: Inputs) -> dict[str, float]:
    """Return how much noise each of the inputs' tensors gets, by its path."""
    floating = [t.path for t in read.tensors if t.differentiable]
    if not floating:
        raise InputError(
            "inputs must hold a floating tensor that noise can be added to. For"
            " integers, such as token ids, give the part of the model behind the"
            " embedding, and the embedding's output as inputs",
            argument="inputs",
        )
    if isinstance(noise, (tuple, Mapping)):
        return _named_shares(noise, read, floating)
    share = number("noise", noise)
    beside = ids_beside(read)
    if beside is not None:
        raise InputError(
            f"noise must name what gets it, since inputs{beside[0].path} holds"
            f" integers and inputs{beside[1].path} may be their mask: give a tuple or"
            f" mapping like the inputs, such as (None, {share}), or {{'x': {share}}}",
            argument="noise",
        )
    return dict.fromkeys(floating, share)


def _named_shares(noise: Any, read: Inputs, floating: list[str]) -> dict[str, float]:
    found = {}
    for key, value in pairs(noise):
        if value is None:
            continue
        paths = [read.tensors[i].path for i in read.keys.get(key, ())]
        if len(paths) != 1 or paths[0] not in floating:
            raise InputError(
                f"noise[{key!r}] must be the place of one floating tensor in the"
                f" inputs; those are at {', '.join(p or '0' for p in floating)}",
                argument="noise",
            )
        found[paths[0]] = number(f"noise[{key!r}]", value)
    return found


def _noisy(inputs: Any, shares: Mapping[str, float], own: torch.Generator) -> Any:
    """Return the inputs with noise on the tensors that have a share of it."""
    found, rebuild = flatten(inputs)
    return rebuild(
        [
            _moved(leaf.value, shares[leaf.path], own)
            if leaf.path in shares
            else leaf.value
            for leaf in found
        ]
    )


def _moved(value: Tensor, share: float, own: torch.Generator) -> Tensor:
    value = value.detach()
    like = wide(value)
    draw = torch.rand(value.shape, generator=own, dtype=like.dtype, device="cpu")
    draw = (2 * draw - 1).to(value.device)
    return (like + draw * per_sample(share * spread(value), value)).to(value.dtype)
