"""What is compared with one another: tensors of the same names, shapes and places."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import (  # pyright: ignore[reportMissingModuleSource]
    is_functorch_wrapped_tensor,
)

from gradkit._dtypes import short
from gradkit.errors import InputError
from gradkit.numerics._arguments import floating, refuse_other_devices
from gradkit.numerics._ulps import unit_roundoff

__all__ = ["read_compared", "refuse_unlike"]

_SHOWN = 4


def refuse_unlike(given: Mapping[str, Any]) -> None:
    """Refuse values of another kind, or of other names, than the first one's.

    Args:
        given: By argument: one value, or a mapping of values by name.

    Raises:
        InputError: A mapping stands beside one value, or names differ.
    """
    (first, one), *others = given.items()
    for argument, other in others:
        if isinstance(one, Mapping) != isinstance(other, Mapping):
            raise InputError(
                f"{argument} must be of the kind of {first}; got {_kind(other)} and"
                f" {_kind(one)}",
                argument=argument,
            )
        if isinstance(one, Mapping) and _names(one, first) != _names(other, argument):
            _refuse_names(first, one, argument, other)


def _kind(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"a mapping or sequence of {len(value)}"
    return "a tensor" if isinstance(value, Tensor) else str(value)[:40]


def _names(value: Mapping[Any, Any], argument: str) -> set[str]:
    names = {str(key) for key in value}
    if len(names) < len(value):
        raise InputError(
            f"{argument} must have names that differ as text; got"
            f" {', '.join(map(repr, value))}",
            argument=argument,
        )
    return names


def _refuse_names(
    first: str, one: Mapping[Any, Any], argument: str, other: Mapping[Any, Any]
) -> None:
    if all(list(value) == [*range(len(value))] for value in (one, other)):
        text = f"the length of {first}, {len(one)}; got {len(other)}"
    else:
        mine, others = _names(one, first), _names(other, argument)
        lacks, has = mine - others, others - mine
        words = [f"lacks {_listed(lacks)}"] if lacks else []
        words += [f"has {_listed(has)} besides"] if has else []
        text = f"the names of {first}; it {' and '.join(words)}"
    raise InputError(f"{argument} must have {text}", argument=argument)


def _listed(names: set[str]) -> str:
    shown = ", ".join(map(repr, sorted(names)[:_SHOWN]))
    more = len(names) - _SHOWN
    return f"{shown} and {more} more" if more > 0 else shown


def read_compared(given: Mapping[str, Any]) -> list[dict[str, Tensor]]:
    """Return the tensors of each argument by name, dense and detached.

    Args:
        given: By argument, the first two of which are compared; a third one judges
            them. Sparse tensors are made dense.

    Raises:
        InputError: They are not floating, hold no values or do not belong together.
    """
    for argument, value in given.items():
        if not isinstance(value, (Tensor, Mapping)):
            _refuse_kind(argument, value)
    refuse_unlike(given)
    found = {argument: _read(value, argument) for argument, value in given.items()}
    for name in next(iter(found.values())):
        _refuse_others({a: places[name] for a, places in found.items()})
    return [
        {name: tensor for name, (_, tensor) in places.items()}
        for places in found.values()
    ]


def _refuse_kind(argument: str, value: Any) -> None:
    kinds = ", or a mapping of them by name"
    if isinstance(value, (list, tuple)):
        raise InputError(
            f"{argument} must be a floating tensor{kinds}; got"
            f" {type(value).__name__}; pass dict(enumerate(x))",
            argument=argument,
        )
    floating(value, argument, kinds)


def _read(value: Any, argument: str) -> dict[str, tuple[str, Tensor]]:
    """Return tensors with their places, by name."""
    if not isinstance(value, Mapping):
        return {"": (argument, _dense(value, argument))}
    places = {key: f"{argument}[{key!r}]" for key in value}
    return {str(k): (places[k], _dense(v, places[k])) for k, v in value.items()}


def _dense(value: Any, place: str) -> Tensor:
    if isinstance(value, Tensor) and is_functorch_wrapped_tensor(value):
        raise InputError(
            f"{place} is inside a torch.func transform (vmap, grad, jacrev or jacfwd),"
            " where no number can be read; compare what the transform returns",
            argument=place.partition("[")[0],
        )
    # As an embedding's gradient may be: what a sparse tensor leaves out is zero.
    if isinstance(value, Tensor) and not value.is_nested:
        strided = value.layout is torch.strided
        value = value if strided else value.detach().to_dense()
    return floating(value, place)


def _refuse_others(tensors: Mapping[str, tuple[str, Tensor]]) -> None:
    """Refuse what does not fit the first of the tensors of one name."""
    (first, (place, one)), *others = tensors.items()
    for argument, (where, other) in others:
        if other.shape != one.shape:
            raise InputError(
                f"{argument} must have the shapes of {first}; {where} is"
                f" {tuple(other.shape)}, {place} {tuple(one.shape)}",
                argument=argument,
            )
    refuse_other_devices(dict(tensors.values()))
    if len(others) == 2:
        where, referee = others[1][1]
        coarser = max((one, others[0][1][1]), key=_unit)
        if _unit(referee) > _unit(coarser):
            raise InputError(
                f"{where} must be no less precise than what it judges; got"
                f" {short(referee.dtype)} beside {short(coarser.dtype)}",
                argument=others[1][0],
            )


def _unit(tensor: Tensor) -> float:
    return unit_roundoff(tensor.dtype)
