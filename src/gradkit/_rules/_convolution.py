"""Convolutions and transposed convolutions over one to three axes.

What they do: ``y[o, t] = sum_ik w[o, i, k] x[i, s t + d k - p] + b[o]``, with stride
``s``, dilation ``d``, padding ``p``; transposed, ``w[i, o, k]`` takes ``x[i, t]`` back.
Jacobian: ``dy[o, t] / dw[o, i, k] = x[i, s t + d k - p]``; transposed, roles swap.
Pullback: ``w[n, r, o, i, k] = sum_t c[n, r, o, t] x[n, i, s t + d k - p]``.
Covered: stride, dilation, groups, every padding and output padding, bias; a batch of
one axis in front alone: unbatched input raises, and so do complex numbers.
Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.conv2d.html
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gradkit._rules._contraction import foreign_reason
from gradkit._rules._kernel import Kernel, Sliding
from gradkit._rules._rule import Operation, Rule

__all__ = ["CONVOLUTION", "CONVOLUTION_OF_ANY_KIND", "TRANSPOSED_CONVOLUTION"]


def _axes(operation: Operation) -> int:
    """Return how many spatial axes there are."""
    return operation.arguments["weight"].dim() - 2


def _for_each_axis(operation: Operation, name: str, default: int) -> tuple[int, ...]:
    """Return a setting for each spatial axis; one number stands for all of them."""
    value = operation.get(name, default)
    values = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    return values * _axes(operation) if len(values) == 1 else values


def _padding(
    operation: Operation, dilation: tuple[int, ...]
) -> tuple[tuple[int, ...], list[int]]:
    """Return the padding on both sides of each axis, and what more after each."""
    size = operation.arguments["weight"].shape[2:]
    given = operation.get("padding", 0)
    if given == "valid":
        return (0,) * len(size), [0] * len(size)
    if given == "same":
        whole = [d * (k - 1) for d, k in zip(dilation, size, strict=True)]
        return tuple(w // 2 for w in whole), [w % 2 for w in whole]
    return _for_each_axis(operation, "padding", 0), [0] * len(size)


def _sliding(operation: Operation, transposed: bool) -> tuple[Sliding, list[int]]:
    """Return how the kernel slides, and what is padded after each axis alone."""
    dilation = _for_each_axis(operation, "dilation", 1)
    padding, more = _padding(operation, dilation)
    sliding = Sliding(
        stride=_for_each_axis(operation, "stride", 1),
        padding=padding,
        dilation=dilation,
        transposed=transposed,
        output_padding=_for_each_axis(operation, "output_padding", 0),
        groups=operation.get("groups", 1),
    )
    return sliding, more


def _is_transposed(operation: Operation) -> bool:
    if operation.function in TRANSPOSED_CONVOLUTION.functions:
        return True
    return bool(operation.get("transposed", False))


def _weight(operation: Operation, c: Tensor) -> Kernel:
    """Return the rows of the kernel."""
    sliding, more = _sliding(operation, _is_transposed(operation))
    x = operation.samples_first("input").to(c)
    if any(more):
        x = F.pad(x, [side for size in reversed(more) for side in (0, size)])
    return Kernel(operation.parameters["weight"], c, x, sliding)


def _bias(operation: Operation, c: Tensor) -> Tensor:
    """Return the rows of the bias: the cotangent summed over space."""
    return c.flatten(3).sum(-1)


def _unsupported(operation: Operation) -> str | None:
    reason = foreign_reason(operation)
    if reason is not None:
        return reason
    if operation.arguments["input"].dim() != _axes(operation) + 2:
        return "its input has no batch axis"
    if not operation.layout.is_batch_first:
        return "the samples are not its batch axis"
    return None


def _rule(name: str, functions: tuple[Callable[..., Any], ...], settings: str) -> Rule:
    return Rule(
        name=name,
        functions=functions,
        arguments=("input", "weight", "bias", *settings.split()),
        rows={"weight": _weight, "bias": _bias},
        unsupported=_unsupported,
    )


CONVOLUTION = _rule(
    "convolution",
    (torch.conv1d, torch.conv2d, torch.conv3d),
    "stride padding dilation groups",
)
TRANSPOSED_CONVOLUTION = _rule(
    "transposed convolution",
    (torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d),
    "stride padding output_padding groups dilation",
)
CONVOLUTION_OF_ANY_KIND = _rule(
    "convolution of any kind",
    (torch.convolution,),
    "stride padding dilation transposed output_padding groups",
)
