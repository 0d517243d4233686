"""Digests: of tensors, of batches, of what a run is told apart by."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradkit._problem._tree import flatten

__all__ = ["SIZE", "digest_batch", "digest_bytes", "digest_json", "digest_tensor"]

#: Bytes of a digest. SHA-256 is what processors have an instruction for; half of it
#: tells 10^9 chunks apart.
SIZE = 16

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

    Of other objects only the type is seen.
    """
    found = hashlib.sha256()
    for path, value in flatten(batch)[0]:
        found.update(path.encode())
        _feed(found, value)
    return found.digest()[:SIZE]


def _feed(found: Any, value: Any) -> None:
    if isinstance(value, np.ndarray) and value.dtype != object:
        found.update(f"{value.dtype}{value.shape}".encode())
        found.update(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)
    elif isinstance(value, Tensor):
        # Sparse and nested tensors are digested by what they hold, as dense ones.
        dense = value.detach() if value.layout is torch.strided else value.to_dense()
        found.update(f"{value.dtype}{tuple(value.shape)}".encode())
        flat = dense.resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
        found.update(flat.view(torch.uint8).numpy().data)
    else:
        shown = repr(value) if isinstance(value, _PLAIN) else ""
        found.update(f"{type(value).__qualname__}{shown}".encode())
