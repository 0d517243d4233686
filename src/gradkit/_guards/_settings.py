"""Settings of torch that a call changes for its own time."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.nn.utils import parametrize

__all__ = ["quiet_settings"]


@contextmanager
def quiet_settings() -> Iterator[None]:
    """Keep what a call computes out of caches, and torch's fast paths out of it.

    - Autocast caches casts: one made where gradients are off would be reused by the
      caller's own forward, which would then get no gradient.
    - ``parametrize.cached`` keeps computed weights, the caller's and ours apart.
    - The fused path of attention modules has no derivative.
    - What torch says of its own transforms is silenced; a model's warnings pass.
    """
    casts = torch.is_autocast_cache_enabled()
    fast = torch.backends.mha.get_fastpath_enabled()
    weights, depth = parametrize._cache, parametrize._cache_enabled
    with warnings.catch_warnings():
        for text in (
            "There is a performance drop because we have not yet implemented",
            ".*torch.jit.script.* is deprecated",
            "Using `torch.compile",
        ):
            warnings.filterwarnings("ignore", message=text)
        torch.set_autocast_cache_enabled(False)
        torch.backends.mha.set_fastpath_enabled(False)
        parametrize._cache, parametrize._cache_enabled = {}, 0
        try:
            yield
        finally:
            parametrize._cache, parametrize._cache_enabled = weights, depth
            torch.backends.mha.set_fastpath_enabled(fast)
            torch.set_autocast_cache_enabled(casts)
