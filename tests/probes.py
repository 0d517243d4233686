"""What oracles differentiate: a model, its inputs, and what is asked of them.

A ``Probe`` is a closure that runs a model, and the tensors that it reads. All is a
private copy in float64, made with torch alone.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Path = tuple[Any, ...]


def by_path(structure: Any, path: Path = ()) -> dict[Path, Any]:
    """Return ``{path: leaf}``: keys of mappings, positions of sequences."""
    if isinstance(structure, Mapping):
        items = list(structure.items())
    elif isinstance(structure, list | tuple):
        items = list(enumerate(structure))
    else:
        return {path: structure}
    return {p: v for key, part in items for p, v in by_path(part, (*path, key)).items()}


def map_structure(
    function: Callable[[Path, Any], Any], structure: Any, path: Path = ()
) -> Any:
    """Return ``structure`` with ``function(path, leaf)`` in place of every leaf."""
    if isinstance(structure, Mapping):
        items = structure.items()
        return {k: map_structure(function, v, (*path, k)) for k, v in items}
    if isinstance(structure, list | tuple):
        parts = enumerate(structure)
        return type(structure)(
            [map_structure(function, v, (*path, k)) for k, v in parts]
        )
    return function(path, structure)


def is_floating(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def floating(structure: Any) -> dict[Path, Tensor]:
    return {p: v for p, v in by_path(structure).items() if is_floating(v)}


def in_float64(value: Any) -> Any:
    """Return a private float64 copy of a model, a tensor or a structure of them."""
    if isinstance(value, nn.Module):
        return copy.deepcopy(value).double()
    return map_structure(
        lambda _, leaf: leaf.detach().double().clone() if is_floating(leaf) else leaf,
        value,
    )


@dataclass(frozen=True)
class Probe:
    """A computation to differentiate.

    ``run()`` reads ``leaves`` and returns the outputs by path. The leaves are private
    float64 tensors that require grad; writing into them changes the next run.
    """

    run: Callable[[], dict[Path, Tensor]]
    leaves: dict[Path, Tensor]
    per_sample: bool  # the leaves, too, have the sample axis first


def call(model: Callable[..., Any], inputs: Any) -> Any:
    if isinstance(inputs, Mapping):
        return model(**inputs)
    if isinstance(inputs, list | tuple):
        return model(*inputs)
    return model(inputs)


def submodule(model: Any, name: Any) -> nn.Module | None:
    """Return the submodule that ``name`` names, if it names one."""
    owner = getattr(model, "__self__", model)
    if isinstance(name, nn.Module):
        return name
    modules = dict(owner.named_modules()) if isinstance(owner, nn.Module) else {}
    return modules.get(name) if isinstance(name, str) else None


def fork_random_state() -> Any:
    """Return the context after which torch's generators are as before."""
    cuda = torch.cuda.is_available()
    return torch.random.fork_rng([torch.cuda.current_device()] if cuda else [])


@contextlib.contextmanager
def as_before(model: Any, seed: int | None) -> Iterator[None]:
    """Run from the model's state as it is now, and from ``seed`` if given."""
    owner = getattr(model, "__self__", model)
    modules = list(owner.modules()) if isinstance(owner, nn.Module) else []
    attributes = [(module, dict(module.__dict__)) for module in modules]
    held = [(m, k, b) for m in modules for k, b in m.named_buffers(recurse=False)]
    for module, name, buffer in held:
        setattr(module, name, buffer.clone())
    with fork_random_state():
        if seed is not None:
            torch.manual_seed(seed)
        yield
    for module, kept in attributes:
        module.__dict__.clear()
        module.__dict__.update(kept)
    for module, name, buffer in held:
        setattr(module, name, buffer)


def read(outputs: Any, of: Any, captured: list[Tensor]) -> Any:
    """Return the part of the outputs that ``of`` selects."""
    if captured:
        return captured[0]
    if of is None:
        return outputs
    if callable(of):
        return of(outputs)
    if isinstance(outputs, Mapping | list | tuple) and not hasattr(outputs, "_fields"):
        return outputs[of]
    return getattr(outputs, of)


def forward(model: Any, inputs: Any, of: Any = None, seed: int | None = None) -> Any:
    """Return the selected outputs of one run that leaves the model as it was."""
    captured: list[Tensor] = []
    module = submodule(model, of)
    with contextlib.ExitStack() as stack:
        if module is not None:
            handle = module.register_forward_hook(
                lambda _module, _inputs, output: captured.append(output + 0)
            )
            stack.callback(handle.remove)
        stack.enter_context(as_before(model, seed))
        outputs = call(model, inputs)
    return read(outputs, of, captured)


