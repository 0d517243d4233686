"""Everything of a caller's that a call could touch, recorded by identity and bits."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

Entry = tuple[str, Any, Any]
_CONTAINERS = (dict, list, tuple, set, frozenset)


def bits(tensor: Tensor) -> bytes:
    """Return the values of a tensor bit for bit, NaN and signed zeros included."""
    flat = tensor.detach().contiguous().flatten().cpu()
    return flat.view(torch.uint8).numpy().tobytes()


class Footprint:
    """What a model, an optimiser, tensors and torch's global state hold now.

    Args:
        model: All attributes of all its modules: containers, hooks, flags, counters.
        optimiser: Its state, and the settings of its groups.
        tensors: Inputs, targets, anything else of the caller's.
    """

    def __init__(
        self,
        model: nn.Module,
        optimiser: torch.optim.Optimizer | None = None,
        tensors: Mapping[str, Tensor] | None = None,
    ) -> None:
        self._read: Callable[[], list[Entry]] = lambda: [
            *_of_model(model),
            *_of_optimiser(optimiser),
            *_of_items("tensors", tensors or {}),
            *_of_process(),
        ]
        self.before = self._read()

    def assert_unchanged(self) -> None:
        """Raise an error that names what is not as it was."""
        now = {path: (held, value) for path, held, value in self._read()}
        was = {path: (held, value) for path, held, value in self.before}
        assert list(now) == list(was), f"came or went: {now.keys() ^ was.keys()}"
        changed = {
            path: f"{value!r} -> {now[path][1]!r}"[:200]
            for path, (held, value) in was.items()
            if now[path][0] is not held or now[path][1] != value
        }
        assert changed == {}


def _of_model(model: nn.Module) -> Iterator[Entry]:
    for name, module in model.named_modules():
        yield f"{name}", module, type(module)
        yield from _of_items(f"{name}.", vars(module))


def _of_optimiser(optimiser: torch.optim.Optimizer | None) -> Iterator[Entry]:
    if optimiser is not None:
        for n, group in enumerate(optimiser.param_groups):
            yield from _of_items(f"group {n}", group)
            for i, parameter in enumerate(group["params"]):
                state = optimiser.state.get(parameter, {})
                yield from _of_items(f"state {n}.{i}", state)


def _of_items(path: str, container: Any) -> Iterator[Entry]:
    if isinstance(container, dict):
        # The order of hooks is the order they run in.
        yield f"{path} keys", None, list(container)
        for key, value in container.items():
            yield from _of_value(f"{path}[{key!r}]", value)
    elif isinstance(container, list | tuple):
        for n, value in enumerate(container):
            yield from _of_value(f"{path}[{n}]", value)
    else:
        yield f"{path} elements", None, set(container)


def _of_value(path: str, value: Any) -> Iterator[Entry]:
    if isinstance(value, Tensor):
        yield path, value, bits(value)
        yield from _of_tensor(path, value)
    elif isinstance(value, torch.Generator):
        yield path, value, bits(value.get_state())
    elif isinstance(value, _CONTAINERS):
        yield path, value, type(value)
        yield from _of_items(path, value)
    else:
        # Numbers and strings by value, everything else by identity alone.
        plain = isinstance(value, int | float | str | None)
        yield path, None if plain else value, value if plain else None


def _of_tensor(path: str, tensor: Tensor) -> Iterator[Entry]:
    yield f"{path}.requires_grad", None, (tensor.requires_grad, tensor.is_leaf)
    yield f"{path}.grad_fn", tensor.grad_fn, None
    yield from _of_items(f"{path}.__dict__", vars(tensor))
    yield f"{path} hooks", None, list((tensor._backward_hooks or {}).items())
    if tensor.is_leaf:
        grad = tensor.grad
        yield f"{path}.grad", grad, None if grad is None else bits(grad)


def _of_process() -> Iterator[Entry]:
    yield "torch's random state", None, bits(torch.get_rng_state())
    if torch.cuda.is_available():
        yield "CUDA's random state", None, bits(torch.cuda.get_rng_state())
    yield "random", None, random.getstate()
    state: Any = np.random.get_state()
    yield "numpy.random", None, (state[1].tobytes(), *state[2:])
    yield "grad mode", None, torch.is_grad_enabled()
    yield "inference mode", None, torch.is_inference_mode_enabled()
    yield "default dtype", None, torch.get_default_dtype()
    yield "autocast cache", None, torch.is_autocast_cache_enabled()
    yield "attention fast path", None, torch.backends.mha.get_fastpath_enabled()
    for name in ("_global_forward_hooks", "_global_forward_pre_hooks"):
        hooks = getattr(torch_module, name)
        yield name, hooks, list(hooks.items())
    yield "dispatch modes", None, torch._C._len_torch_dispatch_stack()
    yield "function modes", None, torch._C._len_torch_function_stack()
