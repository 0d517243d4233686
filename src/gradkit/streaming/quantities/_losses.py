"""The loss itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from gradkit._call._public import public
from gradkit.streaming.quantities._asked import values_of
from gradkit.streaming.quantities._batch import Batch, Split
from gradkit.streaming.quantities._given import Given, read_given
from gradkit.streaming.quantities._quantity import Quantity

__all__ = ["loss"]


@public
def loss(
    model: Any,
    criterion: Callable[..., Any] = F.cross_entropy,
    *,
    objective: Callable[[Any], Any] | None = None,
    of: Any = None,
    split: Split | None = None,
    seed: int | None = None,
) -> Quantity:
    """Return what gives the loss of each sample, ``(N,)``.

    Args:
        model: Maps ``(N, *in)`` to ``(N, *out)``; a module, or any callable. Batches
            are moved to the device of its first parameter or buffer.
        criterion: As in ``gk.objectives.sample_loss``: each sample's loss is that of a
            batch of one.
        objective: In place of ``criterion``: from a batch's targets to an objective,
            such as ``lambda labels: gk.objectives.token_loss(labels, shift=True)``.
        of: Which of the model's outputs, as in ``gk.jacobian``.
        split: From a batch to ``(inputs, targets)``. ``None``: of a mapping, what
            stands under ``"labels"``, ``"label"``, ``"targets"``, ``"target"`` or
            ``"y"`` are the targets, and ``model(**inputs)`` gets the others; of a
            sequence, the last entry is.
        seed: For a model that draws random numbers: the draw of
            ``torch.manual_seed(seed); model(inputs)``, for every batch alike.

    Returns:
        A ``Quantity``, whose rows are ``(N,)``, in the dtype of the loss.

    Raises:
        InputError: An argument is not what the function takes, or, at a batch, it has
            no targets, or the model draws without a seed.
        SampleDependenceError: At a batch, the model or objective couples samples.
        UnsupportedModelError: At a batch, the model writes to its own parameters, or is
            otherwise none that can be run without a trace.

    Cost:
        One forward pass, whose activations are held as in training, and no backward
        pass; at a model's 1st, 2nd, 4th, 8th, … batch up to seven more forwards, which
        prove that samples are independent.

    Example:
        >>> import torch
        >>> import torch.nn.functional as F
        >>> from gradkit.streaming import quantities
        >>> layer = torch.nn.Linear(2, 1, bias=False)
        >>> _ = layer.weight.data.fill_(1.0)
        >>> batch = {
        ...     "input": torch.tensor([[1.0, 1.0], [0.0, 5.0]]),
        ...     "y": torch.zeros(2, 1),
        ... }
        >>> quantities.loss(layer, F.mse_loss)(batch)
        tensor([ 4., 25.])
    """
    given = read_given(
        model, criterion=criterion, objective=objective, of=of, split=split, seed=seed
    )
    return Quantity("loss", given, _loss)


def _loss(given: Given, batch: Batch) -> Tensor:
    return values_of(given, given.model, batch)
