"""Upstream behaviour that gradkit relies on: what fails here has moved in torch."""

import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.graph import get_gradient_edge
from torch.func import functional_call, grad, jacfwd, jacrev, jvp, vmap


@pytest.fixture(autouse=True)
def _on_device(device):
    with torch.device(device):
        yield


def double(*values):
    return torch.tensor(values, dtype=torch.float64)


def both_modes(function, point):
    return jacrev(function)(point), jacfwd(function)(point)


class TestKinksAndTies:
    @pytest.mark.parametrize(
        ("function", "at_zero"),
        [
            (F.relu, 0.0),
            (torch.abs, 0.0),
            (lambda x: torch.maximum(x, torch.zeros_like(x)), 0.5),
        ],
        ids=["relu", "abs", "maximum"],
    )
    def test_derivative_at_the_kink_is_the_same_in_both_modes(self, function, at_zero):
        reverse, forward = both_modes(function, double(0.0))
        assert reverse.item() == at_zero
        assert forward.item() == at_zero

    def test_clamp_at_its_bound_is_the_same_in_both_modes(self):
        # Which element of [0, 1] it is has changed between versions of torch.
        reverse, forward = both_modes(lambda x: x.clamp(min=0.0), double(0.0))
        assert reverse.item() in {0.0, 1.0}
        assert forward.item() == reverse.item()

    @pytest.mark.parametrize(
        ("largest", "weights"),
        [
            (lambda v: F.max_pool1d(v[None, None], 4)[0, 0, 0], (0, 1, 0, 0)),
            (lambda v: v.max(0)[0], (0, 1, 0, 0)),
            (lambda v: v.amax(0), (0, 1 / 3, 1 / 3, 1 / 3)),
            (torch.max, (0, 1 / 3, 1 / 3, 1 / 3)),
        ],
        ids=["max_pool1d", "max(dim)", "amax", "max"],
    )
    def test_ties_take_the_first_entry_or_spread_evenly(self, largest, weights):
        for derivative in both_modes(largest, double(1.0, 2.0, 2.0, 2.0)):
            torch.testing.assert_close(derivative, double(*weights))


class TestAxes:
    def test_a_jacobian_has_its_outputs_first(self):
        weight = torch.arange(6, dtype=torch.float64).reshape(2, 3)
        for jacobian in both_modes(lambda x: weight @ x, double(1.0, 2.0, 3.0)):
            assert torch.equal(jacobian, weight)

    def test_batched_cotangents_put_their_rows_first(self):
        inputs = torch.ones(4, 3, dtype=torch.float64, requires_grad=True)
        weight = torch.arange(6, dtype=torch.float64).reshape(2, 3)
        cotangents = torch.eye(2, dtype=torch.float64)[:, None].expand(2, 4, 2)
        (rows,) = torch.autograd.grad(
            inputs @ weight.T, inputs, cotangents, is_grads_batched=True
        )
        assert torch.equal(rows, weight[:, None].expand(2, 4, 3))


class TestPullback:
    def test_scaling_a_sample_by_a_power_of_two_is_exact(self):
        model = nn.Sequential(
            nn.Conv1d(2, 5, 3), nn.GELU(), nn.Flatten(), nn.Linear(20, 3), nn.Softmax(1)
        )
        inputs = torch.randn(7, 2, 6, requires_grad=True)
        cotangent = torch.randn(7, 3)
        scale = torch.tensor([1.0, -2.0, 0.5, 4.0, -0.25, 8.0, -1.0])
        outputs = model(inputs)
        (plain,) = torch.autograd.grad(outputs, inputs, cotangent, retain_graph=True)
        (scaled,) = torch.autograd.grad(outputs, inputs, scale[:, None] * cotangent)
        assert torch.equal(scaled, scale[:, None, None] * plain)

    def test_an_unused_input_is_materialised_as_zeros(self):
        used = torch.ones(2, requires_grad=True)
        unused = torch.ones(3, requires_grad=True)
        gradients = torch.autograd.grad(
            (used**2).sum(), (used, unused), materialize_grads=True
        )
        assert torch.equal(gradients[0], torch.full((2,), 2.0))
        assert torch.equal(gradients[1], torch.zeros(3))

    def test_grad_leaves_dot_grad_alone_but_runs_tensor_hooks(self):
        layer = nn.Linear(3, 2)
        calls = []
        layer.weight.register_hook(lambda gradient: calls.append(gradient.shape))
        torch.autograd.grad(layer(torch.ones(4, 3)).sum(), layer.weight)
        assert layer.weight.grad is None
        assert calls == [torch.Size([2, 3])]

    def test_a_gradient_edge_stands_for_its_tensor(self):
        layer = nn.Linear(3, 2)
        hidden = layer(torch.ones(4, 3))
        edge = get_gradient_edge(hidden)
        (gradient,) = torch.autograd.grad(hidden.pow(2).sum(), edge)
        assert torch.equal(gradient, 2 * hidden)

    def test_a_fill_through_data_moves_no_version_counter(self):
        tensor = torch.ones(3)
        before = tensor._version
        tensor.data.fill_(7.0)
        assert tensor._version == before


