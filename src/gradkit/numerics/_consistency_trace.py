"""What every submodule was given and returned in one forward, in the order it ran."""

from __future__ import annotations

import dataclasses
import threading
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

from gradkit._guards._trace import Untouched
from gradkit._problem._target import Target, modules_within
from gradkit._problem._tree import flatten

__all__ = ["Event", "Key", "Trace", "tensors_of"]


class Key(NamedTuple):
    """One side of one call of a submodule; the model as a whole is called ``""``."""

    name: str
    call: int
    side: str  # "in" or "out"


@dataclass(eq=False)
class Event:
    """What passed one side of a call, and where in the program that was.

    Attributes:
        key: The call and the side.
        kind: The class of the submodule.
        frame: The call whose ``forward`` was running.
        after: The last call that this forward had made, if any.
        tensors: Detached copies, by their path in what was passed.
    """

    key: Key
    kind: str
    frame: Key
    after: Key | None
    tensors: dict[str, Tensor]

    @property
    def place(self) -> str:
        """Where what is new in this event was computed."""
        before = f"{self.key.name!r}" if self.key.side == "in" else None
        if before is None and self.after is None:
            return f"in {self.key.name!r} ({self.kind})"
        place = f"in forward of {self.frame.name!r}"
        if before is None:
            assert self.after is not None
            return f"{place} after {self.after.name!r}"
        if self.after is None:
            return f"{place} before {before}"
        return f"{place} between {self.after.name!r} and {before}"


@dataclass
class _Frame:
    key: Key
    module: Any
    last: Key | None = None


@dataclass(eq=False)
class Trace:
    """Records one forward; hooks are on all modules while it lasts, and gone after."""

    target: Target
    events: list[Event] = field(default_factory=list)
    #: The dtypes that tensors came in; copies of them may be promoted.
    dtypes: set[torch.dtype] = field(default_factory=set)
    _names: dict[int, str] = field(default_factory=dict)
    _frames: list[_Frame] = field(default_factory=list)
    _calls: Counter[str] = field(default_factory=Counter)
    _copies: dict[int, tuple[Any, int, Tensor]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._names = _names(self.target)
        root = self.target.root
        call = self.target.call
        self.kind = getattr(call, "__name__", type(call).__name__)
        if root is not None:
            self.kind = type(root).__name__

    @property
    def by_key(self) -> dict[Key, Event]:
        """The events by their keys."""
        return {event.key: event for event in self.events}

    def run(self, guard: Untouched, call: Any) -> Trace:
        """Run ``call()`` as one forward under ``guard``, and record it."""
        outer = Key("", 0, "out")
        self._frames.append(_Frame(outer, None))
        with guard.forward(), self._hooked():
            outputs = call()
        frame = self._frames[0]
        tensors = self._kept(outputs)
        self.events.append(Event(outer, self.kind, outer, frame.last, tensors))
        self._copies.clear()
        return self

    @contextmanager
    def _hooked(self) -> Iterator[None]:
        first = register_module_forward_pre_hook(self._enter)
        # Called for what fails, too: a model may catch its own exceptions.
        second = register_module_forward_hook(self._leave, always_call=True)
        self._thread = threading.get_ident()
        try:
            yield
        finally:
            first.remove()
            second.remove()

    def _enter(self, module: nn.Module, arguments: Any) -> None:
        if threading.get_ident() != self._thread:
            return
        if len(self._frames) == 1 and module is self.target.call:
            # The model itself, whose call is recorded already.
            self._frames.append(self._frames[0])
            return
        name = self._names.get(id(module), type(module).__name__)
        key = Key(name, self._calls[name], "in")
        self._calls[name] += 1
        frame = self._frames[-1]
        event = Event(key, type(module).__name__, frame.key, frame.last, {})
        event.tensors = self._kept(arguments)
        self.events.append(event)
        self._frames.append(_Frame(key, module))

    def _leave(self, module: nn.Module, arguments: Any, output: Any) -> None:
        if threading.get_ident() != self._thread:
            return
        frame = self._frames.pop()
        if frame.module is None:
            return
        key = frame.key._replace(side="out")
        kept = self._kept(output)
        self.events.append(Event(key, type(module).__name__, key, frame.last, kept))
        self._frames[-1].last = key

    def _kept(self, values: Any) -> dict[str, Tensor]:
        """Return copies, since later operations may write to what is passed on."""
        return {path: self._copy(t) for path, t in tensors_of(values).items()}

    def _copy(self, tensor: Tensor) -> Tensor:
        self.dtypes.add(tensor.dtype)
        known = self._copies.get(id(tensor))
        version = 0 if tensor.is_inference() else tensor._version
        if known is not None and known[0]() is tensor and known[1] == version:
            return known[2]
        copy = tensor.detach().clone()
        self._copies[id(tensor)] = (weakref.ref(tensor), version, copy)
        return copy


def _names(target: Target) -> dict[int, str]:
    """Return the dotted name of every module that can be found, by its ``id``."""
    if target.root is not None:
        return {id(module): name for name, module in target.root.named_modules()}
    found: dict[int, str] = {}
    for root in modules_within(target.call):
        for name, module in root.named_modules():
            whole = ".".join(filter(None, (type(root).__name__, name)))
            found.setdefault(id(module), whole)
    return found


def tensors_of(values: Any) -> dict[str, Tensor]:
    """Return the tensors in nested containers and dataclasses, by path."""
    found: dict[str, Tensor] = {}
    for path, leaf in flatten(values)[0]:
        if isinstance(leaf, Tensor):
            found[path] = torch.view_as_real(leaf) if leaf.is_complex() else leaf
        elif dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
            for part in dataclasses.fields(leaf):
                inner = tensors_of((getattr(leaf, part.name, None),))
                found |= {
                    f"{path}.{part.name}{deeper.removeprefix('[0]')}": value
                    for deeper, value in inner.items()
                }
    return found
