"""Saliency maps by definition: closed forms first, then loops of a few lines."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from case import DEVICE
from gradkit import saliency
from gradkit.errors import InputError
from maps import LABELS, C, D, N, assert_close, draw, slope, smooth_net


@pytest.fixture(autouse=True)
def _on_device():
    with torch.device(DEVICE):
        yield


def test_gradient_of_a_linear_layer_is_its_row():
    layer = nn.Linear(D, C).double()
    found = saliency.gradient(layer, draw(N, D), LABELS)
    assert torch.equal(found, layer.weight.detach()[LABELS])


def test_gradient_is_that_of_central_differences():
    model, x, step = smooth_net(), draw(N, D), 1e-5
    expected = torch.zeros_like(x)
    for n in range(N):
        for d in range(D):
            shift = step * F.one_hot(torch.tensor(d), D).double()
            above, below = model(x[n] + shift), model(x[n] - shift)
            expected[n, d] = ((above - below)[LABELS[n]] / (2 * step)).detach()
    assert_close(saliency.gradient(model, x, LABELS), expected, 1e-8)


def test_gradient_times_input_of_a_linear_layer():
    layer, x = nn.Linear(D, C).double(), draw(N, D)
    found = saliency.gradient_times_input(layer, x, LABELS)
    assert torch.equal(found, layer.weight.detach()[LABELS] * x)


def test_gradient_times_input_of_relus_without_biases_sums_to_the_objective():
    layers = nn.Linear(D, 7, bias=False), nn.ReLU(), nn.Linear(7, C, bias=False)
    model, x = nn.Sequential(*layers).double(), draw(N, D)
    found = saliency.gradient_times_input(model, x, LABELS)
    assert_close(found.sum(1), model(x).detach()[range(N), LABELS])


def test_gradient_times_a_layers_output():
    model, x = smooth_net(), draw(N, D)
    hidden = model[:2](x).detach()
    found = saliency.gradient_times_input(model, x, LABELS, wrt="1")
    assert_close(found, hidden * model[2].weight.detach()[LABELS])


def test_grad_cam_by_its_definition():
    head = nn.Sequential(nn.Conv2d(2, 5, 3), nn.Tanh())
    tail = nn.Sequential(nn.Flatten(), nn.Linear(5 * 4 * 6, C), nn.Sigmoid())
    model = nn.Sequential(head, tail).double()
    x = draw(N, 2, 6, 8)
    expected = []
    for n in range(N):
        maps = head(x[n : n + 1])[0].detach()
        weights = slope(tail, maps, LABELS[n]).mean((1, 2))
        expected.append(sum(w * m for w, m in zip(weights, maps, strict=True)))
    found = saliency.grad_cam(model, x, LABELS, wrt="0.1")
    assert found.shape == (N, 1, 4, 6)
    assert_close(found, torch.stack(expected)[:, None])
    assert found.min() < 0 < found.max()


def test_grad_cam_of_sequences_and_of_volumes():
    for space in ((6,), (2, 3, 4)):
        x = draw(N, 2, *space)
        weights = draw(2, *space)
        model = nn.Sequential(nn.Tanh(), nn.Flatten(), nn.Identity())
        found = saliency.grad_cam(
            model, x, lambda y, w=weights: y @ w.flatten(), wrt="0"
        )
        mean = weights.flatten(1).mean(1).reshape(2, *[1] * len(space))
        assert_close(found, (mean * x.tanh()).sum(1, keepdim=True))


# -- guided backpropagation ----------------------------------------------------------


def guided_by_hand(layers: list[nn.Linear], x: Tensor, label: int, top: float):
    """Return the guided gradient of one sample of linear layers with ReLUs between."""
    before = []
    for layer in layers[:-1]:
        before.append(layer(x).detach())
        x = before[-1].clamp(0, top)
    found = layers[-1].weight.detach()[label]
    for layer, z in zip(layers[-2::-1], before[::-1], strict=True):
        passes = (found > 0) & (z > 0) & (z < top)
        found = torch.where(passes, found, 0.0) @ layer.weight.detach()
    return found


class Rectified(nn.Module):
    def __init__(self, relu: Any) -> None:
        super().__init__()
        sizes = [(D, 9), (9, 8), (8, C)]
        self.layers = nn.ModuleList(nn.Linear(*size) for size in sizes)
        self.relu = relu

    def forward(self, x: Tensor) -> Tensor:
        for layer in list(self.layers)[:-1]:
            x = self.relu(layer(x))
        return self.layers[-1](x)


RELUS = {
    "module": nn.ReLU(),
    "module in place": nn.ReLU(inplace=True),
    "function": F.relu,
    "function in place": lambda z: F.relu(z, inplace=True),
    "torch": torch.relu,
    "method in place": lambda z: z.relu_(),
    "clamp": lambda z: z.clamp(min=0),
    "clamp in place": lambda z: z.clamp_(min=0.0),
    "clamp_min": lambda z: z.clamp_min(0),
    "threshold": lambda z: F.threshold(z, 0.0, 0.0),
}
LIMITED = {
    "relu6": nn.ReLU6(),
    "relu6 in place": nn.ReLU6(inplace=True),
    "hardtanh": nn.Hardtanh(0.0, 6.0),
    "clamp": lambda z: z.clamp(0, 6),
}
OTHERS = {
    "leaky": nn.LeakyReLU(),
    "hardtanh": nn.Hardtanh(),
    "clamp": lambda z: z.clamp(min=-0.5),
    "threshold": lambda z: F.threshold(z, 0.1, 0.0),
    "gelu": F.gelu,
    "none": lambda z: z,
}


@pytest.mark.parametrize(
    ("relu", "top"),
    [(r, torch.inf) for r in RELUS.values()] + [(r, 6.0) for r in LIMITED.values()],
    ids=[*RELUS, *(f"{name} to 6" for name in LIMITED)],
)
def test_guided_backprop_of_every_relu_is_that_by_hand(relu, top):
    model, x = Rectified(relu).double(), 30 * draw(N, D)
    layers: Any = list(model.layers)
    expected = [
        guided_by_hand(layers, *pair, top) for pair in zip(x, LABELS, strict=True)
    ]
    assert (layers[0](x) > 6).any()
    found = saliency.guided_backprop(model, x, LABELS)
    assert_close(found, torch.stack(expected))
    plain = saliency.gradient(model, x, LABELS)
    assert (found - plain).abs().max() > 1e-2


@pytest.mark.parametrize("activation", OTHERS.values(), ids=OTHERS)
def test_guided_backprop_without_a_relu_is_refused(activation):
    with pytest.raises(InputError) as caught:
        saliency.guided_backprop(Rectified(activation).double(), draw(N, D), LABELS)
    assert str(caught.value) == (
        "guided_backprop: the model must have a ReLU for guided backpropagation to"
        " differ from the gradient; none was met between wrt and the objective. Take"
        " gk.saliency.gradient"
    )


@pytest.mark.parametrize("trains", [True, False])
def test_guided_backprop_with_relus_before_what_is_asked_alone_is_refused(trains):
    layers = nn.Linear(D, 7), nn.ReLU(), nn.Linear(7, 6), nn.Linear(6, C)
    model = nn.Sequential(*layers).double().requires_grad_(trains)
    with pytest.raises(InputError, match="none was met between wrt and the objective"):
        saliency.guided_backprop(model, draw(N, D), LABELS, wrt="2")


def test_guided_backprop_with_relus_beside_what_is_asked_alone_is_refused():
    first, second = nn.Linear(D, C).double(), nn.Linear(6, C).double()

    def model(x, y):
        return first(x) + second(y).relu()

    with pytest.raises(InputError, match="none was met between wrt and the objective"):
        saliency.guided_backprop(model, (draw(N, D), draw(N, 6)), LABELS, wrt=0)


def test_guided_backprop_passes_other_activations_as_the_gradient_does():
    layers = nn.Linear(D, 7), nn.Tanh(), nn.Linear(7, 6), nn.ReLU(), nn.Linear(6, C)
    model: Any = nn.Sequential(*layers).double()
    x = draw(N, D)
    hidden = model[:2](x).detach()
    expected = []
    for n in range(N):
        found = guided_by_hand([model[2], model[4]], hidden[n], LABELS[n], torch.inf)
        expected.append(found * (1 - hidden[n].square()) @ model[0].weight.detach())
    assert_close(saliency.guided_backprop(model, x, LABELS), torch.stack(expected))


# -- what is made of maps ------------------------------------------------------------


def test_absolute_keeps_structures():
    maps = {"a": draw(N, D), "b": (draw(N, C), None)}
    found = saliency.absolute(maps)
    assert torch.equal(found["a"], maps["a"].abs())
    assert torch.equal(found["b"][0], maps["b"][0].abs())
    assert found["b"][1] is None


@pytest.mark.parametrize("axis", [1, -1, 2, -3])
def test_reductions_over_channels_by_loops(axis):
    maps = draw(N, 3, 6, 5)
    parts = maps.unbind(axis)
    largest, total, square = (torch.zeros_like(parts[0]) for _ in range(3))
    for part in parts:
        largest = torch.where(part.abs() > largest, part.abs(), largest)
        total, square = total + part, square + part * part
    assert_close(saliency.channel_max(maps, axis=axis), largest)
    assert_close(saliency.channel_sum(maps, axis=axis), total)
    assert_close(saliency.channel_norm(maps, axis=axis), square.sqrt())


def test_reductions_are_over_the_first_axis_after_the_samples():
    maps = draw(N, 3, 6, 5)
    for reduce in (saliency.channel_max, saliency.channel_sum, saliency.channel_norm):
        assert torch.equal(reduce(maps), reduce(maps, axis=1))
