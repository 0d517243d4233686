"""The parameters of a model: each once, with all its names and all its places."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor, nn

from gradkit._problem._names import nearest
from gradkit._problem._target import Target, is_scripted, refuse_module, unwrap
from gradkit.errors import InputError, UnsupportedModelError

__all__ = ["Parameter", "Slot", "place", "read_parameters"]

Slot = tuple[nn.Module, str]


@dataclass(frozen=True, eq=False)
class Parameter:
    """One distinct tensor: its first name, its other names, where it is registered."""

    name: str
    aliases: tuple[str, ...]
    tensor: Tensor
    slots: tuple[Slot, ...]


def _table(root: nn.Module) -> list[Parameter]:
    """Return the distinct parameters of ``root`` in order."""
    for module in root.modules():
        refuse_module(root, module)
    names: dict[int, list[str]] = {}
    slots: dict[int, list[Slot]] = {}
    tensors: dict[int, Tensor] = {}
    seen: set[tuple[int, str]] = set()
    for prefix, module in root.named_modules(remove_duplicate=False):
        for key, tensor in module._parameters.items():
            if tensor is None:
                continue
            tensors[id(tensor)] = tensor
            name = f"{prefix}.{key}".lstrip(".").replace("_orig_mod.", "")
            names.setdefault(id(tensor), []).append(name)
            # A module under two names has each slot once.
            # TorchScript holds its parameters in C++, where nothing is swapped.
            if (id(module), key) not in seen and not is_scripted(module):
                seen.add((id(module), key))
                slots.setdefault(id(tensor), []).append((module, key))
    return [
        Parameter(names[i][0], tuple(names[i][1:]), t, tuple(slots.get(i, ())))
        for i, t in tensors.items()
    ]


def _matches(parameter: Parameter, pattern: str) -> bool:
    """Whether a glob or a submodule's name covers the parameter."""
    every = (parameter.name, *parameter.aliases)
    if any(character in pattern for character in "*?["):
        return any(fnmatchcase(name, pattern) for name in every)
    return any(name.startswith(f"{pattern}.") for name in every)


def _by_name(table: list[Parameter], name: str) -> list[Parameter]:
    """Return what one string selects; an exact name selects frozen ones too."""
    exact = [p for p in table if name in (p.name, *p.aliases)]
    if exact:
        return exact
    matched = [p for p in table if _matches(p, name)]
    if not matched:
        known = [n for p in table for n in (p.name, *p.aliases)]
        raise InputError(
            f"parameters={name!r} matches no parameter ({nearest(name, known)})",
            argument="parameters",
            name=name,
        )
    return _trainable(matched, f"parameters={name!r}")


def _trainable(matched: list[Parameter], what: str) -> list[Parameter]:
    chosen = [p for p in matched if p.tensor.requires_grad]
    if chosen or not matched:
        return chosen
    shown = ", ".join(repr(p.name) for p in matched[:4])
    raise InputError(
        f"{what} covers only parameters that do not require grad ({shown}"
        f"{', …' if len(matched) > 4 else ''}); name frozen ones exactly,"
        f" parameters=[{matched[0].name!r}]",
        argument="parameters",
    )


def _by_mapping(table: list[Parameter], mapping: Mapping[Any, Any]) -> list[Parameter]:
    """Return the given tensors under the caller's names."""
    known = {id(p.tensor): p for p in table}
    names = {name for p in table for name in (p.name, *p.aliases)}
    chosen, seen = [], set()
    for name, tensor in mapping.items():
        if not isinstance(tensor, Tensor) or not isinstance(name, str):
            raise InputError(
                "a mapping of parameters goes from names to tensors; got"
                f" {name!r}: {type(tensor).__name__}",
                argument="parameters",
            )
        if name in names and id(tensor) not in known:
            # The model would not use it, so that all its rows would be zero.
            raise InputError(
                f"parameters must hold the model's own tensors; {name!r} is another"
                " tensor than the model's parameter of that name. For derivatives at"
                " other values, pass a function as model: lambda *inputs:"
                " torch.func.functional_call(model, parameters, inputs)",
                argument="parameters",
                parameter=name,
            )
        if id(tensor) in seen:
            continue
        seen.add(id(tensor))
        same = [n for n, t in mapping.items() if t is tensor]
        slots = known[id(tensor)].slots if id(tensor) in known else ()
        chosen.append(Parameter(name, tuple(same[1:]), tensor, slots))
    return chosen


