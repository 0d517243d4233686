"""Publicly reported faults with what a model keeps: names, state, randomness."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import gradkit as gk
from gradkit.errors import GradkitError
from reported import (
    answers,
    assert_all_equal,
    loop_rows,
    methods_of,
    or_refused,
    own_rows,
    right_or_refused,
    rows_of,
)


@pytest.fixture(autouse=True)
def _on_device(device):
    with torch.device(device):
        yield


class TestModuleUnderTwoNames:
    """pytorch/pytorch#164759, pytorch/pytorch#195593."""

    def shared_layer(self):
        layer = nn.Linear(2, 2).double()
        return layer, nn.Sequential(layer, nn.Tanh(), layer)

    @pytest.mark.parametrize("question", [gk.per_sample_gradients, gk.input_gradients])
    def test_keeps_its_parameters_and_gives_the_loop_s_gradients(self, question):
        layer, model = self.shared_layer()
        weight, bias = layer.weight, layer.bias
        x = torch.randn(4, 2, dtype=torch.float64)
        point = x.clone().requires_grad_()
        totals = model(point).sum(1)
        for method in methods_of(question):
            found = question(model, x, gk.objectives.output_sum, method=method)
            if question is gk.input_gradients:
                torch.testing.assert_close(found, own_rows(totals, point))
            else:
                torch.testing.assert_close(found["0.weight"], loop_rows(totals, weight))
            assert layer.weight is weight
            assert layer.bias is bias
            assert all(type(p) is nn.Parameter for p in model.parameters())
            assert torch.equal(copy.deepcopy(model)(x), model(x))

    @pytest.mark.parametrize("question", [gk.per_sample_gradients, gk.input_gradients])
    def test_keeps_its_parameters_when_the_call_raises(self, question):
        layer, model = self.shared_layer()
        weight = layer.weight

        def objective(outputs):
            raise ArithmeticError("not today")

        for method in methods_of(question):
            with pytest.raises(ArithmeticError, match="not today"):
                question(model, torch.ones(4, 2).double(), objective, method=method)
            assert layer.weight is weight

    def test_a_parameter_shared_by_two_layers_and_a_list_is_one(self):
        class Aliased(nn.Module):
            def __init__(self):
                super().__init__()
                self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
                self.second.weight = self.first.weight
                self.alias = [self.first.weight]

            def forward(self, x):
                return self.second(torch.tanh(self.first(x))) @ self.alias[0]

        model = Aliased().double()
        weight = model.first.weight
        x = torch.randn(4, 3, dtype=torch.float64)
        expected = loop_rows(model(x), weight)
        served = right_or_refused(
            gk.parameter_jacobian, model, x, reason="ordinary backward"
        )
        assert_all_equal(rows_of(served, "second.weight"), expected)
        assert model.second.weight is model.alias[0] is model.first.weight is weight


class Counts(nn.Module):
    """Moves a buffer, counts its calls and keeps its last result."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([2.0, -1.0, 0.5]))
        self.register_buffer("total", torch.zeros(()))
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        self.total = self.total + 1
        self.last = x * self.scale
        return self.last * 2


class TestStateOnTheModule:
    """pytorch/pytorch#86641, pytorch/functorch#1042, pytorch/pytorch#77133."""

    def test_counters_buffers_and_cached_tensors_are_as_before(self):
        model, x = Counts(), torch.randn(4, 3)
        total, expected = model.total, torch.diag(2 * model.scale).expand(4, 3, 3)
        for method in methods_of(gk.jacobian):
            with or_refused("total"):
                found = gk.jacobian(model, x, method=method)
                torch.testing.assert_close(found, expected)
            assert model.total is total
            assert model.total == 0
            assert model.calls == 0
            assert not hasattr(model, "last")
            assert torch.equal(copy.deepcopy(model)(x), 2 * model.scale * x)

    def test_a_table_made_on_first_use_is_not_left_behind(self):
        class Positions(nn.Module):
            def __init__(self):
                super().__init__()
                self.embed = nn.Embedding(7, 3)
                self.table = None

            def forward(self, tokens):
                if self.table is None:
                    self.table = self.embed(torch.arange(tokens.shape[1]))
                return self.embed(tokens) + self.table

        model = Positions().double()
        tokens = torch.tensor([[1, 2], [6, 0], [0, 0], [3, 3]])
        expected = F.one_hot(tokens, 7) + F.one_hot(torch.arange(2), 7)
        expected = expected[:, :, None, :, None] * torch.eye(3)[:, None]
        for method in methods_of(gk.parameter_jacobian):
            rows = gk.parameter_jacobian(model, tokens, method=method)
            assert_all_equal({"auto": rows["embed.weight"]}, expected)
            assert model.table is None


class AddsNoise(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(2, 3)

    def forward(self, x):
        return F.dropout(self.fc(x * torch.rand_like(x)), 0.5, training=True)


class TestRandomForward:
    """pytorch/functorch#408, pytorch/functorch#1010, pytorch/rl#2313."""

    def drops(self):
        return nn.Sequential(nn.Linear(2, 8), nn.Dropout(0.5), nn.Linear(8, 3))

    def adds_noise(self):
        return AddsNoise().eval()

    @pytest.mark.parametrize("network", [drops, adds_noise])
    @pytest.mark.parametrize("question", [gk.jacobian, gk.parameter_jacobian])
    def test_without_a_seed_is_refused_with_the_way_out(self, network, question):
        model = network(self)
        for method in methods_of(question):
            with pytest.raises(GradkitError, match="seed"):
                question(model, torch.ones(4, 2), method=method)

    @pytest.mark.parametrize("network", [drops, adds_noise])
    def test_a_seed_draws_what_the_model_would_draw(self, network, device):
        model, x = network(self).double(), torch.ones(4, 2).double()
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(5)
            point = x.clone().requires_grad_()
            outputs = model(point)
        states = torch.get_rng_state()
        served = right_or_refused(gk.jacobian, model, x, seed=5, reason="random")
        assert_all_equal(served, own_rows(outputs, point))
        rows = right_or_refused(gk.parameter_jacobian, model, x, seed=5, reason="rand")
        for key, parameter in model.named_parameters():
            assert_all_equal(rows_of(rows, key), loop_rows(outputs, parameter))
        assert torch.equal(torch.get_rng_state(), states)
        other = gk.jacobian(model, x, seed=6)
        assert not torch.equal(other, served["auto"])

    def test_in_evaluation_no_seed_is_needed(self):
        model = self.drops().eval()
        inner, outer = (model.get_parameter(f"{i}.weight") for i in (0, 2))
        expected = outer @ inner
        answered = answers(gk.jacobian, model, torch.ones(4, 2))
        assert_all_equal(answered, expected.expand(4, 3, 2))
