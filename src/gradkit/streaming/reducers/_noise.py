"""The gradient noise scale: the batch size at which noise and gradient are even."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import torch
from torch import Tensor

from gradkit._call._request import naming
from gradkit._parameter_jacobian._mapping import ParameterJacobian
from gradkit.errors import InputError
from gradkit.streaming.reducers._folding import State, flat, plain, read_tensor, wide
from gradkit.streaming.reducers._parameters import count_rows, shapes, sums
from gradkit.streaming.reducers._reducer import Place, Reducer

__all__ = ["NoiseScale", "NoiseScaleEstimate"]

#: Groups below which a spread over groups says too little.
_FEWEST = 8


@dataclass(frozen=True)
class NoiseScaleEstimate:
    """A noise scale and how far it can be trusted.

    Attributes:
        scale: ``noise / signal``, a number of samples; infinite where the data do not
            show a gradient.
        interval: Lowest and highest value that the data are compatible with, at
            ``level``. It ends at infinity where a gradient of zero is among them.
        level: Of the interval.
        noise: ``tr Σ``, the variance of per-sample gradients, over all parameters.
        signal: ``|G|²``, the squared norm of the true gradient, without bias; it can
            come out negative where noise is all there is.
        samples: That were seen.

    Example:
        >>> from gradkit.streaming.reducers import NoiseScaleEstimate
        >>> found = NoiseScaleEstimate(9.0, (8.5, 10.0), 0.95, 45.0, 5.0, 4000)
        >>> found.scale == found.noise / found.signal
        True
        >>> print(found)
        noise scale 9 samples (95% interval 8.5 to 10, 4000 samples)
    """

    scale: float
    interval: tuple[float, float]
    level: float
    noise: float
    signal: float
    samples: int

    def __str__(self) -> str:
        low, high = self.interval
        return (
            f"noise scale {self.scale:.4g} samples ({self.level:.0%} interval"
            f" {low:.4g} to {high:.4g}, {self.samples} samples)"
        )


@dataclass(frozen=True)
class NoiseScale(Reducer):
    """The simple noise scale ``tr Σ / |G|²`` of per-sample gradients.

    At this batch size the noise of a batch's mean gradient is as large as the gradient:
    much smaller batches waste steps, much larger ones waste samples.

    Args:
        groups: Groups that batches are dealt to in turn, whose differences give the
            interval. There should be as many batches, in an order that has nothing to
            do with the samples (shuffle data that are sorted).
        level: Of the interval.

    Returns:
        A ``NoiseScaleEstimate``.

    Raises:
        InputError: ``groups`` or ``level`` is out of range; batches fill fewer than 8
            groups; or rows differ in shape.

    Cost:
        Keeps ``groups`` gradients in float64, and of a ``ParameterJacobian`` forms no
        row.

    Example:
        >>> import torch
        >>> import gradkit as gk
        >>> rows = 1.0 + 3.0 * torch.randn(
        ...     4000, 5, generator=torch.Generator().manual_seed(0)
        ... )  # signal 5, noise 45
        >>> scale = gk.reducers.NoiseScale()
        >>> print(gk.reduce(lambda x: x, rows.split(50), scale, progress=False))
        noise scale 9.794 samples (95% interval 8.815 to 11, 4000 samples)

    Source:
        McCandlish, Kaplan, Amodei and others, "An empirical model of
        large-batch training" (2018), equation (2.9) and appendix A.1, whose unbiased
        estimates are taken here for batches of one and of all samples. Spread:
        delete-a-group jackknife, Busing, Meijer and van der Leeden (1999). Interval of
        the ratio: Fieller (1954).
    """

    groups: int = 32
    level: float = 0.95

    def __post_init__(self) -> None:
        with naming("NoiseScale"):
            whole = isinstance(self.groups, int) and not isinstance(self.groups, bool)
            if not whole or self.groups < _FEWEST:
                raise InputError(
                    f"groups must be a whole number of at least {_FEWEST}; got"
                    f" {self.groups!r}",
                    argument="groups",
                )
            if not isinstance(self.level, float) or not 0 < self.level < 1:
                raise InputError(
                    f"level must lie between 0 and 1; got {self.level!r}",
                    argument="level",
                )

    def start(self) -> State:
        return {"row": None, "groups": {}}

    def add(self, state: State, rows: Tensor, place: Place) -> State:
        with plain(self):
            row = list(read_tensor(rows).shape[1:])
            rows = flat(wide(rows.detach()))
            squares = float(rows.abs().square().sum())
            total = [rows.sum(0)]
            return self._added(state, row, total, squares, len(rows), place)

    def add_parameters(
        self, state: State, rows: ParameterJacobian, place: Place
    ) -> State:
        with plain(self):
            count = count_rows(rows)
            total = [t.reshape(-1) for t in sums(rows).values()]
            squares = float(rows.norms().double().square().sum())
            return self._added(state, shapes(rows), total, squares, count, place)

    def merge(self, state: State, other: State) -> State:
        with plain(self):
            if state["row"] is None or other["row"] is None:
                return other if state["row"] is None else state
            _refuse_other_row(state, other["row"])
            groups = dict(state["groups"])
            for key, theirs in other["groups"].items():
                mine = groups.get(key)
                groups[key] = theirs if mine is None else _both(mine, theirs)
            return {"row": state["row"], "groups": groups}

    def result(self, state: State) -> NoiseScaleEstimate:
        with plain(self):
            groups = [state["groups"][key] for key in sorted(state["groups"], key=int)]
            if len(groups) < _FEWEST:
                raise InputError(
                    f"batches must fill at least {_FEWEST} groups, whose differences"
                    f" say how far the estimate can be trusted; got {len(groups)}. Take"
                    " smaller batches, or more data",
                    argument="loader",
                )
            return _estimate(groups, self.level)

    def _added(
        self,
        state: State,
        row: Any,
        total: list[Tensor],
        squares: float,
        count: int,
        place: Place,
    ) -> State:
        if not count:
            return state
        _refuse_other_row(state, row)
        group = {"count": count, "squares": squares, "sum": total}
        other = {"row": row, "groups": {str(place.batch % self.groups): group}}
        return self.merge(state, other)


def _refuse_other_row(state: State, row: Any) -> None:
    if state["row"] not in (None, row):
        raise InputError(
            f"rows must have one shape in all batches; got {row} beside"
            f" {state['row']} earlier",
            argument="rows",
        )


def _both(mine: State, theirs: State) -> State:
    return {
        "count": mine["count"] + theirs["count"],
        "squares": mine["squares"] + theirs["squares"],
        "sum": [a + b for a, b in zip(mine["sum"], theirs["sum"], strict=True)],
    }


# -- statistics -----------------------------------------------------------------------


def _estimate(groups: list[State], level: float) -> NoiseScaleEstimate:
    """Return the estimate from the groups' counts, squares and sums."""
    counts = torch.tensor([float(g["count"]) for g in groups], dtype=torch.float64)
    squares = torch.tensor([g["squares"] for g in groups], dtype=torch.float64)
    # |sum of all groups but one|² follows from the groups' inner products alone.
    products = _inner_products([g["sum"] for g in groups])
    samples = counts.sum()
    if samples - counts.max() < 2:
        raise InputError("there must be several samples", argument="loader")
    whole = products.sum()
    without = whole - 2 * products.sum(1) + products.diagonal()
    all_of_it = _moments(samples, squares.sum(), whole)
    leaving = _moments(samples - counts, squares.sum() - squares, without)
    spread = _jackknife(all_of_it, leaving, samples / counts)
    noise, signal = float(all_of_it[0]), float(all_of_it[1])
    bound = _t_quantile((1 + level) / 2, len(groups) - 1)
    return NoiseScaleEstimate(
        scale=noise / signal if signal > 0 else math.inf,
        interval=_fieller(noise, signal, spread, bound),
        level=level,
        noise=noise,
        signal=signal,
        samples=int(samples),
    )


