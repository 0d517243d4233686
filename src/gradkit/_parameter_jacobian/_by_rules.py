"""What rules serve of a call, as one entry; checked when proofs are renewed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gradkit._call._open import Call
from gradkit._call._solve import refusal
from gradkit._guards._independence import random_cotangent
from gradkit._guards._verify import tolerance
from gradkit._methods._method import Method
from gradkit._methods._rules import factors_of
from gradkit._methods._rules import refusal as no_rule
from gradkit._parameter_jacobian._factored import Factored
from gradkit._rules._engine import Engine
from gradkit.errors import InputError, UnsupportedModelError

__all__ = ["Served", "by_rules"]


@dataclass
class Served:
    """An entry for some of a call's parameters; the engine says why not for others."""

    entry: Factored | None
    engine: Engine

    def refusal(self, call: Call) -> InputError | UnsupportedModelError:
        """Return the error that a parameter is not served."""
        names, budget = call.parameter_names, call.task.planner.budget
        error = no_rule(self.engine, names, budget)
        if isinstance(error, InputError):
            return error
        return refusal({call.methods[0].name: error.message})


def by_rules(call: Call, method: Method) -> Served:
    """Return what the rules of ``method`` serve of ``call``."""
    rows: Any = method.parameters
    engine: Engine = rows.engine(call.task)
    factors = factors_of(call.task, engine)
    entry = _factored(call, factors)
    # A call that had no room for them has not checked them.
    if entry is not None and not factors.keys() <= engine.remembered.checked:
        for place in _wrong(call, entry, engine, list(factors)):
            engine.refuse(place, _WRONG)
            del factors[place]
        engine.remembered.checked.update(factors)
        entry = _factored(call, factors)
    return Served(entry, engine)


_WRONG = "the sum of its rows differs from the ordinary gradient"


def _factored(call: Call, factors: dict[int, Any]) -> Factored | None:
    if not factors:
        return None
    task = call.task
    names = {call.parameters[i].name: i for i in factors}
    tensors = {n: call.parameters[i].tensor.detach() for n, i in names.items()}
    return Factored(
        {n: t.shape for n, t in tensors.items()},
        task.samples,
        task.rows,
        {n: factors[i] for n, i in names.items()},
        {n: t.new_empty(0) for n, t in tensors.items()},
        task.planner.budget,
    )


def _wrong(call: Call, entry: Factored, engine: Engine, places: list[int]) -> list[int]:
    """Return the parameters whose rows do not add up to the ordinary gradient.

    Each row is weighted at random, so that one backward speaks for all rows.
    """
    task = call.task
    if not all(task.graph.sources[i].requires_grad for i in places):
        return places  # frozen in the forward: nothing to compare with
    weights = _weights(entry)
    gradients = [*task.graph.pull_of(places, task.weighted(weights))]
    gaps, scales = [], []
    for name in entry.names:
        # One parameter's sum at a time, since it is as large as the parameter.
        (rows,) = entry.select([name]).rmatvec({name: weights}).values()
        gap, scale = _gap(rows, gradients.pop(0).to(rows.dtype))
        gaps.append(gap)
        scales.append(scale)
    whole = max(scales, default=0.0)
    wrong = []
    for place, gap, scale in zip(places, gaps, scales, strict=True):
        precision = engine.precision(place, call.precision)
        eps = torch.finfo(precision).eps
        # Of a derivative that is zero but for rounding, its own size says nothing.
        rounding = (64 if eps < 1e-4 else 4) * eps * whole
        if not gap <= max(min(tolerance(precision), 0.1) * scale, rounding):
            wrong.append(place)
    return wrong


def _gap(rows: Tensor, gradient: Tensor) -> tuple[float, float]:
    """Return the largest difference, and the largest entry."""
    finite = rows.isfinite()
    # What is not finite must be so in both.
    if not bool((finite == gradient.isfinite()).all()):
        return float("inf"), _largest(gradient[finite])
    if not bool(finite.all()):
        rows, gradient = rows[finite], gradient[finite]
    # Not in place: a rule may give a sum that is one number, expanded.
    return _largest(rows - gradient), _largest(gradient)


def _weights(entry: Factored) -> Tensor:
    """Return a random weight ``(N, R)`` for each row.

    Every row counts alike, or a small one's fault would hide behind a large one.
    Signed powers of two, with which rounding commutes, also where a model computes
    in less than its own precision.
    """
    sizes = torch.stack([n.double() for n in entry.norms().values()])
    size = torch.linalg.vector_norm(sizes, dim=0)
    usual = (size > 0) & size.isfinite()
    alike = torch.where(usual, size, 1.0).log2().round()
    return _signed_powers(size) * torch.exp2(-alike)


def _signed_powers(like: Tensor) -> Tensor:
    """Return random signed powers of two, 1/16 to 8, that do not cancel over samples.

    The rows of a bias are often equal, or equal but for the sign: their weighted sum
    would be zero whatever a rule made of them. Up to eight samples have powers of
    their own, of which no sum is zero; of more, the plain sum is not.
    """
    drawn = random_cotangent(tuple(like.shape), like)
    powers = drawn.abs().argsort(0).argsort(0) % 8 - 4
    weights = drawn.sign() * torch.exp2(powers.to(like.dtype))
    weights[:1] *= torch.where(weights.sum(0, keepdim=True) == 0, -1, 1)
    return weights


def _largest(values: Tensor) -> float:
    if not values.numel():
        return 0.0
    return float(torch.linalg.vector_norm(values, float("inf")))
