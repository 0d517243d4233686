"""Publicly reported faults with kernels, hooks and wrappers that tools trip over."""

import copy

import pytest
import torch
import torch.distributed
import torch.nn.functional as F
from torch import nn

import gradkit as gk
from gradkit.errors import GradkitError
from reported import (
    answers,
    assert_all_equal,
    central_differences,
    loop_rows,
    or_refused,
    own_rows,
    right_or_refused,
    rows_of,
)


@pytest.fixture(autouse=True)
def _on_device(device):
    with torch.device(device):
        yield


class TestRecurrence:
    """pytorch/functorch#1089, pytorch/pytorch#144850, pytorch/pytorch#105311."""

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize(
        ("layer", "options"),
        [
            (nn.RNN, {}),
            (nn.LSTM, {}),
            (nn.GRU, {}),
            (nn.GRU, {"bidirectional": True, "num_layers": 2}),
        ],
        ids=["RNN", "LSTM", "GRU", "deep GRU"],
    )
    def test_rows_of_a_recurrent_layer(self, layer, options, dtype):
        model = layer(5, 1, batch_first=True, **options).to(dtype)
        x = torch.randn(3, 4, 5, dtype=dtype)
        reason = "RuntimeError|several outputs at once"
        served = right_or_refused(gk.parameter_jacobian, model, x, of=0, reason=reason)
        outputs = model(x)[0]
        for name, parameter in model.named_parameters():
            assert_all_equal(rows_of(served, name), loop_rows(outputs, parameter))

    def test_a_state_without_the_samples_first_is_refused(self):
        model = nn.GRU(3, 2, batch_first=True)
        with pytest.raises(GradkitError, match=r"\(1, 4, 2\)"):
            gk.jacobian(model, torch.randn(4, 5, 3))


class TestAttention:
    """pytorch/pytorch#128971, pytorch/pytorch#98164, pytorch/pytorch#117629."""

    def test_every_method_is_right_or_says_which_operation_it_lacks(self):
        def model(q):
            return F.scaled_dot_product_attention(q, q, q)

        q = torch.randn(2, 1, 3, 4, dtype=torch.float64)
        served = right_or_refused(gk.jacobian, model, q, reason="attention|jvp|vmap")
        expected = central_differences(model, q)
        for found in served.values():
            torch.testing.assert_close(found, expected, atol=1e-8, rtol=0)

    def test_a_second_derivative_is_right_or_refused(self):
        def energy(q):
            return F.scaled_dot_product_attention(q, q, q).pow(2).sum((1, 2, 3))

        def gradient(q):
            return gk.input_gradients(energy, q, create_graph=True)

        q = torch.randn(2, 1, 3, 4, dtype=torch.float64)
        with or_refused("attention"):
            hessian = gk.jacobian(gradient, q)
            expected = central_differences(lambda q: gk.input_gradients(energy, q), q)
            torch.testing.assert_close(hessian, expected, atol=1e-7, rtol=0)

    def test_a_frozen_encoder_layer_in_evaluation(self):
        model = nn.TransformerEncoderLayer(4, 2, 6, batch_first=True).double().eval()
        model.requires_grad_(requires_grad=False)
        x = torch.randn(2, 3, 4, dtype=torch.float64)
        served = right_or_refused(gk.jacobian, model, x, reason="attention|jvp|vmap")
        expected = central_differences(model, x)
        for found in served.values():
            torch.testing.assert_close(found, expected, atol=1e-7, rtol=0)


