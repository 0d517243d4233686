"""Integrated gradients: the gradient averaged over a straight way, times the way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, overload

import torch
from torch import Tensor, nn

from gradkit._call._public import public
from gradkit.errors import InputError
from gradkit.numerics._arguments import whole
from gradkit.saliency._arguments import choice, number
from gradkit.saliency._baseline import read_baselines
from gradkit.saliency._completeness import gap_of
from gradkit.saliency._field import Field, open_field
from gradkit.saliency._points import Point
from gradkit.saliency._quadrature import RULES, nodes_and_weights
from gradkit.saliency._sums import Sum

__all__ = ["integrated_gradients"]

#: How often steps are doubled, at most, to come under a bound on the gap.
_DOUBLINGS = 6


@overload
def integrated_gradients(
    model: Any, inputs: Tensor, objective: Any, *,
    baseline: Any = ..., steps: int = ..., rule: str = ..., max_gap: float | None = ...,
    wrt: nn.Module | str | int | None = ..., of: Any = ...,
    max_memory: int | str | None = ...,
) -> Tensor: ...  # fmt: skip
@overload
def integrated_gradients(
    model: Any, inputs: Any, objective: Any, *,
    baseline: Any = ..., steps: int = ..., rule: str = ..., max_gap: float | None = ...,
    wrt: Any = ..., of: Any = ..., max_memory: int | str | None = ...,
) -> Any: ...  # fmt: skip
@public
def integrated_gradients(
    model: Any,
    inputs: Any,
    objective: Any,
    *,
    baseline: Any = 0.0,
    steps: int = 50,
    rule: str = "gauss_legendre",
    max_gap: float | None = None,
    wrt: Any = None,
    of: Any = None,
    max_memory: int | str | None = None,
) -> Any:
    """Return integrated gradients: how the way from a baseline adds up, by entries.

    With input ``x`` and baseline ``b`` the entry ``d`` is ``(x - b)[d]`` times the
    integral of ``d objective / d input[d]`` at ``b + a (x - b)`` over ``a`` from 0 to
    1. The entries of a sample sum to the difference of the objective between the
    two, but for the error of the quadrature, which ``completeness_gap`` measures.

    Args:
        model: As in ``gradient``.
        inputs: As in ``gradient``.
        objective: As in ``gradient``. Called once per step, in order, on a whole
            batch, and once on the inputs before.
        baseline: A number, or a tensor that broadcasts to what ``wrt`` names. With
            several inputs, a tuple or mapping like ``inputs``. With ``wrt`` a
            submodule, a floating tensor stands for its output; integers, or a tuple or
            mapping like ``inputs`` (what it lacks is as in the inputs), are run up to
            it. A *list* of any of these is averaged over.
        steps: How many gradients the integral is made of, per baseline.
        rule: ``"gauss_legendre"``, ``"riemann_left"``, ``"riemann_middle"``,
            ``"riemann_right"`` or ``"trapezoid"``.
        max_gap: The largest gap allowed, as a share of the magnitude of each sample's
            difference of the objective. ``steps`` is doubled until every sample is
            under it.
        wrt: As in ``gradient``.
        of: As in ``gradient``.
        max_memory: As in ``gradient``; bounds how many steps run at once.

    Returns:
        As ``gradient``, in units of the objective.

    Raises:
        InputError: As in ``gradient``; and where ``max_gap`` is not reached with 64
            times ``steps``.
        SampleDependenceError: As in ``gradient``.
        UnsupportedModelError: As in ``gradient``.

    Cost:
        ``steps`` forward and backward passes for each baseline, one forward of the
        inputs, and the proof, as in ``gradient``.

    Example:
        >>> import torch
        >>> import gradkit as gk
        >>> def model(x):
        ...     return x[:, 0] * x[:, 1]
        >>> x = torch.tensor([[2.0, 3.0]])
        >>> gk.saliency.integrated_gradients(model, x, None)
        tensor([[3.0000, 3.0000]])

    Source:
        Sundararajan, Taly and Yan, "Axiomatic attribution for deep networks" (2017),
        sec. 3; several baselines: Sturmfels, Lundberg and Lee, "Visualizing the impact
        of feature attribution baselines" (2020).
    """
    steps = whole(steps, "steps")
    rule = choice("rule", rule, RULES)
    bound = None if max_gap is None else number("max_gap", max_gap, above=True)
    with open_field(
        model, inputs, objective, wrt=wrt, of=of, max_memory=max_memory
    ) as field:
        baselines = read_baselines(field, baseline)
        found = _integrals(field, baselines, rule, steps)
        if bound is not None:
            found = _refined(field, baselines, rule, steps, bound, found)
        return field.arranged(found)


def _integrals(field: Field, baselines: list[Point], rule: str, steps: int) -> Point:
    """Return the attributions, averaged over the baselines."""
    total = Sum(field.sources)
    for base in baselines:
        ways = [s - b for s, b in zip(field.sources, base, strict=True)]
        nodes = nodes_and_weights(rule, steps)
        weights = [weight for _, weight in nodes]
        summed = field.summed(_on_the_way(base, ways, nodes), weights)
        total.add_products(ways, summed)
    return total.values(1 / len(baselines))


def _on_the_way(
    base: Point, ways: Point, nodes: tuple[tuple[float, float], ...]
) -> Iterator[Point]:
    for node, _ in nodes:
        yield [torch.add(b, way, alpha=node) for b, way in zip(base, ways, strict=True)]


def _refined(
    field: Field,
    baselines: list[Point],
    rule: str,
    steps: int,
    bound: float,
    found: Point,
) -> Point:
    """Return attributions with so many steps that every gap is under the bound."""
    doubled = 0
    while True:
        gap, difference = gap_of(field, found, baselines)
        if not bool((gap.abs() > bound * difference.abs()).any()):
            return found
        if doubled == _DOUBLINGS:
            break
        doubled += 1
        found = _integrals(field, baselines, rule, steps * 2**doubled)
    worst = int(_share(gap, difference).argmax())
    raise InputError(
        f"max_gap={bound:g} is not reached with {steps * 2**_DOUBLINGS} steps: sample"
        f" {worst} has a gap of {float(gap[worst]):.3g} on a difference of"
        f" {float(difference[worst]):.3g}. Rounding may forbid it; compute in float64,"
        " or allow more",
        argument="max_gap",
        sample=worst,
        gap=float(gap[worst]),
    )


def _share(gap: Tensor, difference: Tensor) -> Tensor:
    return (gap.abs() / difference.abs()).nan_to_num(nan=0.0, posinf=torch.inf)
