"""What a run's rows depend on, as plain values that can be stored and compared.

Modules, tensors and functions become digests of what decides their results. Two runs
whose descriptions are equal give the same rows; where they differ, the difference has
a name.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import types
from collections.abc import Mapping, Set
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gradkit._problem._target import unwrap
from gradkit.errors import InputError
from gradkit.streaming._code import code_of, describe_function
from gradkit.streaming._digest import digest_bytes, digest_tensor

__all__ = ["describe"]

_PLAIN = (bool, int, str, type(None))
#: Attributes that every module has; what decides results among them is described
#: apart.
_OF_MODULES = frozenset(vars(nn.Module()))
#: Steps into attributes of attributes; deeper lies what decides no rows.
_DEEPEST = 12
_HOOKS = ("_forward_pre_hooks", "_forward_hooks")


def describe(value: Any, where: str) -> Any:
    """Return JSON values that differ where ``value`` does.

    Args:
        value: Models, tensors, arrays, functions, plain values; nested as one likes.
        where: What to call it in an error.

    Raises:
        InputError: It holds something else, whose values cannot be told.
    """
    return _Description(where).of(value, "")


class _Description:
    """One description, in which everything is described once."""

    def __init__(self, where: str) -> None:
        self._where = where
        # By ``id``, with the thing itself, so that no other gets the same.
        self._met: dict[int, tuple[str, Any]] = {}

    def of(self, value: Any, place: str, *, lenient: bool = False) -> Any:
        """Return the description of a value; ``lenient`` tells others by their type."""
        simple = self._simple(value, place)
        if simple is not None or value is None:
            return simple
        if lenient and place.count(".") + place.count("[") > _DEEPEST:
            return _name(type(value))
        if id(value) in self._met:
            return f"the same as {self._met[id(value)][0] or 'all'}"
        self._met[id(value)] = place, value
        if isinstance(value, nn.Module):
            return self._module(unwrap(value), place)
        if isinstance(value, Mapping):
            parts = ((str(k), v) for k, v in value.items())
            return self._named(parts, place, lenient)
        if isinstance(value, (list, tuple)):
            every = enumerate(value)
            return [self.of(v, f"{place}[{i}]", lenient=lenient) for i, v in every]
        if isinstance(value, Set):
            return sorted(str(self.of(v, place, lenient=lenient)) for v in value)
        found = self._callable(value, place)
        return self._object(value, place, lenient) if found is None else found

    def _simple(self, value: Any, place: str) -> Any:
        if isinstance(value, _PLAIN):
            return value
        if isinstance(value, float):
            return repr(value)  # JSON has no infinities
        if isinstance(value, Tensor):
            return self._tensor(value, place)
        if isinstance(value, (np.ndarray, np.generic)):
            array = np.array(value)
            if array.dtype.kind in "biufc":
                return self._tensor(torch.from_numpy(array), place)
            return [str(array.dtype), repr(array.tolist())]
        if isinstance(value, torch.Generator):
            return self._tensor(value.get_state(), place)
        if isinstance(value, (torch.dtype, torch.device, complex, bytes)):
            return repr(value)
        return os.fspath(value) if isinstance(value, os.PathLike) else None

    def _named(self, parts: Any, place: str, lenient: bool) -> dict[str, Any]:
        return {
            name: self.of(value, f"{place}.{name}" if place else name, lenient=lenient)
            for name, value in parts
        }

    def _tensor(self, value: Tensor, place: str) -> str:
        if value.is_meta or type(value).__name__ == "DTensor":
            kind = "meta" if value.is_meta else "distributed"
            raise InputError(
                f"{self._at(place)} is a {kind} tensor, whose values cannot be read"
                " here; gather it first",
                argument="identity",
            )
        dtype = str(value.dtype).removeprefix("torch.")
        device = "" if value.device.type == "cpu" else f" on {value.device.type}"
        return f"{dtype}{list(value.shape)}{device} {digest_tensor(value).hex()}"

    def _at(self, place: str) -> str:
        return f"{self._where}: {place}" if place else self._where

    # -- functions and objects ----------------------------------------------------

    def _callable(self, value: Any, place: str) -> Any:
        """Describe a function by its name, code, and what it reads from around it."""
        if isinstance(value, functools.partial):
            parts = {"of": value.func, "args": value.args, "kwargs": value.keywords}
            return self._named(parts.items(), place, False)
        if isinstance(value, types.MethodType):
            parts = {"method": value.__func__, "of": value.__self__}
            return self._named(parts.items(), place, True)
        if isinstance(value, types.FunctionType):
            found, reads = describe_function(value)
            # What a function reads may be anything; what can be told is.
            return found | self._named(reads.items(), place, True)
        if isinstance(value, (type, types.BuiltinFunctionType)):
            return _name(value)
        return None

    def _object(self, value: Any, place: str, lenient: bool) -> Any:
        if type(value).__module__.startswith("torch._"):
            return _name(type(value))  # what torch keeps for a process
        if dataclasses.is_dataclass(value):
            names = [f.name for f in dataclasses.fields(value)]
            parts = {name: getattr(value, name) for name in names}
        elif hasattr(value, "__dict__") and (lenient or callable(value)):
            parts = dict(vars(value))
        elif lenient:
            return _name(type(value))
        else:
            raise InputError(
                f"{self._at(place)} must be models, tensors, functions or plain values,"
                f" which can be told from others; got {type(value).__name__}. Give what"
                " decides its results, as a mapping of such values",
                argument="identity",
            )
        return {"type": _name(type(value)), **self._named(parts.items(), place, True)}

    # -- modules ------------------------------------------------------------------

    def _module(self, model: nn.Module, place: str) -> dict[str, Any]:
        """Describe a module by its tensors, flags, attributes, hooks and code."""
        parameters = [(n, p) for n, p in model.named_parameters() if p is not None]
        buffers = [(n, b) for n, b in model.named_buffers() if b is not None]
        parts: dict[str, Any] = {
            "type": _name(type(model)),
            **{f"parameter {n}": self._tensor(p, n) for n, p in parameters},
            **{f"buffer {n}": self._tensor(b, n) for n, b in buffers},
        }
        for name, module in model.named_modules():
            self._met.setdefault(id(module), (name, module))
            at = f"module {name}" if name else "module"
            parts[at] = {"type": _name(type(module)), "training": module.training}
            parts[at] |= self._of_one(module, at)
        parts["frozen"] = [name for name, p in parameters if not p.requires_grad]
        return parts

    def _of_one(self, module: nn.Module, at: str) -> dict[str, Any]:
        own = {n: v for n, v in vars(module).items() if n not in _OF_MODULES}
        own |= {n: list(vars(module)[n].values()) for n in _HOOKS if vars(module)[n]}
        found = self._named(own.items(), at, True)
        code = code_of(type(module))
        if code:
            found["code"] = digest_bytes(*code).hex()
        return found


def _name(value: Any) -> str:
    module = getattr(value, "__module__", None)
    return f"{module or ''}.{getattr(value, '__qualname__', repr(value))}".lstrip(".")
