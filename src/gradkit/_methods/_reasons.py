"""Reasons why ``torch.func`` cannot transform a model, found before it is tried."""

from __future__ import annotations

from torch import Tensor
from torch.autograd.function import _SingleLevelFunction

from gradkit._methods._task import Task
from gradkit._problem._target import module_name

__all__ = ["no_second_derivative", "no_transform"]


def _hooked(task: Task) -> str | None:
    """Return which module has a full backward hook: torch.func refuses those."""
    forwards = task.forwards
    for module in forwards.guard.modules():
        if module._backward_hooks or getattr(module, "_backward_pre_hooks", None):
            where = module_name(forwards.target.root, module)
            return (
                f"{type(module).__name__} ({where}) has a full backward hook, which"
                " torch.func cannot transform"
            )
    return None


def _custom_function(task: Task) -> str | None:
    """Return which custom Function lacks what torch.func asks of it."""
    for node in task.graph.nodes():
        cls = getattr(node, "_forward_cls", None)
        if cls is None:
            continue
        if cls.setup_context is _SingleLevelFunction.setup_context:
            return (
                f"the custom Function {cls.__name__} has no setup_context"
                " staticmethod, without which torch.func cannot transform it"
            )
        if not cls.generate_vmap_rule and "vmap" not in vars(cls):
            return (
                f"the custom Function {cls.__name__} has neither"
                " generate_vmap_rule nor a vmap staticmethod"
            )
    return None


def no_second_derivative(task: Task) -> str | None:
    """Return which custom Function keeps a tensor that has lost its graph.

    Its backward treats that tensor as a constant, so a derivative of the result
    would silently miss a part (pytorch/pytorch#58509).
    """
    for node in task.graph.nodes():
        cls = getattr(node, "_forward_cls", None)
        if cls is None:
            continue
        kept = [(name, value) for name, value in vars(node).items()]
        kept += [("saved_tensors", value) for value in node.saved_tensors]
        for name, value in kept:
            if (
                isinstance(value, Tensor)
                and value.is_floating_point()
                and not value.requires_grad
            ):
                return (
                    f"the custom Function {cls.__name__} keeps a tensor without a"
                    f" graph (ctx.{name}), so a derivative of this result could miss"
                    " a part. Save inputs and outputs alone, with"
                    " ctx.save_for_backward, and compute the rest in backward"
                )
    return None


def no_transform(task: Task) -> str | None:
    """Return why ``torch.func`` cannot serve ``task``, or ``None``."""
    if task.connected:
        return "create_graph=True needs a result that stays in the ordinary graph"
    unplaced = [p.name for p in task.forwards.parameters if not p.slots]
    if unplaced:
        return (
            f"parameter {unplaced[0]!r} is not registered in the model, so no other"
            " value can be put in its place"
        )
    return _hooked(task) or _custom_function(task)
