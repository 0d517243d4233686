"""Curves of an objective while entries are deleted, or inserted, by a map's order."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from gradkit._call._public import public
from gradkit.errors import InputError
from gradkit.numerics._arguments import whole
from gradkit.saliency._arguments import rows_of
from gradkit.saliency._baseline import read_baselines
from gradkit.saliency._field import Field, open_values
from gradkit.saliency._points import Point

__all__ = ["Curve", "deletion_curve", "insertion_curve"]


@dataclasses.dataclass(frozen=True, eq=False)
class Curve:
    """An objective while ever more entries are deleted, or inserted.

    Attributes:
        kind: ``"deletion"`` or ``"insertion"``.
        fractions: ``(S + 1,)``, the share of entries changed so far, from 0 to 1.
        values: ``(N, S + 1)``, the objective.

    Example:
        >>> import torch
        >>> from gradkit.saliency import Curve
        >>> fractions = torch.tensor([0.0, 0.5, 1.0])
        >>> values = torch.tensor([[4.0, 2.0, 0.0], [4.0, 4.0, 0.0]])
        >>> curve = Curve("deletion", fractions, values)
        >>> curve.area
        tensor([2., 3.])
        >>> curve
        Curve(deletion of 2 samples at 3 shares, mean area 2.5)
    """

    kind: str
    fractions: Tensor
    values: Tensor

    @property
    def area(self) -> Tensor:
        """The area below each sample's curve, ``(N,)``, in units of the objective.

        A map that finds what matters has a small one under deletion, and a large one
        under insertion.
        """
        return torch.trapezoid(self.values, self.fractions.to(self.values), dim=1)

    def __repr__(self) -> str:
        samples, points = self.values.shape
        mean = float(self.area.mean()) if samples else math.nan
        return (
            f"Curve({self.kind} of {samples} samples at {points} shares, mean area"
            f" {mean:.4g})"
        )


@public
def deletion_curve(
    attributions: Tensor,
    model: Any,
    inputs: Any,
    objective: Any,
    *,
    steps: int = 28,
    baseline: Any = 0.0,
    of: Any = None,
    max_memory: int | str | None = None,
) -> Curve:
    """Return the objective while the highest-rated entries are deleted first.

    Args:
        attributions: ``(N, *in)``, or with axes of size 1 in it, as the channels of
            Grad-CAM: all entries there are deleted at once. The largest goes first,
            and the most negative last; give ``absolute(maps)`` for magnitudes. Equal
            ones go in the order of memory.
        model: As in ``occlusion``.
        inputs: As in ``occlusion``.
        objective: As in ``occlusion``; in the source it is the probability of the
            class, ``lambda outputs: outputs.softmax(1)[:, k]``.
        steps: In how many equal parts entries are deleted; at most one entry each.
        baseline: What an entry is replaced by, as in ``occlusion``. The values of
            a *list* are averaged.
        of: As in ``gradient``.
        max_memory: As in ``occlusion``.

    Returns:
        A ``Curve``, in units of the objective; its ``area`` is small where the map
        finds what matters.

    Raises:
        InputError: As in ``occlusion``; and where the attributions are not shaped
            like the inputs, or not finite.
        SampleDependenceError: As in ``occlusion``.
        UnsupportedModelError: As in ``occlusion``.

    Cost:
        At most ``steps + 1`` forward passes for each baseline, one of the inputs,
        and the proof, as in ``gradient``.

    Example:
        >>> import torch
        >>> import gradkit as gk
        >>> layer = torch.nn.Linear(2, 1, bias=False)
        >>> _ = layer.weight.data.copy_(torch.tensor([[3.0, 1.0]]))
        >>> map = gk.saliency.gradient(layer, torch.ones(1, 2), None)
        >>> curve = gk.saliency.deletion_curve(map, layer, torch.ones(1, 2), None)
        >>> curve.values, curve.area
        (tensor([[4., 1., 0.]]), tensor([1.5000]))

    Source:
        Petsiuk, Das and Saenko, "RISE: randomized input sampling for explanation of
        black-box models" (2018), sec. 4.2, algorithm 1.
    """
    return _curve(
        "deletion", attributions, steps, model, inputs, objective, baseline, of=of,
        max_memory=max_memory,
    )  # fmt: skip


@public
def insertion_curve(
    attributions: Tensor,
    model: Any,
    inputs: Any,
    objective: Any,
    *,
    steps: int = 28,
    baseline: Any = 0.0,
    of: Any = None,
    max_memory: int | str | None = None,
) -> Curve:
    """Return the objective while the highest-rated entries are put into a baseline.

    Args:
        attributions: As in ``deletion_curve``.
        model: As in ``occlusion``.
        inputs: As in ``occlusion``.
        objective: As in ``deletion_curve``.
        steps: As in ``deletion_curve``.
        baseline: What the entries are put into; in the source a blurred image.
        of: As in ``gradient``.
        max_memory: As in ``occlusion``.

    Returns:
        A ``Curve``, in units of the objective; its ``area`` is large where the map
        finds what matters.

    Raises:
        InputError: As in ``deletion_curve``.
        SampleDependenceError: As in ``occlusion``.
        UnsupportedModelError: As in ``occlusion``.

    Cost:
        That of ``deletion_curve``.

    Example:
        >>> import torch
        >>> import gradkit as gk
        >>> layer = torch.nn.Linear(2, 1, bias=False)
        >>> _ = layer.weight.data.copy_(torch.tensor([[3.0, 1.0]]))
        >>> map = gk.saliency.gradient(layer, torch.ones(1, 2), None)
        >>> gk.saliency.insertion_curve(map, layer, torch.ones(1, 2), None).values
        tensor([[0., 3., 4.]])

    Source:
        As ``deletion_curve``.
    """
    return _curve(
        "insertion", attributions, steps, model, inputs, objective, baseline, of=of,
        max_memory=max_memory,
    )  # fmt: skip


def _curve(
    kind: str, attributions: Any, steps: Any, *asked: Any, **settings: Any
) -> Curve:
    """Return a curve of a call; ``asked`` and ``settings`` are ``open_values``'s."""
    parts = whole(steps, "steps")
    with open_values(*asked, **settings) as field:
        ranks = _ranks(field, attributions)
        entries = ranks.shape[1:].numel()
        counts = _counts(entries, parts)
        curves: list[Tensor] = []
        for (base,) in read_baselines(field, asked[-1]):
            states = _states(kind, field.sources[0], base, ranks, counts)
            curves.append(torch.stack([*field.values_at(states, len(counts))], 1))
        fractions = torch.tensor(counts, dtype=torch.float64) / max(entries, 1)
        fractions = fractions.to(curves[0].device, curves[0].dtype)
        return Curve(kind, fractions, torch.stack(curves).mean(0))


