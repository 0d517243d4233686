"""A batch of one image, whose normalisation torch 2.13 differentiates wrongly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gradkit as gk
from found import INPUT_METHODS, PARAMETER_METHODS, Holding, doubles
from reported import methods_of


@pytest.fixture(autouse=True)
def _on_device(device):
    with torch.device(device):
        yield


CHANNELS, SIZE = 4, (3, 2)

NORMS: dict[str, Callable[[], nn.Module]] = {
    "batch norm": lambda: nn.BatchNorm2d(CHANNELS),
    "instance norm": lambda: nn.InstanceNorm2d(CHANNELS, affine=True),
}

READ: dict[str, Callable[[Tensor], Tensor]] = {
    "tokens": lambda y: y.flatten(2).transpose(1, 2),
    "channels last": lambda y: y.permute(0, 2, 3, 1),
    "as it is": lambda y: y,
}


def objective(outputs: Tensor) -> Tensor:
    flat = outputs.flatten(1)
    return (flat * torch.cos(torch.arange(flat.shape[1], dtype=flat.dtype))).sum(1)


def network(norm: str, read: str) -> Any:
    layer = NORMS[norm]().double().eval()
    with torch.no_grad():
        for tensor in (*layer.parameters(), *layer.buffers()):
            if tensor.is_floating_point():
                tensor.copy_(torch.rand_like(tensor) + 0.5)
    return Holding(lambda m, x: READ[read](m.norm(x)), norm=layer)


def differences(function: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    """Return central differences of a number."""
    steps = 1e-6 * torch.eye(at.numel(), dtype=at.dtype).reshape(-1, *at.shape)
    with torch.no_grad():
        found = [(function(at + h) - function(at - h)) / 2e-6 for h in steps]
    return torch.stack(found).reshape(at.shape)


ONE_NUMBER = methods_of(gk.input_gradients)


@pytest.mark.parametrize("read", READ)
@pytest.mark.parametrize("norm", NORMS)
class TestOneImage:
    def test_has_the_gradient_of_its_parameters(self, norm, read):
        model, x = network(norm, read), doubles(1, CHANNELS, *SIZE)
        weight = model.norm.weight

        def of(value: Tensor) -> Tensor:
            call = {"norm.weight": value}
            return objective(torch.func.functional_call(model, call, x))[0]

        expected = differences(of, weight.detach())
        for method in PARAMETER_METHODS:
            found = gk.per_sample_gradients(model, x, objective, method=method)
            torch.testing.assert_close(
                found["norm.weight"][0], expected, rtol=1e-6, atol=1e-7
            )

    def test_has_the_gradient_of_its_pixels(self, norm, read):
        model, x = network(norm, read), doubles(1, CHANNELS, *SIZE)
        expected = differences(lambda v: objective(model(v[None]))[0], x[0])
        for method in ONE_NUMBER:
            found = gk.input_gradients(model, x, objective, method=method)
            torch.testing.assert_close(found[0], expected, rtol=1e-6, atol=1e-7)

    def test_is_as_in_a_batch(self, norm, read):
        model, x = network(norm, read), doubles(3, CHANNELS, *SIZE)
        expected = gk.jacobian(model, x)
        for method in INPUT_METHODS:
            alone = gk.jacobian(model, x[1:2], method=method)
            torch.testing.assert_close(alone, expected[1:2])
