"""Objectives that read the outputs alone: weighted sums and chosen outputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradkit.errors import InputError

__all__ = [
    "ClassScore",
    "WeightedSum",
    "describe",
    "floating_outputs",
    "is_whole_number",
    "ordinary",
    "refuse_other_device",
    "shape_text",
]


def shape_text(shape: Any) -> str:
    return str(tuple(shape))


def describe(value: Any) -> str:
    """Name a value in an error: its type, and the shape of a tensor or array."""
    if isinstance(value, Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        return f"{_article(dtype)} tensor of shape {shape_text(value.shape)}"
    if isinstance(value, np.ndarray):
        return f"{_article(str(value.dtype))} array of shape {shape_text(value.shape)}"
    if isinstance(value, str):
        return f"the string {value!r}"
    if isinstance(value, bool | int | float | complex | np.generic):
        return f"the {type(value).__name__} {value}"
    return _article(type(value).__name__)


def _article(noun: str) -> str:
    return f"an {noun}" if noun[0] in "AEIOaeio" else f"a {noun}"


def is_whole_number(value: Any) -> bool:
    if isinstance(value, Tensor | np.ndarray):
        return value.ndim == 0 and _is_integer_dtype(value)
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def ordinary(value: Any) -> Any:
    """Return a tensor that autograd can save: a clone of one of inference mode."""
    if isinstance(value, Tensor) and value.is_inference():
        return value.clone()
    return value


def floating_outputs(name: str, outputs: Any) -> Tensor:
    """Return ``outputs`` if it is one floating tensor with a sample axis."""
    if not isinstance(outputs, Tensor):
        raise InputError(
            f"objective {name} takes outputs that are one tensor;"
            f" got {describe(outputs)}{_entries(outputs)}. Name the one to"
            f" differentiate: {_of_advice(outputs)}.",
            output_type=type(outputs).__name__,
        )
    if outputs.dim() == 0 or not outputs.is_floating_point():
        raise InputError(
            f"objective {name} takes floating outputs with the samples on their"
            f" first axis, (N, ...); got {describe(outputs)}. Let the model return"
            " such a tensor.",
            shape=tuple(outputs.shape),
            dtype=outputs.dtype,
        )
    return outputs


def refuse_other_device(name: str, what: str, tensor: Tensor, outputs: Tensor) -> None:
    """Refuse a tensor that lives elsewhere than the outputs.

    Moving it for the caller would copy it again on every call, unseen.
    """
    if tensor.device != outputs.device:
        raise InputError(
            f"objective {name} needs {what} on the device of the outputs,"
            f" {outputs.device}; got {what} on {tensor.device}. Write"
            f" {what}.to('{outputs.device}').",
            device=tensor.device,
            output_device=outputs.device,
        )


@dataclass(frozen=True, eq=False, repr=False)
class WeightedSum:
    """The sum of each sample's outputs, times weights: see ``weighted_sum``."""

    weights: Tensor
    follows_device: bool = False  # Made here of numbers, so that it lives nowhere.

    def __call__(self, outputs: Any) -> Tensor:
        outputs = floating_outputs("weighted_sum", outputs)
        own, weights = outputs.shape[1:], ordinary(self.weights)
        if self.follows_device:
            weights = weights.to(outputs.device)
        refuse_other_device("weighted_sum", "weights", weights, outputs)
        if weights.shape == (own.numel(),):
            weights = weights.reshape(own)
        elif weights.shape not in (own, outputs.shape):
            allowed = dict.fromkeys(map(shape_text, ((own.numel(),), own)))
            raise InputError(
                f"objective weighted_sum takes weights of shape {', '.join(allowed)} or"
                f" {shape_text(outputs.shape)} for outputs of shape"
                f" {shape_text(outputs.shape)}; got weights of shape"
                f" {shape_text(weights.shape)}.",
                shape=tuple(weights.shape),
                output_shape=tuple(outputs.shape),
            )
        # Weights in more digits than the outputs would change the result's dtype.
        products = outputs * weights.to(outputs.dtype)
        return products.reshape(len(outputs), own.numel()).sum(1)

    def __repr__(self) -> str:
        return f"weighted_sum({describe(self.weights)})"


