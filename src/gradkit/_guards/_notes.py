"""Notes on a model's own errors, which are re-raised as they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

from gradkit._problem._inputs import Inputs
from gradkit._problem._target import Target
from gradkit.errors import GradkitError

__all__ = ["add_note", "annotate"]

_LOOK_UPS = (nn.Embedding, nn.EmbeddingBag)


def add_note(error: BaseException, text: str) -> None:
    """Let an error say more; before Python 3.11 it cannot."""
    add: Any = getattr(error, "add_note", None)
    if add is not None:
        add(text)


def annotate(error: BaseException, inputs: Inputs, target: Target) -> None:
    """Say in notes on the model's own error what the inputs and the model are."""
    # A refusal of gradkit's, as of coupled samples, says itself what is wrong.
    if isinstance(error, GradkitError):
        return
    told = [] if target.root is None else list(_mismatches(inputs, target.root))
    for note in told or [_reading(inputs)]:
        add_note(error, f"gradkit: {note}")


def _mismatches(inputs: Inputs, model: nn.Module) -> Iterator[str]:
    """Yield what of the inputs does not fit the model's parameters."""
    tensors = [entry.tensor for entry in inputs.tensors]
    held = {p.dtype for p in model.parameters() if p.is_floating_point()}
    given = {t.dtype for t in tensors if t.is_floating_point()}
    if held and given - held:
        yield (
            f"inputs are {_names(given)} and the model's parameters"
            f" {_names(held)}; convert one of them, for instance"
            f" inputs.to({_names(held)}) or model.to({_names(given)})"
        )
    looks_up = any(isinstance(m, _LOOK_UPS) for m in model.modules())
    if held and not given and not looks_up:
        yield (
            f"inputs are {_names({t.dtype for t in tensors})} and the model's"
            f" parameters {_names(held)}; convert measurements,"
            f" inputs.to({_names(held)})"
        )
    there = {p.device for p in model.parameters()}
    here = {t.device for t in tensors}
    if there and here - there:
        yield (
            f"inputs are on {_names(here)} and the model's parameters on"
            f" {_names(there)}; move one of them with .to(device)"
        )


def _reading(inputs: Inputs) -> str:
    """Return how the inputs were read, and what people mean by others."""
    every = (f"inputs{e.path} {tuple(e.tensor.shape)}" for e in inputs.tensors)
    shapes = ", ".join(every)
    if not inputs.batched:
        return f"the model was called without a sample axis: {shapes}"
    count = f"{inputs.samples} sample{'' if inputs.samples == 1 else 's'}"
    if inputs.lone:
        return (
            f"the first axis counts samples: {shapes} was read as {count}; one sample"
            " of this shape is inputs[None]"
        )
    stars = "**" if any(isinstance(key, str) for key in inputs.keys) else "*"
    return (
        f"the model was called as model({stars}inputs) with {count}: {shapes}; targets"
        " are no inputs, and go into the objective"
    )


def _names(things: Any) -> str:
    return ", ".join(sorted(map(str, things)))
