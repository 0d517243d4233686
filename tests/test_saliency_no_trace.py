"""No saliency function leaves a trace of itself, nor does a failure midway."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gradkit as gk
from case import DEVICE
from footprint import Footprint
from gradkit import saliency
from maps_asked import (
    ALL,
    LABELS,
    ONCE,
    STEPWISE,
    images,
    maps_of,
    network,
    one_thread,
    tensor_of,
)


@pytest.fixture(autouse=True)
def _on_device():
    with torch.device(DEVICE), one_thread():
        yield


class Boom(Exception):
    pass


class Failing(nn.Module):
    """Raises at every point, or at every one but the inputs."""

    def __init__(self, net: nn.Module, x: Tensor | None) -> None:
        super().__init__()
        self.net, self.x = net, x

    def forward(self, x: Tensor) -> Tensor:
        is_first = self.x is not None and all(
            any(torch.equal(a, b) for b in self.x) for a in x
        )
        if not is_first:
            raise Boom
        return self.net(x)

    def __getitem__(self, place: int) -> Any:
        return self.get_submodule(f"net.{place}")


def failing(objective: Any, at: int) -> Any:
    """Return an objective that raises when it is called for the ``at``-th time."""
    calls: list[int] = []

    def fails(outputs: Any) -> Any:
        calls.append(0)
        if len(calls) == at:
            raise Boom
        return objective(outputs)

    return fails


def hooked(model: nn.Sequential) -> nn.Sequential:
    model[0].register_forward_hook(lambda *_: None)
    model[2].register_forward_pre_hook(lambda *_: None)
    model[5].register_full_backward_hook(lambda *_: None)
    next(model[0].parameters()).register_hook(lambda grad: None)
    return model


def with_gradients(model: nn.Sequential) -> nn.Sequential:
    model(images()).square().sum().backward()
    return model


MODELS: dict[str, Any] = {
    "plain": lambda m: m,
    "frozen": lambda m: m.requires_grad_(False),
    "partly frozen": lambda m: m if m[0].requires_grad_(False) else None,
    "hooked": hooked,
    "with gradients": with_gradients,
    "training but for the norm": lambda m: m[0].train() and m[5].train() and m,
}
MODES = {
    "plain": contextlib.nullcontext,
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
}


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("name", ALL)
def test_nothing_of_the_callers_is_touched(name, kind):
    model = MODELS[kind](network())
    x = images().requires_grad_()
    x.grad = torch.ones_like(x)
    before = Footprint(model, tensors={"x": x, "labels": LABELS})
    expected = tensor_of(ALL[name](model, x.detach(), LABELS))
    before.assert_unchanged()
    found = tensor_of(ALL[name](model, x, LABELS))
    before.assert_unchanged()
    assert torch.equal(found, expected)
    assert found.abs().max() > 0
    assert not found.requires_grad
    assert found.grad_fn is None


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ALL)
def test_modes_of_the_caller_change_nothing(name, mode):
    model, x = network(), images()
    expected = tensor_of(ALL[name](model, x, LABELS))
    with MODES[mode]():
        before = Footprint(model, tensors={"x": x})
        found = tensor_of(ALL[name](model, x, LABELS))
        before.assert_unchanged()
        assert torch.equal(found, expected)
        made_here = images()
        assert tensor_of(ALL[name](model, made_here, LABELS)).shape == found.shape
    assert not found.requires_grad


@pytest.mark.parametrize("what", ["objective", "model"])
@pytest.mark.parametrize("name", ALL)
def test_nothing_of_the_callers_is_touched_when_something_raises(name, what):
    x = images().requires_grad_()
    model: Any = hooked(with_gradients(network()))
    objective: Any = gk.objectives.class_score(LABELS)
    if what == "model":
        model = Failing(model, None if name in ONCE else x.detach().clone())
    else:
        objective = failing(objective, 3 if name in STEPWISE else 1)
    before = Footprint(model, tensors={"x": x})
    with pytest.raises(Boom):
        ALL[name](model, x, objective)
    before.assert_unchanged()


@pytest.mark.parametrize("kind", ["baseline", "baselines", "attributions"])
def test_what_else_is_given_is_not_touched(kind):
    model, x, given = network(), images(), images().requires_grad_()
    before = Footprint(model, tensors={"x": x, "given": given})
    if kind == "baseline":
        several = [given, given[:1]]
        curve = saliency.insertion_curve(
            maps_of(x), model, x, 0, baseline=several, steps=3
        )
        found = [
            saliency.integrated_gradients(model, x, 0, baseline=several, steps=3),
            saliency.occlusion(model, x, 0, window=(4, 3), baseline=given),
            curve.values,
        ]
    elif kind == "baselines":
        found = [saliency.expected_gradients(model, x, 0, baselines=given, draws=3)]
    else:
        curve = saliency.deletion_curve(given, model, x, 0, steps=3)
        found = [saliency.completeness_gap(given, model, x, 0), curve.values]
    before.assert_unchanged()
    assert not any(f.requires_grad for f in found)
