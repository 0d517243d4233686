"""Sums that are pulled back once through a model's affine beginning are right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gradkit as gk
from gradkit import saliency
from gradkit._call._open import open_call
from gradkit._call._request import Request
from gradkit.saliency._prefix import prefixes

N, STEPS = 5, 6
DOUBLE = torch.float64


class Branches(nn.Module):
    """Takes another first layer for each half of the way, as experts do."""

    def __init__(self) -> None:
        super().__init__()
        self.small, self.large = nn.Linear(4, 6), nn.Linear(4, 6)
        self.out = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        first = self.small if x.detach().abs().max() < 0.6 else self.large
        return self.out(first(x).tanh())


class Scaled(Branches):
    """Scales the first layer's weight by what it is given."""

    def forward(self, x: Tensor) -> Tensor:
        scale = 1 + x.detach().abs().max().round()
        return self.out(F.linear(x, self.small.weight * scale).tanh())


class Gated(Branches):
    """Uses the input twice."""

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.small(x).sigmoid() * self.large(x))


class Skip(Branches):
    """Adds the input to what its first layer makes of it."""

    def forward(self, x: Tensor) -> Tensor:
        return self.out(F.pad(x, (0, 2)) + self.small(x).tanh())


def image(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers, nn.Tanh(), nn.Flatten(), nn.LazyLinear(3))


def normed() -> nn.Module:
    return nn.utils.parametrizations.weight_norm(nn.Linear(4, 6))


# Model, a sample's shape, and whether a sum is pulled back once.
MODELS: dict[str, tuple[Any, tuple[int, ...], bool]] = {
    "linear": (lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)), (4,),
               True),
    "no bias": (lambda: nn.Sequential(nn.Linear(4, 6, bias=False), nn.Tanh(),
                                      nn.Linear(6, 3)), (4,), True),
    "weight norm": (lambda: nn.Sequential(normed(), nn.Tanh(), nn.Linear(6, 3)), (4,),
                    True),
    "flattened": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.Tanh(),
                                        nn.Linear(5, 3)), (2, 3), True),
    "tokens": (lambda: image(nn.Linear(4, 6)), (3, 4), True),
    "conv1d": (lambda: image(nn.Conv1d(2, 5, 3, stride=2)), (2, 9), True),
    "conv2d": (lambda: image(nn.Conv2d(2, 6, (3, 2), padding=1, groups=2)), (2, 5, 7),
               True),
    "conv3d": (lambda: image(nn.Conv3d(1, 2, 2, dilation=2)), (1, 4, 5, 3), True),
    "transposed": (lambda: image(nn.ConvTranspose2d(2, 3, 2)), (2, 3, 4), True),
    "branches": (Branches, (4,), True),
    "scaled": (Scaled, (4,), True),
    "gated": (Gated, (4,), False),
    "skip": (Skip, (4,), False),
    "activation first": (lambda: nn.Sequential(nn.Tanh(), nn.Linear(4, 3)), (4,),
                         False),
    "recurrent": (lambda: image(Last()), (5, 4), False),
}  # fmt: skip


class Last(nn.Module):
    """The outputs of a recurrent layer."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(4, 3, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.gru(x)[0]


def made(name: str) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(4)
    build, shape, _ = MODELS[name]
    # A branch that is taken for a whole batch couples its samples, but a lone one.
    samples = 1 if name in ("branches", "scaled") else N
    model, x = build().double(), torch.rand(samples, *shape, dtype=DOUBLE) + 0.1
    model(x)
    return model, x, torch.tensor([2, 0, 1, 1, 0])[:samples]


def integrated(model: Any, x: Tensor, y: Tensor) -> Tensor:
    """Return integrated gradients by a plain loop over steps, with batches of N."""
    total = torch.zeros_like(x)
    nodes, weights = np.polynomial.legendre.leggauss(STEPS)
    for node, weight in zip(nodes.tolist(), weights.tolist(), strict=True):
        point = (x * (node + 1) / 2).requires_grad_()
        score = model(point).gather(1, y[:, None]).sum()
        total += torch.autograd.grad(score, point)[0] * (weight / 2)
    return total * x


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_sums_are_those_of_a_loop(name: str, frozen: bool) -> None:
    model, x, y = made(name)
    model.requires_grad_(not frozen)
    found = stepwise(model, x, y, steps=STEPS)
    expected = integrated(model, x, y)
    assert float(expected.abs().max()) > 1e-3
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("name", ["branches", "scaled"])
def test_steps_of_a_lone_sample_do_not_meet_in_a_branch(name: str) -> None:
    model, x, y = made(name)
    for _ in range(3):
        found = saliency.integrated_gradients(model, x, y, steps=STEPS)
        torch.testing.assert_close(found, integrated(model, x, y), rtol=0, atol=1e-13)


def test_a_model_for_one_size_of_batch_runs_step_by_step() -> None:
    layer = nn.Linear(6, 2).double()
    sizes: list[int] = []

    def model(x: Tensor) -> Tensor:
        sizes.append(len(x))
        outputs = layer(x.tanh())
        return outputs if len(x) == N else outputs * (1 + 1e-3)

    x = torch.rand(N, 6, dtype=DOUBLE)
    y = torch.tensor([1, 0, 0, 1, 1])
    with pytest.MonkeyPatch.context() as patch:
        # Else it is told by what a smaller batch gives, and refused.
        patch.setattr("gradkit._call._open.prove", lambda *_, **__: True)
        found = saliency.integrated_gradients(model, x, y, steps=STEPS)
    assert max(sizes) > N  # it was tried
    torch.testing.assert_close(found, integrated(model, x, y), rtol=0, atol=1e-13)


def stepwise(model: nn.Module, x: Tensor, y: Tensor, **given: Any) -> Tensor:
    """Return integrated gradients with steps that are not stacked."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gradkit.saliency._passes._CACHED", 1)
        return saliency.integrated_gradients(model, x, y, **given)