@dataclass(frozen=True, eq=False, repr=False)
class ClassScore:
    """One chosen output of each sample: see ``class_score``."""

    index: Any

    def __post_init__(self) -> None:
        # A copy of its own: labels that the caller refills later do not reach it.
        if isinstance(self.index, Tensor):
            copy = self.index.detach().clone()
        elif isinstance(self.index, np.ndarray):
            copy = self.index.copy()
        elif isinstance(self.index, list):
            copy = list(self.index)
        else:
            return
        object.__setattr__(self, "index", copy)

    def __call__(self, outputs: Any) -> Tensor:
        outputs = floating_outputs("class_score", outputs)
        if is_whole_number(self.index):
            return self._at((int(self.index),), outputs)
        if isinstance(self.index, tuple):
            if not all(is_whole_number(entry) for entry in self.index):
                raise self._refusal(outputs, f"the tuple {self.index}")
            return self._at(tuple(int(entry) for entry in self.index), outputs)
        return self._per_sample(outputs)

    def _at(self, index: tuple[int, ...], outputs: Tensor) -> Tensor:
        own = outputs.shape[1:]
        got = f"the index {self.index}"
        if index == (0,) and not own:  # The only output of a sample.
            return outputs
        if len(index) != len(own):
            raise self._refusal(outputs, got)
        if not all(0 <= i < size for i, size in zip(index, own, strict=True)):
            raise self._refusal(outputs, got)
        return outputs[(slice(None), *index)]

    def _per_sample(self, outputs: Tensor) -> Tensor:
        labels = self._labels(outputs)
        scores = outputs[:, None] if outputs.dim() == 1 else outputs
        own = scores.shape[1:]
        if labels.dim() != 1 and (len(own) < 2 or labels.shape[1:] != (len(own),)):
            raise self._refusal(outputs, f"indices of shape {shape_text(labels.shape)}")
        places = labels if labels.dim() == 2 else labels[:, None]
        if len(own) != places.shape[1]:
            raise self._refusal(outputs, f"{len(labels)} single classes")
        if len(places) != len(scores):
            raise self._refusal(outputs, f"{len(places)} labels")
        sizes = torch.tensor(own, device=places.device)
        outside = ((places < 0) | (places >= sizes)).any(1)
        if bool(outside.any()):
            n = int(outside.nonzero()[0, 0])
            named = (
                f"label {int(labels[n])}"
                if labels.dim() == 1
                else (f"index {tuple(labels[n].tolist())}")
            )
            raise self._refusal(outputs, f"the {named} of sample {n}")
        # One flat place per sample, so that the derivative is a plain gather's.
        flat = torch.zeros(len(places), dtype=torch.int64, device=places.device)
        for axis, size in enumerate(own):
            flat = flat * size + places[:, axis]
        flat_scores = scores.reshape(len(scores), own.numel())
        return flat_scores.gather(1, flat[:, None]).squeeze(1)

    def _labels(self, outputs: Tensor) -> Tensor:
        index = self.index
        if isinstance(index, list):
            index = self._listed(index, outputs)
        elif isinstance(index, np.ndarray) and _is_integer_dtype(index):
            index = torch.from_numpy(index.astype(np.int64))
        if not isinstance(index, Tensor) or not _is_integer_dtype(index):
            raise self._refusal(outputs, describe(index))
        if index.dim() not in (1, 2) or (index.dim() == 2 and outputs.dim() < 3):
            raise self._refusal(outputs, describe(index))
        return ordinary(index).to(outputs.device, torch.int64)

    def _listed(self, index: list[Any], outputs: Tensor) -> Tensor:
        """Return a list of classes, or of index tuples, as a tensor."""
        each = [e if isinstance(e, (tuple, list)) else (e,) for e in index]
        for entry, places in zip(index, each, strict=True):
            wrong = [place for place in places if not is_whole_number(place)]
            if wrong or len(places) != len(each[0]):
                got = wrong[0] if wrong else entry
                raise self._refusal(outputs, f"a list with {describe(got)}")
        numbers = [[int(place) for place in places] for places in each]
        # An empty list has no dtype.
        found = torch.tensor(numbers, device="cpu").to(torch.int64)
        alone = not index or not isinstance(index[0], (tuple, list))
        return found.reshape(len(index)) if alone else found

    def _refusal(self, outputs: Tensor, got: str) -> InputError:
        shape, own = shape_text(outputs.shape), outputs.shape[1:]
        return InputError(
            f"objective class_score takes {_allowed_indices(outputs)}, for outputs of"
            f" shape {shape}; got {got}.{_index_advice(self.index, own)}",
            index=self.index,
            output_shape=tuple(outputs.shape),
        )

    def __repr__(self) -> str:
        whole = is_whole_number(self.index) or isinstance(self.index, tuple)
        text = f"{len(self.index)} labels" if isinstance(self.index, list) else None
        return f"class_score({self.index if whole else text or describe(self.index)})"


