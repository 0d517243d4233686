"""Digests: of tensors, of batches, of what a run is told apart by."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradkit._problem._tree import flatten
from gradkit.errors import InputError

__all__ = ["SIZE", "digest_batch", "digest_bytes", "digest_json", "digest_tensor"]

#: Bytes of a digest. SHA-256 is what processors have an instruction for; half of it
#: tells 10^9 chunks apart.
SIZE = 16

#: Bytes of a block that has a checksum of its own.
_BLOCK = 2**16

_PLAIN = (str, int, float, complex, bool, bytes, type(None))


def digest_bytes(*parts: bytes | memoryview) -> bytes:
    """Return the digest of bytes put one after the other."""
    found = hashlib.sha256()
    for part in parts:
        found.update(part)
    return found.digest()[:SIZE]


def digest_json(value: Any) -> bytes:
    """Return the digest of plain values, whatever the order of their keys."""
    return digest_bytes(json.dumps(value, sort_keys=True).encode())


def digest_tensor(tensor: Tensor) -> bytes:
    """Return the digest of a tensor's dtype, shape and values."""
    found = hashlib.sha256()
    _feed(found, tensor)
    return found.digest()[:SIZE]


def digest_batch(batch: Any) -> bytes:
    """Return the digest of a batch: its structure, tensors and plain values.

    Of other objects the attributes are seen. Every batch of a run is digested, so that
    of numbers SHA-256 sees the checksums of their blocks: one differing entry is
    always found, and data that differ throughout as surely as by SHA-256.
    """
    found = hashlib.sha256()
    for path, value in _leaves(batch):
        found.update(path.encode())
        _feed(found, value, _checksums)
    return found.digest()[:SIZE]


def _leaves(batch: Any) -> list[tuple[str, Any]]:
    """Return the leaves of a batch with their places."""
    if type(batch) in (list, tuple) and all(isinstance(t, Tensor) for t in batch):
        # What most loaders give; to flatten it takes longer than to digest it.
        return [(f"[{place}]", value) for place, value in enumerate(batch)]
    return [(leaf.path, leaf.value) for leaf in flatten(batch)[0]]


def _checksums(data: memoryview) -> bytes:
    """Return the CRC-32C of each block; ten times as fast as SHA-256."""
    try:
        from google_crc32c import value
    except ImportError:  # it comes with zarr, without which nothing is stored
        return hashlib.sha256(data).digest()
    blocks = (bytes(data[i : i + _BLOCK]) for i in range(0, len(data), _BLOCK))
    return b"".join(value(block).to_bytes(4, "little") for block in blocks)


def _feed(
    found: Any, value: Any, told: Callable[[memoryview], Any] = lambda data: data
) -> None:
    if isinstance(value, np.ndarray) and value.dtype != object:
        found.update(f"{value.dtype}{value.shape}".encode())
        flat = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
        found.update(told(flat.data))
    elif isinstance(value, Tensor) and value.is_nested:
        found.update(b"nested")
        for part in value.unbind():
            _feed(found, part, told)
    elif isinstance(value, Tensor):
        if value.is_meta:
            raise InputError(
                "loader must give tensors with values; got a meta tensor",
                argument="loader",
            )
        # Sparse tensors are digested by what they hold, as dense ones.
        dense = value.detach() if value.layout is torch.strided else value.to_dense()
        found.update(f"{value.dtype}{tuple(value.shape)}".encode())
        flat = dense.resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
        found.update(told(flat.view(torch.uint8).numpy().data))
    elif isinstance(value, _PLAIN):
        found.update(f"{type(value).__qualname__}{value!r}".encode())
    else:
        _feed_object(found, value, told)


def _feed_object(found: Any, value: Any, told: Callable[[memoryview], Any]) -> None:
    """Digest what an object holds, as far as that can be seen."""
    found.update(type(value).__qualname__.encode())
    if isinstance(value, np.ndarray):
        parts: Any = enumerate(value.reshape(-1).tolist())
    else:
        parts = sorted(getattr(value, "__dict__", {}).items())
    for name, part in parts:
        for path, leaf in flatten(part)[0]:
            found.update(f"{name}{path}".encode())
            _feed(found, leaf, told)
