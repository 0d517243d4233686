"""Random projections of gradients by the parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F

from gradkit._call._public import public
from gradkit._methods._method import Method
from gradkit._problem._inputs import as_position
from gradkit.errors import InputError
from gradkit.objectives._scores import describe
from gradkit.streaming.quantities._asked import rows_of
from gradkit.streaming.quantities._batch import Batch, Split
from gradkit.streaming.quantities._given import Given, read_given
from gradkit.streaming.quantities._quantity import Quantity

__all__ = ["projected_gradients"]


@public
def projected_gradients(
    model: Any,
    size: int,
    *,
    projection_seed: int | None = None,
    per_parameter: bool = False,
    criterion: Callable[..., Any] = F.cross_entropy,
    objective: Callable[[Any], Any] | None = None,
    of: Any = None,
    parameters: Any = None,
    split: Split | None = None,
    seed: int | None = None,
    method: str | Method = "auto",
    max_memory: int | str | None = None,
) -> Quantity:
    """Return what gives a random projection of each sample's gradient.

    Products of such rows estimate those of the gradients. The projection is the same
    for every batch and data set, as that of ``ParameterJacobian.project``.

    Args:
        model: As in ``loss``.
        size: The number of directions.
        projection_seed: Chooses them; ``None`` is 0. It must be given beside ``seed``,
            which is that of a model that draws random numbers.
        per_parameter: Whether parameters stay apart.
        criterion: As in ``loss``.
        objective: As in ``loss``.
        of: As in ``loss``.
        parameters: As in ``gk.per_sample_gradients``.
        split: As in ``loss``.
        seed: As in ``loss``.
        method: As in ``gk.per_sample_gradients``.
        max_memory: As in ``gk.per_sample_gradients``.

    Returns:
        A ``Quantity``, whose rows are ``(N, size)``, or with ``per_parameter``
        ``{name: (N, size)}``, in the dtype of the parameters.

    Raises:
        InputError: As in ``loss``, ``size`` is not positive, or ``seed`` stands
            without ``projection_seed``.
        SampleDependenceError: At a batch, the model or objective couples samples.
        UnsupportedModelError: At a batch, ``method`` cannot differentiate the model.

    Cost:
        That of ``gk.per_sample_gradients(...).project(size, seed=...)``.

    Example:
        >>> import torch
        >>> from gradkit.streaming import quantities
        >>> batch = torch.ones(5, 3), torch.tensor([0, 1, 1, 0, 1])
        >>> quantities.projected_gradients(torch.nn.Linear(3, 2), 16)(batch).shape
        torch.Size([5, 16])

    Source:
        Park et al., "TRAK: attributing model behavior at scale" (2023), sec. 3, where
        the objective is ``log(p / (1 − p))`` of the correct class's probability.
    """
    if seed is not None and projection_seed is None:
        raise InputError(
            "projection_seed must be given where seed is: seed is that of a model"
            " which draws random numbers, such as dropout, and chooses no projection."
            f" Pass projection_seed={seed!r}",
            argument="projection_seed",
        )
    count = as_position(size)
    start = 0 if projection_seed is None else as_position(projection_seed)
    if count is None or count < 1:
        raise InputError(
            f"size must be a positive number; got {describe(size)}", argument="size"
        )
    if start is None:
        raise InputError(
            f"projection_seed must be a whole number; got {describe(projection_seed)}",
            argument="projection_seed",
        )
    given = read_given(
        model, question="per_sample_gradients", criterion=criterion,
        objective=objective, of=of, parameters=parameters, split=split, seed=seed,
        method=method, max_memory=max_memory,
        options={
            "size": count, "projection_seed": start, "per_parameter": per_parameter
        },
    )  # fmt: skip
    return Quantity("projected_gradients", given, _projected)


def _projected(given: Given, batch: Batch) -> Any:
    asked = given.options
    apart: bool = asked["per_parameter"]
    return rows_of(given, given.model, batch).project(
        asked["size"], seed=asked["projection_seed"], per_parameter=apart
    )
