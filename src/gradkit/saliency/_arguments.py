"""Arguments that several saliency functions take, read and checked."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from gradkit._problem._inputs import as_position
from gradkit.errors import InputError
from gradkit.saliency._sums import wide

__all__ = [
    "choice",
    "generator",
    "number",
    "per_sample",
    "rows_of",
    "spread",
]


def number(name: str, value: Any, *, above: bool = False) -> float:
    """Return ``value`` if it is a finite number, 0 or more; ``above`` refuses 0."""
    try:
        found = float(value) if not isinstance(value, (bool, str)) else math.nan
    except (TypeError, ValueError, RuntimeError):
        found = math.nan
    if not math.isfinite(found) or found < 0 or (above and not found):
        least = "a number above 0" if above else "a number of at least 0"
        raise InputError(f"{name} must be {least}; got {value!r}", argument=name)
    return found


def choice(name: str, value: Any, allowed: Iterable[str]) -> str:
    """Return ``value`` if it is one of the names allowed."""
    names = list(allowed)
    if value in names:
        return value
    raise InputError(
        f"{name} must be one of {', '.join(map(repr, names))}; got {value!r}",
        argument=name,
    )


def generator(seed: Any) -> torch.Generator:
    """Return a generator of our own. It draws on the CPU, alike for every device."""
    found = as_position(seed)
    if found is None or not -(2**63) <= found < 2**64:
        raise InputError(
            f"seed must be a whole number of at most 64 bits; got {seed!r}",
            argument="seed",
        )
    return torch.Generator(device="cpu").manual_seed(found)


def per_sample(values: Tensor, like: Tensor) -> Tensor:
    """Return ``(N,)`` so that it broadcasts against ``like``, ``(N, *)``."""
    return values.reshape(-1, *[1] * (like.ndim - 1))


def rows_of(values: Tensor) -> Tensor:
    """Return ``(N, *)`` as ``(N, D)``, also where ``N`` is 0."""
    return values.reshape(len(values), values.shape[1:].numel())


def spread(values: Tensor) -> Tensor:
    """Return each sample's largest minus smallest entry, ``(N,)``."""
    flat = rows_of(wide(values))
    if not flat.numel():
        return flat.new_zeros(len(values))
    return flat.amax(1) - flat.amin(1)
