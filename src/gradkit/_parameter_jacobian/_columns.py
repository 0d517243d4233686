"""The parameters of a ``ParameterJacobian``, and arguments read against them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, cast

import torch
from torch import Size, Tensor

from gradkit._problem._names import nearest
from gradkit._problem._result import overlaps_itself
from gradkit.errors import InputError

__all__ = ["Column", "Columns", "check_target", "read_index", "refusal"]


def refusal(method: str, message: str) -> InputError:
    """Return an error of ``ParameterJacobian.method``."""
    error = InputError(message)
    error.function = f"ParameterJacobian.{method}"
    return error


@dataclass(frozen=True)
class Column:
    """One parameter: its names, shape, dtype and device."""

    name: str
    aliases: tuple[str, ...]
    shape: Size
    dtype: torch.dtype
    device: torch.device

    @property
    def names(self) -> tuple[str, ...]:
        """Every name it answers to."""
        return (self.name, *self.aliases)


class Columns(Sequence[Column]):
    """Parameters in order, found by each of their names."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = tuple(columns)
        self.by_name = {n: c for c in self._columns for n in c.names}

    def __len__(self) -> int:
        return len(self._columns)

    def __getitem__(self, index: Any) -> Any:
        return self._columns[index]

    def __iter__(self) -> Iterator[Column]:
        return iter(self._columns)

    @property
    def names(self) -> list[str]:
        """The parameters' first names."""
        return [c.name for c in self._columns]

    @property
    def total(self) -> int:
        """``P``: the entries of all parameters."""
        return sum(c.shape.numel() for c in self._columns)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that holds every parameter's."""
        dtype = self._columns[0].dtype
        for column in self._columns[1:]:
            dtype = torch.promote_types(dtype, column.dtype)
        return dtype

    @property
    def slices(self) -> dict[str, slice]:
        """Where each parameter's entries stand side by side."""
        slices, start = {}, 0
        for column in self._columns:
            stop = start + column.shape.numel()
            slices[column.name], start = slice(start, stop), stop
        return slices

    def matching(self, name: str) -> list[Column]:
        """Return what a name, a submodule's name or a glob covers."""
        if name in self.by_name:
            return [self.by_name[name]]
        found = [
            c
            for c in self._columns
            if any(fnmatchcase(n, name) or n.startswith(f"{name}.") for n in c.names)
        ]
        if found:
            return found
        raise refusal(
            "select",
            f"parameters={name!r} matches nothing ({nearest(name, [*self.by_name])})",
        )

    def vectors(self, vector: Any) -> dict[str, Tensor]:
        """Return one tensor per parameter from a mapping or a flat tensor."""
        if isinstance(vector, Tensor):
            if tuple(vector.shape) != (self.total,):
                raise refusal(
                    "matvec",
                    f"vector must have shape ({self.total},), or be a mapping from"
                    f" names to tensors; got shape {tuple(vector.shape)}",
                )
            return {n: vector.detach()[part] for n, part in self.slices.items()}
        if not isinstance(vector, Mapping):
            raise refusal(
                "matvec",
                "vector must be a mapping from names to tensors, or one flat tensor"
                f" ({self.total},); got {type(vector).__name__}",
            )
        unknown = [n for n in vector if n not in self.by_name]
        given = {
            self.by_name[n].name: v for n, v in vector.items() if n in self.by_name
        }
        wrong = [
            f"{c.name!r} must be {tuple(c.shape)}, got "
            + (str(tuple(given[c.name].shape)) if c.name in given else "nothing")
            for c in self._columns
            if c.name not in given or given[c.name].shape != c.shape
        ]
        if unknown or wrong:
            texts = wrong + [f"{n!r} is no parameter here" for n in unknown]
            raise refusal("matvec", "vector does not fit: " + "; ".join(texts))
        return {n: v.detach() for n, v in given.items()}

    def bounds(self, max_norm: Any) -> dict[str, Any]:
        """Return one positive bound per parameter."""
        if isinstance(max_norm, Mapping):
            known = {n: b for n, b in max_norm.items() if n in self.by_name}
            bounds = {self.by_name[n].name: b for n, b in known.items()}
            unknown = [n for n in max_norm if n not in known]
            missing = [n for n in self.names if n not in bounds]
            if missing or unknown:
                raise refusal(
                    "clipped_sum",
                    "max_norm must hold one bound for each parameter; "
                    + "; ".join(
                        [f"{n!r} has none" for n in missing]
                        + [f"{n!r} is no parameter here" for n in unknown]
                    ),
                )
        else:
            bounds = dict.fromkeys(self.names, cast(Any, max_norm))
        bounds = {n: _number(bound) for n, bound in bounds.items()}
        for bound in bounds.values():
            if isinstance(bound, bool) or not (
                isinstance(bound, (int, float)) and bound > 0
            ):
                raise refusal(
                    "clipped_sum", f"max_norm must be a positive number; got {bound!r}"
                )
        return bounds


def _number(value: Any) -> Any:
    """Return a tensor or numpy number as Python's."""
    return value.item() if getattr(value, "shape", None) == () else value


def read_index(index: Any, count: int) -> Tensor:
    """Return the chosen samples' numbers, ``(M,)``."""
    if isinstance(index, Tensor):
        index = index.cpu()
    elif isinstance(index, (list, tuple)):
        dtype = None if index else torch.long
        index = torch.as_tensor(index, dtype=dtype, device="cpu")
    try:
        return torch.arange(count, device="cpu")[index].reshape(-1)
    except (IndexError, TypeError, ValueError, RuntimeError) as error:
        raise refusal(
            "samples", f"index must choose among {count} samples; {error}"
        ) from error


def check_target(
    method: str,
    name: str,
    out: Any,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
) -> None:
    """Refuse a tensor to write into that does not fit."""
    if not isinstance(out, Tensor):
        raise refusal(method, f"{name} must be a tensor; got {type(out).__name__}")
    got = (tuple(out.shape), out.dtype, out.device)
    if got != (shape, dtype, device):
        raise refusal(
            method,
            f"{name} must be {shape}, {dtype}, on {device}; got {got[0]}, {got[1]},"
            f" on {got[2]}",
        )
    if out.requires_grad:
        raise refusal(method, f"{name} must not require grad; pass its .detach()")
    if overlaps_itself(out):
        raise refusal(method, f"{name} must not overlap itself; pass its .clone()")
