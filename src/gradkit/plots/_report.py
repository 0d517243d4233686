"""Reports of tests that re-draw layers: what is read of them, and checked."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from gradkit.errors import InputError
from gradkit.plots._pictures import at_most, dense, read_maps

__all__ = ["Randomization", "read_layers", "read_order", "read_sample"]

_METHODS = 9
_ORDERS = ("cascade", "independent")
_ATTRIBUTES = ("layers", "maps", "rank_correlations", "similarities", "depends")


class Randomization(Protocol):
    """What is read of a test that re-draws layers."""

    @property
    def layers(self) -> Sequence[str]:
        """The ``L`` names, in the order they were re-drawn."""
        ...

    @property
    def maps(self) -> Tensor:
        """``(L+1, N, *pic)``, the trained model's first."""
        ...

    @property
    def rank_correlations(self) -> Tensor:
        """``(L, N)`` with the trained model's map."""
        ...

    @property
    def similarities(self) -> Tensor:
        """``(L, N)``, structural, to the trained model's map."""
        ...

    @property
    def depends(self) -> bool:
        """Whether the maps depend on the parameters."""
        ...


def read_layers(reports: Any) -> tuple[str, ...]:
    """Return the layers that all reports share."""
    if not isinstance(reports, Mapping):
        raise InputError(
            f"reports must be a mapping of methods to reports; got"
            f" {type(reports).__name__}; pass {{'gradient': report}}",
            argument="reports",
        )
    at_most(len(reports), _METHODS, "reports", "methods", "draw some of them")
    found = {name: _read_report(name, report) for name, report in reports.items()}
    first, layers = next(iter(found.items()))
    for name, others in found.items():
        if others != layers:
            raise InputError(
                f"reports must share their layers; got {layers} in {first!r} and"
                f" {others} in {name!r}; re-draw the same ones for each method",
                argument="reports",
            )
    return layers


def read_order(reports: Mapping[str, Any]) -> str:
    """Return whether layers stay re-drawn, ``"cascade"``, or are so one at a time."""
    found = {getattr(report, "order", _ORDERS[0]) for report in reports.values()}
    if len(found) > 1 or not found < {*_ORDERS}:
        raise InputError(
            "reports must share an order, 'cascade' or 'independent'; got"
            f" {', '.join(sorted(map(repr, found)))}; draw two figures",
            argument="reports",
        )
    return found.pop()


def _read_report(name: str, report: Any) -> tuple[str, ...]:
    """Return a report's layers, once its shapes fit them."""
    place = f"reports[{name!r}]"
    lacking = [key for key in _ATTRIBUTES if not hasattr(report, key)]
    if lacking:
        raise InputError(
            f"{place} must have {', '.join(_ATTRIBUTES)}; got"
            f" {type(report).__name__} without {', '.join(lacking)}; pass a report",
            argument="reports",
        )
    layers = tuple(map(str, report.layers))
    shapes = [
        tuple(dense(getattr(report, key), f"{place}.{key}").shape)
        for key in _ATTRIBUTES[1:4]
    ]
    maps, *others = shapes
    needed = (len(layers), *maps[1:2])
    if not layers or maps[:1] != (len(layers) + 1,) or others != [needed, needed]:
        raise InputError(
            f"{place} must have maps (L+1, N, *pic), rank_correlations (L, N) and"
            f" similarities (L, N) of L = {len(layers)} layers, at least one; got"
            f" {', '.join(map(str, shapes))}; keep the sample axis",
            argument="reports",
        )
    return layers


def read_sample(place: str, report: Any, sample: Any) -> np.ndarray:
    """Return the sample's maps, ``(L+1, H, W)``."""
    samples = report.maps.shape[1]
    try:
        number = operator.index(sample)
    except TypeError:
        number = -1
    if not 0 <= number < samples:
        raise InputError(
            f"sample must be the number of a sample of {place}, 0 to {samples - 1};"
            f" got {sample!r}; count from 0",
            argument="sample",
        )
    return read_maps(report.maps[:, number], f"{place}.maps[:, {number}]")
