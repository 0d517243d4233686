"""What is made of signed maps before they are looked at."""

from __future__ import annotations

from typing import Any, overload

import torch
from torch import Tensor

from gradkit._call._public import public
from gradkit._problem._inputs import as_position
from gradkit._problem._tree import map_leaves
from gradkit.errors import InputError

__all__ = ["absolute", "channel_max", "channel_norm", "channel_sum"]


@overload
def absolute(maps: Tensor) -> Tensor: ...
@overload
def absolute(maps: Any) -> Any: ...
@public
def absolute(maps: Any) -> Any:
    """Return the magnitudes of maps, in their structure.

    Args:
        maps: A tensor of any shape, or a structure of tensors; ``None`` stays.

    Returns:
        As ``maps``.

    Raises:
        InputError: Something else than a tensor is among them.

    Cost:
        One pass over the entries, and a tensor as large.

    Example:
        >>> import torch
        >>> import gradkit as gk
        >>> gk.saliency.absolute(torch.tensor([[1.0, -2.0]]))
        tensor([[1., 2.]])
    """
    return map_leaves(lambda v: None if v is None else _tensor(v).abs(), maps)


@public
def channel_sum(maps: Tensor, *, axis: int = 1) -> Tensor:
    """Return the sum over the channels, which keeps what a complete map adds up to.

    Args:
        maps: ``(N, C, *space)``, or with the channels at another ``axis``.
        axis: ``-1`` for embeddings ``(N, T, E)``.

    Returns:
        ``(N, *space)``, signed, in the dtype of ``maps``.

    Raises:
        InputError: There is no such axis, or it is that of the samples.

    Cost:
        One pass over the entries.

    Example:
        >>> import torch
        >>> import gradkit as gk
        >>> gk.saliency.channel_sum(torch.tensor([[[1.0], [-3.0]]]))
        tensor([[-2.]])
    """
    axis = _axis(maps, axis)
    return maps.sum(axis)


@public
def channel_max(maps: Tensor, *, axis: int = 1) -> Tensor:
    """Return the largest magnitude over the channels.

    Args:
        maps: As in ``channel_sum``.
        axis: As in ``channel_sum``.

    Returns:
        ``(N, *space)``, at least 0, in the dtype of ``maps``.

    Raises:
        InputError: As in ``channel_sum``.

    Cost:
        One pass over the entries, and a tensor as large as ``maps`` while it runs.

    Example:
        >>> import torch
        >>> import gradkit as gk
        >>> gk.saliency.channel_max(torch.tensor([[[1.0], [-3.0]]]))
        tensor([[3.]])

    Source:
        Simonyan, Vedaldi and Zisserman, "Deep inside convolutional networks" (2013),
        sec. 3.1.
    """
    axis = _axis(maps, axis)
    return maps.abs().amax(axis)


@public
def channel_norm(maps: Tensor, *, axis: int = 1) -> Tensor:
    """Return the Euclidean norm over the channels.

    Args:
        maps: As in ``channel_sum``.
        axis: As in ``channel_sum``.

    Returns:
        ``(N, *space)``, at least 0, in the dtype of ``maps``.

    Raises:
        InputError: As in ``channel_sum``.

    Cost:
        One pass over the entries.

    Example:
        >>> import torch
        >>> import gradkit as gk
        >>> gk.saliency.channel_norm(torch.tensor([[[4.0], [-3.0]]]))
        tensor([[5.]])
    """
    axis = _axis(maps, axis)
    return torch.linalg.vector_norm(maps, dim=axis)


def _tensor(value: Any) -> Tensor:
    if not isinstance(value, Tensor):
        raise InputError(
            f"maps must be tensors; got {type(value).__name__}", argument="maps"
        )
    return value


def _axis(maps: Any, axis: int) -> int:
    shape = tuple(_tensor(maps).shape)
    found = as_position(axis)
    if (
        found is None
        or not -len(shape) <= found < len(shape)
        or found % len(shape) == 0
    ):
        raise InputError(
            f"axis must be one of maps' axes {shape} after the samples; got {axis!r}",
            argument="axis",
        )
    return found
