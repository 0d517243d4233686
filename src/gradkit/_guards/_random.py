"""The random states that a forward may move: read, compared, put back."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch

__all__ = ["RandomState", "is_generator", "seed_torch"]


def is_generator(value: Any) -> bool:
    """Whether ``value`` is a random generator whose state can be read and set."""
    # numpy loads its part at its first use, which need not be at import.
    kinds = (np.random.Generator, np.random.RandomState)
    return isinstance(value, (torch.Generator, random.Random, *kinds))


def _accelerators(devices: Iterable[torch.device]) -> list[torch.device]:
    return [d for d in devices if d.type not in ("cpu", "meta")]


def _device_module(device: torch.device) -> Any:
    return getattr(torch, device.type)


def seed_torch(seed: int, devices: Iterable[torch.device]) -> None:
    """Seed the CPU's generator and those of ``devices`` alone.

    ``torch.manual_seed`` would also seed devices that no tensor lives on, and
    queue a seed for a CUDA context that does not exist yet.
    """
    torch.default_generator.manual_seed(seed)
    for device in _accelerators(devices):
        generator = torch.Generator(device=device).manual_seed(seed)
        _device_module(device).set_rng_state(generator.get_state(), device)


class RandomState:
    """The states of all generators a forward may draw from, at one moment."""

    def __init__(
        self, devices: Iterable[torch.device], generators: Iterable[Any] = ()
    ) -> None:
        self.torch: torch.Tensor = torch.default_generator.get_state()
        self.devices: list[tuple[torch.device, Any]] = [
            (device, _device_module(device).get_rng_state(device))
            for device in _accelerators(devices)
        ]
        self.python: tuple[Any, ...] = random.getstate()
        self.numpy: Any = np.random.get_state(legacy=False)
        self.own: list[tuple[Any, Any, Callable[[Any], Any]]] = [
            _own_state(generator) for generator in generators
        ]

    def add(self, generator: Any) -> None:
        """Read one more generator."""
        self.own.append(_own_state(generator))

    def restore(self) -> None:
        """Put every generator back."""
        torch.default_generator.set_state(self.torch)
        for device, state in self.devices:
            _device_module(device).set_rng_state(state, device)
        random.setstate(self.python)
        np.random.set_state(self.numpy)
        self.restore_own()

    def restore_own(self) -> None:
        """Put those back that are not the process's."""
        for _, state, put_back in self.own:
            put_back(state)

    def moved(self, later: RandomState) -> list[str]:
        """Return which sources of random numbers differ from ``later``."""
        moved = []
        if not torch.equal(self.torch, later.torch):
            moved.append("torch")
        moved += [
            str(device)
            for (device, state), (_, other) in zip(
                self.devices, later.devices, strict=True
            )
            if not torch.equal(state, other)
        ]
        if self.python != later.python:
            moved.append("random")
        if not _equal_numpy(self.numpy, later.numpy):
            moved.append("numpy.random")
        moved += [
            f"a {type(generator).__name__} of the model"
            for (generator, state, _), (_, other, _) in zip(
                self.own, later.own, strict=False
            )
            if not _equal(state, other)
        ]
        return moved


def _own_state(generator: Any) -> tuple[Any, Any, Callable[[Any], Any]]:
    """Return a generator, its state, and how to set it."""
    if isinstance(generator, torch.Generator):
        return generator, generator.get_state(), generator.set_state
    if isinstance(generator, random.Random):
        return generator, generator.getstate(), generator.setstate
    if isinstance(generator, np.random.RandomState):
        return generator, generator.get_state(), generator.set_state

    def put_back(state: Any) -> None:
        generator.bit_generator.state = state

    return generator, generator.bit_generator.state, put_back


def _equal_numpy(first: Any, second: Any) -> bool:
    """Compare numpy's global state; bytes are compared faster than numbers."""
    if first["bit_generator"] != "MT19937":
        return _equal(first, second)
    key, other = first["state"], second["state"]
    return (
        key["pos"] == other["pos"]
        and first["gauss"] == second["gauss"]
        and first["has_gauss"] == second["has_gauss"]
        and key["key"].tobytes() == other["key"].tobytes()
    )


def _equal(first: Any, second: Any) -> bool:
    """Compare nested states that hold arrays."""
    if isinstance(first, torch.Tensor):
        return torch.equal(first, second)
    if isinstance(first, np.ndarray):
        return bool(np.array_equal(first, second))
    if isinstance(first, (tuple, list)):
        return all(map(_equal, first, second))
    if isinstance(first, dict):
        return all(_equal(first[key], second[key]) for key in first)
    return first == second
