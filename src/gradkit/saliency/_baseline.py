"""Baselines: what a map is relative to, in place of what ``wrt`` names."""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from gradkit._problem._tree import pairs
from gradkit.errors import InputError
from gradkit.saliency._field import Field
from gradkit.saliency._points import Point

__all__ = ["read_baselines", "read_references"]


def read_baselines(field: Field, baseline: Any) -> list[Point]:
    """Return every baseline as one tensor ``(N, *)`` per source.

    A list holds several. With ``wrt`` a submodule, integers and structures like the
    inputs are run up to it.
    """
    several = baseline if isinstance(baseline, list) else [baseline]
    if not several:
        raise InputError("baseline must not be an empty list", argument="baseline")
    return [_baseline(field, one) for one in several]


def _baseline(field: Field, given: Any) -> Point:
    if isinstance(given, numbers.Real) and not isinstance(given, bool):
        return [_filled(s, float(given)) for s in field.sources]
    if field.has_submodules:
        if isinstance(given, Tensor) and given.is_floating_point():
            _refuse_several(field)
            return [_like(given, field.sources[0], "baseline")]
        if isinstance(given, (Tensor, tuple, Mapping)):
            return field.sources_of(_inputs_like(field, given))
    elif isinstance(given, Tensor):
        _refuse_several(field)
        return [_like(given, field.sources[0], "baseline")]
    elif isinstance(given, (tuple, Mapping)):
        return _structured(field, given)
    raise InputError(
        "baseline must be a number, a tensor that broadcasts to what wrt names, or a"
        f" list of them; got {type(given).__name__}",
        argument="baseline",
    )


def _filled(source: Tensor, value: float, place: str = "baseline") -> Tensor:
    if not source.is_floating_point() and not value.is_integer():
        raise InputError(
            f"{place} must be a whole number, like the inputs; got {value}",
            argument="baseline",
        )
    if not source.is_floating_point():
        kinds = torch.iinfo(source.dtype) if source.dtype is not torch.bool else None
        least, most = (kinds.min, kinds.max) if kinds else (0, 1)
        if not least <= value <= most:
            raise InputError(
                f"{place} must be from {least} to {most}, as the inputs'"
                f" {source.dtype} can hold; got {value:g}",
                argument="baseline",
            )
    found = torch.full_like(source, value)
    _check(found, source, place)
    return found


def _refuse_several(field: Field) -> None:
    if len(field.sources) > 1:
        shapes = ", ".join(str(tuple(s.shape)) for s in field.sources)
        raise InputError(
            f"baseline is one tensor, but there are {len(field.sources)} to explain"
            f" (shapes {shapes}); give a number, or a tuple or mapping like the inputs",
            argument="baseline",
        )


def _like(value: Any, source: Tensor, place: str) -> Tensor:
    """Return a number or tensor with the shape and dtype of ``source``."""
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        return _filled(source, float(value), place)
    if not isinstance(value, Tensor) or value.is_complex():
        raise InputError(
            f"{place} must be a number or a tensor; got {type(value).__name__}",
            argument="baseline",
        )
    try:
        found = value.detach().to(source.dtype).expand(source.shape)
    except RuntimeError:
        several = "; for several baselines give a list, list(b)"
        raise InputError(
            f"{place} must broadcast to shape {tuple(source.shape)}; got"
            f" {tuple(value.shape)}{several if value.ndim > source.ndim else ''}",
            argument="baseline",
            shape=tuple(value.shape),
        ) from None
    _check(value, source, place)
    _check(found, source, place)
    whole = source.is_floating_point() or torch.equal(
        found.double(), value.detach().double().expand(source.shape)
    )
    if not whole:
        raise InputError(
            f"{place} must hold whole numbers that {source.dtype} can hold, like the"
            " inputs",
            argument="baseline",
        )
    return found


def _check(value: Tensor, source: Tensor, place: str) -> None:
    if value.device != source.device:
        raise InputError(
            f"{place} must be on the device of the inputs, {source.device}; it is on"
            f" {value.device}",
            argument="baseline",
        )
    if value.is_floating_point() and not bool(value.isfinite().all()):
        raise InputError(
            f"{place} must hold finite numbers; it holds NaN or an infinity",
            argument="baseline",
        )


def _structured(field: Field, given: Any) -> Point:
    """Return a baseline that has the structure of the inputs, entry by entry."""
    values = _entries(field, given)
    found = []
    for source, place in zip(field.sources, field.places, strict=True):
        path = "" if place is None else field.call.inputs.tensors[place].path
        if place not in values:
            raise InputError(
                f"baseline must give a value for inputs{path}", argument="baseline"
            )
        found.append(_like(values[place], source, f"baseline{path}"))
    return found


