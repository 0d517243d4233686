"""``wrt`` and ``of``: names of inputs, submodules and outputs, looked up."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from gradkit._problem._inputs import Inputs, as_position
from gradkit._problem._target import Target
from gradkit._problem._tree import leaves, plain
from gradkit.errors import InputError

__all__ = ["Entry", "Selector", "read_of", "read_wrt"]


@dataclass(frozen=True, eq=False)
class Entry:
    """One thing that ``wrt`` names: tensors among the inputs, or a submodule."""

    name: Any
    positions: tuple[int, ...] = ()
    module: nn.Module | None = None

    @property
    def width(self) -> int:
        """How many tensors the derivative is taken with respect to here."""
        return 1 if self.module is not None else len(self.positions)


def nearest(name: str, known: Sequence[str]) -> str:
    """Return a hint with the nearest names, or all of them if there are few."""
    close = difflib.get_close_matches(str(name), known, n=3, cutoff=0.5)
    if close:
        return "nearest: " + ", ".join(map(repr, close))
    shown = ", ".join(map(repr, known[:12])) or "none"
    return f"known: {shown}" + (" …" if len(known) > 12 else "")


def _where_ids_become_numbers(target: Target) -> str:
    """Return advice for integer inputs, with the name of an embedding if there is."""
    kinds = (nn.Embedding, nn.EmbeddingBag)
    modules = [] if target.root is None else target.root.named_modules()
    names = [name for name, module in modules if name and isinstance(module, kinds)]
    if not names:
        return "name the submodule that turns them into numbers, wrt='<dotted name>'"
    others = f" (or {', '.join(map(repr, names[1:4]))})" if names[1:] else ""
    return f"name the embedding that takes them, wrt={names[0]!r}{others}"


def _input_entry(target: Target, inputs: Inputs, name: Any) -> Entry:
    positions = inputs.keys[name]
    good = tuple(i for i in positions if inputs.tensors[i].differentiable)
    if good:
        return Entry(name, good)
    tensors = [inputs.tensors[i].tensor for i in positions]
    what = [f"{t.dtype} of shape {tuple(t.shape)}" for t in tensors]
    if any(inputs.tensors[i].role == "shared" for i in positions):
        raise InputError(
            f"wrt={name!r} is shared by all samples, so no sample has a derivative"
            " of its own with respect to it; expand it to one copy per sample,"
            " t.expand(N, *t.shape), and pass that unmarked",
            argument="wrt",
        )
    raise InputError(
        f"wrt={name!r} must be a floating tensor with the samples first; got"
        f" {', '.join(what) or 'no tensor'}. Integers have no derivative:"
        f" {_where_ids_become_numbers(target)}",
        argument="wrt",
    )


def _module_entry(target: Target, module: nn.Module) -> Entry:
    if target.root is not None:
        for name, candidate in target.root.named_modules():
            if candidate is module:
                return Entry(name, module=module)
        raise InputError(
            f"the {type(module).__name__} is not a submodule of the model"
            f" ({nearest(type(module).__name__, target.submodule_names())})",
            argument="wrt",
        )
    return Entry(type(module).__name__, module=module)


def _entry(target: Target, inputs: Inputs, name: Any) -> Entry:
    """Look up one name of ``wrt``."""
    if isinstance(name, nn.Module):
        return _module_entry(target, name)
    position = as_position(name)
    key = position if position is not None else name
    if isinstance(key, int) and key < 0 and 0 in inputs.keys:
        key += len(inputs.keys)
    in_inputs = isinstance(key, (int, str)) and key in inputs.keys
    module = target.find(name) if isinstance(name, str) and name else None
    if in_inputs and module is not None:
        raise InputError(
            f"wrt={name!r} is ambiguous: it is a key of inputs and a submodule;"
            " pass the module itself for its output, wrt=model."
            f"{name}, or rename the input",
            argument="wrt",
        )
    if in_inputs:
        return _input_entry(target, inputs, key)
    if module is not None:
        return Entry(name, module=module)
    entries = ", ".join(map(repr, inputs.keys))
    root = target.root
    if root is not None and name in dict(root.named_parameters()):
        raise InputError(
            f"wrt={name!r} is a parameter; for derivatives with respect to it take"
            f" gk.parameter_jacobian or gk.per_sample_gradients, parameters={name!r}",
            argument="wrt",
        )
    raise InputError(
        f"wrt={name!r} names neither an entry of inputs (there: {entries}) nor a"
        f" submodule ({nearest(name, target.submodule_names())})",
        argument="wrt",
    )


def _every_input(target: Target, inputs: Inputs) -> Entry:
    good = tuple(i for i, t in enumerate(inputs.tensors) if t.differentiable)
    if good:
        return Entry(None, good)
    kinds = ", ".join(
        f"inputs{t.path} {t.tensor.dtype} {tuple(t.tensor.shape)}"
        for t in inputs.tensors
    )
    raise InputError(
        "inputs must hold a floating tensor to differentiate with respect to; got"
        f" {kinds}. Integers have no derivative:"
        f" {_where_ids_become_numbers(target)}; or, if they are measurements,"
        " convert them with x.float()",
        argument="inputs",
        dtype=inputs.tensors[0].tensor.dtype,
    )


def read_wrt(target: Target, inputs: Inputs, wrt: Any) -> tuple[list[Entry], str]:
    """Return what ``wrt`` names, and the form of the result.

    The form is ``"inputs"`` (their structure), ``"one"`` or ``"dict"``.
    """
    if wrt is None:
        return [_every_input(target, inputs)], "inputs"
    if isinstance(wrt, (list, tuple)):
        if not wrt:
            raise InputError("wrt must name something; got nothing", argument="wrt")
        entries = [_entry(target, inputs, name) for name in wrt]
        names = [entry.name for entry in entries]
        if len(set(names)) < len(names):
            raise InputError(f"wrt names an entry twice: {names}", argument="wrt")
        return entries, "dict"
    if isinstance(wrt, Tensor):
        raise InputError(
            "wrt takes a position, a key or a submodule; got a tensor",
            argument="wrt",
        )
    return [_entry(target, inputs, wrt)], "one"


@dataclass(frozen=True, eq=False)
class Selector:
    """What ``of`` picks from a forward: a captured module, or a function."""

    module: nn.Module | None
    name: Any
    pick: Callable[[Any], Any]


def _pick_entry(target: Target, name: Any) -> Callable[[Any], Any]:
    """Return how an entry of the outputs is picked, by key, position or attribute."""

    def pick(outputs: Any) -> Any:
        opened = plain(outputs)
        position = as_position(name)
        if isinstance(opened, Mapping) and name in opened:
            return opened[name]
        if position is not None and isinstance(opened, (list, tuple)):
            if -len(opened) <= position < len(opened):
                return opened[position]
        elif isinstance(name, str) and not isinstance(outputs, Tensor):
            value = getattr(outputs, name, None)
            if value is not None and not callable(value):
                return value
        known = _output_names(opened)
        raise InputError(
            f"of={name!r} names no submodule and no entry of the outputs"
            f" ({type(outputs).__name__}: {', '.join(known) or 'no entries'};"
            f" submodules {nearest(name, target.submodule_names())})",
            argument="of",
        )

    return pick


def _output_names(outputs: Any) -> list[str]:
    if isinstance(outputs, Mapping):
        return [repr(key) for key in outputs]
    if isinstance(outputs, (list, tuple)):
        fields = getattr(outputs, "_fields", None)
        return [repr(f) for f in fields or range(len(outputs))]
    if hasattr(outputs, "__dict__") and not isinstance(outputs, Tensor):
        return [repr(key) for key in vars(outputs)]
    return []


def read_of(target: Target, of: Any) -> Selector:
    """Return what ``of`` names; the entries of the outputs are seen later."""
    if of is None:
        return Selector(None, None, lambda outputs: outputs)
    if isinstance(of, nn.Module) and (
        target.root is None or any(of is m for m in target.root.modules())
    ):
        return Selector(of, _module_entry(target, of).name, lambda outputs: outputs)
    if isinstance(of, str) or as_position(of) is not None:
        module = target.find(of) if isinstance(of, str) and of else None
        if module is None:
            return Selector(None, of, _pick_entry(target, of))

        def refuse_twice(outputs: Any) -> Any:
            opened = plain(outputs)
            if isinstance(opened, Mapping) and of in opened:
                raise InputError(
                    f"of={of!r} is ambiguous: it is a submodule and a key of the"
                    " outputs; pass the module itself, or a function of the outputs",
                    argument="of",
                )
            return outputs

        return Selector(module, of, refuse_twice)
    if callable(of):
        return Selector(None, None, of)
    raise InputError(
        "of takes a submodule, a key or attribute of the outputs, or a function of"
        f" the outputs; got {type(of).__name__}",
        argument="of",
    )


def only_tensor(value: Any, name: Any) -> Tensor:
    """Return the single floating tensor that a submodule returned, or refuse."""
    floating = [
        t for t in leaves(value) if isinstance(t, Tensor) and t.is_floating_point()
    ]
    if len(floating) == 1:
        return floating[0]
    shapes = ", ".join(str(tuple(t.shape)) for t in floating)
    raise InputError(
        f"wrt={name!r} must return one floating tensor; it returned"
        f" {len(floating)} ({shapes}); wrap the call in a module that returns the"
        " one you mean",
        argument="wrt",
    )
