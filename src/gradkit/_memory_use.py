"""How many bytes of tensors are alive, and how many may be."""

from __future__ import annotations

import os
import re
import time
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from gradkit._problem._tree import leaves
from gradkit.errors import InputError

__all__ = ["TensorBytes", "budget", "format_bytes", "free_memory", "ran_out"]


class TensorBytes(TorchDispatchMode):
    """Counts the bytes of the storages that operations create, while they live.

    What an operation allocates and frees within itself is not seen.
    """

    def __init__(self) -> None:
        super().__init__()
        self.alive: dict[int, int] = {}
        self.now = 0
        self.peak = 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is torch.ops.aten.mul.Scalar and args[0]._is_zerotensor():
            # torch dies of this pair under a dispatch mode.
            args = (args[0].clone(), *args[1:])
        result = func(*args, **(kwargs or {}))
        given = {_key(t) for t in leaves((args, kwargs)) if isinstance(t, Tensor)}
        for tensor in leaves(result):
            if isinstance(tensor, Tensor) and tensor.layout is torch.strided:
                self._count(tensor, given)
        return result

    def _count(self, tensor: Tensor, given: set[int | None]) -> None:
        key = _key(tensor)
        # A view, or a result written into an argument, is not new.
        if key is None or key in given or key in self.alive:
            return
        storage = tensor.untyped_storage()
        self.alive[key] = storage.nbytes()
        self.now += storage.nbytes()
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._drop, key)

    def _drop(self, key: int) -> None:
        self.now -= self.alive.pop(key, 0)


def _key(tensor: Tensor) -> int | None:
    try:
        return tensor.untyped_storage()._cdata
    except (NotImplementedError, RuntimeError):
        return None  # a sparse or wrapper tensor has no storage of its own


_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def budget(max_memory: Any, devices: Iterable[torch.device]) -> tuple[int, bool]:
    """Return the bytes that may be alive, and whether the caller set them."""
    if max_memory is not None:
        return _parse(max_memory), True
    free = free_memory(devices)
    # Rounded down to a power of two, so that chunks, and with them the last bits
    # of a result, do not follow what other programs do.
    return 1 << max((free // 4).bit_length() - 1, 0), False


def free_memory(devices: Iterable[torch.device]) -> int:
    """Return the bytes that are free on the fullest of some devices."""
    return min([_free_on(device) for device in devices] or [_free_memory()])


def ran_out(error: Exception) -> bool:
    """Whether an error says that no memory was left."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    # On a CPU, and of accelerators in older releases, it is a plain RuntimeError.
    texts = ("can't allocate memory", "out of memory")
    return isinstance(error, RuntimeError) and any(t in str(error) for t in texts)


def _parse(value: Any) -> int:
    if isinstance(value, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?\s*", value, re.I)
        if match:
            number, unit, binary = match.groups()
            scale = _UNITS[unit.upper()]
            if binary and unit:
                scale = 1024 ** "KMGT".index(unit.upper()) * 1024
            return int(float(number) * scale)
    elif (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and 1 <= value < float("inf")
        and value == int(value)
    ):
        return int(value)
    raise InputError(
        "max_memory must be a positive number of bytes or a text such as '2GB' or"
        f" '512MiB'; got {value!r}",
        argument="max_memory",
    )


def _free_on(device: torch.device) -> int:
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        cached = torch.cuda.memory_reserved(device)
        return free + cached - torch.cuda.memory_allocated(device)
    return _free_memory()


# Reading the system's files takes longer than a small model's Jacobian.
_REREAD_SECONDS = 1.0
_last_read: list[tuple[float, int]] = []


def _free_memory() -> int:
    """Return the free memory of the system, within its control group's limit."""
    now = time.monotonic()
    if not _last_read or now - _last_read[0][0] > _REREAD_SECONDS:
        _last_read[:] = [(now, min(_system_free(), _group_free()))]
    return _last_read[0][1]


def _system_free() -> int:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    except (AttributeError, ValueError, OSError):
        return 2**31  # no way to ask on this system


def _group_free() -> int:
    """Return what the control group leaves, in either version of its files."""
    root = Path("/sys/fs/cgroup")
    pairs = (
        (root / "memory.max", root / "memory.current"),
        (
            root / "memory/memory.limit_in_bytes",
            root / "memory/memory.usage_in_bytes",
        ),
    )
    for limit, usage in pairs:
        try:
            return max(int(limit.read_text()) - int(usage.read_text()), 0)
        except (OSError, ValueError):
            continue
    return 2**62


def format_bytes(count: int) -> str:
    """Return a number of bytes as people read it."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"
