"""What the modules of a model hold: recorded, replaced by private copies, put back.

A forward may write to buffers, attributes, and lists, dictionaries or objects kept
on a module. Every value is therefore recorded by identity, tensors without a
gradient are replaced by clones for the time of the call, and afterwards the original
*objects* are put back: writing values back into them would break a backward that
the caller has pending.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from gradkit._guards._private import StandIns, private_copy
from gradkit._guards._random import is_generator
from gradkit._problem._target import is_scripted

__all__ = ["ModuleState", "devices_of"]

_MISSING = object()
_VALUES = frozenset((bool, int, float, str, bytes))
_CODE = (type, FunctionType, MethodType, BuiltinFunctionType, ModuleType)
#: What training moves at every step, and no sample's place depends on.
_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
_CONTAINERS = (dict, list, set, deque)


class ModuleState:
    """Everything a set of modules holds, at one moment.

    Args:
        mapping: Values to put in place of others, by ``id`` (private copies of
            parameters, for a computation that is run again later).
    """

    def __init__(self, mapping: dict[int, Any] | None = None) -> None:
        self.generators: list[Any] = []
        #: Plain settings, in order: what they are decides what a forward does.
        self.settings: list[Hashable] = []
        self._modules: dict[int, nn.Module] = {}
        self._held: list[tuple[Any, Any]] = []  # (container, its recorded content)
        self._empty: list[Any] = []
        self._seen: set[int] = set()
        self._flags: dict[int, tuple[Tensor, bool]] = {}
        self._grads: dict[int, tuple[Tensor, Tensor]] = {}
        self._versions: dict[int, int] = {}
        self._swapped: list[tuple[Any, Any, Any]] = []  # (container, key, original)
        self._scripted: list[tuple[Any, Any, Any]] = []
        self._stand_ins = StandIns(mapping)

    def modules(self) -> Iterator[nn.Module]:
        """Yield the modules recorded so far."""
        yield from self._modules.values()

    def adopt(self, root: nn.Module) -> list[nn.Module]:
        """Record ``root`` and what lies below it; return the modules that are new."""
        new = [m for m in root.modules() if id(m) not in self._modules]
        for module in new:
            self._modules[id(module)] = module
            if is_scripted(module):
                self._swap_scripted(module)
            else:
                self._record(module.__dict__, depth=1)
        return new

    def adopt_object(self, value: Any) -> None:
        """Record an object that a model is handed, such as a cache."""
        self._walk(value, depth=4)

    def _note(self, value: Any) -> None:
        """Count what a tensor holds as a setting: it may permute, select or mix."""
        if isinstance(value, Tensor) and not value.is_inference():
            self.settings += (id(value), value._version)

    def _swap_scripted(self, module: nn.Module) -> None:
        """Swap the buffers of a scripted module, which C++ holds."""
        for key, value in list(module._buffers.items()):
            if value is not None and self._stand_ins.needed(value):
                self._scripted.append((module._buffers, key, value))
                module._buffers[key] = self._stand_ins.of(value)

    def _record(self, container: Any, *, depth: int) -> None:
        if id(container) in self._seen:
            return
        self._seen.add(id(container))
        content = _content(container)
        self._held.append((container, content))
        items = content.items() if isinstance(content, dict) else enumerate(content)
        for key, value in items:
            kind = type(value)
            if kind in _VALUES:
                self.settings.append(value)
            elif value is None or isinstance(value, _CODE):
                continue
            elif kind is not tuple and isinstance(value, _CONTAINERS) and not value:
                self._empty.append(value)  # most hooks' dictionaries
            elif self._walk(value, depth=depth) and not isinstance(container, set):
                if key not in _STATISTICS:
                    self._note(value)
                self._swapped.append((container, key, value))
                container[key] = self._stand_ins.of(value)

    def _walk(self, value: Any, *, depth: int) -> bool:
        """Record what lies in ``value``; return whether it needs a stand-in."""
        if isinstance(value, Tensor):
            if is_lazy(value):
                return False  # refused by name
            if value.is_leaf:
                self._flags.setdefault(id(value), (value, value.requires_grad))
                if value.requires_grad and value.grad is not None:
                    self._grads.setdefault(id(value), (value, value.grad))
                if not value.is_inference():
                    self._versions.setdefault(id(value), value._version)
        elif isinstance(value, _CONTAINERS):
            self._record(value, depth=depth)
        elif isinstance(value, tuple):
            for part in value:
                if type(part) in _VALUES:
                    self.settings.append(part)
                else:
                    self._walk(part, depth=depth)
        elif is_generator(value):
            self.generators.append(value)
        elif depth and _has_state(value):
            # Few levels: further objects may lead to the whole program.
            self._record(vars(value), depth=depth - 1)
        return self._stand_ins.needed(value)

    def moved(self) -> list[str]:
        """Return the names of buffers that a forward wrote to or replaced."""
        names = []
        for module in self._modules.values():
            for key, value in module._buffers.items():
                if value is None or value.requires_grad:
                    continue
                if not self._stand_ins.is_untouched(value):
                    names.append(key)
        return names

    def rewind(self) -> None:
        """Bring the modules to where they stood, with private values in place."""
        self._stand_ins.renew()
        self.restore()
        self.hide_gradients()
        for container, key, original in (*self._swapped, *self._scripted):
            container[key] = self._stand_ins.of(original)

    def hide_gradients(self) -> None:
        """Take ``.grad`` away: a backward inside a forward would add to it."""
        for tensor, _ in self._grads.values():
            tensor.grad = None

    def restore(self) -> None:
        """Put the caller's own objects and flags back."""
        for container in self._empty:
            if container:
                container.clear()
        for container, content in self._held:
            _refill(container, content)
        for container, key, original in self._scripted:
            container[key] = original
        for tensor, flag in self._flags.values():
            if tensor.requires_grad is not flag and tensor.is_leaf:
                tensor.requires_grad_(flag)
            if flag and tensor.is_leaf:
                # What a backward inside forward has left goes with it.
                tensor.grad = self._grads.get(id(tensor), (None, None))[1]

    def written(self) -> bool:
        """Whether a tensor that has no stand-in was written to since it was met."""
        return any(
            tensor._version != self._versions[i]
            for i, (tensor, _) in self._flags.items()
            if not tensor.is_inference() and not self._stand_ins.needed(tensor)
        )

    def tensors(self) -> Iterator[Tensor]:
        """Yield the leaf tensors that were met."""
        for tensor, _ in self._flags.values():
            yield tensor

    def bare(self) -> list[Tensor]:
        """Return the tensors that are the caller's own even during the call."""
        return [t for t, _ in self._flags.values() if not self._stand_ins.needed(t)]

    def views_of(self, tensor: Tensor) -> bool:
        """Whether another held tensor lies on the memory of ``tensor``."""
        address = tensor.untyped_storage().data_ptr()
        return any(
            isinstance(value, Tensor)
            and value is not tensor
            and value.numel() > 0
            and value.layout is torch.strided
            and value.untyped_storage().data_ptr() == address
            for _, _, value in self._swapped
        )

    def copies(self) -> dict[int, Any]:
        """Return private copies of what is held, by the ``id`` of the original.

        Parameters become parameters again, with their flag.
        """
        copies: dict[int, Any] = {}
        waiting = [value for _, content in self._held for value in _values(content)]
        waiting += [original for _, _, original in self._scripted]
        while waiting:
            value = waiting.pop()
            if isinstance(value, tuple):
                waiting += value
            elif isinstance(value, (Tensor, np.ndarray)) and id(value) not in copies:
                copies[id(value)] = private_copy(value)
        return copies