def _counts(entries: int, parts: int) -> list[int]:
    """Return how many entries are changed at each point, from none to all."""
    parts = min(parts, entries)
    return [round(entries * i / parts) for i in range(parts + 1)] if parts else [0]


def _ranks(field: Field, attributions: Any) -> Tensor:
    """Return the place of each entry in its sample's order, the largest being 0."""
    (source,) = field.sources
    good = isinstance(attributions, Tensor) and attributions.ndim == source.ndim
    if good:
        sizes = zip(attributions.shape, source.shape, strict=True)
        good = all(a == s or (a == 1 and i) for i, (a, s) in enumerate(sizes))
    if not good:
        got = getattr(attributions, "shape", None)
        raise InputError(
            f"attributions must be shaped like the inputs, {tuple(source.shape)}, or"
            " with 1 in place of channels; got"
            f" {tuple(got) if got is not None else type(attributions).__name__}."
            " Make coarser maps as large first:"
            " torch.nn.functional.interpolate(map, inputs.shape[2:], mode='bilinear')",
            argument="attributions",
        )
    flat = rows_of(attributions.detach().to(source.device))
    if not bool(flat.isfinite().all()):
        raise InputError(
            "attributions must be finite; they hold NaN or an infinity",
            argument="attributions",
        )
    order = flat.argsort(dim=1, descending=True, stable=True)
    places = torch.arange(flat.shape[1], device=flat.device).expand_as(order)
    ranks = torch.empty_like(order).scatter_(1, order, places)
    return ranks.reshape(attributions.shape)


def _states(
    kind: str, source: Tensor, base: Tensor, ranks: Tensor, counts: list[int]
) -> Iterator[Point]:
    before, after = (source, base) if kind == "deletion" else (base, source)
    for count in counts:
        yield [torch.where(ranks < count, after, before)]
