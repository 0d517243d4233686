"""Publicly reported surprises: unused inputs, branches, infinities, kinks and ties."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import gradkit as gk
from reported import (
    answers,
    assert_all_equal,
    central_differences,
    loop_rows,
    right_or_refused,
    rows_of,
)


@pytest.fixture(autouse=True)
def _on_device(device):
    with torch.device(device):
        yield


def double(*values):
    return torch.tensor(values, dtype=torch.float64)


class TestListOfOutputs:
    """discuss.pytorch.org/t/jacobian-computation-with-a-single-call-to-grad/83134."""

    def test_rows_are_outputs_and_are_not_summed(self):
        def model(q):
            return torch.cat([2 * q, 4 * q * q])

        expected = [[2.0, 0.0], [0.0, 2.0], [8.0, 0.0], [0.0, 16.0]]
        answered = answers(gk.jacobian, model, double(1.0, 2.0), batched=False)
        assert_all_equal(answered, expected)

    def test_several_outputs_keep_their_structure(self):
        def model(q):
            return [2 * q, {"square": (4 * q * q).sum(1)}]

        answered = answers(gk.jacobian, model, double(1.0, 2.0)[None])
        assert all(type(found) is list for found in answered.values())
        first = {method: found[0] for method, found in answered.items()}
        assert_all_equal(first, [[[2.0, 0.0], [0.0, 2.0]]])
        square = {method: found[1]["square"] for method, found in answered.items()}
        assert_all_equal(square, [[8.0, 16.0]])


class TestUnusedInput:
    """pytorch/pytorch#49830, meta-pytorch/captum#732, meta-pytorch/opacus#502."""

    def test_an_input_that_the_output_does_not_use_has_derivative_zero(self):
        a, b = torch.randn(3, 2), torch.randn(3, 4)
        for question, expected in ((gk.input_gradients, 2 * a), (gk.jacobian, 2 * a)):
            answered = answers(question, lambda a, b: (a**2).sum(1), (a, b))
            first = {method: found[0] for method, found in answered.items()}
            second = {method: found[1] for method, found in answered.items()}
            assert_all_equal(first, expected)
            assert_all_equal(second, torch.zeros(3, 4))

    def test_a_constant_output_has_derivative_zero(self):
        def constant(x):
            return torch.ones(len(x), 2, dtype=x.dtype)

        answered = answers(gk.jacobian, constant, torch.randn(3, 4))
        assert_all_equal(answered, torch.zeros(3, 2, 4))

    def test_a_tensor_read_from_outside_is_not_the_argument(self):
        outside = torch.randn(4, requires_grad=True)

        def model(x):
            return (outside**2).expand(len(x), 4)

        answered = answers(gk.jacobian, model, torch.randn(3, 4))
        assert_all_equal(answered, torch.zeros(3, 4, 4))

    def test_an_unused_parameter_has_rows_of_zeros(self):
        model = nn.ModuleDict({"used": nn.Linear(3, 2), "unused": nn.Linear(5, 4)})
        rows = answers(
            gk.per_sample_gradients,
            lambda x: model["used"](x),
            torch.ones(6, 3),
            gk.objectives.output_sum,
            parameters=model,
        )
        unused = rows_of(rows, "unused.weight")
        assert_all_equal(unused, torch.zeros(6, 4, 5))
        used = rows_of(rows, "used.bias")
        assert_all_equal(used, torch.ones(6, 2))


class TestChosenBranch:
    """pytorch/pytorch#187297, #16317, #18287; Ciela-Institute/caustics#83."""

    @pytest.mark.parametrize(
        ("function", "points", "at_edge", "smooth"),
        [
            (lambda x: torch.where(x > 0, x.sqrt(), x), (-1.0, 4.0), 1.0, 0.25),
            (
                lambda x: torch.where(x == 0, torch.ones_like(x), x.sin() / x),
                (0.0, 2.0),
                0.0,
                (2 * torch.cos(double(2.0)) - torch.sin(double(2.0))).item() / 4,
            ),
        ],
        ids=["sqrt", "sinc"],
    )
    def test_nan_of_the_branch_not_taken_is_shown_and_stays_in_its_sample(
        self, function, points, at_edge, smooth
    ):
        x = double(*points)[:, None]
        answered = answers(gk.jacobian, function, x)
        rest = {method: found[1, 0, 0] for method, found in answered.items()}
        assert_all_equal(rest, smooth)
        for method, found in answered.items():
            # Reverse mode multiplies the branch not taken by zero; forward mode
            # does not look at it. What is not nan must be the derivative.
            if method != "jacfwd":
                assert found[0].isnan().all()
            else:
                torch.testing.assert_close(found[0, 0, 0].item(), at_edge)

    def test_a_guarded_branch_is_right_by_every_method(self):
        def function(x):
            return torch.where(x > 0, x.clamp(min=1e-3).sqrt(), x)

        x = double(-1.0, 4.0)[:, None]
        assert_all_equal(answers(gk.jacobian, function, x), [[[1.0]], [[0.25]]])
        torch.testing.assert_close(
            central_differences(function, x), gk.jacobian(function, x)
        )


