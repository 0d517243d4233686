"""How quantities are read off the entries, and shaped as the caller knows them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Size, Tensor

from gradkit._parameter_jacobian._columns import Columns
from gradkit._parameter_jacobian._entries import Entry

__all__ = ["Reading"]


class Reading:
    """What a ``ParameterJacobian`` holds, and what every quantity asks of it."""

    _entries: tuple[Entry, ...]
    _columns: Columns
    _lead: tuple[int, ...]

    @property
    def _device(self) -> torch.device:
        return self._columns[0].device

    @property
    def _rows_shape(self) -> tuple[int, int]:
        return self._lead[0], Size(self._lead[1:]).numel()

    @property
    def _count(self) -> int:
        return Size(self._lead).numel()

    def _each(self, ask: Callable[[Entry], dict[str, Tensor]]) -> dict[str, Tensor]:
        found = {n: v for entry in self._entries for n, v in ask(entry).items()}
        return {name: found[name] for name in self._columns.names}

    @property
    def _ones(self) -> Tensor:
        return torch.ones(
            self._rows_shape, dtype=self._columns.dtype, device=self._device
        )

    def _norms(self, *, per_parameter: bool) -> dict[str, Tensor]:
        """Return ``(N, R)`` per parameter: of its part, or of the whole row."""
        found = self._each(lambda entry: entry.norms())
        if per_parameter:
            return found
        dtype = torch.promote_types(torch.float32, self._columns.dtype)
        stacked = torch.stack([v.to(dtype) for v in found.values()])
        total: Tensor = torch.linalg.vector_norm(stacked, dim=0)
        return {name: total for name in found}  # noqa: C420

    def _weighted(self, weights: Tensor) -> dict[str, Tensor]:
        every = dict.fromkeys(self._columns.names, weights)
        return self._each(lambda entry: entry.rmatvec(every))

    def _shaped(
        self, found: Mapping[str, Tensor], *, lead: bool = False
    ) -> dict[str, Tensor]:
        """Return each parameter's tensor in its shape (or the rows') and dtype."""
        return {
            c.name: found[c.name].reshape(self._lead if lead else c.shape).to(c.dtype)
            for c in self._columns
        }