def _has_state(value: Any) -> bool:
    """Whether ``value`` is an object of its own kind with attributes to change."""
    return (
        isinstance(getattr(value, "__dict__", None), dict)
        and not isinstance(value, (nn.Module, *_CODE))
        and not type(value).__module__.startswith("torch.")
    )


def _content(container: Any) -> Any:
    """Return a copy of a container's content, whatever its subclass makes of copy."""
    return dict(container) if isinstance(container, dict) else list(container)


def _values(content: Any) -> Iterable[Any]:
    return content.values() if isinstance(content, dict) else content


def _refill(container: Any, content: Any) -> None:
    """Give a container its recorded content back, keeping the container itself."""
    if isinstance(container, dict):
        if len(container) == len(content) and all(
            container.get(key, _MISSING) is value for key, value in content.items()
        ):
            return
        if list(container) != list(content):
            container.clear()
        # Not update(): Counter's adds.
        for key, value in content.items():
            container[key] = value
        return
    now = list(container)
    if len(now) == len(content) and all(map(_is, now, content)):
        return
    container.clear()
    (container.update if isinstance(container, set) else container.extend)(content)


def _is(first: Any, second: Any) -> bool:
    return first is second


def devices_of(tensors: Iterable[Any]) -> list[torch.device]:
    """Return the distinct devices of the tensors among ``tensors``."""
    return list({t.device: None for t in tensors if isinstance(t, Tensor)})
