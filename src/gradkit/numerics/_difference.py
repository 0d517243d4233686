"""Two computations of the same tensors: equal, off by rounding, or different."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gradkit.errors import InputError
from gradkit.numerics._arguments import refusing_as, whole
from gradkit.numerics._bounds import gamma
from gradkit.numerics._compared import read_compared
from gradkit.numerics._hints import hints
from gradkit.numerics._places import unravelled
from gradkit.numerics._ulps import BITS, ulp_distance, unit_roundoff

__all__ = ["Difference", "explain_difference", "explained"]

Tensors = Tensor | Mapping[str, Tensor]


@dataclass(frozen=True, repr=False)
class Difference:
    """How two computations of the same tensors differ; true unless *different*.

    Args:
        verdict: ``"equal"``, ``"rounding"`` or ``"different"``.
        name: The tensor with the worst entry; empty where there is one tensor.
        index: The worst entry: the one farthest beyond, or nearest to, its bound.
        a: The first one's value there.
        b: The second one's.
        referee: The referee's, if there is one.
        allowed: What rounding may come to there.
        error: The largest absolute difference of all.
        relative: That, as a part of the largest entry of its tensor.
        ulps: Units in the last place between the two at the worst entry, where they
            have one dtype.
        terms: The length of sums that the bound is for.
        hints: What could explain a difference.

    Example:
        >>> import torch
        >>> import gradkit as gk
        >>> b = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
        >>> a = b.clone()
        >>> a[1, 2] = 6.5
        >>> found = gk.numerics.explain_difference(a, b)
        >>> bool(found), found.verdict, found.index, found.a, found.b, found.error
        (False, 'different', (1, 2), 6.5, 6.0, 0.5)
    """

    verdict: str
    name: str
    index: tuple[int, ...]
    a: float
    b: float
    referee: float | None
    allowed: float
    error: float
    relative: float
    ulps: int | None
    terms: int
    hints: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.verdict != "different"

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        if self.verdict == "equal":
            return "equal in every entry"
        where = f"{self.name}{list(self.index)}" if self.index else self.name or "it"
        true = "" if self.referee is None else f", {self.referee:.9g} by the referee"
        text = (
            f"{self.verdict}; worst at {where}: {self.a:.9g} against {self.b:.9g}{true}"
            f" (difference {self.a - self.b:+.2e}, allowed {self.allowed:.1e} for sums"
            f" of {self.terms:,} terms)"
        )
        return "; ".join([text, *self.hints])


def explain_difference(
    a: Tensors,
    b: Tensors,
    referee: Tensors | None = None,
    *,
    terms: int | None = None,
    samples: int | None = None,
) -> Difference:
    """Return whether two computations of the same tensors differ by rounding alone.

    Each of the two may be off by ``gamma(terms)`` times the largest entry of its
    tensor: the bound of a sum of so many products, whatever they cancel to. With a
    referee each of the two is held against it; without, they are held against one
    another, and twice the bound is allowed.

    Args:
        a: A floating tensor, or a mapping of them by name. What a sparse one leaves
            out is zero.
        b: Of the same names, shapes and devices; its dtype may be another.
        referee: The same in a higher precision, or ``None``.
        terms: The length of the longest sum that makes an entry. By default the sizes
            of all axes of the largest tensor, added up: what a layer of that shape
            sums over. A batch or sequence that is summed over is not seen by it.
        samples: ``N`` where the first axis is the samples', for hints about rows.

    Returns:
        A ``Difference``, false if it is *different*; ``hints`` then say what it looks
        like: a constant factor, such as N or 1/N, a transpose, rows that are permuted
        or accumulated, one tensor or sample alone.

    Raises:
        InputError: Names, shapes, devices or kinds do not belong together, or tensors
            are not floating or hold no values.

    Cost:
        Some passes over the tensors in float64.

    Example:
        >>> import torch
        >>> import gradkit as gk
        >>> a = torch.rand(4, 3)
        >>> print(gk.numerics.explain_difference(a, a / 4).hints[0])
        every entry is 4 times the right one

    Source:
        Higham, "Accuracy and Stability of Numerical Algorithms", 2nd ed. (SIAM 2002),
        equation (3.5), with the largest entry for the size of the terms; Higham and
        Mary (2019), theorem 2.4, where that is less.
    """
    given = {"a": a, "b": b} | ({} if referee is None else {"referee": referee})
    with refusing_as("explain_difference"):
        return explained(given, terms, samples)


def explained(
    given: Mapping[str, Any], terms: int | None, samples: int | None = None
) -> Difference:
    """Return what ``explain_difference`` does, of arguments that have other names.

    Args:
        given: What is compared, by the argument's name: two, and a referee.
        terms: As there.
        samples: As there.
    """
    first, second, *third = read_compared(given)
    if samples is not None:
        samples = whole(samples, "samples")
        if any(t.shape[:1] != (samples,) for t in first.values()):
            raise InputError(
                f"samples={samples} must be the first axis of every tensor",
                argument="samples",
            )
    if terms is None:
        terms = max((sum(t.shape) for t in first.values()), default=1) or 1
    return _explained(
        first, second, third[0] if third else None, whole(terms, "terms"), samples
    )


def _explained(
    first: Mapping[str, Tensor],
    second: Mapping[str, Tensor],
    third: Mapping[str, Tensor] | None,
    terms: int,
    samples: int | None,
) -> Difference:
    worst: tuple[float, str, int, float] = (-1.0, "", 0, 0.0)
    error = relative = 0.0
    bounds: dict[str, Tensor] = {}
    for name, one in first.items():
        x, y = one.double(), second[name].double()
        right = y if third is None else third[name].double()
        size = _largest(right)
        unit = max(unit_roundoff(one.dtype), unit_roundoff(second[name].dtype))
        dtype = one.dtype if unit == unit_roundoff(one.dtype) else second[name].dtype
        reach = min(gamma(terms, dtype), _probable(terms, dtype)) + unit
        allowed = (reach * size if size else 0.0) + torch.finfo(dtype).tiny
        if third is None:
            allowed *= 2
        bounds[name] = torch.full_like(right, allowed)
        gap = torch.maximum(_gap(x, right), _gap(y, right))
        if not gap.numel():
            continue
        error = max(error, float(_gap(x, y).max()))
        relative = max(relative, float(_gap(x, y).max()) / size if size else 0.0)
        place = int(gap.argmax())
        part = float(gap.reshape(-1)[place]) / allowed
        part = math.inf if math.isnan(part) else part
        if part > worst[0]:
            worst = part, name, place, allowed
    return _difference(
        first, second, third, worst, error, relative, terms, samples, bounds
    )


def _difference(
    first: Mapping[str, Tensor],
    second: Mapping[str, Tensor],
    third: Mapping[str, Tensor] | None,
    worst: tuple[float, str, int, float],
    error: float,
    relative: float,
    terms: int,
    samples: int | None,
    bounds: Mapping[str, Tensor],
) -> Difference:
    part, name, place, allowed = worst
    if part < 0:
        return Difference("equal", "", (), 0.0, 0.0, None, 0.0, 0.0, 0.0, 0, terms)
    one, other = first[name], second[name]
    x, y = one.reshape(-1)[place], other.reshape(-1)[place]
    verdict = "different" if not part <= 1 else "rounding"
    if verdict == "rounding" and not error and _one_dtype(first, second):
        verdict = "equal"
    guesses: list[str] = []
    if verdict == "different":
        right = second if third is None else third
        guesses = hints(
            _rows(first), _rows(right), samples, 2 * unit_roundoff(one.dtype),
            _rows(bounds),
        )  # fmt: skip
    return Difference(
        verdict, name,
        unravelled(place, one.shape),
        float(x), float(y),
        None if third is None else float(third[name].reshape(-1)[place]),
        allowed, error, relative,
        int(ulp_distance(x, y)) if x.dtype == y.dtype and x.dtype in BITS else None,
        terms, tuple(guesses),
    )  # fmt: skip


def _probable(terms: int, dtype: torch.dtype) -> float:
    """Return what ``terms`` roundings come to if they are random, but for 1 in 1,000.

    Higham and Mary (2019), theorem 2.4 with lambda = 4: where a precision has so few
    digits that the bound for the worst case says nothing, this one still does.
    """
    u = unit_roundoff(dtype)
    return math.expm1(min(4 * math.sqrt(terms) * u + terms * u * u / (1 - u), 1.0))


def _one_dtype(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> bool:
    return all(t.dtype == second[n].dtype for n, t in first.items())


def _rows(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    # Hints speak of rows, which a lone number has none of.
    return {name: torch.atleast_1d(t.double()) for name, t in tensors.items()}


def _gap(x: Tensor, y: Tensor) -> Tensor:
    """Return absolute differences; what is alike and not finite differs by nothing."""
    same = (x == y) | (x.isnan() & y.isnan())
    return torch.where(same, 0.0, (x - y).abs().nan_to_num(math.inf, math.inf))


def _largest(values: Tensor) -> float:
    finite = values[values.isfinite()]
    return float(finite.abs().max()) if finite.numel() else 0.0
