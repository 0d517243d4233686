"""What the caller passes as ``inputs``: which tensors, whose samples, how to call."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from gradkit._dtypes import short
from gradkit._problem._kinds import refuse_kind
from gradkit._problem._tree import flatten
from gradkit.errors import InputError

__all__ = ["InputTensor", "Inputs", "Shared", "read_inputs", "shared"]


@dataclass(frozen=True, eq=False)
class Shared:
    """A tensor that all samples share, as ``shared`` marks it."""

    tensor: Tensor

    def __repr__(self) -> str:
        dtype, shape = short(self.tensor.dtype), tuple(self.tensor.shape)
        return f"shared({dtype} tensor of shape {shape})"


def shared(tensor: Tensor) -> Shared:
    """Mark a tensor among the inputs as one that all samples share.

    Every other tensor must have the samples as its first axis. An attention
    mask ``(T, T)`` or position ids ``(1, T)`` have none, and a guess from their
    sizes would be wrong as soon as ``T`` equals ``N``.

    Args:
        tensor: Of any shape. The model receives it as it is, for every sample.

    Returns:
        A marker to put where the tensor stood.

    Raises:
        InputError: ``tensor`` is not a tensor.

    Cost:
        None; nothing is copied.

    Example:
        >>> import torch
        >>> import gradkit as gk
        >>> def model(x, scale):
        ...     return x * scale
        >>> x = torch.ones(2, 3)
        >>> J = gk.jacobian(model, (x, gk.shared(torch.tensor([1.0, 2.0, 3.0]))))
        >>> J[0].shape, J[1]
        (torch.Size([2, 3, 3]), None)
    """
    if not isinstance(tensor, Tensor):
        error = InputError(
            f"tensor must be a torch.Tensor; got {type(tensor).__name__}",
            argument="tensor",
        )
        error.function = "shared"
        raise error
    return Shared(tensor)


@dataclass(frozen=True, eq=False)
class InputTensor:
    """One tensor among the inputs.

    ``role`` is ``"sample"`` (samples first), ``"shared"`` or ``"scalar"``.
    """

    path: str
    tensor: Tensor
    role: str

    @property
    def differentiable(self) -> bool:
        """Whether each sample has its own floating values here."""
        return self.role == "sample" and self.tensor.is_floating_point()


@dataclass(frozen=True, eq=False)
class Inputs:
    """The inputs, read: its tensors in order, and how to call a model with them."""

    tensors: tuple[InputTensor, ...]
    samples: int
    batched: bool
    keys: dict[int | str, tuple[int, ...]] = field(repr=False)
    arrange: Callable[[list[Any]], Any] = field(repr=False)
    call: Callable[[Callable[..., Any], list[Tensor]], Any] = field(repr=False)
    objects: tuple[Any, ...] = field(repr=False, default=())

    def structure(self, values: Mapping[int, Any], within: int | str | None) -> Any:
        """Return the containers of the inputs (or of one entry) around ``values``.

        ``values`` maps positions of tensors to what stands there; ``None``
        elsewhere.
        """
        whole = self.arrange([values.get(i) for i in range(len(self.tensors))])
        if within is None:
            return whole
        # A lone tensor answers to position 0, which is not an index into it.
        return whole if self.keys.get(0) and self.lone else whole[within]

    def at(self, tensors: Sequence[Tensor]) -> Inputs:
        """Return the same structure around other tensors, of as many samples each."""
        found = tuple(
            replace(old, tensor=new)
            for old, new in zip(self.tensors, tensors, strict=True)
        )
        counts = [len(t.tensor) for t in found if t.role == "sample"]
        return replace(self, tensors=found, samples=counts[0] if self.batched else 1)

    @property
    def lone(self) -> bool:
        """Whether ``inputs`` is one bare tensor."""
        return len(self.tensors) == 1 and self.tensors[0].path == ""


def _role(value: Tensor, is_shared: bool) -> str:
    if is_shared:
        return "shared"
    return "sample" if value.ndim else "scalar"


def _count_samples(found: list[InputTensor]) -> int:
    """Return ``N``, or refuse with every shape that speaks against it."""
    sampled = [t for t in found if t.role == "sample"]
    if not sampled:
        raise InputError(
            "inputs must hold a tensor with the samples first; got "
            + (", ".join(_shape_text(t) for t in found) or "no tensor")
            + ". For a function without a sample axis pass batched=False, where the"
            " function takes it",
            argument="inputs",
        )
    samples = sampled[0].tensor.shape[0]
    if all(t.tensor.shape[0] == samples for t in sampled):
        return samples
    raise InputError(
        "every tensor in inputs must have the same number of samples first; got "
        + ", ".join(_shape_text(t) for t in sampled)
        + ". Mark a tensor that all samples share with gk.shared(t)",
        argument="inputs",
        shapes={t.path: tuple(t.tensor.shape) for t in sampled},
    )


def _shape_text(tensor: InputTensor) -> str:
    return f"inputs{tensor.path} {tuple(tensor.tensor.shape)}"


def _refuse_missing_axis(found: list[InputTensor]) -> None:
    """Refuse inputs of which every tensor is 1-D: one sample, or ``N`` numbers?"""
    sampled = [t for t in found if t.role == "sample"]
    if sampled and all(t.tensor.ndim == 1 for t in sampled):
        first = sampled[0]
        raise InputError(
            f"inputs must have the samples first; got {_shape_text(first)},"
            " which may be one sample or one number per sample. For one sample"
            " pass x[None]; for N samples of one number x[:, None]; for a function"
            " without a sample axis batched=False",
            argument="inputs",
            shape=tuple(first.tensor.shape),
        )


def _caller(inputs: Any) -> Callable[[Callable[..., Any], Any], Any]:
    """Return how a model is called with inputs of this kind."""
    if isinstance(inputs, Mapping):
        odd = [key for key in inputs if not isinstance(key, str)]
        if odd:
            raise InputError(
                "a mapping of inputs is passed as model(**inputs), so its keys must"
                f" be strings; got {odd[0]!r}",
                argument="inputs",
            )
        return lambda model, tree: model(**tree)
    if isinstance(inputs, (list, tuple)) and not isinstance(inputs, PackedSequence):
        return lambda model, tree: model(*tree)
    if isinstance(inputs, (Tensor, Shared, np.ndarray, PackedSequence)):
        return lambda model, tree: model(tree)
    hint = ""
    if callable(inputs):
        hint = "; the order is (model, inputs, objective): the loss comes last"
    raise InputError(
        "inputs must be a tensor, a sequence (model(*inputs)) or a mapping"
        f" (model(**inputs)); got {type(inputs).__name__}{hint}",
        argument="inputs",
    )


def _own(value: Tensor) -> Tensor:
    """Return the tensor, or a clone of one made under ``inference_mode``."""
    if not value.is_inference():
        return value
    with torch.inference_mode(False):
        return value.clone()


def read_inputs(inputs: Any, batched: bool | None) -> Inputs:
    """Read and check ``inputs``; with ``batched=None`` refuse a lone 1-D input."""
    call = _caller(inputs)
    found_leaves, rebuild = flatten(inputs)
    found: list[InputTensor] = []
    places: list[int] = []
    for place, (path, value) in enumerate(found_leaves):
        is_shared = isinstance(value, Shared)
        value = value.tensor if is_shared else value
        refuse_kind(path, value)
        if isinstance(value, Tensor):
            found.append(InputTensor(path, _own(value), _role(value, is_shared)))
            places.append(place)
    if batched is None:
        _refuse_missing_axis(found)
    is_batched = batched is not False
    if not is_batched:
        found = [
            InputTensor(t.path, t.tensor, "shared" if t.role == "shared" else "sample")
            for t in found
        ]
        if not found:
            _count_samples(found)
    others = [leaf.value for leaf in found_leaves]

    def fill(values: list[Any], rest: list[Any]) -> Any:
        filled = list(rest)
        for place, value in zip(places, values, strict=True):
            filled[place] = value
        return rebuild(filled)

    return Inputs(
        tensors=tuple(found),
        samples=_count_samples(found) if is_batched else 1,
        batched=is_batched,
        keys=_keys(inputs, found),
        arrange=lambda values: fill(values, [None] * len(others)),
        call=lambda model, values: call(model, fill(values, others)),
        objects=tuple(v for v in others if not isinstance(v, (Tensor, Shared))),
    )


def _keys(inputs: Any, found: list[InputTensor]) -> dict[int | str, tuple[int, ...]]:
    """Return which tensors stand under each top-level position or key."""
    if isinstance(inputs, (Tensor, Shared)):
        return {0: (0,)}
    names = list(inputs) if isinstance(inputs, Mapping) else range(len(inputs))
    keys: dict[int | str, tuple[int, ...]] = {}
    for name in names:
        head = f"[{name!r}]"
        keys[name] = tuple(i for i, t in enumerate(found) if t.path.startswith(head))
    return keys


def as_position(name: Any) -> int | None:
    """Return ``name`` as an index, or ``None`` if it is not a whole number."""
    if isinstance(name, bool):
        return None
    try:
        return operator.index(name)
    except TypeError:
        return None
