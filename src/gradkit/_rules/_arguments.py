"""The tensors among a call's arguments: where they stand, and others in their place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor

__all__ = ["Path", "changed", "settings_in", "tensors_in"]

#: An argument: its position or keyword, and the place in it where it is a list.
Path = tuple[int | str, int | None]


def tensors_in(
    args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Iterator[tuple[Path, Tensor]]:
    """Yield the tensors among arguments, those in lists too, and where they stand."""
    for position, value in (*enumerate(args), *kwargs.items()):
        if isinstance(value, Tensor):
            yield (position, None), value
        elif isinstance(value, (list, tuple)):
            for place, part in enumerate(value):
                if isinstance(part, Tensor):
                    yield (position, place), part


def changed(
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    change: Callable[[Path, Any], Any],
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments with ``change(path, value)`` in each value's place.

    With ``values.get`` as ``change``, what ``values`` has takes its place. A list or a
    tuple is changed part by part, and stays one.
    """

    def of(position: int | str, value: Any) -> Any:
        if type(value) in (list, tuple):
            return type(value)(change((position, i), v) for i, v in enumerate(value))
        return change((position, None), value)

    return (
        tuple(of(i, value) for i, value in enumerate(args)),
        {name: of(name, value) for name, value in kwargs.items()},
    )


def settings_in(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the settings among arguments, and the shapes of tensors."""
    for value in (*args, *kwargs.items()):
        if isinstance(value, Tensor):
            yield value.shape
        elif value is None or isinstance(value, (bool, int, float, str)):
            yield type(value), value
        else:
            yield repr(value) if not _holds_tensors(value) else type(value)


def _holds_tensors(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(_holds_tensors, value))
    return isinstance(value, Tensor)
