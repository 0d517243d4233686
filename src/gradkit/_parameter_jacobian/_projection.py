"""Random signs that depend on (seed, name, shape, size) alone."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np
import torch
from torch import Size, Tensor

__all__ = ["signs"]

#: Rows of the projection drawn at once. Part of what a projection is: other blocks
#: would draw other signs.
BLOCK = 1024


def signs(
    seed: int, name: str, shape: Size, size: int
) -> Iterator[tuple[slice, Tensor]]:
    """Yield ``(entries, S)``, ``S`` holding ``(entries, size)`` signs in float32.

    A sparse or dense Gaussian matrix would do as well; signs take one bit each, come
    out the same on every machine, and preserve norms in expectation once divided by
    ``sqrt(size)``.

    Source:
        Achlioptas, "Database-friendly random projections" (JCSS 66, 2003), theorem
        1.1. The generator is Philox 4x64 (Salmon et al., SC 2011), keyed by a hash
        of the arguments and the block.
    """
    total = shape.numel()
    for block in range(-(-total // BLOCK)):
        entries = slice(block * BLOCK, min((block + 1) * BLOCK, total))
        text = f"{seed}|{name}|{tuple(shape)}|{size}|{block}"
        key = np.frombuffer(hashlib.sha256(text.encode()).digest()[:16], dtype="<u8")
        words = np.random.Philox(key=key).random_raw(-(-BLOCK * size // 64))
        bits = np.unpackbits(words.astype("<u8").view(np.uint8), bitorder="little")
        count = entries.stop - entries.start
        drawn = bits[: count * size].reshape(count, size)
        yield entries, torch.from_numpy(drawn.astype(np.float32) * 2 - 1)
