"""What the modules of a model hold: recorded, replaced by private copies, put back.

A forward may write to buffers, attributes, and lists or dictionaries kept on a
module. Every value is therefore recorded by identity, tensors without a gradient
are replaced by clones for the time of the call, and afterwards the original
*objects* are put back: writing values back into them would break a backward that
the caller has pending.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gradkit._guards._random import is_generator
from gradkit._problem._target import is_scripted

__all__ = ["ModuleState"]

_CONTAINERS = (dict, OrderedDict, defaultdict, Counter, list, set, deque)


def _is_container(value: Any) -> bool:
    return type(value) in _CONTAINERS


def _values(container: Any) -> Iterable[Any]:
    return container.values() if isinstance(container, dict) else container


def _same_items(container: Any, content: Any) -> bool:
    """Whether a list, deque or set holds exactly the objects it held, in order."""
    if isinstance(container, set):
        return container == content
    return len(container) == len(content) and all(
        a is b for a, b in zip(container, content, strict=True)
    )


def _refill(container: Any, content: Any) -> None:
    """Give a container its recorded content back, keeping the container itself."""
    if isinstance(container, dict):
        if list(container) != list(content):
            container.clear()
            # Counter.update would add.
            dict.update(container, content)
            return
        for key, value in content.items():
            if container[key] is not value:
                container[key] = value
    elif not _same_items(container, content):
        container.clear()
        (container.update if isinstance(container, set) else container.extend)(content)


class ModuleState:
    """Everything a set of modules holds, at one moment.

    Args:
        mapping: Tensors to put in place of others, by ``id`` (private copies of
            parameters, for a computation that is run again later).
    """

    def __init__(self, mapping: dict[int, Tensor] | None = None) -> None:
        self._modules: dict[int, nn.Module] = {}
        self._held: list[tuple[Any, Any]] = []  # (container, its recorded content)
        self._seen: set[int] = set()
        self._clones: dict[int, Any] = {}  # by the id of the original
        self._flags: dict[int, tuple[Tensor, bool]] = {}
        self._mapping = dict(mapping or {})
        self._swapped: list[tuple[Any, Any, Any]] = []  # (container, key, original)
        self.generators: list[Any] = []

    def modules(self) -> Iterator[nn.Module]:
        """Yield the modules recorded so far."""
        yield from self._modules.values()

    def adopt(self, root: nn.Module) -> list[nn.Module]:
        """Record ``root`` and what lies below it; return the modules that are new."""
        new = [m for m in root.modules() if id(m) not in self._modules]
        for module in new:
            self._modules[id(module)] = module
            if not is_scripted(module):
                self._record(module.__dict__)
        return new

    def _record(self, container: Any) -> None:
        if id(container) in self._seen:
            return
        self._seen.add(id(container))
        self._held.append((container, container.copy()))
        items = (
            container.items() if isinstance(container, dict) else enumerate(container)
        )
        for key, value in items:
            if self._walk(value) and not isinstance(container, set):
                self._swapped.append((container, key, value))
        for holder, key, original in self._swapped:
            if holder is container:
                holder[key] = self._stand_in(original)

    def _walk(self, value: Any) -> bool:
        """Record what lies in ``value``; return whether it needs a stand-in."""
        if isinstance(value, Tensor):
            if value.is_leaf:
                self._flags.setdefault(id(value), (value, value.requires_grad))
            return self._needs_one(value)
        if _is_container(value):
            self._record(value)
        elif type(value) is tuple:
            needs = [self._walk(part) for part in value]  # every part is recorded
            return any(needs)
        elif is_generator(value):
            self.generators.append(value)
        return isinstance(value, np.ndarray)

    def _needs_one(self, value: Any) -> bool:
        """Whether a forward could write to ``value`` itself."""
        if isinstance(value, Tensor):
            return id(value) in self._mapping or _is_private(value)
        return isinstance(value, np.ndarray) or type(value) is tuple

    def _stand_in(self, original: Any) -> Any:
        """Return the private value that stands for ``original``."""
        if isinstance(original, tuple):
            return tuple(
                self._stand_in(v) if self._needs_one(v) else v for v in original
            )
        source = self._mapping.get(id(original), original)
        if isinstance(source, Tensor) and not _is_private(source):
            return source
        clone = self._clones.get(id(original))
        if clone is None or not _unchanged(clone, source):
            # Only clones made here are ever compared, so version 0 is pristine.
            clone = _cloned(source)
            self._clones[id(original)] = clone
        return clone

    def moved(self) -> list[str]:
        """Return the names of buffers that a forward wrote to or replaced."""
        clones = {id(self._clones[i]): i for i in self._clones}
        sources = {id(o): self._mapping.get(id(o), o) for _, _, o in self._swapped}
        names = []
        for module in self._modules.values():
            if is_scripted(module):
                continue
            for key, value in module._buffers.items():
                if value is None or value.requires_grad:
                    continue
                original = clones.get(id(value))
                if original is None or not _unchanged(value, sources[original]):
                    names.append(key)
        return names

    def rewind(self) -> None:
        """Bring the modules to where they stood, with private values in place."""
        self.restore()
        for container, key, original in self._swapped:
            container[key] = self._stand_in(original)

    def restore(self) -> None:
        """Put the caller's own objects and flags back."""
        for container, content in self._held:
            _refill(container, content)
        for tensor, flag in self._flags.values():
            if tensor.requires_grad is not flag and tensor.is_leaf:
                tensor.requires_grad_(flag)

    def copies(self) -> dict[int, Any]:
        """Return private copies of what is held, by the ``id`` of the original.

        Parameters become parameters again, with their flag.
        """
        copies: dict[int, Any] = {}
        waiting = [v for _, content in self._held for v in _values(content)]
        while waiting:
            value = waiting.pop()
            if type(value) is tuple:
                waiting += value
            elif isinstance(value, (Tensor, np.ndarray)) and id(value) not in copies:
                copies[id(value)] = _private(value)
        return copies


def _is_private(value: Tensor) -> bool:
    """Whether a forward may write to a tensor, so that it gets a clone."""
    return (
        not value.requires_grad
        and not isinstance(value, nn.Parameter)
        and value.device.type != "meta"
    )


def _cloned(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value.copy()


def _private(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value.copy()
    copy = value.detach().clone()
    if isinstance(value, nn.Parameter):
        return nn.Parameter(copy, requires_grad=value.requires_grad)
    return copy.requires_grad_(value.requires_grad) if value.requires_grad else copy


def _unchanged(clone: Any, original: Any) -> bool:
    """Whether a clone still holds the original's values.

    A write through ``.data`` moves no version counter, so values are compared
    where the counter says nothing.
    """
    if isinstance(clone, np.ndarray):
        return clone.dtype == original.dtype and clone.tobytes() == original.tobytes()
    if clone._version != 0 or clone.shape != original.shape:
        return False
    if torch.equal(clone, original):
        return True
    # NaN is not equal to itself.
    return clone.is_floating_point() and torch.equal(
        clone.nan_to_num(), original.nan_to_num()
    )


def devices_of(tensors: Iterable[Any]) -> list[torch.device]:
    """Return the distinct devices of the tensors among ``tensors``."""
    return list({t.device: None for t in tensors if isinstance(t, Tensor)})
