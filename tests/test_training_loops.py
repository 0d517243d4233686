"""Training runs with calls in their loop end bit for bit where those without do."""

import itertools
import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import gradkit as gk
from case import DEVICE
from footprint import Footprint, bits
from gradkit.errors import GradkitError, InputError, SampleDependenceError

STEPS, N, FEATURES, CLASSES = 3, 6, 5, 3


class PlantedError(RuntimeError):
    """Raised by a model in the middle of its forward."""


class Raises(nn.Module):
    """Raises when NaN reaches it."""

    def forward(self, x):
        if bool(x.isnan().any()):
            raise PlantedError
        return x


class WithNorm(nn.Sequential):
    """Layer norm and dropout, or batch norm, with everything that can be touched."""

    def __init__(self, norm, *extra):
        super().__init__(
            nn.Linear(FEATURES, 7), norm, nn.ReLU(inplace=True), *extra,
            nn.Linear(7, CLASSES),
        )  # fmt: skip
        self.calls = 0
        self.cache = {}
        self[0].register_forward_hook(self.count)
        self[-1].register_full_backward_hook(lambda *_: None)

    def count(self, module, arguments, output):
        self.calls += 1
        self.cache["last"] = output.detach()


def layer_norm_and_dropout():
    return WithNorm(nn.LayerNorm(7), Raises(), nn.Dropout(0.4))


def batch_norm():
    return WithNorm(nn.BatchNorm1d(7), Raises())


def spectral_norm():
    model = WithNorm(nn.LayerNorm(7), Raises())
    nn.utils.parametrizations.spectral_norm(model[0])
    return model


def succeed_or_refuse(call, *args, **kwargs):
    """Return what came, or the refusal, which is as good an outcome here."""
    try:
        return call(*args, **kwargs)
    except GradkitError as refusal:
        return refusal


METHODS = itertools.cycle(("auto", *gk.METHODS))
EARLIER = []


def meddle(model, x, y, step):
    """Make calls of all kinds, right and wrong; return how each ended."""
    loss = gk.objectives.sample_loss(F.cross_entropy, y)
    ended = []
    for method, seed in itertools.product(itertools.islice(METHODS, 3), (None, step)):
        how = {"method": method, "seed": seed}
        ended += [
            succeed_or_refuse(gk.jacobian, model, x, **how),
            succeed_or_refuse(gk.input_gradients, model, x, loss, **how),
            succeed_or_refuse(gk.parameter_jacobian, model, x, **how),
            succeed_or_refuse(gk.per_sample_gradients, model, x, loss, **how),
        ]
    ended.append(succeed_or_refuse(gk.jacobian, model, x, batched=False, seed=step))
    ended.append(succeed_or_refuse(gk.jacobian, model, x.numpy()))
    ended.append(succeed_or_refuse(gk.per_sample_gradients, model, x, y))
    # Rows of this and of an earlier step that are computed only when asked for.
    rows = succeed_or_refuse(
        gk.per_sample_gradients, model, x, loss, seed=step, max_memory=1_500
    )
    if isinstance(rows, gk.ParameterJacobian):
        EARLIER.append(rows)
        ended += [rows.norms() for rows in EARLIER[-6:]]
    with pytest.raises(PlantedError):  # After batch norm has moved its buffers.
        gk.jacobian(model, x * torch.nan, batched=False, seed=step)
    model.eval()
    with pytest.raises(PlantedError):
        gk.parameter_jacobian(model, x * torch.nan, seed=step)
    model.train()
    return ended


class Run:
    """One training run: everything it leaves, by bits."""

    def __init__(self, build, interfere=None):
        torch.manual_seed(5)
        random.seed(6)
        np.random.seed(7)
        self.model = build().to(DEVICE)
        self.optimiser = torch.optim.Adam(self.model.parameters(), lr=0.05)
        self.interfere = interfere or (lambda run, x, y, step: None)
        self.trail = []
        EARLIER.clear()
        for step in range(STEPS):
            self.step(step)

    def step(self, step):
        x = torch.randn(N, FEATURES, device=DEVICE)
        y = torch.randint(CLASSES, (N,), device=DEVICE)
        self.interfere(self, x, y, step)
        loss = F.cross_entropy(self.model(x), y)
        self.interfere(self, x, y, step)  # The backward is pending.
        self.optimiser.zero_grad()
        loss.backward()
        self.interfere(self, x, y, step)  # The gradients are there.
        self.optimiser.step()
        drawn = torch.rand(1), random.random(), np.random.rand()
        self.trail.append((bits(loss), drawn))

    def leaves(self):
        state = self.model.state_dict()
        grads = {n: p.grad for n, p in self.model.named_parameters()}
        moments = self.optimiser.state_dict()["state"]
        return {
            "state": {name: bits(tensor) for name, tensor in state.items()},
            "grads": {n: None if g is None else bits(g) for n, g in grads.items()},
            "moments": {
                (i, key): bits(torch.as_tensor(value))
                for i, entries in moments.items()
                for key, value in entries.items()
            },
            "calls": self.model.calls,
            "trail": self.trail,
        }


@pytest.mark.parametrize("build", [layer_norm_and_dropout, batch_norm, spectral_norm])
def test_a_run_with_calls_in_its_loop_is_bit_identical(build):
    ended = []

    def interfere(run, x, y, step):
        tensors = {"x": x, "y": y}
        before = Footprint(run.model, run.optimiser, tensors)
        ended.extend(meddle(run.model, x, y, step))
        before.assert_unchanged()

    with_calls, without = Run(build, interfere), Run(build)
    assert with_calls.leaves() == without.leaves()
    # The runs are worth comparing only if calls succeeded and failed in them.
    kinds = {type(outcome) for outcome in ended}
    assert {torch.Tensor, InputError} <= kinds
    assert (SampleDependenceError in kinds) == (build is batch_norm)
    assert (gk.ParameterJacobian in kinds) == (build is not batch_norm)


def test_the_comparison_sees_one_draw_too_many():
    def interfere(run, x, y, step):
        torch.rand(1)

    build = layer_norm_and_dropout
    assert Run(build, interfere).leaves() != Run(build).leaves()


@pytest.mark.parametrize(
    "touch",
    [
        lambda model: model[1].eval(),
        lambda model: model[0].weight.data.add_(1e-6),
        lambda model: setattr(model[0].weight, "grad", torch.ones(7, FEATURES)),
        lambda model: model[0].weight.requires_grad_(False),
        lambda model: model[1].register_buffer("running_mean", torch.zeros(7)),
        lambda model: setattr(model, "calls", model.calls + 1),
        lambda model: model.cache.update(last=None),
        lambda model: model[1].register_forward_hook(lambda *_: None),
        lambda model: setattr(model[0], "weight", nn.Parameter(model[0].weight.data)),
        lambda model: torch.rand(1),
        lambda model: random.random(),
        lambda model: np.random.rand(),
    ],
)
def test_the_footprint_sees_what_a_call_could_touch(touch):
    model = batch_norm()
    before = Footprint(model)
    before.assert_unchanged()
    touch(model)
    with pytest.raises(AssertionError):
        before.assert_unchanged()
