"""The order of a ``DataLoader``, and whether it can be had again."""

from __future__ import annotations

import pickle
from typing import Any

from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    SequentialSampler,
)

from gradkit._guards._random import RandomState, is_generator
from gradkit.errors import InputError
from gradkit.streaming._digest import digest_bytes, digest_tensor

__all__ = [
    "count_of",
    "generators_of",
    "order_of",
    "others_of",
    "outermost",
    "refuse_unseeded",
]


def outermost(loader: DataLoader[Any]) -> Any:
    return loader.sampler if loader.batch_sampler is None else loader.batch_sampler


def count_of(sampler: Any) -> int | None:
    """Return the samples that a sampler of batches gives, where it says so."""
    if type(sampler) is not BatchSampler or not hasattr(sampler.sampler, "__len__"):
        return None
    count = len(sampler.sampler)  # pyright: ignore[reportArgumentType]
    full = count // sampler.batch_size * sampler.batch_size
    return full if sampler.drop_last else count


def _samplers(loader: DataLoader[Any]) -> list[Any]:
    """Return the samplers of a loader, from the outside in."""
    found: dict[int, Any] = {}
    sampler = outermost(loader)
    while sampler is not None and id(sampler) not in found:
        found[id(sampler)] = sampler
        sampler = getattr(sampler, "sampler", None)
    return list(found.values())


def others_of(loader: DataLoader[Any]) -> list[Any]:
    """Return the samplers that are not torch's, and have attributes."""
    return [
        s
        for s in _samplers(loader)
        if hasattr(s, "__dict__") and not type(s).__module__.startswith("torch.")
    ]


def generators_of(loader: DataLoader[Any]) -> list[Any]:
    """Return the generators that a loader and its samplers hold, each once."""
    held = [loader.generator]
    for sampler in _samplers(loader):
        held += getattr(sampler, "__dict__", {}).values()
    return list({id(g): g for g in held if is_generator(g)}.values())


def refuse_unseeded(loader: DataLoader[Any]) -> None:
    for sampler in _samplers(loader):
        name = type(sampler).__name__
        if isinstance(sampler, DistributedSampler):
            raise InputError(
                "loader must give every process all samples, of which each takes its"
                " own; its DistributedSampler gives a part. Use a plain DataLoader",
                argument="loader",
            )
        if getattr(sampler, "generator", True) is None:
            raise InputError(
                "loader shuffles without a seeded generator, so that no later run could"
                f" go on in its order ({name}). Pass shuffle=False, or"
                " generator=torch.Generator().manual_seed(0)",
                argument="loader",
                sampler=name,
            )
        if not type(sampler).__module__.startswith("torch."):
            _refuse_drawn(sampler, generators_of(loader))


def _refuse_drawn(sampler: Any, own: list[Any]) -> None:
    """Refuse another's sampler that draws its order from the process's generators."""
    before, attributes = RandomState((), own), dict(getattr(sampler, "__dict__", {}))
    try:
        next(iter(sampler), None)
        moved = [m for m in before.moved(RandomState((), own)) if " of " not in m]
    finally:
        before.restore()
        if attributes:
            vars(sampler).update(attributes)
    if moved:
        name = type(sampler).__name__
        raise InputError(
            f"loader shuffles without a seeded generator: its {name} draws from"
            f" {' and '.join(moved)}, so that no later run could go on in its order."
            " Give it a generator of its own, with a seed",
            argument="loader",
            sampler=name,
        )


def order_of(loader: DataLoader[Any]) -> dict[str, Any]:
    order: dict[str, Any] = {
        "kind": "a DataLoader",
        "samplers": [type(s).__name__ for s in _samplers(loader)],
        "batch_size": loader.batch_size,
        "batches": len(loader),
    }
    if hasattr(loader.dataset, "__len__"):
        order["samples in the data set"] = len(loader.dataset)  # pyright: ignore
    plain = (SequentialSampler, BatchSampler)
    if any(type(s) not in plain for s in _samplers(loader)):
        order["generators"] = [_state(g) for g in generators_of(loader)]
    return order


def _state(generator: Any) -> str:
    """Return the digest of a generator's state."""
    (_, state, _) = RandomState((), [generator]).own[0]
    if isinstance(state, Tensor):
        return digest_tensor(state).hex()
    return digest_bytes(pickle.dumps(state)).hex()
