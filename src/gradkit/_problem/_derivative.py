"""A derivative together with the forward that it was taken at."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

__all__ = ["Derivative"]


class Derivative(NamedTuple):
    """A derivative with the values of the very forward that was differentiated.

    Attributes:
        derivative: What the function returns without ``with_values``.
        outputs: The model's outputs (or what ``of`` picked), ``(N, *out)``, detached.
        objective_values: ``(N,)``, ``()`` with ``batched=False``, or ``None`` for a
            Jacobian.
        at: The values of what the derivative is taken with respect to, ``(N, *in)``,
            in the same form as the derivative.

    Example:
        >>> import torch
        >>> import gradkit as gk
        >>> x = torch.tensor([[3.0], [4.0]])
        >>> result = gk.input_gradients(lambda x: x**2, x, with_values=True)
        >>> result.derivative.flatten(), result.objective_values
        (tensor([6., 8.]), tensor([ 9., 16.]))
        >>> torch.equal(result.at, x)
        True
    """

    derivative: Any
    outputs: Any
    objective_values: Tensor | None
    at: Any
