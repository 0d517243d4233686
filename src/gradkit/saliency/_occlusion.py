"""Occlusion: what the objective loses when a window of the input is covered."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from gradkit._call._public import public
from gradkit._problem._inputs import as_position
from gradkit.errors import InputError
from gradkit.saliency._arguments import per_sample
from gradkit.saliency._baseline import read_baselines
from gradkit.saliency._field import open_values
from gradkit.saliency._points import Point
from gradkit.saliency._sums import wide

__all__ = ["occlusion"]

Window = tuple[slice, ...]


@public
def occlusion(
    model: Any,
    inputs: Any,
    objective: Any,
    *,
    window: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    baseline: Any = 0.0,
    of: Any = None,
    max_memory: int | str | None = None,
) -> Tensor:
    """Return how much the objective falls when a window over each entry is covered.

    Where windows overlap, an entry has the mean over those that cover it. No gradient
    is taken, so that the model may be anything, and the inputs integers.

    Args:
        model: As in ``gradient``.
        inputs: As in ``gradient``. What is covered is the one floating tensor with
            the samples first, or where there is none the one of integers, or the one
            that ``baseline`` names. Beside token ids and a floating mask of two values
            it must be named.
        objective: As in ``gradient``; a count, or what is true or false, without a
            derivative, will do. Called once per window, in order, on a whole batch,
            and once on the inputs before.
        window: The size of the window along each axis of a sample; along the last ones
            where it names fewer, and then it is whole along the others. A number where
            a sample has one axis.
        stride: By how much the window moves, in the same form; ``None`` is its size.
            Along an axis that it is whole in it does not move. At the far edges windows
            are cut off.
        baseline: What covers: a number, or a tensor that broadcasts to the inputs; or
            either in a tuple or mapping like the inputs, which names what is covered:
            ``(0, None)`` for token ids beside a mask. A *list* is averaged over.
        of: As in ``gradient``.
        max_memory: As in ``gradient``; bounds how many windows run at once.

    Returns:
        ``(N, *in)``, shaped like what is covered, in units of the objective: positive
        where the covered entries speak for it. An entry that no window covers, since
        the stride is larger, has 0.

    Raises:
        InputError: An argument is not what the function takes, or the model draws
            random numbers.
        SampleDependenceError: The model or the objective couples samples.
        UnsupportedModelError: The model writes to its own parameters, or is otherwise
            none that can be differentiated without a trace.

    Cost:
        One forward pass for each window and each baseline, one of the inputs, and the
        proof, as in ``gradient``.

    Example:
        >>> import torch
        >>> import gradkit as gk
        >>> layer = torch.nn.Linear(4, 1, bias=False)
        >>> _ = layer.weight.data.copy_(torch.tensor([[1.0, 2.0, 0.0, -1.0]]))
        >>> gk.saliency.occlusion(layer, torch.ones(1, 4), None, window=2)
        tensor([[ 3.,  3., -1., -1.]])

    Source:
        Zeiler and Fergus, "Visualizing and understanding convolutional networks"
        (2014), sec. 4.2.
    """
    with open_values(
        model, inputs, objective, baseline, of=of, max_memory=max_memory
    ) as field:
        (source,) = field.sources
        windows = _windows(tuple(source.shape[1:]), window, stride)
        baselines = read_baselines(field, baseline)
        like = source if source.is_floating_point() else field.values
        dtype = wide(like[:0]).dtype
        total = torch.zeros(source.shape, dtype=dtype, device=source.device)
        for (base,) in baselines:
            found = field.values_at(_covered(source, base, windows), len(windows))
            for box, values in zip(windows, found, strict=True):
                lost = (field.values - values).to(total.dtype)
                part = total[(slice(None), *box)]
                part += per_sample(lost, part)
        counts = torch.zeros(source.shape[1:], dtype=dtype, device=source.device)
        for box in windows:
            counts[box] += 1
        return (total / (counts.clamp(min=1) * len(baselines))).to(like.dtype)


def _covered(source: Tensor, base: Tensor, windows: list[Window]) -> Iterator[Point]:
    for box in windows:
        covered = source.clone()
        part = (slice(None), *box)
        covered[part] = base[part]
        yield [covered]


def _windows(shape: tuple[int, ...], window: Any, stride: Any) -> list[Window]:
    """Return every place of the window, row by row."""
    sizes = _per_axis("window", window, shape, whole=shape)
    steps = sizes if stride is None else _per_axis("stride", stride, shape, whole=sizes)
    large = [i for i, (s, n) in enumerate(zip(sizes, shape, strict=True)) if s > n]
    if large:
        raise InputError(
            f"window must fit into a sample of shape {shape}; got {window!r}, which is"
            f" larger along axis {large[0]}",
            argument="window",
        )
    each = zip(shape, sizes, steps, strict=True)
    return list(itertools.product(*(_along(*axis) for axis in each)))


def _along(length: int, size: int, step: int) -> list[slice]:
    # One more than fits where entries are left over: it is cut off.
    starts = range(0, step * -(-(length - size) // step) + 1, step)
    return [slice(start, min(start + size, length)) for start in starts]


def _per_axis(
    name: str, given: Any, shape: tuple[int, ...], *, whole: tuple[int, ...]
) -> tuple[int, ...]:
    """Return one size per axis of a sample; ``whole`` for those not spoken of."""
    one = as_position(given)
    values = [one] if one is not None else given
    positive = isinstance(values, (list, tuple)) and all(
        (as_position(v) or 0) > 0 for v in values
    )
    axes = len(shape)
    many = positive and (len(values) > axes or (one is not None and axes != 1))
    if not positive or not values or many:
        size = one if one is not None and one > 0 else 5
        example = f"{name}={tuple([1] * max(axes - 2, 0) + [size] * min(axes, 2))}"
        raise InputError(
            f"{name} must be {'a whole number' if axes == 1 else 'whole numbers'} above"
            f" 0, one per axis of a sample of shape {shape}"
            f"{'' if axes == 1 else f', such as {example}'}; got {given!r}",
            argument=name,
        )
    return (*whole[: axes - len(values)], *(int(v) for v in values))
