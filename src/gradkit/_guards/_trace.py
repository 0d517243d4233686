"""Leave no trace: the one context that every entry point goes through."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from gradkit._guards._autocast import Autocast
from gradkit._guards._memory import Known
from gradkit._guards._modules import ModuleState, devices_of
from gradkit._guards._random import RandomState, seed_torch
from gradkit._guards._settings import quiet_settings
from gradkit._problem._inputs import as_position
from gradkit._problem._target import (
    Target,
    couples_samples,
    module_name,
    modules_within,
    refuse_module,
)
from gradkit.errors import (
    InputError,
    SampleDependenceError,
    UnsupportedModelError,
)

__all__ = ["LOCK", "Untouched", "inside_forward"]

#: Modules are shared between threads, and a call swaps what they hold. It is taken
#: before anything of a module is read.
LOCK = threading.RLock()

_forward_depth = threading.local()


def inside_forward() -> bool:
    """Whether this thread runs a forward on behalf of another gradkit call."""
    return getattr(_forward_depth, "value", 0) > 0


def _eager() -> Any:
    """Return a context in which compiled code runs uncompiled.

    Importing Dynamo takes a second; where nobody imported it, nothing is compiled.
    """
    if "torch._dynamo" not in sys.modules:
        return ExitStack()
    return torch.compiler.set_stance("force_eager")


class Untouched:
    """Everything of the caller's, as it was, whatever happens inside.

    Inside, gradients are recorded whatever mode the caller is in, tensors that a
    forward may write to are private, compiled code runs eagerly, and every
    ``forward`` starts from the same state.

    Args:
        target: The model.
        tensors: The tensors among the inputs.
        seed: What ``torch.manual_seed`` would get before the forward, or ``None``.
        batched: Whether modules known to couple samples are refused.
        parameters: Tensors that stand outside the model but belong to the call.
        objects: What else the model is handed.
        mapping: Tensors to put in place of a module's own, by ``id``.
        start: The random state to start from, where it is not the present one.
    """

    def __init__(
        self,
        target: Target,
        tensors: Iterable[Tensor],
        *,
        seed: int | None = None,
        batched: bool = True,
        parameters: Iterable[Tensor] = (),
        objects: Iterable[Any] = (),
        mapping: dict[int, Tensor] | None = None,
        start: RandomState | None = None,
    ) -> None:
        self.target = target
        self.seed: int | None = _read_seed(seed)
        self.batched = batched
        self._tensors = [*tensors, *parameters]
        self.state: ModuleState = ModuleState(mapping)
        self._given_start = start
        self._fresh = True  # no forward has run yet
        self._objects = list(objects)
        self._stack = ExitStack()
        self._thread = threading.get_ident()
        self.drew: list[str] = []
        self.moved: list[str] = []
        self.devices: list[torch.device] = []
        self.autocast: Autocast = Autocast(())
        self.closely: bool = True

    def __enter__(self) -> Untouched:
        stack = self._stack
        try:
            if torch.is_inference_mode_enabled():
                stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.enable_grad())
            stack.enter_context(_eager())
            stack.enter_context(quiet_settings())
            stack.callback(self.state.restore)
            if self.target.root is not None:
                self.adopt(self.target.root)
            else:
                for module in modules_within(self.target.call):
                    self.adopt(module)
            for value in self._objects:
                self.state.adopt_object(value)
            self._read_random()
            self.autocast = Autocast.of(self.devices)
            stack.enter_context(self.autocast.off())
        except BaseException:
            stack.close()
            raise
        return self

    def __exit__(self, *exception: Any) -> None:
        self._stack.close()

    def look(self, seen: Known, *, closely: bool) -> None:
        """Say how the forwards of this call are watched.

        Closely, every module that is called is met, also one that the model holds out
        of sight, and every operation is seen before it runs. A model that has passed
        is looked at closely again at calls 2, 4, 8, …; in between, what it was seen to
        call is recorded at once, and writes are noticed afterwards.
        """
        for reference in seen.modules:
            module = reference()
            if module is not None:
                self.adopt(module)
        couples = self.batched and any(map(couples_samples, self.modules()))
        self.closely = closely or couples
        if self.closely:
            hook = register_module_forward_pre_hook(self._meet)
            self._stack.callback(hook.remove)

    def seen(self) -> list[weakref.ref[nn.Module]]:
        """Return the modules met that the model's own list lacks."""
        root = self.target.root
        own = set() if root is None else {id(m) for m in root.modules()}
        return [weakref.ref(m) for m in self.modules() if id(m) not in own]

    def _read_random(self) -> None:
        self.devices = devices_of([*self._tensors, *self.state.tensors()])
        self.start: RandomState = RandomState(self.devices, self.state.generators)
        self._before = self.start
        self._stack.callback(self._before.restore)
        if self._given_start is not None:
            self._given_start.restore()
        elif self.seed is not None:
            seed_torch(self.seed, self.devices)
        else:
            return
        self.start = RandomState(self.devices, self.state.generators)

    def _states(self) -> list[RandomState]:
        # None before the states are read: adopted generators are read with the rest.
        return [s for n in ("_before", "start") if (s := getattr(self, n, None))]

    def adopt(self, module: nn.Module) -> None:
        """Record a module that may not be below the model."""
        known = len(self.state.generators)
        for new in self.state.adopt(module):
            refuse_module(self.target.root, new)
        for generator in self.state.generators[known:]:
            for state in {id(s): s for s in self._states()}.values():
                state.add(generator)

    def _meet(self, module: nn.Module, _: Any) -> None:
        """Record a module that only its call makes known, and refuse couplings."""
        if threading.get_ident() != self._thread:
            return
        self.adopt(module)
        reason = couples_samples(module) if self.batched else None
        if reason is not None:
            where = module_name(self.target.root, module)
            advice = "." if "Build" in reason else ", or replace it by GroupNorm."
            raise SampleDependenceError(
                f"samples must be independent; {type(module).__name__} ({where})"
                f" {reason}{advice}",
                module=where,
            )

    def modules(self) -> list[nn.Module]:
        """Return the modules known so far."""
        return list(self.state.modules())

    def copies(self) -> dict[int, Tensor]:
        """Return private copies of what the modules hold, by ``id``."""
        return self.state.copies()

    @contextmanager
    def forward(self) -> Iterator[None]:
        """Start a forward from the state of the call's beginning."""
        if self._fresh:
            self.state.hide_gradients()
        else:
            self.rewind()
        self._fresh = False
        depth = getattr(_forward_depth, "value", 0)
        _forward_depth.value = depth + 1
        try:
            yield
        finally:
            _forward_depth.value = depth

    def observe(self) -> None:
        """Note what the forward just made drew or moved; refuse unseeded draws."""
        if self.state.written():
            raise UnsupportedModelError(
                "the model's forward wrote to a parameter of its own, which changed the"
                " caller's model. Write to it after the optimiser's step instead, or"
                " register the constraint with torch.nn.utils.parametrize"
            )
        self.moved = self.state.moved()
        self.drew = self.start.moved(RandomState(self.devices, self.state.generators))
        if self.drew and self.seed is None:
            raise InputError(
                f"the model draws random numbers ({', '.join(self.drew)}), so its"
                " derivative depends on the draw; pass seed=<int> (in a loop, the"
                " step number) for the draw of torch.manual_seed(seed), or call"
                " model.eval() first",
                argument="seed",
                drew=self.drew,
            )

    def rewind(self) -> None:
        """Bring modules and generators back to where the call began."""
        self.state.rewind()
        self.start.restore()


def _read_seed(seed: Any) -> int | None:
    if seed is None:
        return None
    number = as_position(seed)
    if number is None:
        raise InputError(
            f"seed must be a whole number; got {type(seed).__name__}", argument="seed"
        )
    return number
