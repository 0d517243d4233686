"""Whatever a forward does to its own module, a call leaves no trace of it."""

import contextlib
import copy
import random

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
    N,
    inputs,
    questions,
)
from case import DEVICE
from footprint import Footprint, bits
from gradkit.errors import GradkitError, InputError, UnsupportedModelError


@pytest.fixture(autouse=True)
def _on_device():
    with torch.device(DEVICE):
        yield


def leaves_no_trace(model, x, **how):
    """Ask all questions by all methods; return the names of those answered."""
    before = Footprint(model, tensors={"x": x})
    answered = []
    for method in HOWS:
        for name, ask in questions(model, x, method=method, **how):
            with contextlib.suppress(GradkitError):
                answer = ask()
                answered.append((name, method))
                if isinstance(answer, gk.ParameterJacobian):
                    before.assert_unchanged()
                    answer.to_dict()
            before.assert_unchanged()
    by_auto = {name for name, method in answered if method == "auto"}
    assert by_auto == {name for name, _ in questions(model, x)}
    return answered


class Caches(Base):
    """A plain dictionary, a list and a nested structure that forward fills."""

    def __init__(self):
        super().__init__()
        self.tables = {}
        self.history = []
        self.nested = {"seen": [set()], "scale": torch.ones(2)}

    def forward(self, x):
        if "ones" not in self.tables:
            self.tables["ones"] = torch.ones(OUTPUTS) * self.layer.bias
        self.history.append(x)
        self.nested["seen"][0].add(len(self.history))
        self.nested["scale"] *= 1
        self.created_in_forward = torch.zeros(1)
        return self.layer(x) + self.tables["ones"]


class DrawsFromItsOwn(Base):
    """Generators kept on the module: torch's, Python's and two of numpy's."""

    def __init__(self):
        super().__init__()
        self.generator = torch.Generator(device=DEVICE).manual_seed(3)
        self.python = random.Random(4)
        self.arrays = np.random.default_rng(5)
        self.old_arrays = np.random.RandomState(6)

    def forward(self, x):
        noise = torch.rand(x.shape, generator=self.generator)
        scale = self.python.random() + self.arrays.random() + self.old_arrays.rand()
        return self.layer(x * noise) * scale


class InPlaceFirst(Base):
    def forward(self, x):
        return self.layer(nn.functional.relu(x.mul_(2.0), inplace=True))


class Recurrent(Base):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(1, 3, batch_first=True)

    def forward(self, x):
        return self.layer(self.rnn(x[:, :, None])[0][:, -1])


class TwoNames(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(FEATURES, FEATURES)
        self.again = self.first
        self.last = nn.Linear(FEATURES, OUTPUTS)
        self.tied = nn.Linear(FEATURES, FEATURES)
        self.tied.weight = self.first.weight

    def forward(self, x):
        return self.last(self.tied(torch.tanh(self.again(self.first(x)))))


class Hooked(Base):
    def __init__(self):
        super().__init__()
        self.last = nn.Linear(OUTPUTS, OUTPUTS)
        self.last.register_forward_hook(lambda *_: None)
        self.last.register_forward_pre_hook(lambda *_: None)
        self.last.register_full_backward_hook(lambda *_: None)
        self.last.register_full_backward_pre_hook(lambda *_: None)
        self.layer.bias.register_hook(lambda grad: None)

    def forward(self, x):
        return self.last(torch.tanh(self.layer(x)))


def spectral():
    return nn.Sequential(
        nn.utils.parametrizations.spectral_norm(nn.Linear(FEATURES, 5)),
        nn.Tanh(),
        nn.utils.parametrizations.weight_norm(nn.Linear(5, OUTPUTS)),
    )


MODELS = {
    "counts": Counts,
    "caches": Caches,
    "in place first": InPlaceFirst,
    "recurrent": Recurrent,
    "two names": TwoNames,
    "hooked": Hooked,
    "spectral norm": spectral,
}
RANDOM_MODELS = {"own generators": DrawsFromItsOwn, "all generators": DrawsFromAll}


@pytest.mark.parametrize("name", MODELS)
def test_deterministic_models(name):
    model = MODELS[name]()
    answered = leaves_no_trace(model, inputs())
    assert {"loop", "onehot", "rows"} & {method for _, method in answered}
    copy.deepcopy(model)


@pytest.mark.parametrize("name", RANDOM_MODELS)
def test_models_that_draw(name):
    model, x = RANDOM_MODELS[name](), inputs()
    leaves_no_trace(model, x, seed=11)
    before = Footprint(model, tensors={"x": x})
    for _, ask in questions(model, x):
        with pytest.raises(InputError, match="seed"):
            ask()
        before.assert_unchanged()


@pytest.mark.parametrize("name", MODELS | RANDOM_MODELS)
def test_a_model_goes_on_as_if_nothing_had_been_asked(name):
    build = (MODELS | RANDOM_MODELS)[name]
    outcomes = []
    for asks in (False, True):
        torch.manual_seed(1)
        random.seed(2)
        np.random.seed(3)
        model, x = build(), inputs()
        if asks:
            leaves_no_trace(model, x, seed=7)
        loss = model(x.clone()).square().sum()
        if asks:
            leaves_no_trace(model, x, seed=7)
        loss.backward()
        grads = [bits(parameter.grad) for parameter in model.parameters()]
        outcomes.append((bits(loss), grads, bits(torch.rand(2)), random.random()))
    assert outcomes[0] == outcomes[1]


def test_inputs_and_gradients_that_the_caller_has():
    model, x = Base().layer, inputs().requires_grad_()
    model(x).sum().backward()
    leaves_no_trace(model, x)
    view = x.detach()[:, :FEATURES]
    leaves_no_trace(model, view)


def test_values_are_those_of_a_model_without_side_effects():
    x = inputs()
    counts, in_place = Counts(), InPlaceFirst()
    expected = 2 * counts.layer.weight.detach().expand(N, OUTPUTS, FEATURES)
    slope = 2.0 * (x > 0).to(x.dtype)
    with_slope = in_place.layer.weight.detach() * slope[:, None]
    for method in HOWS:
        for model, right in ((counts, expected), (in_place, with_slope)):
            with contextlib.suppress(UnsupportedModelError):
                torch.testing.assert_close(gk.jacobian(model, x, method=method), right)