class TestHooks:
    """pytorch/functorch#1124, pytorch/functorch#638, pytorch/functorch#1106."""

    def network(self):
        model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2)).double()
        return model, torch.randn(4, 2, dtype=torch.float64)

    def assert_right_or_refused(self, model, x, reason):
        point = x.clone().requires_grad_()
        plain = copy.deepcopy(model)
        for module in plain.modules():
            module._backward_hooks.clear()
        outputs = plain(point)
        served = right_or_refused(gk.jacobian, model, x, reason=reason)
        assert_all_equal(served, own_rows(outputs, point))
        rows = right_or_refused(gk.parameter_jacobian, model, x, reason=reason)
        for name, parameter in plain.named_parameters():
            assert_all_equal(rows_of(rows, name), loop_rows(outputs, parameter))

    def test_a_full_backward_hook_changes_no_number(self):
        model, x = self.network()
        model[0].register_full_backward_hook(lambda *arguments: None)
        hooks = dict(model[0]._backward_hooks)
        self.assert_right_or_refused(model, x, r"hook.*'0'|'0'.*hook")
        assert dict(model[0]._backward_hooks) == hooks

    def test_a_forward_hook_that_changes_the_output_counts(self):
        model, x = self.network()

        def triple(module, inputs, output):
            return 3 * output

        model[0].register_forward_hook(triple)
        self.assert_right_or_refused(model, x, r"hook.*'0'|'0'.*hook")

    def test_a_parameter_hook_changes_no_number_or_is_refused_by_name(self):
        model, x = self.network()
        weight = model.get_parameter("2.weight")
        expected = loop_rows(model(x), weight)
        weight.register_hook(lambda gradient: 100 * gradient)
        with or_refused("2.weight"):
            rows = gk.parameter_jacobian(model, x)
            torch.testing.assert_close(rows["2.weight"], expected)


class TestWrappers:
    """pytorch/pytorch#138422, #136662, #188084, #154036."""

    def test_a_compiled_function(self):
        function = torch.compile(lambda x: x**3, backend="aot_eager")
        x = torch.randn(5, dtype=torch.float64)
        answered = answers(gk.jacobian, function, x, batched=False)
        assert_all_equal(answered, torch.diag(3 * x**2))
        gradient = answers(gk.input_gradients, function, x[:, None])
        assert_all_equal(gradient, (3 * x**2)[:, None])

    def test_a_compiled_module_keeps_the_user_s_names(self):
        layer = nn.Linear(3, 2).double()
        model, x = torch.compile(layer, backend="aot_eager"), torch.randn(4, 3).double()
        rows = answers(gk.per_sample_gradients, model, x, gk.objectives.output_sum)
        assert all(list(found) == ["weight", "bias"] for found in rows.values())
        assert_all_equal(rows_of(rows, "weight"), x[:, None].expand(4, 2, 3))

    def test_a_distributed_module_keeps_the_user_s_names(self, tmp_path):
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
        )
        try:
            layer, x = nn.Linear(3, 2).double(), torch.randn(4, 3).double()
            model = nn.parallel.DistributedDataParallel(layer)
            rows = answers(gk.per_sample_gradients, model, x, gk.objectives.output_sum)
        finally:
            torch.distributed.destroy_process_group()
        assert all(list(found) == ["weight", "bias"] for found in rows.values())
        assert_all_equal(rows_of(rows, "weight"), x[:, None].expand(4, 2, 3))


class ByOneNumber(nn.Module):
    """Adds one number made of all of a parameter, whose rows are that number."""

    def __init__(self, reduced):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 2))
        self.reduced = reduced

    def forward(self, x):
        return x[:, :2] + self.reduced(self.weight)


class TestOneNumberOfAParameter:
    """Its gradient is one number, expanded, which cannot be written into."""

    @pytest.mark.parametrize("method", ["auto", "loop", "vmap", "rows", "rules"])
    @pytest.mark.parametrize(
        "reduced",
        [torch.sum, torch.mean, lambda w: w.sum().tanh(), lambda w: w.sum() + w.sum()],
        ids=["sum", "mean", "tanh", "twice"],
    )
    def test_rows(self, reduced, method):
        model, x = ByOneNumber(reduced), torch.randn(4, 3)
        found = gk.parameter_jacobian(model, x, method=method)
        torch.testing.assert_close(found["weight"], loop_rows(model(x), model.weight))
        alone = gk.per_sample_gradients(
            model, x, gk.objectives.output_sum, method=method
        )
        sums = model(x).sum(1)
        torch.testing.assert_close(alone["weight"], loop_rows(sums, model.weight))

    def test_what_is_made_of_the_rows_can_be_written_into(self):
        found = gk.parameter_jacobian(ByOneNumber(torch.sum), torch.randn(4, 3))
        for values in (
            found.sum(), found.mean(), found.second_moment(), found.clipped_sum(1.0),
            found.rmatvec(torch.ones(4, 2)), found.to_dict(),
        ):  # fmt: skip
            before = values["weight"].clone()
            assert torch.equal(values["weight"].add_(1.0), before + 1.0)
