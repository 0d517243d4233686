"""SmoothGrad and its kin: gradients at noisy copies of the inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, overload

import torch
from torch import Tensor, nn

from gradkit._call._public import public
from gradkit.numerics._arguments import whole
from gradkit.saliency._arguments import (
    choice,
    generator,
    number,
    per_sample,
    spread,
)
from gradkit.saliency._field import Field, open_field
from gradkit.saliency._points import Point
from gradkit.saliency._sums import Sum, wide

__all__ = ["STATISTICS", "noisy", "smoothgrad"]


@overload
def smoothgrad(
    model: Any, inputs: Tensor, objective: Any, *,
    draws: int = ..., noise: float = ..., statistic: str = ..., seed: int = ...,
    wrt: nn.Module | str | int | None = ..., of: Any = ...,
    max_memory: int | str | None = ...,
) -> Tensor: ...  # fmt: skip
@overload
def smoothgrad(
    model: Any, inputs: Any, objective: Any, *,
    draws: int = ..., noise: float = ..., statistic: str = ..., seed: int = ...,
    wrt: Any = ..., of: Any = ..., max_memory: int | str | None = ...,
) -> Any: ...  # fmt: skip
@public
def smoothgrad(
    model: Any,
    inputs: Any,
    objective: Any,
    *,
    draws: int = 50,
    noise: float = 0.15,
    statistic: str = "mean",
    seed: int = 0,
    wrt: Any = None,
    of: Any = None,
    max_memory: int | str | None = None,
) -> Any:
    """Return the mean gradient over noisy copies of each sample, or another statistic.

    Args:
        model: As in ``gradient``.
        inputs: As in ``gradient``.
        objective: As in ``gradient``. Called once per draw, in order, on a whole
            batch, and once on the inputs before.
        draws: How many noisy copies.
        noise: The standard deviation of the normal noise, as a share of each sample's
            largest minus smallest entry, of each thing that ``wrt`` names.
        statistic: ``"mean"``; ``"square"``, the mean of the squares; or
            ``"variance"``, the mean of the squared distances from the mean.
        seed: Of the noise, which comes from a generator of its own, on the CPU.
        wrt: As in ``gradient``. The noise is added to what it names.
        of: As in ``gradient``.
        max_memory: As in ``integrated_gradients``.

    Returns:
        As ``gradient``; for ``"square"`` and ``"variance"`` in its units squared.

    Raises:
        InputError: As in ``gradient``.
        SampleDependenceError: As in ``gradient``.
        UnsupportedModelError: As in ``gradient``.

    Cost:
        ``draws`` forward and backward passes, one forward of the inputs, and the proof,
        as in ``gradient``.

    Example:
        >>> import torch
        >>> import gradkit as gk
        >>> x = torch.rand(2, 3)
        >>> map = gk.saliency.smoothgrad(lambda x: x.square().sum(1), x, None)
        >>> torch.allclose(map, 2 * x, atol=0.2)
        True

    Source:
        Smilkov, Thorat, Kim, Viégas and Wattenberg, "SmoothGrad: removing noise by
        adding noise" (2017), sec. 3; the square and the variance: Hooker, Erhan,
        Kindermans and Kim, "A benchmark for interpretability methods in deep neural
        networks" (2019), sec. 4.
    """
    count = whole(draws, "draws")
    share = number("noise", noise)
    statistic = choice("statistic", statistic, STATISTICS)
    own = generator(seed)
    with open_field(
        model, inputs, objective, wrt=wrt, of=of, max_memory=max_memory
    ) as field:
        points = noisy(field, share, own, count)
        return field.arranged(STATISTICS[statistic](field, points, count))


def noisy(
    field: Field, share: float, own: torch.Generator, count: int
) -> Iterator[Point]:
    """Yield noisy copies of the inputs, each with draws of its own."""
    deviations = [per_sample(share * spread(s), s) for s in field.sources]
    for _ in range(count):
        point: list[Tensor] = []
        for source, deviation in zip(field.sources, deviations, strict=True):
            like = wide(source[:0])
            draw = torch.randn(
                source.shape, generator=own, dtype=like.dtype, device="cpu"
            )
            draw = draw.to(source.device)
            point.append(draw.mul_(deviation).add_(source).to(source.dtype))
        yield point


def _mean(field: Field, points: Iterator[Point], count: int) -> Point:
    return field.summed(points, [1 / count] * count)


def _square(field: Field, points: Iterator[Point], count: int) -> Point:
    total = Sum(field.sources)
    for point in field.gradients(points, count):
        total.add_products(point, point)
    return total.values(1 / count)


def _variance(field: Field, points: Iterator[Point], count: int) -> Point:
    """Return the variance by updates, since a difference of squares would cancel.

    Source:
        Welford, "Note on a method for calculating corrected sums of squares and
        products" (1962).
    """
    means = Sum(field.sources)
    squares = Sum(field.sources)
    for done, point in enumerate(field.gradients(points, count), 1):
        before = [wide(p) - m for p, m in zip(point, means.total, strict=True)]
        means.add(before, 1 / done)
        after = [wide(p) - m for p, m in zip(point, means.total, strict=True)]
        squares.add_products(before, after)
    return squares.values(1 / count)


#: What is made of the gradients at the noisy copies.
STATISTICS: Mapping[str, Callable[[Field, Iterator[Point], int], Point]] = (
    MappingProxyType({"mean": _mean, "square": _square, "variance": _variance})
)
