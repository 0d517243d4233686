"""What a pass over a data set depends on, and whether all its processes agree."""

from __future__ import annotations

from collections.abc import Mapping
from types import FunctionType
from typing import Any

from torch import nn

from gradkit.errors import InputError
from gradkit.streaming._code import code_of_callable
from gradkit.streaming._identity import describe
from gradkit.streaming._loader import Batches
from gradkit.streaming._settings import differences, settings

__all__ = ["about_run", "check_compute", "listed", "refuse_unlike"]


def check_compute(compute: Any) -> None:
    """Refuse what is no function of a batch."""
    module = str(getattr(compute, "__module__", ""))
    makers = "gradkit.streaming.quantities"
    maker = isinstance(compute, FunctionType) and module.startswith(makers)
    if maker or isinstance(compute, nn.Module):
        got = f"the model {type(compute).__name__}. Write"
        advice = "gk.quantities.gradient_norm(model), or lambda batch: model(batch[0])"
        if maker:
            name = compute.__name__
            got, advice = f"{name}, which makes one. Call it", f"gk.quantities.{name}"
            advice += "(model)"
        raise InputError(
            f"compute must be a function of a batch; got {got}: {advice}",
            argument="compute",
        )
    if not callable(compute):
        raise InputError(
            "compute must be a function of a batch; got"
            f" {type(compute).__name__}. gk.quantities has ready-made ones, such as"
            " gk.quantities.gradient_norm(model)",
            argument="compute",
        )


def about_run(compute: Any, batches: Batches, identity: Any) -> dict[str, Any]:
    """Return what rows depend on: the order, the identity and the settings."""
    if identity is not None and not isinstance(identity, Mapping):
        raise InputError(
            "identity must be a mapping from names to models, tensors, functions or"
            f" plain values; got {type(identity).__name__}",
            argument="identity",
        )
    own = getattr(compute, "identity", None)
    told: Any = own() if callable(own) else None
    if identity is not None:
        twice = [str(name) for name in identity if told and name in told]
        if twice:
            raise InputError(
                f"identity must not name what compute says itself: {', '.join(twice)}."
                " Choose another name",
                argument="identity",
            )
        told = {**(told or {}), **identity}
    described = None
    if told is not None:
        described = describe(told, "identity")
        # An identity says what rows depend on; what is done with it, the code says.
        if not callable(own) and "compute" not in told:
            described["compute"] = f"code {code_of_callable(compute)}"
    return {"order": batches.order, "identity": described, "settings": settings()}


def refuse_unlike(every: list[dict[str, Any]]) -> None:
    """Refuse processes that would not compute the same rows."""
    for rank, about in enumerate(every):
        found = differences(every[0], about)
        if found:
            raise InputError(
                f"all processes must do the same; on rank {rank}, beside rank 0,"
                f" {listed(found)}",
                argument="compute",
            )


def listed(found: list[str]) -> str:
    """Return the first differences in one line."""
    rest = len(found) - 3
    return "; ".join(found[:3]) + (f"; and {rest} more" if rest > 0 else "")
