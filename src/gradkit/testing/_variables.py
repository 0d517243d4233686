"""What is differentiated by: inputs and parameters as one list of private tensors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from gradkit._dtypes import short
from gradkit._problem._inputs import as_position
from gradkit._problem._names import nearest
from gradkit._problem._tree import Leaf
from gradkit.errors import InputError

__all__ = [
    "Part",
    "Variable",
    "choose",
    "input_variables",
    "laid_out",
    "parameter_variables",
    "place",
]


@dataclass(frozen=True)
class Part:
    """One tensor of a flat vector: what it is called, and its shape."""

    name: str
    shape: torch.Size

    @property
    def size(self) -> int:
        """How many entries it has."""
        return self.shape.numel()


@dataclass(frozen=True, eq=False)
class Variable:
    """One tensor to differentiate by.

    Args:
        name: ``inputs[0]``, or the name of a parameter.
        names: What ``wrt`` may call it.
        value: A private copy, detached.
        leaf: Its place among the leaves of the inputs; ``None`` for a parameter.
        slots: The modules and keys that hold a parameter.
        fixed: Entries that are left as they are, ``True`` where so.
        frozen: Whether it is a parameter that does not require grad.
    """

    name: str
    names: tuple[Any, ...]
    value: Tensor
    leaf: int | None = None
    slots: tuple[tuple[nn.Module, str], ...] = ()
    fixed: Tensor | None = None
    frozen: bool = False

    @property
    def part(self) -> Part:
        """Its name and shape."""
        return Part(self.name, self.value.shape)


def span(parts: Sequence[Part], position: int) -> tuple[Part, slice]:
    """Return the part that a position of the flat vector lies in, and where it is."""
    start = 0
    for part in parts:
        if position < start + part.size:
            return part, slice(start, start + part.size)
        start += part.size
    raise IndexError(position)


def place(parts: Sequence[Part], position: int) -> tuple[Part, tuple[int, ...]]:
    """Return the part that a position of the flat vector lies in, and its index."""
    part, where = span(parts, position)
    index = torch.unravel_index(torch.tensor(position - where.start), part.shape)
    return part, tuple(int(i) for i in index)


def laid_out(value: Tensor, like: Tensor) -> Tensor:
    """Return a copy with the strides of ``like``: kernels may depend on them."""
    copy = value.clone()
    if copy.stride() == like.stride() or 0 in like.stride() or not like.numel():
        return copy
    return torch.empty_strided(
        like.shape, like.stride(), dtype=value.dtype, device=value.device
    ).copy_(value)


def input_variables(
    leaves: Sequence[Leaf], dtype: torch.dtype | None
) -> list[Variable]:
    """Return the floating tensors among the inputs."""
    found = []
    for position, leaf in enumerate(leaves):
        value = leaf.value
        if not isinstance(value, Tensor):
            continue
        _refuse(value, f"inputs{leaf.path}")
        if value.is_floating_point():
            private = laid_out(value.detach().to(dtype or value.dtype), value)
            first = leaf.path[1:].partition("]")[0].strip("'\"") if leaf.path else "0"
            names = (f"inputs{leaf.path}", first)
            found.append(Variable(names[0], names, private, leaf=position))
    return found


def _refuse(value: Tensor, name: str) -> None:
    if is_lazy(value):
        raise InputError(
            f"{name} is uninitialized; call the lazy module once before",
            argument="function",
        )
    kind = None
    if value.is_complex():
        kind = "complex"
    elif value.is_nested:
        kind = "nested"
    elif value.layout is not torch.strided:
        kind = short(value.layout)
    elif value.is_quantized:
        kind = "quantised"
    elif value.device.type == "meta":
        kind = "meta"
    if kind is not None:
        raise InputError(
            f"{name} must be a dense real tensor; got a {kind} one of dtype"
            f" {value.dtype}. Pass its real parts (torch.view_as_real) or dense"
            " values, and rebuild it inside the function",
            argument="inputs",
            name=name,
        )


def parameter_variables(root: nn.Module) -> list[Variable]:
    """Return the floating parameters of a private module, each once."""
    slots: dict[int, list[tuple[nn.Module, str]]] = {}
    names: dict[int, list[str]] = {}
    tensors: dict[int, Tensor] = {}
    for prefix, module in root.named_modules():
        for key, tensor in module._parameters.items():
            if tensor is not None:
                _refuse(tensor, f"{prefix}.{key}".lstrip("."))
                tensors[id(tensor)] = tensor
                slots.setdefault(id(tensor), []).append((module, key))
                names.setdefault(id(tensor), []).append(f"{prefix}.{key}".lstrip("."))
    return [
        Variable(
            names[i][0],
            tuple(names[i]),
            tensor.detach().clone(),
            slots=tuple(slots[i]),
            fixed=_padding(slots[i], tensor),
            frozen=not tensor.requires_grad,
        )
        for i, tensor in tensors.items()
        if tensor.is_floating_point()
    ]


def _padding(slots: Iterable[tuple[nn.Module, str]], tensor: Tensor) -> Tensor | None:
    """Return the row of an embedding that torch gives no gradient, by convention."""
    for module, key in slots:
        row = getattr(module, "padding_idx", None)
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and key == "weight":
            if row is None:
                continue
            fixed = torch.zeros_like(tensor, dtype=torch.bool)
            fixed[row] = True
            return fixed
    return None


def choose(variables: list[Variable], wrt: Any) -> list[Variable]:
    """Return the variables that ``wrt`` names; by default all that are trained."""
    if wrt is None:
        return [v for v in variables if not v.frozen]
    several = isinstance(wrt, Iterable) and not isinstance(wrt, (str, bytes, Tensor))
    chosen: dict[int, None] = {}
    for item in wrt if several else [wrt]:
        matched = [i for i, v in enumerate(variables) if _matches(v, item)]
        if not matched:
            known = [v.name for v in variables]
            raise InputError(
                f"wrt={item!r} names no floating input and no parameter"
                f" ({nearest(str(item), known)}). Positions count the entries of"
                " inputs; names may be globs",
                argument="wrt",
            )
        chosen |= dict.fromkeys(matched)
    return [variables[i] for i in sorted(chosen)]


def _matches(variable: Variable, item: Any) -> bool:
    position = as_position(item)
    if position is not None:
        return variable.leaf is not None and variable.names[1] == str(position)
    # A label such as inputs[0] is a name before it is a glob.
    return isinstance(item, str) and any(
        item == name or fnmatchcase(name, item) for name in variable.names
    )
