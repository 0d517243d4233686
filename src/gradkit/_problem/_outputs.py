"""What the model returned: its floating tensors as one flat row per sample."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Size, Tensor

from gradkit._problem._tree import flatten
from gradkit.errors import InputError

__all__ = ["Outputs", "read_outputs"]


@dataclass(frozen=True, eq=False)
class Outputs:
    """The floating tensors of one output structure.

    ``sizes`` are the samples' own shapes, ``widths`` how many numbers each has.
    """

    tensors: tuple[Tensor, ...]
    sizes: tuple[Size, ...]
    widths: tuple[int, ...]
    positions: tuple[int, ...] = field(repr=False)
    arrange: Callable[[Mapping[int, Any]], Any] = field(repr=False)
    leaves: tuple[Any, ...] = field(repr=False)

    @property
    def width(self) -> int:
        """``K``: how many numbers one sample's output has."""
        return sum(self.widths)

    def structure(self, values: list[Any]) -> Any:
        """Return the structure of the outputs around one value per tensor."""
        return self.arrange(dict(zip(self.positions, values, strict=True)))

    def given(self, values: Sequence[Tensor]) -> Any:
        """Return the outputs as the model gave them, around other floating tensors."""
        whole = dict(enumerate(self.leaves))
        return self.arrange(whole | dict(zip(self.positions, values, strict=True)))

    def detached(self) -> Any:
        """Return the outputs as the model gave them, without a graph."""
        whole = {
            i: v.detach().clone() if isinstance(v, Tensor) else v
            for i, v in enumerate(self.leaves)
        }
        return self.arrange(whole)


def _describe(outputs: Any) -> str:
    if isinstance(outputs, Tensor):
        return f"a {outputs.dtype} tensor of shape {tuple(outputs.shape)}"
    return type(outputs).__name__


def read_outputs(outputs: Any, samples: int, *, batched: bool) -> Outputs:
    """Read and check what the model (or ``of``) returned."""
    found, rebuild = flatten(outputs)
    tensors, positions = [], []
    for position, (path, value) in enumerate(found):
        if not isinstance(value, Tensor):
            continue
        if value.is_complex():
            raise InputError(
                f"outputs{path} is complex, which is not supported; return"
                " torch.view_as_real(z), or choose a real part with of=",
                argument="outputs",
            )
        if not value.is_floating_point():
            continue
        if batched and (value.ndim == 0 or value.shape[0] != samples):
            raise InputError(
                f"outputs{path} must have the {samples} samples first; got shape"
                f" {tuple(value.shape)}."
                + (_loss_advice(found, value) or _axis_advice(value, samples)),
                argument="outputs",
                shape=tuple(value.shape),
            )
        tensors.append(value)
        positions.append(position)
    if not tensors:
        raise InputError(
            f"the model must return a floating tensor; got {_describe(outputs)}."
            f" Choose an output with of= (a key, an attribute{_fields(outputs)}, a"
            " submodule or a function of the outputs)",
            argument="outputs",
        )
    sizes = tuple(t.shape[1:] if batched else t.shape for t in tensors)
    return Outputs(
        tensors=tuple(tensors),
        sizes=sizes,
        widths=tuple(size.numel() for size in sizes),
        positions=tuple(positions),
        arrange=lambda values: rebuild([values.get(i) for i in range(len(found))]),
        leaves=tuple(leaf.value for leaf in found),
    )


def _fields(outputs: Any) -> str:
    """Return the names of an object's tensors, such as a dataclass's."""
    held = getattr(outputs, "__dict__", {})
    names = [repr(n) for n, v in held.items() if isinstance(v, Tensor)]
    return f" such as {', '.join(names[:6])}" if names else ""


def _loss_advice(found: Sequence[tuple[str, Any]], value: Tensor) -> str:
    """Return what to do where a model was given its labels, and returns their loss."""
    names = {path.strip("[]'."): leaf for path, leaf in found}
    if value.ndim or names.get("loss") is not value or "logits" not in names:
        return ""
    return (
        " It is the loss of the whole batch, which the model returns where labels are"
        ' among its inputs: leave them out, and pass of="logits" with'
        " gk.objectives.token_loss(labels, shift=True) for a causal language model, or"
        " gk.objectives.sample_loss(criterion, labels)"
    )


def _axis_advice(value: Tensor, samples: int) -> str:
    if samples == 1:
        return (
            " If the inputs are one sample without a batch axis, pass x[None]. A model"
            " that squeezes drops the sample axis of a batch of one; squeeze a named"
            " axis, y.squeeze(-1), instead"
        )
    if value.ndim == 0:
        return (
            " Return each sample's own outputs: a mean or sum over the batch cannot be"
            " taken apart. A loss goes into the objective,"
            " gk.objectives.sample_loss(F.cross_entropy, labels)"
        )
    return (
        " If the inputs are one sample without a batch axis, pass x[None];"
        " if the output has no sample axis, choose another with of="
    )
