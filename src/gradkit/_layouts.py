"""Convolutions of images that lie with the channels last, as their libraries like it.

On a CPU a convolution of images that lie channel by channel in memory rearranges them
on its way in and out, and what follows it, pooling above all, takes images one number
at a time. Once they lie with the channels last they stay so, and a forward and backward
of a small network takes two thirds of the time.

Layout is no part of a tensor's value, but a model can see it: a ``view`` fails, and
``as_strided`` takes other entries. Who uses this compares both ways first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from gradkit._products import is_plain

__all__ = [
    "LARGE",
    "LayoutError",
    "gains_layout",
    "laid_convolution",
    "lies_last",
    "sees_layout",
]

#: Entries from which on another layout is worth while.
LARGE = 50_000
_LAST = torch.channels_last
_SEES_LAYOUT = ("as_strided", "resize_", "set_")


class LayoutError(Exception):
    """An operation would see how its images lie."""


def lies_last(images: Tensor) -> bool:
    """Whether images ``(N, C, H, W)`` lie with the channels last, and not otherwise."""
    return (
        images.ndim == 4
        and not images.is_contiguous()
        and images.is_contiguous(memory_format=_LAST)
    )


def gains_layout(nodes: Iterable[Any]) -> bool:
    """Whether a graph with these nodes has large convolutions of images."""
    return any(_is_large(n) for n in nodes if n.name().startswith("ConvolutionBack"))


def _is_large(node: Any) -> bool:
    output = node._input_metadata[0]
    return (
        len(output.shape) == 4
        and math.prod(output.shape) >= LARGE
        and output.dtype is torch.float32
        and output.device.type == "cpu"
        and torch.backends.mkldnn.is_available()
        and bool(torch.backends.mkldnn.enabled)
    )


def laid_convolution(func: Any, args: Any, kwargs: Any, least: int) -> Any:
    """Return what ``aten::convolution`` is called for, with the channels last.

    Args:
        func: The operation.
        args: Its arguments.
        kwargs: Its arguments by name.
        least: Entries of what goes in or out from which on they are laid so.
    """
    images = args[0]
    if is_plain(images) and images.ndim == 4:
        samples, channels, height, width = images.shape
        # Strides and padding aside, which is near enough.
        if samples * max(channels, *args[1].shape[:2]) * height * width >= least:
            args = (_laid(images), *args[1:])
    return func(*args, **kwargs)


def _laid(images: Tensor) -> Tensor:
    laid = images.detach().contiguous(memory_format=_LAST)
    _, channels, height, width = laid.shape
    if channels == 1:
        # Both layouts are the same memory; the strides say which one is meant.
        strides = (height * width, 1, width, 1)
        laid = laid.as_strided(laid.shape, strides)
    return laid


def sees_layout(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether an operation gives other numbers for images that lie otherwise."""
    if not func._schema.name.removeprefix("aten::").startswith(_SEES_LAYOUT):
        return False
    return any(map(_lies_otherwise, (*args, *kwargs.values())))


def _lies_otherwise(value: Any) -> bool:
    return isinstance(value, Tensor) and value.ndim == 4 and not value.is_contiguous()
