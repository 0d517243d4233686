"""No trace is left by calls that fail, in any mode, or of odd things a forward does."""

import collections
import contextlib

import numpy as np
import pytest
import torch
from torch import nn

import gradkit as gk
from asking import (
    FEATURES,
    HOWS,
    OUTPUTS,
    Base,
    Counts,
    DrawsFromAll,
    inputs,
    questions,
)
from case import DEVICE
from footprint import Footprint, bits
from gradkit.errors import GradkitError, UnsupportedModelError


@pytest.fixture(autouse=True)
def _on_device():
    with torch.device(DEVICE):
        yield


class Fails(Base):
    """Raises after it has moved all that it has."""

    def __init__(self):
        super().__init__()
        self.counts, self.draws = Counts(), DrawsFromAll()

    def forward(self, x):
        self.counts(x)
        self.draws(x)
        self.half_done = True
        raise ZeroDivisionError("in the middle")


def test_a_model_that_raises():
    model, x = Fails(), inputs()
    before = Footprint(model, tensors={"x": x})
    for method in HOWS:
        for _, ask in questions(model, x, method=method, seed=3):
            with pytest.raises(ZeroDivisionError, match="in the middle"):
                ask()
            before.assert_unchanged()


class FailsInBackward(Counts):
    def forward(self, x):
        outputs = super().forward(x)
        outputs.register_hook(self.fail)
        return outputs

    def fail(self, grad):
        raise ZeroDivisionError("in the backward")


def test_a_backward_that_raises():
    model, x = FailsInBackward(), inputs()
    before = Footprint(model, tensors={"x": x})
    for _, ask in questions(model, x):
        with pytest.raises(ZeroDivisionError, match="in the backward"):
            ask()
        before.assert_unchanged()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_inside_no_grad_and_inference_mode(mode):
    model, x = Counts(), inputs()
    expected = {name: ask() for name, ask in questions(model, x)}
    before = Footprint(model, tensors={"x": x})
    with mode():
        found = {name: ask() for name, ask in questions(model, x)}
        own = {name: ask() for name, ask in questions(model, x.clone())}
        modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    assert modes == (False, mode is torch.inference_mode)
    before.assert_unchanged()
    for name, right in expected.items():
        for answer in (found[name], own[name]):
            if isinstance(right, gk.ParameterJacobian):
                assert list(answer) == list(right)
                assert all(bits(answer[key]) == bits(right[key]) for key in right)
            else:
                assert bits(answer) == bits(right)


def test_parameters_made_in_inference_mode_are_refused_by_name():
    with torch.inference_mode():
        model = nn.Sequential(nn.Tanh(), nn.Linear(FEATURES, OUTPUTS))
    for _, ask in questions(model, inputs()):
        with pytest.raises(UnsupportedModelError, match=r"weight' .*inference_mode"):
            ask()


def test_results_hold_no_graph():
    model, x = Counts(), inputs()
    for _, ask in questions(model, x):
        answer = ask()
        tensors = [answer]
        if isinstance(answer, gk.ParameterJacobian):
            tensors = [*answer.values(), answer.outputs, answer.norms()]
        assert not any(tensor.requires_grad for tensor in tensors)


class Constrained(Base):
    """Bounds its own weight before each use, as layers for EEG signals do."""

    def forward(self, x):
        weight = self.layer.weight
        weight.data = torch.renorm(weight.data, p=2, dim=0, maxnorm=0.1)
        return self.layer(x)


class Clamped(Base):
    def forward(self, x):
        with torch.no_grad():
            self.layer.weight.clamp_(-0.1, 0.1)
        return self.layer(x)


class Freezes(Base):
    def forward(self, x):
        self.layer.bias.requires_grad_(False)
        self.layer.eval()
        return self.layer(x)


class Tallies(Base):
    """Containers that are not quite dictionaries and lists."""

    def __init__(self):
        super().__init__()
        self.counter = collections.Counter()
        self.pair = (torch.zeros(1), [0])
        self.array = np.zeros(2)

    def forward(self, x):
        self.counter["calls"] += 1
        self.pair[0].add_(1)
        self.pair[1][0] += 1
        self.array += 1
        return self.layer(x)


@pytest.mark.parametrize("build", [Constrained, Clamped, Freezes, Tallies])
def test_odd_things_that_a_forward_does_are_undone_or_refused(build):
    model, x = build(), inputs()
    arrays = {"array": torch.from_numpy(model.array)} if build is Tallies else {}
    before = Footprint(model, tensors=arrays)
    for _, ask in questions(model, x):
        with contextlib.suppress(GradkitError):
            ask()
        before.assert_unchanged()
