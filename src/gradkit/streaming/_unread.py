"""What is asked of a stored array as if it had been read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import torch

from gradkit._dtypes import short
from gradkit._offered import no_attribute

__all__ = ["Unread"]


class Unread:
    """Answers what a tensor has, and a stored array has not."""

    _name: str
    shape: torch.Size

    def __repr__(self) -> str:
        samples, *row = self.shape
        dtype = short(getattr(self, "dtype", ""))
        row = tuple(row)
        return (
            f"Column({self._name!r}, {samples} samples, {dtype} {row} a sample;"
            " [:] reads it)"
        )

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            table: dict[str, str] = {}
            if not name.startswith("_") and hasattr(torch.Tensor, name):
                table[name] = f"read it first: rows[{self._name!r}][:].{name}"
            where = f"{type(self).__name__!r} object"
            raise no_attribute(self, where, name, dir(type(self)), table)

        def _unread(self, other: Any) -> NoReturn:
            raise TypeError(
                f"it is not read yet; read it first: rows[{self._name!r}][:]"
            )

        __gt__ = __lt__ = __ge__ = __le__ = _unread
        __add__ = __sub__ = __mul__ = __truediv__ = _unread
        __radd__ = __rsub__ = __rmul__ = __rtruediv__ = _unread
