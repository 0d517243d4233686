"""The process's settings that decide the bits of a result, and how two runs differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from gradkit._version import version

__all__ = ["differences", "settings"]


def settings() -> dict[str, Any]:
    """Return what else decides the bits of a result, in this process."""
    return {
        "torch": str(torch.__version__),
        "gradkit": version(),
        "threads": torch.get_num_threads(),
        "default dtype": str(torch.get_default_dtype()),
        "matmul precision": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "cudnn": [
            torch.backends.cudnn.enabled,
            torch.backends.cudnn.benchmark,
            torch.backends.cudnn.deterministic,
        ],
        "denormals": float(torch.tensor(1e-40) * 1) != 0.0,
        "autocast": [
            f"{kind} {torch.get_autocast_dtype(kind)}"
            for kind in ("cpu", "cuda")
            if torch.is_autocast_enabled(kind)
        ],
    }


def differences(before: Any, after: Any, where: str = "") -> list[str]:
    """Return where two descriptions differ, as ``place: was A, is B``.

    Example:
        >>> differences({"threads": 2, "seed": 0}, {"threads": 1, "seed": 0})
        ['threads: was 2, is 1']
    """
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        found = []
        for key in dict.fromkeys([*before, *after]):
            place = f"{where}, {key}" if where else str(key)
            if key not in before:
                found.append(f"{place}: is new")
            elif key not in after:
                found.append(f"{place}: is gone")
            else:
                found += differences(before[key], after[key], place)
        return found
    if before == after:
        return []
    return [f"{where}: was {_short(before)}, is {_short(after)}"]


def _short(value: Any) -> str:
    text = str(value) if isinstance(value, str) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