def _inputs_like(field: Field, given: Any) -> list[Tensor]:
    """Return the inputs' tensors with those that a baseline gives in their place."""
    tensors = field.call.inputs.tensors
    values = _entries(field, given)
    found = []
    for place, own in enumerate(tensors):
        value = values.get(place)
        if value is None:
            found.append(own.tensor)
            continue
        mixed = not own.tensor.is_floating_point() and (
            isinstance(value, Tensor) and value.is_floating_point()
        )
        if mixed:
            raise InputError(
                f"baseline{own.path} must be of whole numbers, like inputs{own.path};"
                f" got {value.dtype}",
                argument="baseline",
            )
        found.append(_like(value, own.tensor, f"baseline{own.path}"))
    return found


def _entries(field: Field, given: Any, name: str = "baseline") -> dict[int | None, Any]:
    """Return what a baseline gives, by the places of the inputs' tensors.

    Entries that a mapping lacks, or that are ``None``, are left out.
    """
    inputs = field.call.inputs
    if isinstance(given, Tensor):
        whole = [i for i, t in enumerate(inputs.tensors) if t.role == "sample"]
        if len(whole) != 1:
            raise InputError(
                f"{name} is one tensor, but the inputs hold"
                f" {len(whole)} with samples; give a tuple or mapping like the inputs",
                argument=name,
            )
        return {whole[0]: given}
    found: dict[int | None, Any] = {}
    for key, value in pairs(given):
        places = inputs.keys.get(key)
        if places is None or (value is not None and len(places) != 1):
            known = ", ".join(map(repr, inputs.keys))
            raise InputError(
                f"{name}[{key!r}] must be the place of one tensor in the inputs"
                f" (there: {known})",
                argument=name,
            )
        if value is not None:
            found[places[0]] = value
    return found


def read_references(field: Field, baselines: Any) -> Point:
    """Return a set of ``M`` baselines to draw from, ``(M, *)`` per source."""
    values = baselines
    if isinstance(values, list) and all(isinstance(v, Tensor) for v in values):
        shapes = {tuple(v.shape): None for v in values}
        if len(shapes) > 1:
            raise InputError(
                "baselines must be samples of one shape; got"
                f" {', '.join(map(str, shapes))}",
                argument="baselines",
            )
        values = torch.stack(values) if values else None
    if not isinstance(values, (Tensor, tuple, Mapping)):
        raise InputError(
            "baselines must be samples (M, *in) to draw from, or a tuple or mapping of"
            f" them like the inputs; got {type(baselines).__name__}",
            argument="baselines",
        )
    hidden = isinstance(values, Tensor) and values.is_floating_point()
    if field.has_submodules and not hidden:
        return field.sources_of(_references_like(field, values))
    if isinstance(values, Tensor):
        found = dict.fromkeys(field.places, values)
    else:
        found = _entries(field, values, "baselines")
    read = [
        _reference(found.get(place), source, _path(field, place))
        for place, source in zip(field.places, field.sources, strict=True)
    ]
    _refuse_different({len(r) for r in read})
    return read


def _refuse_different(counts: set[int]) -> None:
    if len(counts) > 1:
        raise InputError(
            "baselines must hold as many samples in every tensor; got"
            f" {sorted(counts)}",
            argument="baselines",
        )


def _path(field: Field, place: int | None) -> str:
    tensors = field.call.inputs.tensors
    if place is None or len(tensors) == 1:
        return "baselines"
    return f"baselines{tensors[place].path}"


def _reference(value: Any, like: Tensor, name: str) -> Tensor:
    wanted = "".join(f", {size}" for size in like.shape[1:])
    is_set = isinstance(value, Tensor) and value.ndim == like.ndim and len(value) > 0
    is_set = is_set and not value.is_complex()
    if not is_set or value.shape[1:] != like.shape[1:]:
        got = tuple(value.shape) if isinstance(value, Tensor) else value
        raise InputError(
            f"{name} must be samples (M{wanted}), at least one; got {got}",
            argument="baselines",
        )
    found = value.detach().to(like.dtype)
    _check(value, like, name)
    _check(found, like, name)
    return found


def _references_like(field: Field, given: Any) -> list[Tensor]:
    """Return inputs of ``M`` samples, to be run up to a submodule."""
    values = _entries(field, given, "baselines")
    found = []
    for place, own in enumerate(field.call.inputs.tensors):
        if own.role != "sample":
            found.append(own.tensor)
            continue
        name = _path(field, place)
        if place not in values:
            # The samples' own would be those of other samples, and N of them.
            raise InputError(
                f"{name} must be given: the baselines are run through the model up to"
                f" wrt, and need samples (M, ...) for inputs{own.path} too, such as a"
                " mask of ones",
                argument="baselines",
            )
        found.append(_reference(values[place], own.tensor, name))
    _refuse_different({len(value) for value in values.values()})
    return found