class TestConventions:
    def test_padding_row_is_constant_in_reverse_mode_alone(self):
        weight = torch.ones(4, 2, dtype=torch.float64)
        tokens = torch.tensor([1, 3])

        def embed(weight):
            return F.embedding(tokens, weight, padding_idx=3)

        reverse, forward = both_modes(embed, weight)
        assert reverse[1].abs().max() == 0
        assert forward[1, 0, 3, 0] == 1
        assert torch.equal(reverse[0], forward[0])

    def test_no_grad_is_constant_in_reverse_mode_alone(self):
        def function(x):
            with torch.no_grad():
                constant = 3 * x
            return x * x + constant

        reverse, forward = both_modes(function, double(1.0, 2.0))
        assert torch.equal(reverse.diagonal(), double(2.0, 4.0))
        assert torch.equal(forward.diagonal(), double(5.0, 7.0))

    def test_unreduced_cross_entropy_keeps_class_weights_as_factors(self):
        logits = torch.randn(5, 3, dtype=torch.float64)
        labels = torch.tensor([0, 2, 1, 1, 0])
        weight = double(10.0, 1.0, 0.5)
        losses = F.cross_entropy(logits, labels, weight=weight, reduction="none")
        plain = F.cross_entropy(logits, labels, reduction="none")
        torch.testing.assert_close(losses, weight[labels] * plain)
        reduced = F.cross_entropy(logits[:1], labels[:1], weight=weight)
        torch.testing.assert_close(reduced, plain[0])


class TestInferenceMode:
    def test_a_graph_is_recorded_after_leaving_inference_mode(self):
        with torch.inference_mode():
            made_inside = torch.tensor([1.0, 2.0, 3.0])
            with torch.inference_mode(mode=False), torch.enable_grad():
                x = made_inside.clone().requires_grad_()
                (gradient,) = torch.autograd.grad((x**2).sum(), x)
        assert made_inside.is_inference()
        assert torch.equal(gradient, torch.tensor([2.0, 4.0, 6.0]))

    def test_an_inference_parameter_cannot_be_saved_for_backward(self):
        with torch.inference_mode():
            layer = nn.Linear(3, 1)
        assert layer.weight.is_inference()
        with pytest.raises(RuntimeError, match="Inference tensors"):
            layer(torch.ones(2, 3, requires_grad=True))


class TestFunctionalCall:
    def test_one_value_per_parameter_in_every_slot_gives_the_total_gradient(self):
        first, second = nn.Linear(3, 3), nn.Linear(3, 3)
        second.weight = first.weight
        model = nn.Sequential(first, nn.Tanh(), second, first).double()
        weight = first.weight
        # "3.weight" is the slot of "0.weight": a second key for it would be put back
        # in the wrong order and stay in the module.
        slots = ["0.weight", "2.weight"]
        inputs = torch.randn(4, 3, dtype=torch.float64)

        def total(value, inputs):
            values = {slot: value for slot in slots}  # noqa: C420 - typed
            return functional_call(model, values, (inputs,), tie_weights=False).sum()

        gradient = grad(total)(weight.detach(), inputs)
        (expected,) = torch.autograd.grad(model(inputs).sum(), weight)
        torch.testing.assert_close(gradient, expected)
        assert first.weight is weight
        assert second.weight is weight

    def test_vmap_over_grad_gives_one_row_per_sample(self):
        layer = nn.Linear(3, 2).double()
        inputs = torch.randn(4, 3, dtype=torch.float64)
        values = {name: p.detach() for name, p in layer.named_parameters()}

        def total(values, sample):
            return functional_call(layer, values, (sample[None],)).sum()

        rows = vmap(grad(total), (None, 0))(values, inputs)
        assert torch.equal(rows["weight"], inputs[:, None].expand(4, 2, 3))
        assert torch.equal(rows["bias"], torch.ones(4, 2, dtype=torch.float64))


class TestRandomState:
    def test_a_restored_state_draws_the_same_mask(self):
        dropout, ones = nn.Dropout(0.5), torch.ones(50, device="cpu")
        state = torch.get_rng_state()
        first = dropout(ones)
        torch.set_rng_state(state)
        assert torch.equal(dropout(ones), first)

    def test_dropout_in_evaluation_draws_nothing(self):
        state = torch.get_rng_state()
        nn.Dropout(0.5).eval()(torch.ones(50, device="cpu"))
        assert torch.equal(torch.get_rng_state(), state)


class TestDispatch:
    def test_jvp_and_vjp_are_adjoint_where_both_exist(self):
        model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).double()
        x, tangent = torch.randn(2, 4, 3, dtype=torch.float64)
        cotangent = torch.randn(4, 2, dtype=torch.float64)
        pushed = jvp(model, (x,), (tangent,))[1]
        (pulled,) = torch.func.vjp(model, x)[1](cotangent)
        torch.testing.assert_close((cotangent * pushed).sum(), (pulled * tangent).sum())

    def test_a_stance_keeps_compiled_models_from_compiling(self):
        compiled = torch.compile(lambda x: x**3, backend="aot_eager")
        with torch.compiler.set_stance("force_eager"):
            jacobian = jacrev(compiled)(double(1.0, 2.0))
        assert torch.equal(jacobian.diagonal(), double(3.0, 12.0))

    def test_the_first_jacfwd_warns_of_nothing_but_scripting(self):
        """torch >= 2.13 scripts its forward-mode decompositions at the first call."""
        program = (
            "import torch, warnings;"
            "caught = warnings.catch_warnings(record=True);"
            "seen = caught.__enter__(); warnings.simplefilter('always');"
            "torch.func.jacfwd(torch.sin)(torch.ones(3));"
            "print(*{str(w.message) for w in seen}, sep='\\n')"
        )
        printed = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        ).stdout
        others = [
            line
            for line in printed.splitlines()
            if line and not line.startswith("`torch.jit.script` is deprecated")
        ]
        assert others == []