class TestTies:
    """pytorch/pytorch#184572, #184574, #7002, #43092; Theano/Theano#4568."""

    @pytest.mark.parametrize(
        ("function", "at", "low", "high"),
        [
            (F.relu, 0.0, 0.0, 1.0),
            (lambda x: torch.maximum(x, torch.zeros_like(x)), 0.0, 0.0, 1.0),
            (lambda x: x.clamp(min=0.0), 0.0, 0.0, 1.0),
            (torch.abs, 0.0, -1.0, 1.0),
            (F.relu6, 6.0, 0.0, 1.0),
            (lambda x: torch.minimum(-x, torch.zeros_like(x)), 0.0, -1.0, 0.0),
            (F.hardtanh, 1.0, 0.0, 1.0),
        ],
        ids=["relu", "maximum", "clamp", "abs", "relu6", "minimum", "hardtanh"],
    )
    def test_at_a_kink_all_methods_take_one_subderivative(
        self, function, at, low, high
    ):
        x = torch.tensor([[at], [at - 0.5], [at + 0.5]], dtype=torch.float64)
        answered = answers(gk.jacobian, function, x)
        point = x.clone().requires_grad_()
        (expected,) = torch.autograd.grad(function(point).sum(), point)
        assert_all_equal(answered, expected[:, :, None])
        assert low <= answered["auto"][0].item() <= high
        away = central_differences(function, x[1:])
        torch.testing.assert_close(answered["auto"][1:], away)

    @pytest.mark.parametrize(
        "largest",
        [
            lambda v: v.max(1)[0],
            lambda v: v.amax(1),
            lambda v: F.max_pool1d(v[:, None], 4)[:, 0, 0],
            lambda v: v.sort(1)[0][:, -1],
            lambda v: v.topk(1, 1)[0][:, 0],
            lambda v: -(-v).amin(1),
        ],
        ids=["max(dim)", "amax", "max_pool1d", "sort", "topk", "amin"],
    )
    def test_tied_entries_share_weights_that_sum_to_one(self, largest):
        v = double(1.0, 2.0, 2.0, 2.0).repeat(3, 1)
        v[1, 3] = 5.0  # no tie in this sample
        answered = answers(gk.jacobian, largest, v)
        point = v.clone().requires_grad_()
        assert_all_equal(answered, loop_rows(largest(point), point).sum(1))
        for found in answered.values():
            assert torch.equal(found.sum(1), torch.ones(3).double())
            assert (found >= 0).all()
            assert torch.equal(found[:, 0], torch.zeros(3).double())
            assert torch.equal(found[1], double(0.0, 0.0, 0.0, 1.0))


class TestPoisonedSample:
    """pytorch/pytorch#41508, pytorch/pytorch#189045, pytorch/pytorch#131060."""

    @pytest.mark.parametrize("need_weights", [True, False])
    def test_a_fully_masked_sample_leaves_the_others_alone(self, need_weights):
        attention = nn.MultiheadAttention(4, 2, batch_first=True).double()
        x = torch.randn(2, 3, 4, dtype=torch.float64)
        padding = torch.tensor([[False] * 3, [True] * 3])

        def model(x, padding):
            return attention(
                x, x, x, key_padding_mask=padding, need_weights=need_weights
            )[0]

        def energy(outputs):
            return outputs.pow(2).sum((1, 2))

        rows = right_or_refused(
            gk.per_sample_gradients,
            model,
            (x, padding),
            energy,
            parameters=attention,
            reason="not finite",
        )
        alone = energy(model(x[:1], padding[:1])).sum()
        names, parameters = zip(*attention.named_parameters(), strict=True)
        expected = torch.autograd.grad(alone, parameters)
        for name, value in zip(names, expected, strict=True):
            own = {method: found[name][0] for method, found in rows.items()}
            assert_all_equal(own, value)

    def test_an_infinite_row_leaves_the_others_alone(self):
        class Logarithm(nn.Module):
            def __init__(self):
                super().__init__()
                self.scale = nn.Parameter(torch.ones(3).double())

            def forward(self, x):
                return self.scale * torch.log(x)

        x = torch.rand(4, 3).double() + 0.5
        x[2, 1] = 0.0
        rows = answers(
            gk.per_sample_gradients,
            Logarithm(),
            x,
            gk.objectives.output_sum,
            refused={"rows": "not finite"},
        )
        assert_all_equal(rows_of(rows, "scale"), torch.log(x))
