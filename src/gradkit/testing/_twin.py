"""A function in its own dtype against a plain version of it in float64.

The plain version is also run in the function's dtype. Its own error there is what the
arithmetic costs at these values; the bound of probabilistic rounding analysis, a
multiple of ``sqrt(n) u`` for sums of ``n`` terms, covers another order of operations.

Source: Higham and Mary, "A new approach to probabilistic rounding error analysis", SIAM
Journal on Scientific Computing 41 (2019), theorem 2.4.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from gradkit.errors import InputError
from gradkit.numerics._ulps import unit_roundoff
from gradkit.testing._behaviour import check_behaviour
from gradkit.testing._differences import SAFETY
from gradkit.testing._entry import Entry, halved
from gradkit.testing._hints import Around
from gradkit.testing._messages import mismatch, not_offered, raised
from gradkit.testing._point import Point, Problem
from gradkit.testing._report import Findings
from gradkit.testing._second import Second
from gradkit.testing._subject import Subject
from gradkit.testing._variables import Part, place, span

__all__ = ["Twin"]


class Twin:
    """A function and its plain version, at the same values.

    Args:
        function: What is checked, in its own dtype.
        reference: The plain version.
        inputs: For both.
        wrt: For both.
        seed: For both.
    """

    def __init__(
        self, function: Any, reference: Any, inputs: Any, wrt: Any, seed: int
    ) -> None:
        self.name = "the reference in float64"
        self.subject = Subject(function, inputs, wrt, None, seed)
        if not self.subject.variables:
            raise InputError(
                "there is nothing to differentiate by: no floating tensor in inputs",
                argument="inputs",
            )
        names = [v.name for v in self.subject.variables]
        self._exact = _matching(reference, inputs, names, torch.float64, seed)
        self._rounded = _matching(reference, inputs, names, None, seed)

    def __enter__(self) -> Twin:
        for subject in (self.subject, self._exact, self._rounded):
            subject.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        for subject in (self._rounded, self._exact, self.subject):
            subject.__exit__(*exception)

    def compare(
        self,
        modes: Sequence[str],
        order: int,
        directions: int,
        generator: torch.Generator,
        findings: Findings,
    ) -> None:
        """Compare values, then the derivatives by each mode."""
        subjects: list[Problem] = [self.subject, self._exact, self._rounded]
        points = _points(subjects, [v.value for v in self.subject.variables])
        self._compare_values(points, findings)
        for mode in modes:
            self._mode(points, mode, 1, directions, generator, findings)
        if "reverse" not in modes or "reverse" in findings.skipped:
            return
        drawn = points[0].cotangent(torch.ones_like(points[0].centre), generator)
        check_behaviour(self.subject, points[0], points[0].cotangents(drawn), findings)
        if order == 2:
            weights = torch.randn(
                len(points[0].centre), generator=generator, dtype=torch.float64
            )
            seconds: list[Problem] = []
            for subject, point in zip(
                (self.subject, self._exact, self._rounded), points, strict=True
            ):
                cotangents = point.cotangents(weights.float().double())
                seconds.append(Second(subject, cotangents))
            values = [v.value for v in seconds[0].variables]
            try:
                points = _points(seconds, values)
            except RuntimeError as error:
                findings.skipped["reverse, order 2"] = str(error)
                return
            self._mode(points, "reverse", 2, directions, generator, findings)

    def _compare_values(self, points: list[Point], findings: Findings) -> None:
        mine, exact, rounded = (p.centre for p in points)
        if [p.shape for p in points[0].outputs] != [p.shape for p in points[1].outputs]:
            raise InputError(
                "reference must return what function returns; got shapes"
                f" {[tuple(p.shape) for p in points[1].outputs]} against"
                f" {[tuple(p.shape) for p in points[0].outputs]}",
                argument="reference",
            )
        allowed = _allowed(points, points[0].outputs, exact, rounded)
        wrong = ~((mine - exact).abs() <= allowed) & exact.isfinite()
        if wrong.any():
            k = int(
                torch.where(wrong, (mine - exact).abs(), -1.0).nan_to_num(9e99).argmax()
            )
            part, index = place(points[0].outputs, k)
            raise InputError(
                "reference must be the same function; the values differ already:"
                f" {part.name}[{', '.join(map(str, index))}] is {float(mine[k]):.10g}"
                f" against {float(exact[k]):.10g}, ± {float(allowed[k]):.1e}",
                argument="reference",
            )

    def _mode(
        self,
        points: list[Point],
        mode: str,
        order: int,
        number: int,
        generator: torch.Generator,
        findings: Findings,
    ) -> None:
        label = mode if order == 1 else f"{mode}, order {order}"
        for _ in range(number):
            apply, drawn = _application(points[0], mode, generator)
            try:
                mine, exact, rounded = (apply(point, drawn) for point in points)
            except (RuntimeError, NotImplementedError, TypeError, ValueError) as error:
                reason = not_offered(error)
                if reason is None:
                    raise raised(mode, order, error) from error
                findings.skipped[label] = reason
                return
            parts = points[0].inputs if mode == "reverse" else points[0].outputs
            allowed = _allowed(points, parts, exact, rounded)
            apart = (mine - exact).abs()
            wrong = ~(apart <= allowed) & exact.isfinite()
            if wrong.any():
                worst = int(
                    torch.where(wrong, apart / allowed, -1).nan_to_num(9e99).argmax()
                )
                entry = _pinned(
                    points, mode, apply, drawn, worst, float(allowed[worst])
                )
                around = _around(parts, worst, mine, exact, allowed)
                raise mismatch(entry, mode, order, self.name, around=around)
            if len(apart):
                worst = int(apart.nan_to_num(0.0).argmax())
                size = float(exact.abs().nan_to_num(0.0).max())
                findings.record(label, float(apart[worst]), float(allowed[worst]), size)


def _matching(
    reference: Any, inputs: Any, names: list[str], dtype: torch.dtype | None, seed: int
) -> Subject:
    try:
        return Subject(reference, inputs, names, dtype, seed)
    except InputError as error:
        raise InputError(
            "reference must have the inputs and parameters of function:"
            f" {error.message}",
            argument="reference",
        ) from error


def _points(problems: Sequence[Problem], values: list[Tensor]) -> list[Point]:
    """Return the problems at the same values, the second in float64."""
    double = [v.double() for v in values]
    own = values[0].dtype if values else torch.float32
    return [
        Point(problems[0], values, own),
        Point(problems[1], double, torch.float64),
        Point(problems[2], values, own),
    ]


Application = Callable[[Point, Tensor], Tensor]


def _application(
    point: Point, mode: str, generator: torch.Generator
) -> tuple[Application, Tensor]:
    """Return how a mode is applied, and to what: numbers exact in every dtype."""
    if mode == "reverse":
        drawn = point.cotangent(torch.ones_like(point.centre), generator)
        return Point.gradient, _short(drawn)
    return Point.tangent, _short(point.direction(generator))


def _short(row: Tensor) -> Tensor:
    return row.bfloat16().double()


def _worst(wrong: Tensor, excess: Tensor) -> int:
    return int(torch.where(wrong, excess.nan_to_num(torch.inf), -1.0).argmax())


def _allowed(
    points: list[Point], parts: Sequence[Part], exact: Tensor, rounded: Tensor
) -> Tensor:
    """Return what rounding may come to, ``(len(exact),)``, for each part alike."""
    longest = max(len(points[0].centre), len(points[0].scale), 1)
    factor = SAFETY * math.sqrt(longest) * unit_roundoff(points[0].dtype)
    parts = (
        points[0].outputs if len(exact) == len(points[0].centre) else points[0].inputs
    )
    if sum(p.size for p in parts) != len(exact):
        parts = points[0].inputs
    rows = []
    sizes = [part.size for part in parts]
    for true, own in zip(exact.split(sizes), rounded.split(sizes), strict=True):
        if not len(true):
            continue
        size = float(true.abs().nan_to_num(0.0, 0.0).max())
        error = float((own - true).abs().nan_to_num(0.0, 0.0).max())
        rows.append(torch.full_like(true, SAFETY * error + factor * size))
    return torch.cat([exact[:0], *rows])


def _around(
    parts: Sequence[Part], worst: int, mine: Tensor, exact: Tensor, allowed: Tensor
) -> Around:
    """Return the tensor that an entry of a product lies in, both ways."""
    part, piece = span(parts, worst)
    return Around(
        mine[piece].reshape(part.shape), torch.arange(part.size), exact[piece],
        allowed[piece],
    )  # fmt: skip


def _pinned(
    points: list[Point],
    mode: str,
    apply: Application,
    drawn: Tensor,
    worst: int,
    allowed: float,
) -> Entry:
    """Return the entry that one number of a product is wrong by."""

    def masked(block: Tensor) -> Tensor:
        row = torch.zeros_like(drawn)
        row[block] = drawn[block]
        return row

    def gap(block: Tensor) -> float:
        mine, exact = (float(apply(p, masked(block))[worst]) for p in points[:2])
        return abs(mine - exact)

    other = halved(torch.nonzero(drawn)[:, 0], gap)
    one = masked(torch.tensor([other]))
    weight = float(drawn[other])
    mine, exact = (float(apply(p, one)[worst]) / weight for p in points[:2])
    d, k = (worst, other) if mode == "reverse" else (other, worst)
    output, output_index = place(points[0].outputs, k)
    variable, index = place(points[0].inputs, d)
    return Entry(
        output.name, output_index, variable.name, index, mine, exact,
        allowed / abs(weight),
    )  # fmt: skip
