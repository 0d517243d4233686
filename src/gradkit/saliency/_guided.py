"""Guided backpropagation: a backward pass that only lets what is positive through."""

from __future__ import annotations

from typing import Any, overload

from torch import Tensor, nn

from gradkit._call._public import public
from gradkit._guards._graph import Graph
from gradkit.errors import InputError
from gradkit.saliency._field import open_field
from gradkit.saliency._nodes import nodes_above

__all__ = ["guided_backprop"]


@overload
def guided_backprop(
    model: Any, inputs: Tensor, objective: Any, *,
    wrt: nn.Module | str | int | None = ..., of: Any = ...,
    max_memory: int | str | None = ...,
) -> Tensor: ...  # fmt: skip
@overload
def guided_backprop(
    model: Any, inputs: Any, objective: Any, *,
    wrt: Any = ..., of: Any = ..., max_memory: int | str | None = ...,
) -> Any: ...  # fmt: skip
@public
def guided_backprop(
    model: Any,
    inputs: Any,
    objective: Any,
    *,
    wrt: Any = None,
    of: Any = None,
    max_memory: int | str | None = None,
) -> Any:
    """Return the gradient with every ReLU's negative cotangents set to zero.

    The ReLUs are found in the graph of the forward, so that functional and in-place
    ones count as much as modules; ``ReLU6`` and ``clamp(min=0)`` are ReLUs too. Other
    activations pass the gradient on as it is, and so do ``torch.maximum(x, 0)``,
    ``torch.where`` and functions of one's own.

    Its maps look sharp, and hardly depend on what the network has learned:
    ``randomization_check`` shows it.

    Args:
        model: As in ``gradient``.
        inputs: As in ``gradient``.
        objective: As in ``gradient``.
        wrt: As in ``gradient``.
        of: As in ``gradient``.
        max_memory: As in ``gradient``.

    Returns:
        As ``gradient``. It is no derivative of any function.

    Raises:
        InputError: As in ``gradient``; and where no ReLU lies between ``wrt`` and
            the objective.
        SampleDependenceError: As in ``gradient``.
        UnsupportedModelError: As in ``gradient``.

    Cost:
        That of ``gradient``.

    Example:
        >>> import torch
        >>> import gradkit as gk
        >>> model = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Linear(2, 1))
        >>> _ = model[1].weight.data.copy_(torch.tensor([[2.0, -3.0]]))
        >>> gk.saliency.guided_backprop(model, torch.ones(1, 2), 0)
        tensor([[2., 0.]])

    Source:
        Springenberg, Dosovitskiy, Brox and Riedmiller, "Striving for simplicity: the
        all convolutional net" (2015), sec. 3.4.
    """
    with open_field(
        model, inputs, objective, wrt=wrt, of=of, max_memory=max_memory
    ) as field:
        task = field.call.task
        if not field.samples:
            return field.arranged(field.gradient())
        if not guide(task.graph):
            raise InputError(
                "the model must have a ReLU for guided backpropagation to differ from"
                " the gradient; none was met between wrt and the objective. Take"
                " gk.saliency.gradient",
                argument="model",
            )
        assert task.cotangent is not None, "saliency has an objective"
        # Not by a method: others than this graph's own would not meet the ReLUs.
        flat = task.graph.pull(task.cotangent)
        pairs = zip(flat, field.sources, strict=True)
        return field.arranged([f.reshape(s.shape).detach() for f, s in pairs])


def guide(graph: Graph) -> int:
    """Let only what is positive pass the ReLUs above the sources; return their number.

    The graph is of one forward and dies with the call, and the hooks with it.
    """
    found = [node for node in nodes_above(graph) if _is_relu(node)]
    for node in found:
        node.register_prehook(_positive)
    return len(found)


def _positive(cotangents: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
    return tuple(None if c is None else c.clamp(min=0) for c in cotangents)


def _is_relu(node: Any) -> bool:
    """Whether a node of a graph is ``max(x, 0)``, perhaps with an upper limit."""
    name = node.name()
    if name.startswith("Relu"):
        return True
    if name.startswith(("Hardtanh", "ClampBackward1")):
        return _saved(node, "min_val", "min") == 0
    if name.startswith("Clamp"):
        return _saved(node, "min") == 0
    return name.startswith("Threshold") and _saved(node, "threshold") == 0


def _saved(node: Any, *names: str) -> Any:
    """Return what a node keeps under one of the names, if it is a number."""
    for name in names:
        value = getattr(node, f"_saved_{name}", None)
        if isinstance(value, (int, float)):
            return value
        if isinstance(value, Tensor) and not bool(value.any()):
            return 0
    return None