def private(model: Any, *modules: Any) -> tuple[Any, ...]:
    """Return float64 copies of a model and of what names its submodules."""
    owner = getattr(model, "__self__", model)
    if not isinstance(owner, nn.Module):
        return (model, *modules)
    copied = in_float64(owner)
    names = {module: name for name, module in owner.named_modules()}
    parts = dict(copied.named_modules())
    twin = copied if owner is model else getattr(copied, model.__name__)
    return twin, *(parts[names[m]] if isinstance(m, nn.Module) else m for m in modules)


def selected(outputs: Any, objective: Callable[..., Tensor] | None) -> dict:
    return {(): objective(outputs)} if objective else floating(outputs)


def leaf_of(value: Tensor) -> Tensor:
    return value.detach().clone(memory_format=torch.contiguous_format).requires_grad_()


def moved_by(leaf: Tensor, value: Tensor) -> Callable[..., Tensor]:
    """Return a hook that moves a submodule's output by what the leaf is off its value.

    The output itself stays in place, since a later submodule may be asked for, too.
    """
    return lambda _module, _inputs, output: output + (leaf - value)


def input_probe(
    model: Any,
    inputs: Any,
    *,
    wrt: Any = None,
    of: Any = None,
    seed: int | None = None,
    shared: tuple[Any, ...] = (),
    objective: Callable[..., Tensor] | None = None,
) -> Probe:
    """Return the probe of a model with respect to its inputs, or to submodules'.

    Args:
        model: As for gradkit, like ``inputs``, ``wrt``, ``of`` and ``seed``.
        inputs: Plain tensors; those that all samples share are named in ``shared``.
        wrt: Positions or keys of inputs, or submodules; one, or a list of them.
        of: A submodule, a key or attribute of the outputs, or a callable of them.
        seed: What every run seeds torch with.
        shared: Positions or keys of inputs that are not differentiated.
        objective: Maps the selected outputs to one number per sample.
    """
    several = isinstance(wrt, list | tuple)
    names = list(wrt) if several else [wrt]
    twin, of, *targets = private(model, of, *names)
    inputs = in_float64(inputs)
    arguments: dict[Path, Tensor] = {}  # by path in the inputs
    hooked: dict[nn.Module, Tensor] = {}
    values: dict[nn.Module, Tensor] = {}
    leaves: dict[Path, Tensor] = {}  # by path in the result
    for name, target in zip(names, targets, strict=True):
        start: Path = (name,) if several else ()
        module = submodule(twin, target)
        if module is not None:
            values[module] = forward(twin, inputs, module, seed).detach()
            hooked[module] = leaves[start] = leaf_of(values[module])
            continue
        inside = () if target is None or isinstance(inputs, Tensor) else (target,)
        for path, value in floating(inputs).items():
            if path[: len(inside)] == inside and not set(path[:1]) & set(shared):
                arguments[path] = leaf_of(value)
                leaves[(*start, *path[len(inside) :])] = arguments[path]

    def run() -> dict[Path, Tensor]:
        # A model may write into its inputs: it is handed copies of the leaves.
        given = map_structure(
            lambda p, v: arguments[p].clone() if p in arguments else v,
            in_float64(inputs),
        )
        with contextlib.ExitStack() as stack:
            for module, leaf in hooked.items():
                handle = module.register_forward_hook(moved_by(leaf, values[module]))
                stack.callback(handle.remove)
            return selected(forward(twin, given, of, seed), objective)

    return Probe(run, leaves, per_sample=True)


def parameter_probe(
    model: Any,
    inputs: Any,
    *,
    of: Any = None,
    seed: int | None = None,
    objective: Callable[..., Tensor] | None = None,
) -> Probe:
    """Return the probe of a model with respect to all parameters that require grad."""
    twin, of = private(model, of)
    owner = getattr(twin, "__self__", twin)
    named = owner.named_parameters() if isinstance(owner, nn.Module) else ()
    leaves: dict[Path, Tensor] = {(k,): p for k, p in named if p.requires_grad}

    def run() -> dict[Path, Tensor]:
        return selected(forward(twin, in_float64(inputs), of, seed), objective)

    return Probe(run, leaves, per_sample=False)
