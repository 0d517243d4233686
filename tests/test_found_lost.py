"""Inputs cut off below layers that still have gradients: refused, never zeros."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import gradkit as gk

N, IN, MID, OUT = 4, 5, 3, 2


def networks() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    return nn.Linear(IN, MID), nn.Linear(MID, OUT)


def under_no_grad(body: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        return body(x)


def by_numpy(body: nn.Module, x: Tensor) -> Tensor:
    return torch.from_numpy(np.asarray(body(x).detach()))


CUTS = {
    "no_grad": under_no_grad,
    "detach": lambda body, x: body(x).detach(),
    "detached inputs": lambda body, x: body(x.detach()),
    "data": lambda body, x: body(x.data),
    "numpy": by_numpy,
}


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("frozen", [False, True])
def test_a_cut_below_a_trained_head_is_refused(cut: str, frozen: bool) -> None:
    body, head = networks()
    head.requires_grad_(not frozen)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = body, head

        def forward(self, x: Tensor) -> Tensor:
            return self.head(CUTS[cut](self.body, x))

    x = torch.randn(N, IN)
    for ask in (
        lambda: gk.input_gradients(Model(), x, 1),
        lambda: gk.jacobian(Model(), x),
        lambda: gk.saliency.gradient(Model(), x, 0),
    ):
        with pytest.raises(
            gk.errors.UnsupportedModelError, match="carries no gradient"
        ):
            ask()


def test_what_is_truly_zero_stays_so() -> None:
    _, head = networks()
    x, other = torch.randn(N, IN), torch.randn(N, MID)

    def unused(a: Tensor, b: Tensor) -> Tensor:
        return head(b)

    # Constant in what is asked about, though not in the other input.
    assert not gk.jacobian(unused, (x, other), wrt=0).any()
    first, second = gk.jacobian(unused, (x, other))
    assert not first.any()
    assert second.any()
    assert not gk.jacobian(lambda x: head(torch.ones(len(x), MID)), x).any()


def test_a_layer_that_is_not_used_has_zeros() -> None:
    class Beside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.aside, self.main = nn.Linear(IN, MID), nn.Linear(IN, OUT)

        def forward(self, x: Tensor) -> Tensor:
            self.aside(x)
            return self.main(x)

    assert not gk.jacobian(Beside(), torch.randn(N, IN), wrt="aside").any()


@pytest.mark.parametrize("ask", [gk.input_gradients, gk.per_sample_gradients])
def test_a_forward_in_inference_mode_is_refused(ask) -> None:
    class Inferring(nn.Linear):
        @torch.inference_mode()
        def forward(self, input: Tensor) -> Tensor:
            return super().forward(input)

    with pytest.raises(NotImplementedError, match="carries no gradient"):
        ask(Inferring(IN, OUT), torch.randn(N, IN), gk.objectives.class_score(1))


def test_a_frozen_script_is_served() -> None:
    network = nn.Sequential(*networks()).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        frozen = torch.jit.freeze(torch.jit.script(network))
    x = torch.randn(N, IN)
    assert torch.allclose(gk.jacobian(frozen, x), gk.jacobian(network, x))


def test_a_scalar_output_is_led_to_an_objective() -> None:
    network = nn.Linear(IN, OUT)
    with pytest.raises(gk.errors.InputError, match="goes into the objective") as caught:
        gk.input_gradients(lambda x: network(x).mean(), torch.randn(N, IN))
    assert "batched=False" not in str(caught.value)
