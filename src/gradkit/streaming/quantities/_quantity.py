"""A quantity: a function of a batch that can say what its rows depend on."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

import torch

from gradkit._call._request import named
from gradkit._guards._notes import add_note
from gradkit.streaming.quantities._batch import Batch, read_batch
from gradkit.streaming.quantities._given import Given

__all__ = ["Quantity"]


@dataclass(frozen=True, eq=False, repr=False)
class Quantity:
    """A function of a batch that gives one row per sample, for ``gk.stream``.

    The functions of this module make them. Parameters, buffers, flags, random state
    and the batch are as before every call; the model is as it is at the call, in the
    mode that it is in.

    Attributes:
        name: The name of the function that made it.
        keeps_random_state: ``True``: gradkit's calls put back what they draw.

    Example:
        >>> import torch
        >>> from gradkit.streaming import quantities
        >>> quantity = quantities.loss(torch.nn.Linear(3, 2))
        >>> quantity
        loss(Linear)
        >>> quantity((torch.zeros(5, 3), torch.tensor([0, 1, 1, 0, 1]))).shape
        torch.Size([5])
        >>> sorted(k for k, v in quantity.identity().items() if v is not None)
        ['criterion', 'method', 'model', 'quantity']
    """

    keeps_random_state: ClassVar[bool] = True
    name: str
    _given: Given = field(repr=False)
    _compute: Callable[[Given, Batch], Any] = field(repr=False)

    def __call__(self, batch: Any) -> Any:
        """Return the rows of a batch's samples.

        Args:
            batch: What the loader gives, which ``split`` takes apart.

        Returns:
            ``(N, *row)``, or a mapping of such tensors by name; of ``gradients`` a
            ``ParameterJacobian``.

        Raises:
            InputError: The batch is not what the quantity can be had of.
            SampleDependenceError: The model or the objective couples samples.
            UnsupportedModelError: The method cannot differentiate the model.

        Cost:
            That of the function that made it, for one batch.
        """
        # What a stream stores may be computed with later: no inference tensors.
        with named(self.name), torch.inference_mode(False):
            read = read_batch(batch, self._given.split)
            with _telling(batch if self._given.split is None else None):
                return self._compute(self._given, read)

    def identity(self) -> dict[str, Any]:
        """Return what decides the rows: models, functions, plain values.

        Returns:
            By name, as ``gk.stream`` takes ``identity``; ``quantity`` is the name of
            the function that made it.
        """
        return {"quantity": self.name, **self._given.identity()}

    def __repr__(self) -> str:
        kinds = ", ".join(_kind(model) for model in self._given.models)
        return f"{self.name}({f'[{kinds}]' if self._given.several else kinds})"


@contextmanager
def _telling(batch: Any) -> Generator[None, None, None]:
    """Say with a model's own error of its arguments where these came from."""
    try:
        yield
    except TypeError as error:
        text = _reading(batch)
        if text:
            add_note(error, text)
        raise


def _reading(batch: Any) -> str:
    """Return how a batch was taken apart; empty where it could be in one way alone."""
    if isinstance(batch, Mapping):
        keys = ", ".join(map(repr, cast("Mapping[Any, Any]", batch)))
        return (
            f"the batch has the keys {keys}, which are the model's arguments but for"
            " the targets; split=lambda b: (inputs, targets) takes it apart"
        )
    count = len(cast("Sequence[Any]", batch)) if isinstance(batch, Sequence) else 0
    if count > 2:
        return (
            f"the batch has {count} entries: the last is taken as targets, the others"
            " are the model's arguments; split=lambda b: (b[0], b[1]) takes the first"
            " two alone"
        )
    return ""


def _kind(model: Any) -> str:
    return getattr(model, "__name__", type(model).__name__)
