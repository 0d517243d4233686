"""Hooks that take a submodule's output, or add to it, for one forward."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from gradkit._problem._names import only_tensor
from gradkit._problem._tree import leaves, map_leaves
from gradkit.errors import InputError

__all__ = ["Capture", "hooked", "keep", "placed", "record", "shifted"]


@dataclass
class Capture:
    """What hooks saw of one submodule during one forward."""

    name: Any
    argument: str
    calls: int = 0
    value: Any = None

    def only(self) -> Any:
        """Return the captured output; a module called never or twice is refused."""
        if self.calls == 1:
            return self.value
        raise InputError(
            f"{self.argument}={self.name!r} must be called exactly once in the"
            f" model's forward; it was called {self.calls} times."
            " Name a submodule that is called once, or a function of the outputs",
            argument=self.argument,
            calls=self.calls,
        )


@contextmanager
def hooked(modules: Sequence[nn.Module], hooks: Sequence[Any]) -> Iterator[None]:
    handles = [
        module.register_forward_hook(hook)
        for module, hook in zip(modules, hooks, strict=True)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def keep(capture: Capture) -> Any:
    """Return a hook that takes an output before later in-place changes."""

    def hook(module: nn.Module, arguments: Any, output: Any) -> Any:
        capture.calls += 1
        capture.value = output
        return map_leaves(lambda v: v.clone() if isinstance(v, Tensor) else v, output)

    return hook


def _replace(output: Any, old: Tensor, new: Tensor) -> Any:
    if len(leaves(output)) == 1 and isinstance(output, Tensor):
        return new
    return map_leaves(lambda v: new if v is old else v, output)


def record(capture: Capture, _: int) -> Any:
    """Return a hook that makes a submodule's output something to differentiate by."""

    def hook(module: nn.Module, arguments: Any, output: Any) -> Any:
        capture.calls += 1
        old = only_tensor(output, capture.name)
        value = old if old.requires_grad else old.detach().requires_grad_()
        capture.value = value
        return _replace(output, old, value.clone())

    return hook


def shifted(deltas: Sequence[Tensor]) -> Callable[[Capture, int], Any]:
    """Return hooks that add a difference to a submodule's output."""

    def make(capture: Capture, index: int) -> Any:
        def hook(module: nn.Module, arguments: Any, output: Any) -> Any:
            capture.calls += 1
            old = only_tensor(output, capture.name)
            return _replace(output, old, old + deltas[index].reshape(old.shape))

        return hook

    return make


def placed(values: Sequence[Tensor]) -> Callable[[Capture, int], Any]:
    """Return hooks that put other values in place of a submodule's output."""

    def make(capture: Capture, index: int) -> Any:
        def hook(module: nn.Module, arguments: Any, output: Any) -> Any:
            capture.calls += 1
            old = only_tensor(output, capture.name)
            value = values[index].detach().to(old.dtype).requires_grad_()
            capture.value = value
            return _replace(output, old, value.clone())

        return hook

    return make