def _is_integer_dtype(value: Tensor | np.ndarray) -> bool:
    if isinstance(value, np.ndarray):
        return value.dtype.kind in "iu"
    return not (
        value.is_floating_point() or value.is_complex() or value.dtype == torch.bool
    )


def _allowed_indices(outputs: Tensor) -> str:
    own = outputs.shape[1:]
    if len(own) > 1:
        bounds = ", ".join(f"0 to {size - 1}" for size in own)
        return (
            f"a tuple of {len(own)} whole numbers ({bounds}), or a list of"
            f" {len(outputs)} such tuples"
        )
    last = own.numel() - 1
    whole = f"a whole number from 0 to {last}" if last else "the whole number 0"
    return f"{whole}, or a list, array or tensor of {len(outputs)} such numbers"


def _index_advice(index: Any, own: torch.Size) -> str:
    if own.numel() == 1:
        return (
            " A sample has one output here: leave the objective out for that output's"
            " own derivative; for a loss write"
            " gk.objectives.sample_loss(F.mse_loss, targets)."
        )
    if len(own) > 1:
        example = ", ".join(str(size - 1) for size in own)
        return f" Write class_score(({example})) for the last output of each sample."
    if isinstance(index, tuple):
        return (
            " A tuple is the index of one output, the same for all samples; write"
            " class_score(list(labels)) for one class per sample."
        )
    if isinstance(index, Tensor | np.ndarray) and index.ndim == 2:
        if index.shape[1] == 1:
            return " Write labels[:, 0]."
        if index.shape[0] == 1:
            return " Write labels[0]."
        return " Write labels.argmax(1) for one-hot labels."
    if isinstance(index, Tensor) and not _is_integer_dtype(index):
        return (
            " Write labels.long() if they are classes; for other targets use"
            " gk.objectives.sample_loss(F.mse_loss, targets)."
        )
    return ""


def _entries(outputs: Any) -> str:
    if isinstance(outputs, Mapping):
        return f" (entries {', '.join(map(repr, outputs))})"
    if isinstance(outputs, list | tuple):
        return f" (length {len(outputs)})"
    return ""


def _of_advice(outputs: Any) -> str:
    if isinstance(outputs, Mapping) and outputs:
        return f"of={_first_entry(outputs)!r}"
    if isinstance(outputs, list | tuple):
        return "of=0"
    return "of=lambda outputs: ... with a callable that picks a tensor"


def _first_entry(outputs: Mapping[Any, Any]) -> Any:
    # A language model given labels returns its loss first.
    return "logits" if "logits" in outputs else next(iter(outputs))
