"""What the tests of single faults share: small models, plain references."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gradkit as gk
from gradkit.errors import GradkitError, SampleDependenceError
from reported import methods_of

#: ``"auto"`` and every method that serves ``per_sample_gradients``.
PARAMETER_METHODS = methods_of(gk.per_sample_gradients)
#: ``"auto"`` and every method that serves ``jacobian``.
INPUT_METHODS = methods_of(gk.jacobian)

output_sum = gk.objectives.output_sum


def doubles(*shape: int) -> Tensor:
    """Return standard normal numbers in float64."""
    return torch.randn(shape, dtype=torch.float64)


class _Holding(nn.Module):
    """A module of one function of itself and the inputs, and of what it holds."""

    def __init__(self, function: Callable[..., Any], **held: Any) -> None:
        super().__init__()
        self.function = function
        for name, value in held.items():
            setattr(self, name, value)

    def forward(self, *inputs: Any) -> Any:
        return self.function(self, *inputs)


# Whatever it holds has the type it was given with, which no checker can know.
Holding: Any = _Holding


def weighted(function: Callable[..., Any], width: int = 3, **held: Any) -> Any:
    """Return a module with one parameter ``w`` of ``width`` random numbers."""
    return Holding(function, w=nn.Parameter(doubles(width)), **held)


def alone(model: nn.Module, inputs: Tensor, parameter: Tensor) -> Tensor:
    """Return ``(N, *p)``: each sample's own gradient, in a batch of its own."""
    rows = [
        torch.autograd.grad(model(sample[None]).sum(), parameter)[0]
        for sample in inputs
    ]
    return torch.stack(rows)


def assert_rows(found: Tensor, expected: Tensor) -> None:
    """Raise unless rows are as expected, to rounding, and are not all zero."""
    assert bool(expected.any())
    torch.testing.assert_close(found, expected)


def is_coupled(call: Callable[[], Any]) -> bool:
    """Return whether a call is refused because samples meet."""
    try:
        call()
    except SampleDependenceError:
        return True
    return False


def assert_always_coupled(calls: int, draw: Callable[[], Callable[[], Any]]) -> None:
    """Raise unless every drawn call is refused because samples meet."""
    served = [n for n in range(calls) if not is_coupled(draw())]
    assert served == [], f"{len(served)} of {calls} calls were served"


def refusal(kind: type[Exception], call: Callable[..., Any], *args: Any) -> str:
    """Return the text of the exception, of exactly this kind, that a call raises."""
    with pytest.raises(kind) as caught:
        call(*args)
    assert type(caught.value) is kind
    return str(caught.value)


def ask_all(model: nn.Module, x: Tensor) -> int:
    """Ask every method about inputs and parameters; return how many answered."""
    served = 0
    for method in INPUT_METHODS:
        with contextlib.suppress(GradkitError):
            gk.jacobian(model, x, method=method)
            served += 1
    for method in PARAMETER_METHODS:
        with contextlib.suppress(GradkitError):
            gk.per_sample_gradients(model, x, output_sum, method=method)
            served += 1
    return served


def with_rows(change: Callable[..., Tensor], kind: str = "inputs") -> gk.Method:
    """Return a foreign method whose rows are right but for ``change(block, rows)``."""
    base = gk.METHODS["onehot" if kind == "inputs" else "rows"]
    right: Any = getattr(base, kind)

    def wrong(task: Any) -> Iterator[gk.Block]:
        for block in right(task):
            values = tuple(change(block, v.clone()) for v in block.values)
            yield block._replace(values=values)

    made: Any = {kind: wrong}
    return dataclasses.replace(base, name="foreign", through_graph=(), **made)
