"""Grad-CAM: a layer's maps, weighted by how much each matters on average."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from gradkit._call._public import public
from gradkit.errors import InputError
from gradkit.saliency._field import open_field

__all__ = ["grad_cam"]

#: How the names of modules end that map the last axis, whatever stands before it:
#: torch's own, and those like them, such as T5LayerNorm. Conv1D is GPT-2's.
_FEATURES_LAST = (
    "Conv1D", "Embedding", "GRU", "LSTM", "LayerNorm", "Linear", "RMSNorm", "RNN",
)  # fmt: skip


@public
def grad_cam(
    model: Any, inputs: Any, objective: Any, *, wrt: Any, of: Any = None
) -> Tensor:
    """Return a layer's feature maps, summed with the mean gradient of each as weight.

    Args:
        model: As in ``gradient``.
        inputs: As in ``gradient``; integers too.
        objective: As in ``gradient``.
        wrt: The layer, a submodule or its dotted name, whose output is
            ``(N, C, *space)``; mostly the last one that still has a space.
        of: As in ``gradient``.

    Returns:
        ``(N, 1, *space)``, signed, in the dtype of the layer's output. The paper shows
        what is positive, ``map.relu()``, as large as the image:
        ``torch.nn.functional.interpolate(map, size, mode="bilinear")``.

    Raises:
        InputError: As in ``gradient``; and where ``wrt`` names no submodule, or
            its output has no space, or is made of layers that have their features
            last, as embeddings and transformers do.
        SampleDependenceError: As in ``gradient``.
        UnsupportedModelError: As in ``gradient``.

    Cost:
        One forward pass, one backward pass down to the layer, and the proof, as in
        ``gradient``.

    Example:
        >>> import torch
        >>> import gradkit as gk
        >>> model = torch.nn.Sequential(
        ...     torch.nn.Conv2d(1, 4, 3),
        ...     torch.nn.ReLU(),
        ...     torch.nn.Flatten(),
        ...     torch.nn.Linear(4 * 4 * 5, 2),
        ... )
        >>> gk.saliency.grad_cam(model, torch.rand(3, 1, 6, 7), 0, wrt="1").shape
        torch.Size([3, 1, 4, 5])

    Source:
        Selvaraju, Cogswell, Das, Vedantam, Parikh and Batra, "Grad-CAM: visual
        explanations from deep networks via gradient-based localization" (2017),
        sec. 3, eqs. 1 and 2 without the ReLU.
    """
    with open_field(model, inputs, objective, wrt=wrt, of=of) as field:
        maps = field.sources[0]
        if not field.has_submodules or len(field.sources) != 1:
            raise InputError(
                "wrt must name one submodule, the layer whose maps are weighted; got"
                f" {wrt!r}. Take the last layer with a space, such as"
                f" {_layers(model)}",
                argument="wrt",
            )
        if maps.ndim < 3:
            raise InputError(
                f"wrt={wrt!r} must return (N, C, *space); it returned"
                f" {tuple(maps.shape)}, which has no space to map. Name a layer before"
                " it is flattened, or take gradient_times_input",
                argument="wrt",
                shape=tuple(maps.shape),
            )
        _refuse_features_last(field.call.entries[0].module, wrt, maps)
        (gradient,) = field.gradient()
        space = tuple(range(2, maps.ndim))
        weights = gradient.mean(space, keepdim=True)
        return (weights * maps).sum(1, keepdim=True)


def _refuse_features_last(module: Any, wrt: Any, maps: Tensor) -> None:
    """Refuse layers that have their features last; positions are no channels."""
    every = list(module.modules())
    names = [type(m).__name__ for m in every if not list(m.children())]
    last = [name for name in names if name.endswith(_FEATURES_LAST)]
    if last and not any(isinstance(m, nn.modules.conv._ConvNd) for m in every):
        raise InputError(
            f"wrt={wrt!r} must return (N, C, *space); it returned {tuple(maps.shape)},"
            f" which {last[-1]} makes with the features last. For one number per"
            " position take channel_sum(gradient_times_input(model, inputs, objective,"
            f" wrt={wrt!r}), axis=-1)",
            argument="wrt",
            shape=tuple(maps.shape),
        )


def _layers(model: Any) -> str:
    named = getattr(model, "named_modules", tuple)()
    names = [n for n, m in named if "Conv" in type(m).__name__]
    return f"wrt={names[-1]!r}" if names else "a convolution"
