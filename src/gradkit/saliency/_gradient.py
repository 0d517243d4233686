"""The gradient itself, and the gradient times the input."""

from __future__ import annotations

from typing import Any, overload

from torch import Tensor, nn

from gradkit._call._public import public
from gradkit.saliency._field import open_field

__all__ = ["gradient", "gradient_times_input"]


@overload
def gradient(
    model: Any, inputs: Tensor, objective: Any, *,
    wrt: nn.Module | str | int | None = ..., of: Any = ...,
    max_memory: int | str | None = ...,
) -> Tensor: ...  # fmt: skip
@overload
def gradient(
    model: Any, inputs: Any, objective: Any, *,
    wrt: Any = ..., of: Any = ..., max_memory: int | str | None = ...,
) -> Any: ...  # fmt: skip
@public
def gradient(
    model: Any,
    inputs: Any,
    objective: Any,
    *,
    wrt: Any = None,
    of: Any = None,
    max_memory: int | str | None = None,
) -> Any:
    """Return the gradient of each sample's objective, as a map.

    It is what ``gk.input_gradients`` returns, signed: how much the number
    grows per unit of each entry.

    Args:
        model: Maps ``(N, *in)`` to ``(N, *out)``. Read, never modified.
        inputs: As in ``gk.input_gradients``; for integers name the embedding
            with ``wrt``.
        objective: From outputs to ``(N,)``, or a class, or one label per sample.
        wrt: What the map is over: an input, a submodule (its output), or several.
            ``None`` is every floating input; where one has two values at most beside
            token ids, whose mask it may be, it must be named.
        of: What the objective is given, as in ``gk.jacobian``.
        max_memory: As in ``gk.jacobian``.

    Returns:
        Signed, in the form, shape, dtype and device of what ``wrt`` names, detached:
        ``(N, *in)`` for one floating input. In units of the objective per unit of the
        input.

    Raises:
        InputError: An argument is not what the function takes, or the model draws
            random numbers, as dropout in training mode does.
        SampleDependenceError: The model or the objective couples samples.
        UnsupportedModelError: The model writes to its own parameters, or is otherwise
            none that can be differentiated without a trace.

    Cost:
        One forward and one backward pass, and the proof that samples are independent,
        as in ``gk.jacobian``.

    Example:
        >>> import torch
        >>> import gradkit as gk
        >>> layer = torch.nn.Linear(3, 2)
        >>> g = gk.saliency.gradient(layer, torch.ones(5, 3), 1)
        >>> torch.equal(g[4], layer.weight[1])
        True

    Source:
        Simonyan, Vedaldi and Zisserman, "Deep inside convolutional networks" (2013),
        sec. 3, which shows its magnitude, the largest over the channels.
    """
    with open_field(
        model, inputs, objective, wrt=wrt, of=of, max_memory=max_memory
    ) as field:
        return field.arranged(field.gradient())


@overload
def gradient_times_input(
    model: Any, inputs: Tensor, objective: Any, *,
    wrt: nn.Module | str | int | None = ..., of: Any = ...,
    max_memory: int | str | None = ...,
) -> Tensor: ...  # fmt: skip
@overload
def gradient_times_input(
    model: Any, inputs: Any, objective: Any, *,
    wrt: Any = ..., of: Any = ..., max_memory: int | str | None = ...,
) -> Any: ...  # fmt: skip
@public
def gradient_times_input(
    model: Any,
    inputs: Any,
    objective: Any,
    *,
    wrt: Any = None,
    of: Any = None,
    max_memory: int | str | None = None,
) -> Any:
    """Return the gradient times what it is with respect to, entry by entry.

    For a network of linear layers and ReLUs without biases the entries of a sample sum
    to its objective, where that is one of the outputs.

    Args:
        model: As in ``gradient``.
        inputs: As in ``gradient``.
        objective: As in ``gradient``.
        wrt: As in ``gradient``; with a submodule, the gradient times its output.
        of: As in ``gradient``.
        max_memory: As in ``gradient``.

    Returns:
        As ``gradient``, in units of the objective.

    Raises:
        InputError: As in ``gradient``.
        SampleDependenceError: As in ``gradient``.
        UnsupportedModelError: As in ``gradient``.

    Cost:
        That of ``gradient``.

    Example:
        >>> import torch
        >>> import gradkit as gk
        >>> layer = torch.nn.Linear(3, 2, bias=False)
        >>> x = torch.tensor([[1.0, 0.0, 2.0]])
        >>> map = gk.saliency.gradient_times_input(layer, x, 0)
        >>> torch.allclose(map.sum(1), layer(x)[:, 0])
        True

    Source:
        Shrikumar, Greenside, Shcherbina and Kundaje, "Not just a black box" (2016),
        sec. 2.
    """
    with open_field(
        model, inputs, objective, wrt=wrt, of=of, max_memory=max_memory
    ) as field:
        pairs = zip(field.gradient(), field.sources, strict=True)
        return field.arranged([g * s for g, s in pairs])