def _by_item(table: list[Parameter], target: Target, item: Any) -> list[Parameter]:
    if isinstance(item, str):
        return _by_name(table, item)
    if isinstance(item, nn.Module):
        item = unwrap(item)
        inside = {id(t) for t in item.parameters()}
        matched = [p for p in table if id(p.tensor) in inside] or _table(item)
        return _trainable(matched, f"parameters={type(item).__name__}")
    if isinstance(item, Tensor):
        found = [p for p in table if p.tensor is item]
        if found:
            return found
    raise InputError(
        "parameters takes names, submodule names, globs, a module or a mapping of"
        f" tensors; got {type(item).__name__}",
        argument="parameters",
    )


def read_parameters(target: Target, parameters: Any) -> tuple[Parameter, ...]:
    """Return the parameters to differentiate with respect to, in model order."""
    table = _table(target.root) if target.root is not None else []
    if parameters is None:
        if target.root is None:
            raise InputError(
                "model is a function, so parameters= must say whose parameters:"
                " a module, or a mapping of names to tensors",
                argument="parameters",
            )
        chosen = _trainable(table, "the default (all that require grad)")
    elif isinstance(parameters, Mapping):
        chosen = _by_mapping(table, parameters)
    elif isinstance(parameters, (str, nn.Module, Tensor)):
        chosen = _by_item(table, target, parameters)
    elif isinstance(parameters, Iterable):
        parameters = list(parameters)
        if not parameters:
            raise InputError(
                "parameters must name something; got an empty list",
                argument="parameters",
            )
        items = [_by_item(table, target, item) for item in parameters]
        chosen = list({id(p.tensor): p for found in items for p in found}.values())
    else:
        chosen = _by_item(table, target, parameters)
    if not chosen:
        raise InputError(
            "parameters must name something; the model has no parameter to"
            " differentiate with respect to",
            argument="parameters",
        )
    names = [p.name for p in chosen]
    if len(set(names)) < len(names):
        twice = next(n for n in names if names.count(n) > 1)
        raise InputError(
            f"parameters must have names of their own; two are called {twice!r}."
            " Pass a mapping, {'a.weight': a.weight, ...}",
            argument="parameters",
        )
    for parameter in chosen:
        _check(parameter)
    order = {id(p.tensor): i for i, p in enumerate(table)}
    return tuple(sorted(chosen, key=lambda p: order.get(id(p.tensor), len(order))))


def _check(parameter: Parameter) -> None:
    tensor = parameter.tensor
    if not tensor.is_floating_point():
        raise InputError(
            f"parameter {parameter.name!r} is {tensor.dtype}; only floating ones"
            " have gradients here",
            argument="parameters",
        )
    if type(tensor).__name__ == "DTensor":
        raise UnsupportedModelError(
            f"parameter {parameter.name!r} is a distributed tensor; gather the model"
            " and pass the plain module",
            parameter=parameter.name,
        )
    if tensor.is_inference():
        raise UnsupportedModelError(
            f"parameter {parameter.name!r} was made under torch.inference_mode, so"
            " autograd cannot record it; build or load the model outside it",
            parameter=parameter.name,
        )
    if parameter.slots or (tensor.requires_grad and not tensor._backward_hooks):
        return
    raise InputError(
        f"parameter {parameter.name!r} is frozen or has hooks, and is registered in"
        " no Python module that gradkit can see, so no private copy can stand in for"
        " it; pass the module that holds it as model (not a scripted one)",
        argument="parameters",
    )


def place(slots: Iterable[Slot], tensor: Tensor) -> None:
    """Put ``tensor`` where a parameter is registered; the guard puts back.

    The dictionary is written directly: ``setattr`` would insist on an
    ``nn.Parameter``. An RNN reads its weights from a list of its own, which
    follows only ``setattr``.
    """
    for module, key in slots:
        module._parameters[key] = tensor  # pyright: ignore[reportArgumentType]
        flat = module.__dict__.get("_flat_weights")
        names = module.__dict__.get("_flat_weights_names")
        if flat is not None and names is not None and key in names:
            flat[names.index(key)] = tensor
