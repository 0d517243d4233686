"""The objective of one forward: its values, its cotangent, and what it may not do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from gradkit._guards._autocast import Autocast
from gradkit._guards._graph import Graph
from gradkit._guards._independence import refuse_coupling
from gradkit._guards._walk import nodes_below
from gradkit.errors import InputError
from gradkit.objectives import check_objective_values
from gradkit.objectives._criteria import is_torch_loss

__all__ = ["evaluate"]


def evaluate(
    objective: Callable[[Any], Tensor] | None,
    graph: Graph,
    autocast: Autocast,
    *,
    batched: bool,
    renew: bool = True,
    known: bool = False,
    values_only: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return the objective's values ``(N,)`` and its cotangent ``(N, K)``.

    It is called once, on the outputs of the whole batch. Unless the result keeps
    its graph, it sees copies that no graph of the model hangs on. That it does not
    couple samples is proved; of one of ``gk.objectives`` only where proofs are renewed,
    and of what is ``known`` not at all. One whose ``values_only`` are wanted may be a
    count, without a gradient.
    """
    outputs = graph.outputs
    if objective is None:
        return _lone_output(graph, batched=batched)
    leaves = list(outputs.tensors)
    if not graph.connected:
        # What inference mode made cannot require grad itself; that it has lost its
        # gradient is said later.
        leaves = [t.clone() if t.is_inference() else t.detach() for t in leaves]
        leaves = [t.requires_grad_() for t in leaves]
    with autocast.on():
        values = _called(objective, graph, leaves, batched=batched)
    if values_only and isinstance(values, Tensor):
        values = _counted(values)
    values = check_objective_values(values, graph.samples)
    if not values.requires_grad and values_only:
        return values, torch.zeros(graph.samples, outputs.width, device=graph.device)
    if not values.requires_grad and any(t.requires_grad for t in leaves):
        raise InputError(
            "objective must carry a gradient from the outputs to its values; it does"
            " not: it detaches them, counts (argmax, ==), or builds a new tensor",
            argument="objective",
        )
    _refuse_parameters(values, leaves)
    pull = _pullback(values, leaves, connected=graph.connected)
    ones = torch.ones_like(values.detach())
    if batched and not known and (renew or not _is_proved(objective)):
        refuse_coupling(
            pull,
            ones,
            "the objective's value",
            "Return each sample's own number, without a mean, sum or normalisation"
            " over the batch",
        )
    parts = zip(pull(ones), outputs.widths, strict=True)
    flat = [c.reshape(graph.samples, w).to(graph.dtype) for c, w in parts]
    return values, torch.cat(flat, 1)


def _called(
    objective: Callable[[Any], Any],
    graph: Graph,
    leaves: Sequence[Tensor],
    *,
    batched: bool,
) -> Any:
    """Return what an objective says of copies of the outputs."""
    given = [t.clone() for t in leaves]
    if not batched and is_supplied(objective):
        given = [t[None] for t in given]  # they speak of samples
    values = objective(graph.outputs.given(given))
    if not batched and isinstance(values, Tensor) and values.numel() == 1:
        return values.reshape(1)
    return values


def _pullback(
    values: Tensor, leaves: Sequence[Tensor], *, connected: bool
) -> Callable[[Tensor], tuple[Tensor, ...]]:
    """Return the function from weights of the values to the outputs' cotangents."""
    wanted = [t for t in leaves if t.requires_grad]

    def pull(weights: Tensor) -> tuple[Tensor, ...]:
        if not values.requires_grad or not wanted:
            return tuple(torch.zeros_like(t) for t in leaves)
        found = iter(
            torch.autograd.grad(
                values,
                wanted,
                weights.to(values.dtype),
                retain_graph=True,
                create_graph=connected,
                materialize_grads=True,
            )
        )
        return tuple(
            next(found) if t.requires_grad else torch.zeros_like(t) for t in leaves
        )

    return pull


def _counted(values: Tensor) -> Tensor:
    """Return counts, and what is true or false, as floating numbers."""
    if values.is_floating_point() or values.is_complex():
        return values
    return values.float()  # half precision would round large counts


def is_supplied(objective: Any) -> bool:
    """Whether an objective is one of ``gk.objectives``."""
    module = getattr(objective, "__module__", None) or type(objective).__module__
    return module.startswith("gradkit.objectives")


def _is_proved(objective: Any) -> bool:
    """Whether an objective couples no samples, whatever it is given.

    A criterion of the caller's makes a supplied objective the caller's.
    """
    criterion = getattr(objective, "criterion", None)
    return is_supplied(objective) and (criterion is None or is_torch_loss(criterion))


def _lone_output(graph: Graph, *, batched: bool) -> tuple[Tensor, Tensor]:
    width = graph.outputs.width
    if width != 1:
        if not batched:
            shapes = ", ".join(str(tuple(size)) for size in graph.outputs.sizes)
            raise InputError(
                f"with batched=False the function must return one number; got shape"
                f" {shapes}. Take gk.jacobian(f, x, batched=False) for every output",
                argument="objective",
                outputs=width,
            )
        shapes = ", ".join(str(tuple(size)) for size in graph.outputs.sizes)
        raise InputError(
            f"objective may be left out only where a sample has one output; got"
            f" {width} (shape {shapes}). Pass gk.objectives.class_score(index),"
            " gk.objectives.sample_loss(criterion, targets) or another function of"
            " the outputs; for all outputs take gk.jacobian or gk.parameter_jacobian",
            argument="objective",
            outputs=width,
        )
    widths = zip(graph.outputs.tensors, graph.outputs.widths, strict=True)
    values = torch.cat([t.reshape(-1) for t, own in widths if own])
    ones = torch.ones(graph.samples, 1, dtype=graph.dtype, device=graph.device)
    return values, ones


def _refuse_parameters(values: Tensor, leaves: Sequence[Tensor]) -> None:
    """Refuse an objective that leads to anything but the outputs."""
    own = {id(t) for t in leaves if t.is_leaf}
    stop = {t.grad_fn for t in leaves if t.grad_fn is not None}
    for node in nodes_below([values.grad_fn], stop):
        variable = getattr(node, "variable", None)
        if variable is not None and id(variable) not in own:
            raise InputError(
                "objective must depend on the outputs alone; it uses a tensor of"
                f" shape {tuple(variable.shape)} that requires grad, whose part of"
                " the gradient would be lost. Move it into the model, or detach it",
                argument="objective",
                shape=tuple(variable.shape),
            )
