"""Arguments that were misread, crashed, or were overwritten: ``out=``, names, sets."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import gradkit as gk
from found import doubles, output_sum, refusal, weighted
from gradkit.errors import InputError
from reported import methods_of, or_refused


@pytest.fixture(autouse=True)
def _on_device(device):
    with torch.device(device):
        yield


class TestOut:
    @pytest.mark.parametrize(
        ("shape", "strides"),
        [((2, 2, 2), (2, 1, 1)), ((2, 2, 2), (3, 2, 1)), ((2, 2, 2), (0, 2, 1))],
        ids=str,
    )
    def test_that_overlaps_itself_is_refused(self, shape, strides):
        out = torch.zeros(20, dtype=torch.float64).as_strided(shape, strides)
        text = refusal(
            InputError, lambda: gk.jacobian(torch.sin, doubles(2, 2), out=out)
        )
        assert "out" in text
        assert "overlap" in text
        assert not out.any()

    def test_that_is_strided_but_whole_is_filled(self):
        layer, x = nn.Linear(3, 2).double(), doubles(6, 3)
        right = gk.jacobian(layer, x)
        base = torch.zeros(37, dtype=torch.float64)
        for out in (
            base.as_strided((6, 2, 3), (6, 3, 1), 1),
            doubles(6, 3, 2).transpose(1, 2),
            doubles(6, 2, 4)[:, :, :3],
            doubles(6, 2, 1, 3)[:, :, 0],
        ):
            for method in methods_of(gk.jacobian):
                out.zero_()
                assert gk.jacobian(layer, x, out=out, method=method) is out
                torch.testing.assert_close(out, right)
        assert base[0] == 0

    def test_of_two_parameters_on_one_memory_is_refused(self):
        model, x = (
            nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 3)).double(),
            doubles(5, 3),
        )
        rows = gk.per_sample_gradients(
            model, x, output_sum, parameters=["0.weight", "1.weight"]
        )
        memory = torch.zeros(5 * 6, dtype=torch.float64)
        out = {"0.weight": memory.view(5, 2, 3), "1.weight": memory.view(5, 3, 2)}
        text = refusal(InputError, lambda: rows.to_dict(out=out))
        assert "share no memory" in text
        assert not memory.any()

    def test_of_flat_that_overlaps_itself_is_refused(self):
        rows = gk.per_sample_gradients(nn.Linear(3, 1).double(), doubles(5, 3))
        out = torch.zeros(40, dtype=torch.float64).as_strided((5, 4), (1, 1))
        assert "overlap" in refusal(InputError, lambda: rows.flat(out=out))
        assert not out.any()


class TestBatched:
    @pytest.mark.parametrize("no", [np.False_, 0])
    def test_a_false_of_another_kind_is_false_or_refused(self, no):
        x = doubles(3, 3)
        with or_refused("batched"):
            found = gk.jacobian(torch.sin, x, batched=no)
            assert found.shape == (3, 3, 3, 3)


class TestNames:
    def test_of_two_modules_that_meet_are_refused(self):
        first, second = nn.Linear(3, 2).double(), nn.Linear(3, 2).double()
        text = refusal(
            InputError,
            lambda: gk.per_sample_gradients(
                lambda x: first(x) * second(x),
                doubles(4, 3),
                output_sum,
                parameters=[first, second],
            ),
        )
        assert "'weight'" in text

    def test_of_two_modules_by_a_mapping_are_served(self):
        first, second = nn.Linear(3, 2).double(), nn.Linear(3, 2).double()
        asked = {"a": first.bias, "b": second.bias}
        x = doubles(4, 3)
        rows = gk.per_sample_gradients(
            lambda x: first(x) + 2 * second(x), x, output_sum, parameters=asked
        )
        assert torch.equal(rows["a"], torch.ones(4, 2).double())
        assert torch.equal(rows["b"], torch.full((4, 2), 2.0).double())

    @pytest.mark.filterwarnings("ignore:Using `torch.compile:UserWarning")
    def test_of_a_compiled_child_carry_no_wrapper(self):
        child: Any = torch.compile(nn.Linear(3, 4).double(), backend="eager")
        model = nn.Sequential(child, nn.Tanh(), nn.Linear(4, 2).double())
        rows = gk.per_sample_gradients(model, doubles(5, 3), output_sum)
        names = ["0.weight", "0.bias", "2.weight", "2.bias"]
        assert list(rows) == names
        chosen = gk.per_sample_gradients(
            model, doubles(5, 3), output_sum, parameters=["0.weight"]
        )
        assert list(chosen) == names[:1]


class TestParameterJacobianArguments:
    @pytest.fixture
    def rows(self):
        net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
        return gk.per_sample_gradients(net, doubles(5, 3), output_sum)

    def test_samples_by_any_sequence_of_whole_numbers(self, rows):
        for index in ([-1, 0], range(4, -1, -4), (4, 0), np.array([4, 0])):
            assert torch.equal(rows.samples(index).flat(), rows.flat()[[4, 0]])

    def test_samples_by_what_is_no_whole_number_is_refused(self, rows):
        assert "samples" in refusal(InputError, rows.samples, [1.5])

    @pytest.mark.parametrize("odd", [None, 1.5, "1"])
    def test_a_projection_needs_a_whole_number_as_seed(self, rows, odd):
        text = refusal(InputError, lambda: rows.project(3, seed=odd))
        assert "seed" in text

    def test_gram_needs_rows(self, rows):
        assert "gram" in refusal(InputError, rows.gram, 3)

    def test_select_takes_no_foreign_module(self, rows):
        assert "select" in refusal(InputError, rows.select, nn.Linear(4, 2))

    def test_equality_is_identity(self, rows):
        assert rows == rows
        assert rows != rows.samples([0, 1])
        assert len({rows, rows}) == 1

    def test_a_recomputed_one_serves_inside_inference_mode(self):
        net = nn.Sequential(nn.Linear(3, 40), nn.Tanh(), nn.Linear(40, 2)).double()
        x = doubles(5, 3)
        held = gk.per_sample_gradients(net, x, output_sum)
        again = gk.per_sample_gradients(net, x, output_sum, max_memory=7000)
        right = held.sum()["0.weight"].clone()
        with torch.inference_mode():
            for rows in (held, again):
                torch.testing.assert_close(rows.sum()["0.weight"].clone(), right)
                assert rows.clipped_sum(1.0)["0.weight"].shape == (40, 3)


class TestDevicesAndModes:
    def test_a_default_device_moves_nothing_inside(self, device):
        layer, x = nn.Linear(3, 2), torch.randn(4, 3)
        with torch.device("meta"):
            for method in methods_of(gk.jacobian):
                found = gk.jacobian(layer, x, method=method)
                assert torch.equal(found, layer.weight.detach().expand(4, 2, 3))
            for method in methods_of(gk.per_sample_gradients):
                rows = gk.per_sample_gradients(layer, x, output_sum, method=method)
                assert torch.equal(rows["weight"][:, 1], x)
                assert rows.project(3, seed=1).device == x.device

    def test_inputs_made_in_inference_mode(self):
        with torch.inference_mode():
            x = doubles(4, 3)
            for method in methods_of(gk.jacobian):
                found = gk.jacobian(torch.square, x, method=method)
                torch.testing.assert_close(found, torch.diag_embed(2 * x))


class TestExplain:
    @pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM, nn.RNN])
    def test_tells_the_fallback_that_the_call_takes(self, kind):
        class Last(nn.Module):
            def __init__(self):
                super().__init__()
                self.rnn = kind(3, 4, batch_first=True)

            def forward(self, x):
                return self.rnn(x)[0][:, -1]

        model, x = Last().double(), doubles(5, 6, 3)
        plan = gk.explain(gk.per_sample_gradients, model, x, output_sum)
        rows = gk.per_sample_gradients(model, x, output_sum, method=plan.method)
        served = gk.per_sample_gradients(model, x, output_sum)
        assert torch.equal(rows.flat(), served.flat())

    def test_tells_it_for_a_model_that_differentiates_in_its_forward(self):
        def forward(model, x):
            with torch.enable_grad():
                grown = x.detach().requires_grad_()
                (slope,) = torch.autograd.grad(grown.pow(3).sum(), grown)
            return (slope * model.w).sum(1)

        model, x = weighted(forward), doubles(4, 3)
        plan = gk.explain(gk.per_sample_gradients, model, x)
        rows = gk.per_sample_gradients(model, x, method=plan.method)
        torch.testing.assert_close(rows["w"], 3 * x**2)
