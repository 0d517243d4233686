"""Faults that were found by trying to break saliency, each with the right value."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradkit import saliency
from gradkit.errors import InputError

DOUBLE = torch.float64


class EarlyExit(nn.Module):
    """Takes another way where the whole batch is sure."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.e, self.b = nn.Linear(6, 5), nn.Linear(5, 3), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.a(x).tanh()
        early = self.e(hidden)
        sure = bool((early.softmax(1).amax(1) > 0.5).all())
        return early if sure else self.b(hidden)


@pytest.mark.parametrize("seed", range(6))
def test_steps_of_a_lone_sample_take_their_own_branches(seed: int) -> None:
    torch.manual_seed(seed)
    model, x = EarlyExit().double(), torch.randn(1, 6, dtype=DOUBLE) * 2
    sizes: list[int] = []
    model.register_forward_pre_hook(lambda _, given: sizes.append(len(given[0])))
    found = saliency.occlusion(model, x, lambda y: y.square().sum(1), window=1)
    assert max(sizes) == 1
    for d in range(6):
        covered = x.clone()
        covered[0, d] = 0
        lost = model(x).square().sum() - model(covered).square().sum()
        assert float(found[0, d]) == pytest.approx(float(lost.detach()), abs=1e-12)


def test_half_precision_sums_are_divided_before_they_are_narrowed() -> None:
    x = torch.rand(2, 5).half()

    def scaled(z: Tensor) -> Tensor:
        return (z * 2000).sum(1, keepdim=True)

    found = saliency.smoothgrad(scaled, x, None)
    assert found.tolist() == [[2000.0] * 5] * 2
    square = saliency.smoothgrad(lambda z: z.sum(1) * 50, x, None, statistic="square")
    assert square.tolist() == [[2500.0] * 5] * 2


def test_many_windows_are_counted_in_more_than_bfloat16() -> None:
    x = torch.ones(1, 1000, dtype=torch.bfloat16)
    found = saliency.occlusion(
        lambda z: z.float().sum(1), x, None, window=600, stride=1
    )
    assert float(found[0, 500]) == 600.0


def gated(layer: nn.Module, given: Any, output: Tensor) -> None:
    mask = output.detach() > 0
    if output.requires_grad:
        output.register_hook(lambda g: g * mask)


def test_hooks_that_look_at_values_meet_each_step_with_its_own() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.SiLU(), nn.Linear(16, 3)).double()
    model[0].register_forward_hook(gated)
    x, steps = torch.randn(4, 6, dtype=DOUBLE), 8
    expected = torch.zeros_like(x)
    for step in range(steps):
        point = (x * (step + 0.5) / steps).requires_grad_()
        expected += torch.autograd.grad(model(point).square().sum(), point)[0] / steps
    found = saliency.integrated_gradients(
        model, x, lambda y: y.square().sum(1), steps=steps, rule="riemann_middle"
    )
    torch.testing.assert_close(found, expected * x, rtol=0, atol=1e-12)


class Clone(torch.autograd.Function):
    """A layout by its name alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return cotangents[0] * (1 + x)


def test_a_function_of_the_users_is_no_layout() -> None:
    torch.manual_seed(1)
    layer, x = nn.Linear(6, 5).double(), torch.rand(4, 6, dtype=DOUBLE)
    found = saliency.integrated_gradients(
        lambda x: layer(Clone.apply(x)).tanh(),  # pyright: ignore[reportArgumentType]
        x, lambda y: y.sum(1), steps=1, rule="riemann_middle",
    )  # fmt: skip
    point = (x / 2).requires_grad_()
    plain = torch.autograd.grad(layer(point).tanh().sum(), point)[0]
    torch.testing.assert_close(found, plain * (1 + x / 2) * x, rtol=0, atol=1e-12)


def test_an_input_that_is_an_output_too_keeps_both_ways() -> None:
    torch.manual_seed(2)
    layer, x = nn.Linear(6, 5).double(), torch.rand(4, 6, dtype=DOUBLE)
    found = saliency.integrated_gradients(
        lambda x: (1000 * layer(x), x), x, lambda y: y[1].square().sum(1)
    )
    torch.testing.assert_close(found, x.square(), rtol=0, atol=1e-12)


def test_constant_outputs_are_not_taken_for_samples() -> None:
    torch.manual_seed(3)
    layer, index = nn.Linear(6, 5).double(), torch.arange(32) % 5
    x = torch.randn(4, 6, dtype=DOUBLE)

    def model(x: Tensor) -> dict[str, Tensor]:
        return {"y": layer(x).tanh(), "index": index}

    def objective(outputs: Any) -> Tensor:
        return outputs["y"][:, outputs["index"]].square().sum(1)

    found = saliency.integrated_gradients(model, x, objective, steps=8)  # 8 * 4 == 32
    alone = [
        saliency.integrated_gradients(model, x[n : n + 1], objective, steps=8)
        for n in range(4)
    ]
    torch.testing.assert_close(found, torch.cat(alone), rtol=0, atol=1e-12)


@pytest.mark.parametrize("value", [torch.tensor([0.7]), torch.tensor(300)])
def test_baselines_of_integers_are_held_exactly_or_refused(value: Tensor) -> None:
    ids = torch.ones(2, 3, dtype=torch.uint8)
    with pytest.raises(InputError, match="must hold whole numbers that torch"):
        saliency.occlusion(
            lambda x: x.double().sum(1), ids, None, window=1, baseline=value
        )
