"""What the caller passes as ``model``: what to call, and whose modules it runs."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from gradkit.errors import InputError, UnsupportedModelError

__all__ = ["Target", "module_name", "read_target"]


@dataclass(frozen=True, eq=False)
class Target:
    """The callable to differentiate, without wrappers, and its root module."""

    call: Callable[..., Any]
    root: nn.Module | None
    #: What a memory of this model hangs on; outlives no model.
    identity: Any = field(repr=False)

    def find(self, name: str) -> nn.Module | None:
        """Return the submodule called ``name``, if there is one."""
        if self.root is None:
            return None
        return dict(self.root.named_modules(remove_duplicate=False)).get(name)

    def submodule_names(self) -> list[str]:
        """Return the dotted names of all submodules, each once."""
        if self.root is None:
            return []
        return [name for name, _ in self.root.named_modules() if name]


def module_name(root: nn.Module | None, module: nn.Module) -> str:
    """Return where ``module`` stands, for messages."""
    if root is not None:
        for name, candidate in root.named_modules():
            if candidate is module:
                return f"at {name!r}" if name else "the model itself"
    return "called by the model"


def unwrap(module: nn.Module) -> nn.Module:
    """Take off ``torch.compile`` and (distributed) data parallel wrappers."""
    while True:
        inner = getattr(module, "_orig_mod", None)
        if inner is None and isinstance(
            module, (nn.DataParallel, nn.parallel.DistributedDataParallel)
        ):
            inner = module.module
        if not isinstance(inner, nn.Module):
            return module
        module = inner


def read_target(model: Any) -> Target:
    """Read and check ``model``."""
    if isinstance(model, nn.Module):
        root = unwrap(model)
        return Target(root, root, root)
    if isinstance(model, type):
        raise InputError(
            f"model must be an instance; got the class {model.__name__}."
            f" Build it first: {model.__name__}(...)",
            argument="model",
        )
    if isinstance(model, (Tensor, np.ndarray)) or not callable(model):
        raise InputError(
            "model must be an nn.Module or a callable; got"
            f" {type(model).__name__}. The order of the arguments is"
            " (model, inputs, ...): pass the model, not its outputs",
            argument="model",
        )
    owner = getattr(model, "__self__", None)
    if isinstance(owner, nn.Module):
        root = unwrap(owner)
        name = getattr(model, "__name__", "")
        call = getattr(root, name, model) if root is not owner else model
        return Target(call, root, root)
    return Target(model, None, model)


def _is_odd(module: nn.Module) -> bool:
    """Whether a module may be of a kind that is refused; quick, for every module."""
    return (
        isinstance(module, (nn.Embedding, nn.EmbeddingBag))
        or "Shard" in type(module).__name__
        or "FSDP" in type(module).__name__
        or any(
            is_lazy(p) or p.is_inference()
            for p in module._parameters.values()
            if p is not None
        )
    )


def refuse_module(root: nn.Module | None, module: nn.Module) -> None:
    """Refuse kinds of modules that cannot be differentiated without a trace."""
    if not _is_odd(module):
        return
    kind, where = type(module).__name__, module_name(root, module)
    if any(is_lazy(p) for p in module._parameters.values() if p is not None):
        raise UnsupportedModelError(
            f"{kind} ({where}) is lazy and has no parameters yet; run the model"
            " once on a batch first",
            module=where,
        )
    if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and (
        module.max_norm is not None
    ):
        raise UnsupportedModelError(
            f"{kind} ({where}) has max_norm={module.max_norm}, so its forward"
            " overwrites its own weight; renormalise the weight once with"
            " torch.no_grad() and set max_norm=None",
            module=where,
        )
    if "FSDP" in kind or "FullyShardedDataParallel" in kind:
        raise UnsupportedModelError(
            f"{kind} ({where}) is sharded over processes; gather it and pass the"
            " plain module",
            module=where,
        )
    for name, parameter in module._parameters.items():
        if parameter is not None and parameter.is_inference():
            raise UnsupportedModelError(
                f"parameter {name!r} of {kind} ({where}) was made under"
                " torch.inference_mode, so autograd cannot record it; build or load"
                " the model outside inference_mode, or copy.deepcopy(model) there",
                module=where,
                parameter=name,
            )


def modules_within(function: Any, depth: int = 3) -> list[nn.Module]:
    """Return the modules that a plain function refers to.

    By its closure, defaults, bound arguments, attributes and the globals it names;
    what it finds in other ways is met when it is called as a module.
    """
    if isinstance(function, nn.Module):
        return [unwrap(function)]
    if depth == 0 or isinstance(function, (ModuleType, type)):
        return []
    held: list[Any] = []
    if isinstance(function, functools.partial):
        held += [function.func, *function.args, *function.keywords.values()]
    elif isinstance(function, MethodType):
        held += [function.__self__, function.__func__]
    elif isinstance(function, FunctionType):
        held += function.__defaults__ or ()
        held += (function.__kwdefaults__ or {}).values()
        names = function.__code__.co_names
        held += [function.__globals__[n] for n in names if n in function.__globals__]
        for cell in function.__closure__ or ():
            with contextlib.suppress(ValueError):  # an empty cell
                held.append(cell.cell_contents)
    elif isinstance(function, (list, tuple)):
        held += function
    elif isinstance(function, dict):
        held += function.values()
    elif callable(function) and hasattr(function, "__dict__"):
        held += vars(function).values()
    found = [m for v in held for m in modules_within(v, depth - 1)]
    return list({id(m): m for m in found}.values())


def couples_samples(module: nn.Module) -> str | None:
    """Return why a module is known to mix the samples of a batch, or ``None``."""
    if not isinstance(module, nn.modules.batchnorm._BatchNorm):
        return None
    if module.training:
        return "is in training mode and mixes them. Call model.eval() first"
    if module.running_mean is None:
        return (
            "has no running statistics and mixes them in eval mode too."
            " Build it with track_running_stats=True"
        )
    return None


def is_scripted(module: nn.Module) -> bool:
    """Whether a module's attributes live in TorchScript, out of Python's reach."""
    return isinstance(module, torch.jit.ScriptModule)
