"""Whose is each entry of a cotangent: where the samples stand in an output.

Sample ``n``'s cotangent is multiplied by its own power of two, and pulled back to the
recorded outputs. Every entry must come out multiplied by its own sample's power, bit
for bit; where it does says where the samples stand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import torch
from torch import Tensor

from gradkit._guards._independence import coupled_sample, same, scaled_by
from gradkit._rules._layout import Layout

__all__ = ["candidates", "find_layouts", "resized"]

#: From a cotangent ``(N, K)`` to the gradient at each output, or ``None``.
Pull = Callable[[Tensor], Sequence[Tensor]]


def candidates(shape: Sequence[int], samples: int) -> list[Layout]:
    """Return where ``samples`` can stand in a tensor of ``shape``."""
    if samples == 1:
        # All is one sample's; what else is in the first axis comes after it.
        return [Layout(0, after=shape[0])] if len(shape) else []
    found = []
    for axis, size in enumerate(shape):
        many, rest = divmod(size, samples)
        if rest or not many:
            continue
        found.append(Layout(axis, after=many))
        if many > 1:
            found.append(Layout(axis, before=many))
    return found


def resized(shape: Sequence[int], other: Sequence[int], samples: int) -> set[int]:
    """Return the axes that follow the number of samples, ``samples`` and one fewer."""
    if len(shape) != len(other):
        return set()
    return {
        axis
        for axis, (size, less) in enumerate(zip(shape, other, strict=True))
        if size != less and size * (samples - 1) == less * samples
    }


def _owners(
    base: Tensor, weighted: Tensor, weights: Tensor, found: list[Layout], samples: int
) -> list[Layout]:
    """Return the layouts under which every entry scaled by its own sample's power."""
    fitting = []
    for layout in found:
        first = layout.front(base, samples)
        second = layout.front(weighted, samples)
        if bool(same(scaled_by(first, weights), second).all()):
            fitting.append(layout)
    return fitting


def find_layouts(
    pull: Pull,
    cotangent: Tensor,
    base: Sequence[Tensor],
    other_shapes: Callable[[], Sequence[tuple] | None],
) -> list[Layout | None]:
    """Return where the samples stand in each output that is pulled back to.

    Args:
        pull: Pulls back to all outputs.
        cotangent: A random cotangent ``(N, K)`` without small entries.
        base: Its pull-back.
        other_shapes: The outputs' shapes in a batch of one sample fewer, for outputs
            whose cotangents are zero, or fit in more than one way; ``None`` where
            there is no such batch.
    """
    samples = cotangent.shape[0]
    choices = [candidates(g.shape, samples) for g in base]
    if samples > 1:
        generator = torch.Generator(device="cpu")
        generator.seed()
        exponents = torch.randperm(samples, generator=generator, device="cpu") % 5 - 2
        signs = torch.randint(0, 2, (samples,), generator=generator, device="cpu")
        weights = torch.ldexp(signs.double() * 2 - 1, exponents)
        weighted = pull(scaled_by(cotangent, weights))
        zero = [not bool((b != 0).any()) for b in base]
        choices = [
            c if is_zero else _owners(b, w, weights, c, samples)
            for b, w, c, is_zero in zip(base, weighted, choices, zero, strict=True)
        ]
        # Of zeros every owner is right, but not every rule that is told of one.
        if any(zero) or any(len(c) > 1 for c in choices):
            choices = _by_shape(choices, base, other_shapes(), samples)
    found = [c[0] if len(c) == 1 else None for c in choices]
    return _proved(pull, cotangent, base, found)


def _by_shape(
    choices: list[list[Layout]],
    base: Sequence[Tensor],
    others: Sequence[tuple] | None,
    samples: int,
) -> list[list[Layout]]:
    """Keep the layouts whose axis follows the number of samples."""
    if others is None or len(others) != len(base):
        return choices
    kept = []
    for layouts, gradient, other in zip(choices, base, others, strict=True):
        axes = resized(gradient.shape, other, samples)
        kept.append([c for c in layouts if c.axis in axes])
    return kept


def _proved(
    pull: Pull, cotangent: Tensor, base: Sequence[Tensor], found: list[Layout | None]
) -> list[Layout | None]:
    """Prove the layouts by weights of which any two samples differ; drop the others."""
    samples = cotangent.shape[0]
    found = list(found)
    while True:
        places = [i for i, layout in enumerate(found) if layout is not None]

        def front(given: Tensor, places: list[int] = places) -> tuple[Tensor, ...]:
            gradients = pull(given)
            return tuple(_front(gradients[i], found[i], samples) for i in places)

        first = tuple(_front(base[i], found[i], samples) for i in places)
        filled = [i for i in places if prod(base[i].shape)]
        coupled = coupled_sample(front, cotangent, base=first)
        if coupled is None:
            return found
        found[filled[coupled[0]]] = None


def _front(gradient: Tensor, layout: Layout | None, samples: int) -> Tensor:
    assert layout is not None, "places without a layout are left out"
    return layout.front(gradient, samples)
