"""Reasons why ``torch.func`` cannot transform a model, found before it is tried."""

from __future__ import annotations

from torch import nn
from torch.autograd.function import _SingleLevelFunction

from gradkit._methods._task import Task
from gradkit._problem._target import module_name

__all__ = ["no_transform"]


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
    stack = [t.grad_fn for t in task.graph.outputs.tensors if t.grad_fn is not None]
    seen = set()
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        cls = getattr(node, "_forward_cls", None)
        if cls is not None:
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
        stack += [n for n, _ in node.next_functions if n is not None]
    return None


def _scripted(task: Task) -> str | None:
    for module in task.forwards.guard.modules():
        if "Script" in type(module).__name__ and isinstance(module, nn.Module):
            return f"{type(module).__name__} is TorchScript, which torch.func skips"
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
