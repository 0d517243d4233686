"""Notes on a model's own errors, which are re-raised as they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from gradkit._problem._target import Target

__all__ = ["annotate"]


def annotate(error: BaseException, inputs: Sequence[Tensor], target: Target) -> None:
    """Say in a note on the model's own error what the inputs and the model are."""
    add_note: Any = getattr(error, "add_note", None)  # Python 3.11
    if target.root is None or add_note is None:
        return
    held = {p.dtype for p in target.root.parameters() if p.is_floating_point()}
    given = {t.dtype for t in inputs if t.is_floating_point()}
    if held and given - held:
        add_note(
            f"gradkit: inputs are {_names(given)} and the model's parameters"
            f" {_names(held)}; convert one of them, for instance"
            f" inputs.to({_names(held)}) or model.to({_names(given)})"
        )
    there = {p.device for p in target.root.parameters()}
    here = {t.device for t in inputs}
    if there and here - there:
        add_note(
            f"gradkit: inputs are on {_names(here)} and the model's parameters on"
            f" {_names(there)}; move one of them with .to(device)"
        )


def _names(things: Any) -> str:
    return ", ".join(sorted(map(str, things)))
