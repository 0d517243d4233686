"""Whether a map adds up to what it explains."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gradkit._call._public import public
from gradkit.saliency._baseline import read_baselines
from gradkit.saliency._field import Field, open_field
from gradkit.saliency._points import Point

__all__ = ["completeness_gap", "gap_of"]


@public
def completeness_gap(
    attributions: Any,
    model: Any,
    inputs: Any,
    objective: Any,
    *,
    baseline: Any = 0.0,
    wrt: Any = None,
    of: Any = None,
) -> Tensor:
    """Return by how much attributions miss the difference that they explain.

    The sum of a sample's attributions, minus its objective at the inputs, plus that at
    the baseline. It is 0 for a map that is complete, as integrated gradients are but
    for the error of their steps.

    Args:
        attributions: What a saliency function returned, for the same arguments:
            ``(N, *in)`` for one input.
        model: As in ``gradient``.
        inputs: As in ``gradient``.
        objective: As in ``gradient``.
        baseline: As in ``integrated_gradients``; the objective is averaged over a
            list.
        wrt: As in ``gradient``.
        of: As in ``gradient``.

    Returns:
        ``(N,)``, signed, in units of the objective.

    Raises:
        InputError: As in ``gradient``; and where the attributions are not shaped
            like what ``wrt`` names.
        SampleDependenceError: As in ``gradient``.
        UnsupportedModelError: As in ``gradient``.

    Cost:
        One forward pass, one for each baseline, and the proof, as in ``gradient``.

    Example:
        >>> import torch
        >>> import gradkit as gk
        >>> layer, x = torch.nn.Linear(3, 2), torch.rand(5, 3)
        >>> map = gk.saliency.integrated_gradients(layer, x, 1)
        >>> gap = gk.saliency.completeness_gap(map, layer, x, 1)
        >>> bool((gap.abs() < 1e-5).all())
        True

    Source:
        Sundararajan, Taly and Yan, "Axiomatic attribution for deep networks" (2017),
        proposition 1 and sec. 5.
    """
    with open_field(model, inputs, objective, wrt=wrt, of=of) as field:
        values = field.given(attributions, "attributions")
        return gap_of(field, values, read_baselines(field, baseline))[0]


def gap_of(
    field: Field, attributions: Point, baselines: list[Point]
) -> tuple[Tensor, Tensor]:
    """Return the gaps, and the differences of the objective, both ``(N,)``."""
    at_baselines = list(field.values_at(iter(baselines), len(baselines)))
    difference = field.values - torch.stack(at_baselines).mean(0)
    if not field.samples:
        return difference, difference
    total = sum(a.double().reshape(field.samples, -1).sum(1) for a in attributions)
    return (total - difference.double()).to(difference.dtype), difference