@pytest.mark.parametrize("name", MODELS)
def test_which_models_have_an_affine_beginning(name: str) -> None:
    model, x, y = made(name)
    with open_call(Request("input_gradients", model, x, y)) as call:
        (found,) = prefixes(call.task.graph)
    assert (found is not None) is MODELS[name][2]


def test_another_beginning_is_told_apart() -> None:
    model, x, _ = made("branches")
    found = []
    for scale in (0.1, 0.2, 1.0):
        with open_call(Request("jacobian", model, x * scale)) as call:
            found += prefixes(call.task.graph)
    assert found[0].same(found[1])
    assert not found[0].same(found[2])
    assert not found[0].same(None)


@pytest.mark.parametrize("name", ["linear", "conv2d", "tokens"])
def test_a_sum_passes_the_first_layer_once(name: str) -> None:
    model, x, y = made(name)
    passed: list[tuple[int, ...]] = []
    first = next(m for m in model.modules() if isinstance(m, (nn.Linear, nn.Conv2d)))

    class Noted(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *cotangents: Tensor) -> Tensor:
            passed.append(tuple(cotangents[0].shape))
            return cotangents[0]

    def noted(module: nn.Module, given: Any) -> Tensor:
        return Noted.apply(given[0])  # pyright: ignore[reportReturnType]

    plain = stepwise(model, x, y, steps=STEPS)
    # Something that is not affine as far as anyone can see keeps the steps apart.
    first.register_forward_pre_hook(noted)
    apart = stepwise(model, x, y, steps=STEPS)
    assert len(passed) >= STEPS
    torch.testing.assert_close(plain, apart, rtol=0, atol=1e-13)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_lower_precision_is_right_to_rounding(dtype: torch.dtype) -> None:
    model, x, y = made("linear")
    model, x = model.to(dtype), x.to(dtype)
    found = saliency.integrated_gradients(model, x, y, steps=STEPS)
    expected = integrated(model.double(), x.double(), y)
    assert found.dtype == dtype
    error = (found.double() - expected).abs().max() / expected.abs().max()
    assert float(error) < 30 * torch.finfo(dtype).eps


def test_several_inputs_have_beginnings_of_their_own() -> None:
    torch.manual_seed(6)
    left, right = nn.Linear(3, 4).double(), nn.Linear(2, 4).double()

    def model(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return (left(a).tanh() + right(b) * c).square()

    a, b, c = (torch.rand(N, d, dtype=DOUBLE) for d in (3, 2, 4))
    given = (model, (a, b, c), gk.objectives.output_sum)
    found = saliency.integrated_gradients(*given, steps=40)
    gap = saliency.completeness_gap(found, *given)
    torch.testing.assert_close(gap, torch.zeros(N, dtype=DOUBLE), rtol=0, atol=1e-10)


class Hooked(Branches):
    """Registers a hook on a tensor in its forward."""

    def __init__(self, place: str, hook: Any) -> None:
        super().__init__()
        self.place, self.hook = place, hook

    def forward(self, x: Tensor) -> Tensor:
        x = x.clone()
        hidden = self.small(x)
        tensor = {"input": x, "layer": hidden}[self.place]
        if tensor.requires_grad:
            tensor.register_hook(self.hook)
        return self.out(hidden.tanh())


@pytest.mark.parametrize("place", ["input", "layer"])
@pytest.mark.parametrize(
    "hook",
    [lambda g: 2 * g, lambda g: g.clamp(-0.01, 0.01), lambda g: g * (g.abs() > 0.05)],
)
def test_hooks_on_tensors_meet_each_gradient_once(place: str, hook: Any) -> None:
    torch.manual_seed(4)
    model, x = Hooked(place, hook).double(), torch.rand(N, 4, dtype=DOUBLE) + 0.1
    y = torch.tensor([2, 0, 1, 1, 0])
    expected = integrated(model, x, y)
    for _ in range(3):
        found = saliency.integrated_gradients(model, x, y, steps=STEPS)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-13)
