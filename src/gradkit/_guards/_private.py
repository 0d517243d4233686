"""Private values that stand for the caller's while a model runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

__all__ = ["StandIns", "like_original", "private_copy"]


class StandIns:
    """Clones of tensors and arrays that a forward may write to.

    Tensors on one storage get clones on one storage, so that a write to a buffer is
    seen through a view of it.

    Args:
        mapping: Values to use in place of others, by ``id``.
    """

    def __init__(self, mapping: dict[int, Any] | None = None) -> None:
        self._mapping = dict(mapping or {})
        self._clones: dict[int, tuple[Any, Any, int]] = {}  # source, clone, version
        self._original: dict[int, int] = {}  # by the id of the clone
        self._storages: dict[int, torch.UntypedStorage] = {}
        self._group: dict[int, int] = {}

    def needed(self, value: Any) -> bool:
        """Whether a forward could write to ``value``, or something replaces it."""
        if isinstance(value, Tensor):
            return id(value) in self._mapping or _writable(value)
        if isinstance(value, tuple):
            return any(self.needed(part) for part in value)
        return isinstance(value, np.ndarray)

    def of(self, original: Any) -> Any:
        """Return what stands for ``original``."""
        if isinstance(original, tuple):
            parts = [self.of(v) if self.needed(v) else v for v in original]
            make = getattr(original, "_make", type(original))
            return make(parts)
        source = self._mapping.get(id(original), original)
        if isinstance(source, Tensor) and not _writable(source):
            return source
        known = self._clones.get(id(original))
        if known is None:
            clone = self._clone(original, source)
            version = clone._version if isinstance(clone, Tensor) else 0
            known = self._clones[id(original)] = (source, clone, version)
            self._original[id(clone)] = id(original)
        return known[1]

    def is_untouched(self, value: Any) -> bool:
        """Whether ``value`` is a clone made here that nobody has written to."""
        known = self._clones.get(self._original.get(id(value), 0))
        return known is not None and _unchanged(*known)

    def renew(self) -> None:
        """Forget clones that were written to, and those on the same storage."""
        changed = [i for i, known in self._clones.items() if not _unchanged(*known)]
        groups = {self._group[i] for i in changed if i in self._group}
        for group in groups:
            del self._storages[group]
        for i in list(self._clones):
            if i in changed or self._group.get(i) in groups:
                del self._original[id(self._clones[i][1])]
                del self._clones[i]
                self._group.pop(i, None)

    def _clone(self, original: Any, source: Any) -> Any:
        if isinstance(source, np.ndarray):
            return source.copy()
        size = source.numel() * source.element_size()
        if source.layout is not torch.strided or type(source) is not Tensor or not size:
            return source.detach().clone()
        storage = source.untyped_storage()
        address = storage.data_ptr()
        if address not in self._storages:
            self._storages[address] = storage.clone()
        self._group[id(original)] = address
        empty = torch.empty(0, dtype=source.dtype, device=source.device)
        return empty.set_(
            self._storages[address],
            source.storage_offset(),
            source.shape,
            source.stride(),
        )


def _writable(value: Tensor) -> bool:
    return (
        not value.requires_grad
        and not isinstance(value, nn.Parameter)
        and value.device.type != "meta"
    )


def _unchanged(source: Any, clone: Any, version: int) -> bool:
    """Whether a clone still holds its source's values.

    A write through ``.data`` or a view of it moves no version counter, so values
    are compared where the counter says nothing.
    """
    if isinstance(clone, np.ndarray):
        return clone.dtype == source.dtype and clone.tobytes() == source.tobytes()
    if clone._version != version or clone.shape != source.shape:
        return False
    if clone.layout is not torch.strided or clone.is_quantized:
        return True
    if torch.equal(clone, source):
        return True
    # NaN is not equal to itself, but its bytes are.
    return torch.equal(_bytes(clone), _bytes(source))


def _bytes(value: Tensor) -> Tensor:
    return value.detach().reshape(-1).contiguous().view(torch.uint8)


def private_copy(value: Any) -> Any:
    """Return a copy that is the caller's no longer; a parameter stays one."""
    if not isinstance(value, Tensor):
        return value.copy()
    return like_original(value, value.detach().clone(), value.requires_grad)


def like_original(original: Tensor, values: Tensor, requires_grad: bool) -> Tensor:
    """Return ``values`` as a leaf of the original's class, with its attributes.

    Layers branch on ``isinstance(w, nn.Parameter)`` and keep settings on parameters.
    """
    if not isinstance(original, nn.Parameter):
        return values.requires_grad_() if requires_grad else values
    try:
        leaf = Tensor._make_subclass(type(original), values, requires_grad)  # pyright: ignore
    except (TypeError, RuntimeError):
        leaf = nn.Parameter(values, requires_grad)
    vars(leaf).update(vars(original))
    return leaf
