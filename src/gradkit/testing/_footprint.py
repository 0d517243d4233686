"""What a model, inputs and torch's settings hold at one moment, each thing named."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.modules import module as torch_module

from gradkit._guards._random import RandomState, is_generator
from gradkit._problem._tree import flatten

__all__ = ["Footprint", "graph_tensors", "reachable"]

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_DEPTH = 6


@dataclass(frozen=True)
class Held:
    """A thing by identity, a value to compare it by, and how to say that value."""

    thing: Any
    value: Any
    text: str

    def same(self, other: Held) -> bool:
        """Whether nothing happened to it."""
        return self.thing is other.thing and self.value == other.value


class Footprint:
    """Reads everything that a call could leave behind.

    Args:
        model: All attributes of all its modules.
        inputs: Values, flags and gradients of its tensors.
    """

    def __init__(self, model: Any, inputs: Any) -> None:
        self._seen: set[int] = set()
        self._tensors: list[Tensor] = []
        self._generators: list[Any] = []
        self.held = dict(self._read(model, inputs))
        devices = list({t.device: None for t in self._tensors})
        self._devices = devices
        self.random = RandomState(devices, self._generators)

    def changes(self, later: Footprint) -> list[str]:
        """Return what differs from ``later``, in words."""
        found = []
        for name, was in self.held.items():
            now = later.held.get(name)
            if now is None:
                found.append(f"{name} is gone")
            elif not was.same(now):
                text = f" ({was.text}, now {now.text})" if was.text != now.text else ""
                found.append(f"{name} changed{text}")
        found += [
            f"{name} was added ({held.text})"
            for name, held in later.held.items()
            if name not in self.held
        ]
        random = RandomState(self._devices, self._generators)
        found += [
            f"the random state of {name} moved" for name in self.random.moved(random)
        ]
        return found

    def _read(self, model: Any, inputs: Any) -> Iterator[tuple[str, Held]]:
        if isinstance(model, nn.Module):
            for name, module in model.named_modules(remove_duplicate=False):
                yield from self._module(name, module)
        for leaf in flatten(inputs)[0]:
            yield from self._value(f"inputs{leaf.path}", leaf.value, _DEPTH)
        yield from _process()

    def _module(self, name: str, module: nn.Module) -> Iterator[tuple[str, Held]]:
        where = f"{name}." if name else ""
        shown = repr(name) if name else "the model"
        yield f"the class of {shown}", Held(type(module), None, type(module).__name__)
        for key, value in vars(module).items():
            if key in ("_parameters", "_buffers", "_modules"):
                yield from self._items(where, value, _DEPTH, plain=True)
            elif "hooks" in key and isinstance(value, dict):
                yield (
                    f"{key.strip('_').replace('_', ' ')} of {shown}",
                    Held(None, list(value.items()), f"{len(value)}"),
                )
            else:
                yield from self._value(f"{where}{key}", value, _DEPTH)

    def _items(
        self, where: str, container: Any, depth: int, *, plain: bool = False
    ) -> Iterator[tuple[str, Held]]:
        if isinstance(container, dict):
            for key, value in container.items():
                name = f"{where}{key}" if plain else f"{where}[{key!r}]"
                yield from self._value(name, value, depth - 1)
        else:
            for position, value in enumerate(container):
                yield from self._value(f"{where}[{position}]", value, depth - 1)

    def _value(self, name: str, value: Any, depth: int) -> Iterator[tuple[str, Held]]:
        if isinstance(value, Tensor):
            yield from self._tensor(name, value)
        elif isinstance(value, _PLAIN):
            yield name, Held(None, (type(value), value), repr(value)[:60])
        elif isinstance(value, np.ndarray):
            yield name, Held(value, value.tobytes(), "an array")
        elif is_generator(value):
            self._generators.append(value)
            yield name, Held(value, None, type(value).__name__)
        elif isinstance(value, (dict, list, tuple)) and depth:
            thing = None if isinstance(value, tuple) else value
            yield name, Held(thing, len(value), f"{len(value)} items")
            yield from self._items(name, value, depth)
        elif isinstance(value, (set, frozenset)):
            yield name, Held(value, {id(v) for v in value}, f"{len(value)} elements")
        else:
            yield name, Held(value, None, f"a {type(value).__name__}")

    def _tensor(self, name: str, value: Tensor) -> Iterator[tuple[str, Held]]:
        self._tensors.append(value)
        yield name, Held(value, None, _described(value))
        yield f"the values of {name}", Held(None, _bits(value), _summary(value))
        version = None if value.is_inference() else value._version
        yield (
            f"the version of {name}, which a pending backward checks,",
            Held(None, version, str(version)),
        )
        yield (
            f"requires_grad of {name}",
            Held(value.grad_fn, value.requires_grad, str(value.requires_grad)),
        )
        hooks = [
            (kind, list(found.items()))
            for kind in ("_backward_hooks", "_post_accumulate_grad_hooks")
            if (found := getattr(value, kind, None))
        ]
        yield f"hooks of {name}", Held(None, hooks, str(len(hooks)))
        yield from self._items(f"{name}.", vars(value), 1, plain=True)
        if value.is_leaf:
            grad = value.grad
            text = "None" if grad is None else f"{_described(grad)} {_summary(grad)}"
            bits = None if grad is None else _bits(grad)
            yield f"the gradient of {name}", Held(grad, bits, text)


def _bits(value: Tensor) -> Any:
    if value.layout is not torch.strided or value.device.type == "meta":
        return tuple(value.shape)
    flat = value.detach().resolve_conj().resolve_neg().contiguous().flatten().cpu()
    return tuple(value.shape), value.dtype, flat.view(torch.uint8).numpy().tobytes()


def _described(value: Tensor) -> str:
    return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"


def _summary(value: Tensor) -> str:
    if value.layout is not torch.strided or value.device.type == "meta":
        return ""
    if not value.numel() or value.is_quantized:
        return "no entries"
    return f"sum {float(value.detach().cpu().to(torch.complex128).sum().real):.6g}"


def _process() -> Iterator[tuple[str, Held]]:
    """Yield torch's own settings, by what a user calls them."""
    settings = {
        "grad mode": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "the default dtype": torch.get_default_dtype(),
        "the default device": torch.get_default_device(),
        "anomaly mode": torch.is_anomaly_enabled(),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "autocast": (
            torch.is_autocast_enabled("cpu"),
            torch.is_autocast_enabled("cuda"),
            torch.get_autocast_dtype("cpu"),
            torch.get_autocast_dtype("cuda"),
        ),
        "autocast's cache": torch.is_autocast_cache_enabled(),
        "attention's fast path": torch.backends.mha.get_fastpath_enabled(),
        "the number of threads": torch.get_num_threads(),
        "torch's dispatch modes": torch._C._len_torch_dispatch_stack(),
        "torch's function modes": torch._C._len_torch_function_stack(),
        "the level of forward-mode derivatives": forward_ad._current_level,
        "saved tensors' default hooks": _saved_hooks(),
    }
    for name, value in settings.items():
        yield name, Held(None, value, str(value))
    for name, value in vars(torch_module).items():
        if name.startswith("_global_") and isinstance(value, dict):
            yield (
                f"torch's{name.replace('_', ' ')}",
                Held(None, list(value.items()), str(len(value))),
            )


def _saved_hooks() -> bool:
    # Without a hook in place this is None, in all versions that have it.
    module: Any = getattr(torch._C, "_autograd", None)
    top = getattr(module, "_top_saved_tensors_default_hooks", None)
    return top is not None and top(True) is not None


def graph_tensors() -> dict[int, Tensor]:
    """Return the tensors alive in Python that hang on an autograd graph, by ``id``."""
    return {
        id(value): value
        for value in gc.get_objects()
        # isinstance asks __class__, which proxies of other libraries answer oddly.
        if issubclass(type(value), Tensor) and value.grad_fn is not None
    }


def reachable(roots: Iterable[Any], most: int = 20_000) -> set[int]:
    """Return the ids of what is reached from ``roots``, code and modules left out."""
    waiting, seen = list(roots), set()
    while waiting and len(seen) < most:
        value = waiting.pop()
        if id(value) in seen or isinstance(value, type) or callable(value):
            continue
        seen.add(id(value))
        waiting += gc.get_referents(value)
    return seen
