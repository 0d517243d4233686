"""Expected gradients: integrated gradients over a set of baselines, by drawing."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, overload

import torch
from torch import Tensor, nn

from gradkit._call._public import public
from gradkit.numerics._arguments import whole
from gradkit.saliency._arguments import generator, per_sample
from gradkit.saliency._baseline import read_references
from gradkit.saliency._field import Field, open_field
from gradkit.saliency._points import Point
from gradkit.saliency._sums import Sum

__all__ = ["expected_gradients"]


@overload
def expected_gradients(
    model: Any, inputs: Tensor, objective: Any, *,
    baselines: Any, draws: int = ..., seed: int = ...,
    wrt: nn.Module | str | int | None = ..., of: Any = ...,
    max_memory: int | str | None = ...,
) -> Tensor: ...  # fmt: skip
@overload
def expected_gradients(
    model: Any, inputs: Any, objective: Any, *,
    baselines: Any, draws: int = ..., seed: int = ...,
    wrt: Any = ..., of: Any = ..., max_memory: int | str | None = ...,
) -> Any: ...  # fmt: skip
@public
def expected_gradients(
    model: Any,
    inputs: Any,
    objective: Any,
    *,
    baselines: Any,
    draws: int = 50,
    seed: int = 0,
    wrt: Any = None,
    of: Any = None,
    max_memory: int | str | None = None,
) -> Any:
    """Return expected gradients: no single baseline, but a set that stands for data.

    Each draw takes, for each sample ``x``, one of the baselines ``b`` and a place ``a``
    between 0 and 1, both uniformly, and adds ``(x - b)`` times the gradient at
    ``b + a (x - b)``; the result is the mean. In expectation the entries of a sample
    sum to its objective minus the mean objective of the set.

    Args:
        model: As in ``gradient``.
        inputs: As in ``gradient``.
        objective: As in ``gradient``. Called once per draw, in order, on a whole
            batch, and once on the inputs before.
        baselines: ``(M, *in)``, samples to draw from. With several inputs, a tuple or
            mapping of them like ``inputs``. With ``wrt`` a submodule, a floating tensor
            stands for its output; integers, or a tuple or mapping like ``inputs``, are
            run up to it.
        draws: How many gradients the mean is of.
        seed: Of the draws, which come from a generator of their own, on the CPU.
        wrt: As in ``gradient``.
        of: As in ``gradient``.
        max_memory: As in ``integrated_gradients``.

    Returns:
        As ``gradient``, in units of the objective.

    Raises:
        InputError: As in ``gradient``.
        SampleDependenceError: As in ``gradient``.
        UnsupportedModelError: As in ``gradient``.

    Cost:
        ``draws`` forward and backward passes, one forward of the inputs, and the proof,
        as in ``gradient``. The error falls with the square root of ``draws``.

    Example:
        >>> import torch
        >>> import gradkit as gk
        >>> layer = torch.nn.Linear(3, 2)
        >>> x, zeros = torch.rand(5, 3), torch.zeros(1, 3)
        >>> map = gk.saliency.expected_gradients(layer, x, 1, baselines=zeros)
        >>> torch.allclose(map, layer.weight[1] * x)
        True

    Source:
        Erion, Janizek, Sturmfels, Lundberg and Lee, "Improving performance of deep
        learning models with axiomatic attribution priors and expected gradients"
        (2021), sec. 2.
    """
    count = whole(draws, "draws")
    own = generator(seed)
    with open_field(
        model, inputs, objective, wrt=wrt, of=of, max_memory=max_memory
    ) as field:
        references = read_references(field, baselines)
        ways: deque[Point] = deque()
        points = _drawn(field, references, own, ways, count)
        total = Sum(field.sources)
        for found in field.gradients(points, count):
            total.add_products(ways.popleft(), found)
        return field.arranged(total.values(1 / count))


def _drawn(
    field: Field,
    references: Point,
    own: torch.Generator,
    ways: deque[Point],
    count: int,
) -> Iterator[Point]:
    """Yield points on the ways from drawn baselines; the ways are put into ``ways``."""
    samples, every = field.samples, len(references[0])
    for _ in range(count):
        index = torch.randint(every, (samples,), generator=own, device="cpu")
        places = torch.rand(samples, generator=own, dtype=torch.float64, device="cpu")
        bases = [r[index.to(r.device)] for r in references]
        way = [s - b for s, b in zip(field.sources, bases, strict=True)]
        ways.append(way)
        yield [
            torch.addcmul(b, w, per_sample(places.to(w), w))
            for b, w in zip(bases, way, strict=True)
        ]
