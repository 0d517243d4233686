"""Samples, dtypes and layouts that every saliency function takes, or refuses."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import gradkit as gk
from case import DEVICE
from gradkit import saliency
from gradkit.errors import InputError, SampleDependenceError
from maps_asked import (
    ALL,
    IMAGE,
    LABELS,
    STEPWISE,
    N,
    images,
    network,
    one_thread,
    tensor_of,
)


@pytest.fixture(autouse=True)
def _on_device():
    with torch.device(DEVICE), one_thread():
        yield


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64]
)
@pytest.mark.parametrize("name", ALL)
def test_results_have_the_dtype_and_device_of_what_they_are_maps_of(name, dtype):
    # What is drawn is drawn in float32 for what is smaller.
    wide = torch.float32 if name.startswith("smoothgrad") else torch.float64
    model, x = network(), images().to(dtype)
    if name != "guided_backprop":
        model[2] = nn.Softplus()  # no kink that rounding could step over
    expected = tensor_of(ALL[name](model.to(wide), x.to(wide), LABELS)).double()
    found = tensor_of(ALL[name](model.to(dtype), x, LABELS))
    assert found.dtype == dtype
    assert found.device == x.device
    if name.startswith("smoothgrad") and dtype == torch.float64:
        return
    error = (found.double() - expected).norm() / expected.norm()
    assert error < 100 * torch.finfo(dtype).eps


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sums_of_many_steps_are_taken_in_a_wider_dtype(dtype):
    # A sum of ones in bfloat16 stops growing at 256; one of parts drifts in both.
    x = torch.tensor([[1.0, -2.0, 0.5], [0.25, 4.0, 3.0]], dtype=dtype)
    steps, ones = 600, torch.ones_like(x)

    def model(x):
        return x.sum(1)

    found = saliency.integrated_gradients(
        model, x, None, steps=steps, rule="riemann_left"
    )
    assert torch.equal(found, x)
    assert torch.equal(saliency.smoothgrad(model, x, None, draws=steps), ones)
    expected = saliency.expected_gradients(
        model, x, None, draws=steps, baselines=0 * ones
    )
    assert torch.equal(expected, x)


@pytest.mark.parametrize("name", ALL)
def test_inputs_that_are_not_contiguous(name):
    model, x = network(), images()
    strided = x.permute(3, 1, 0, 2).contiguous().permute(2, 1, 3, 0)
    assert not strided.is_contiguous()
    expected = tensor_of(ALL[name](model, x, LABELS))
    found = tensor_of(ALL[name](model, strided, LABELS))
    assert (found - expected).abs().max() <= 1e-12 * expected.abs().max()


@pytest.mark.parametrize("name", ALL)
def test_no_sample_gives_none(name):
    model = network()
    some = tensor_of(ALL[name](model, images(1), LABELS[:1]))
    none = tensor_of(ALL[name](model, images(0), LABELS[:0]))
    assert none.shape == (0, *some.shape[1:])
    assert none.dtype == torch.float64


def test_no_sample_of_one_output_gives_none():
    x = torch.zeros(0, 7, dtype=torch.float64)
    for ask in (saliency.gradient, saliency.integrated_gradients):
        assert ask(lambda x: x.sum(1), x, None).shape == (0, 7)


@pytest.mark.parametrize("name", ALL)
def test_a_sample_alone_has_what_it_has_in_a_batch(name):
    # What is drawn depends on the place in the batch: one sample has the first draws.
    drawn = name.startswith(("smoothgrad", "expected"))
    model, x = network(), images()
    whole = tensor_of(ALL[name](model, x, LABELS))
    for n in [] if drawn else range(N):
        alone = tensor_of(ALL[name](model, x[n : n + 1], LABELS[n : n + 1]))
        error = (alone - whole[n : n + 1]).abs().max()
        assert error <= 1e-12 * whole.abs().max()
    assert whole[0].sub(whole[1]).abs().max() > 0


@pytest.mark.parametrize("name", ALL)
def test_dropout_and_batch_norm_in_training_are_refused(name):
    own = name.split("'")[0].split(" ")[0]
    model, x = network(), images()
    model[3].train()
    with pytest.raises(InputError) as caught:
        ALL[name](model, x, LABELS)
    assert str(caught.value) == (
        f"{own}: the model draws random numbers (torch): Dropout at '3' in training"
        " mode, so that its map would be one of a single draw. Call model.eval()"
        " first, and model.train() afterwards"
    )
    model[3].eval()
    model[1].train()
    with pytest.raises(SampleDependenceError) as coupled:
        ALL[name](model, x, LABELS)
    assert str(coupled.value) == (
        f"{own}: samples must be independent; BatchNorm2d (at '1') is in training mode"
        " and mixes them. Call model.eval() first, or replace it by GroupNorm."
    )


@pytest.mark.parametrize("name", ALL)
def test_an_objective_that_couples_samples_is_refused(name):
    own = name.split("'")[0].split(" ")[0]
    with pytest.raises(SampleDependenceError) as caught:
        ALL[name](network(), images(), lambda outputs: outputs.softmax(0)[:, 0])
    assert str(caught.value) == (
        f"{own}: samples must be independent; the objective's value of sample 0 depends"
        " on another sample of the batch. Return each sample's own number, without a"
        " mean, sum or normalisation over the batch"
    )


class MixesMany(nn.Module):
    """Independent in a batch of ``N``, and not in a larger one."""

    def __init__(self) -> None:
        super().__init__()
        self.net = network()

    def forward(self, x: Tensor) -> Tensor:
        y = self.net(x)
        return y + y.mean(0) if len(x) > N else y


class DrawsForMany(MixesMany):
    def forward(self, x: Tensor) -> Tensor:
        y = self.net(x)
        return y + torch.rand_like(y) if len(x) > N else y


class MixesGradientsOfMany(MixesMany):
    def forward(self, x: Tensor) -> Tensor:
        y = self.net(x)
        return y + (y.mean(0) - y.mean(0).detach()) if len(x) > N else y


class FailsForMany(MixesMany):
    def forward(self, x: Tensor) -> Tensor:
        if len(x) > N:
            raise ValueError("a batch is too large")
        return self.net(x)


@pytest.mark.parametrize("asked_before", [0, 1, 6])
@pytest.mark.parametrize(
    "kind", [MixesMany, MixesGradientsOfMany, DrawsForMany, FailsForMany]
)
@pytest.mark.parametrize("name", STEPWISE)
def test_a_model_for_one_size_of_batch_is_run_step_by_step(name, kind, asked_before):
    model, x = kind(), images()
    for _ in range(asked_before):
        saliency.gradient(model, x, LABELS)
    expected = tensor_of(ALL[name](model.net, x, LABELS))
    for _ in range(3):
        found = tensor_of(ALL[name](model, x, LABELS))
        assert (found - expected).abs().max() <= 1e-12 * expected.abs().max()


@pytest.mark.parametrize("name", STEPWISE)
def test_memory_for_less_than_one_sample_is_refused(name):
    own = name.split("'")[0]
    with pytest.raises(InputError) as caught:
        ALL[name](network(), images(), LABELS, max_memory=400)
    assert str(caught.value) == (
        f"{own}: max_memory must hold the model's run on one sample; got 400 bytes,"
        f" and it needs {caught.value.needed:,}"
    )
    assert caught.value.needed > 400


def test_occlusion_and_curves_change_one_tensor_alone():
    x, y = images(), images()

    def model(x, y):
        return (x + y).flatten(1).sum(1)

    for ask in (
        lambda: saliency.occlusion(model, (x, y), None, window=(1, 1)),
        lambda: saliency.deletion_curve(x, model, (x, y), None),
    ):
        with pytest.raises(InputError, match="inputs must hold one tensor to change; "):
            ask()


def test_occlusion_beside_the_inputs_that_all_samples_share():
    x, weights = images(), torch.randn(*IMAGE, dtype=torch.float64)
    found = saliency.occlusion(
        lambda x, w: (x * w).flatten(1).sum(1), (x, gk.shared(weights)), None,
        window=(1, 1, 1),
    )  # fmt: skip
    assert (found - x * weights).abs().max() < 1e-12
