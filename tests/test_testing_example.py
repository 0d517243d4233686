"""A test file as another project would write it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import gradkit as gk
from gradkit.testing import assert_no_trace, check_gradients


class Swish(torch.autograd.Function):
    """The function under test: ``x * sigmoid(x)``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x.sigmoid()

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        gate = x.sigmoid()
        return cotangent * gate * (1 + x * (1 - gate))


@pytest.mark.parametrize("shape", [(), (0,), (7,), (2, 3, 5)])
def test_swish(shape: tuple[int, ...]) -> None:
    assert check_gradients(Swish.apply, torch.randn(shape), order=2)


def test_swish_as_a_kernel_in_float32() -> None:
    x = torch.randn(40, 30)
    assert check_gradients(Swish.apply, x, reference=torch.nn.functional.silu)


def test_a_layer_and_its_parameters() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.SiLU())
    assert check_gradients(model, torch.randn(5, 3), wrt=[0, "*weight"])


def test_saliency_leaves_the_model_alone() -> None:
    def saliency(model: Any, x: Tensor) -> Tensor:
        return gk.input_gradients(model, x, 0).abs()

    model = torch.nn.Linear(3, 2)
    assert assert_no_trace(saliency, model, torch.randn(5, 3)).shape == (5, 3)