def _inner_products(sums: list[list[Tensor]]) -> Tensor:
    total = torch.zeros(len(sums), len(sums), dtype=torch.float64)
    for parts in zip(*sums, strict=True):
        stacked = torch.stack(parts)
        total += (stacked @ stacked.mH).real.cpu()
    return total


def _moments(count: Tensor, squares: Tensor, norm: Tensor) -> Tensor:
    """Return ``tr Σ`` and ``|G|²``, each without bias, ``(2, ...)``.

    ``squares`` is the sum of the rows' squared norms, ``norm`` the squared norm of
    their sum.
    """
    mean = norm / count**2
    noise = (squares / count - mean) * count / (count - 1)
    return torch.stack([noise, mean - noise / count])


def _jackknife(whole: Tensor, leaving: Tensor, shares: Tensor) -> Tensor:
    """Return the covariance ``(2, 2)`` of an estimate, from those without a group.

    ``shares`` are the samples per sample of each group; groups may differ in size.
    """
    pseudo = shares * whole[:, None] - (shares - 1) * leaving
    centre = len(shares) * whole - ((1 - 1 / shares) * leaving).sum(1)
    apart = (pseudo - centre[:, None]) / (shares - 1).sqrt()
    return apart @ apart.T / len(shares)


def _fieller(
    noise: float, signal: float, spread: Tensor, bound: float
) -> tuple[float, float]:
    """Return the ratios that ``noise - ratio * signal = 0`` is not refused for."""
    (nn, ns), (_, ss) = spread.tolist()
    square = bound**2
    # a ratio² - 2 b ratio + c <= 0
    a = signal**2 - square * ss
    b = noise * signal - square * ns
    c = noise**2 - square * nn
    root = b * b - a * c
    if a > 0:
        half = math.sqrt(max(root, 0.0))
        low, high = (b - half) / a, (b + half) / a
        # A gradient below zero leaves no ratio, however large.
        return (max(low, 0.0), high) if high >= 0 else (math.inf, math.inf)
    # A gradient of zero is not refused: no ratio is too large.
    if c <= 0:  # nor is noise of zero
        return 0.0, math.inf
    if a == 0:
        return (c / (2 * b) if b > 0 else math.inf), math.inf
    return (b - math.sqrt(root)) / a, math.inf


def _t_quantile(level: float, freedom: int) -> float:
    """Return a quantile of Student's distribution.

    Abramowitz and Stegun (1964), 26.7.5: within 1e-3 of it for 7 degrees of freedom,
    nearer for more.
    """
    x, n = NormalDist().inv_cdf(level), freedom
    return (
        x
        + (x**3 + x) / (4 * n)
        + (5 * x**5 + 16 * x**3 + 3 * x) / (96 * n**2)
        + (3 * x**7 + 19 * x**5 + 17 * x**3 - 15 * x) / (384 * n**3)
        + (79 * x**9 + 776 * x**7 + 1482 * x**5 - 1920 * x**3 - 945 * x)
        / (92160 * n**4)
    )
