"""What ``compute`` returned for one batch, as named tensors with samples first."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gradkit._parameter_jacobian._mapping import ParameterJacobian
from gradkit._problem._tree import leaves
from gradkit.errors import InputError

__all__ = ["Alone", "count_samples", "fields_of", "read_rows"]

#: What one tensor without a name is stored as.
_LONE = "rows"

_FORMS = "a tensor, or a mapping, dataclass or sequence of tensors"


class Alone(dict[str, Tensor]):
    """The rows of a ``compute`` that returned one tensor without a name."""


def count_samples(batch: Any) -> int | None:
    """Return the samples of a batch, where all its tensors agree on them."""
    flat = batch if type(batch) in (list, tuple) else leaves(batch)
    if any(not isinstance(t, Tensor) for t in flat):
        flat = leaves(batch)
    tensors = [t for t in flat if isinstance(t, Tensor) and t.dim()]
    sizes = {t.size(0) for t in tensors}  # nested tensors have no other
    return sizes.pop() if len(sizes) == 1 else None


def fields_of(returned: Any) -> dict[str, Any] | None:
    """Return the named parts of what ``compute`` returned; ``None`` of one alone."""
    if isinstance(returned, Mapping):
        found = {str(name): value for name, value in returned.items()}
        if len(found) < len(returned):
            raise InputError(
                "compute must return different names; got some that are alike as texts,"
                f" among {list(returned)}",
                argument="compute",
            )
        return found
    if dataclasses.is_dataclass(returned) and not isinstance(returned, type):
        names = [f.name for f in dataclasses.fields(returned)]
        found = {name: getattr(returned, name) for name in names}
    elif isinstance(returned, tuple) and hasattr(returned, "_asdict"):
        found = returned._asdict()  # pyright: ignore[reportAttributeAccessIssue]
    elif isinstance(returned, Sequence) and not isinstance(returned, str):
        found = {str(place): value for place, value in enumerate(returned)}
    else:
        return None
    # Entries that do not apply are None: an input of whole numbers, say.
    return {name: value for name, value in found.items() if value is not None}


def read_rows(returned: Any, count: int | None) -> dict[str, Tensor]:
    """Return what ``compute`` returned as ``{field: (n, *row)}``, detached.

    Args:
        returned: A tensor, which makes an ``Alone``, or named tensors.
        count: The batch's samples; ``None`` if the batch does not say.

    Raises:
        InputError: Something else, or without the batch's samples first.
    """
    if isinstance(returned, ParameterJacobian):
        raise _formed(returned)
    fields = fields_of(returned)
    single = fields is None
    if fields is None:
        found = Alone({_LONE: _tensor(returned, "")})
    else:
        found = {name: _tensor(value, name) for name, value in fields.items()}
    if not found:
        raise InputError(f"compute must return {_FORMS}; got none", argument="compute")
    expected = next(iter(found.values())).shape[0] if count is None else count
    for name, value in found.items():
        if value.shape[0] != expected:
            raise InputError(
                f"compute must return one row per sample, {expected} for this batch"
                " (samples come first in it too); got shape"
                f" {tuple(value.shape)}{_where('' if single else name)}",
                argument="compute",
                shape=tuple(value.shape),
            )
    return found


def _where(name: str) -> str:
    return f" at {name!r}" if name else ""


def _tensor(value: Any, name: str) -> Tensor:
    if isinstance(value, ParameterJacobian):
        raise _formed(value)
    if not isinstance(value, Tensor):
        advice = ""
        if type(value).__module__ == "numpy":
            advice = "; torch.from_numpy(x) makes a tensor of an array"
        elif fields_of(value) is not None:
            advice = "; give each part a name of its own in one mapping"
        raise InputError(
            f"compute must return {_FORMS}, samples first; got"
            f" {type(value).__name__}{_where(name)}{advice}",
            argument="compute",
        )
    if value.layout is not torch.strided or value.is_quantized or value.is_meta:
        kind = "meta" if value.is_meta else str(value.layout).removeprefix("torch.")
        raise InputError(
            f"compute must return dense tensors; got a {kind} one{_where(name)};"
            " .to_dense() makes one of a sparse tensor",
            argument="compute",
        )
    if not value.dim():
        raise InputError(
            f"compute must return one row per sample; got a number{_where(name)}. A sum"
            " or mean over a batch depends on how the data is cut into batches: return"
            " what each sample has",
            argument="compute",
        )
    return value.detach()


def _formed(rows: ParameterJacobian) -> InputError:
    each = sum(c.shape.numel() * c.dtype.itemsize for c in rows._columns)
    size = each * torch.Size(rows._lead[1:]).numel()
    return InputError(
        "compute must not return a ParameterJacobian, whose rows are"
        f" {size:,} bytes a sample; return what you need of it: rows.norms(),"
        " rows.project(size, seed=0), or rows.flat() for the rows themselves",
        argument="compute",
        bytes_per_sample=size,
    )
