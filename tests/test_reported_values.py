"""Publicly reported wrong values: operations whose derivative tools get wrong."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import gradkit as gk
from gradkit.errors import GradkitError
from reported import (
    answers,
    assert_all_equal,
    methods_of,
    or_refused,
    right_or_refused,
    rows_of,
)


@pytest.fixture(autouse=True)
def _on_device(device):
    with torch.device(device):
        yield


def double(*values):
    return torch.tensor(values, dtype=torch.float64)


class TestInferenceMode:
    def test_jacobian_is_not_zero_there(self):
        """pytorch/pytorch#128264, pytorch/pytorch#177318, pypose/pypose#380."""
        outside = double(1.0, 2.0, 3.0)
        with torch.inference_mode():
            inside = double(1.0, 2.0, 3.0)
            for x in (outside, inside):
                answered = answers(gk.jacobian, torch.square, x, batched=False)
                assert_all_equal(answered, torch.diag(double(2.0, 4.0, 6.0)))

    def test_gradients_are_not_zero_there(self):
        """pytorch/pytorch#128264: the same for rows with respect to parameters."""
        layer, outside = nn.Linear(3, 2), torch.randn(4, 3)
        weights = torch.tensor([2.0, -1.0])
        objective = gk.objectives.weighted_sum(weights)
        expected = weights[:, None] * outside[:, None]
        with torch.inference_mode():
            for x in (outside, outside.clone()):
                rows = answers(gk.per_sample_gradients, layer, x, objective)
                assert_all_equal(rows_of(rows, "weight"), expected)
                gradients = answers(gk.input_gradients, layer, x, objective)
                expected_gradients = (weights @ layer.weight).expand(4, 3)
                assert_all_equal(gradients, expected_gradients)

    def test_a_model_made_there_is_refused_by_name(self):
        """pytorch/pytorch#128264: inference tensors cannot be saved for backward."""
        with torch.inference_mode():
            model = nn.Sequential(nn.Linear(3, 2))
        reason = r"(?s)(0\.weight|weight.*'0').*inference_mode"
        for question in (gk.jacobian, gk.parameter_jacobian):
            with pytest.raises(GradkitError, match=reason):
                question(model, torch.ones(4, 3))


class TestConstantParts:
    """pytorch/pytorch#128600, pytorch/pytorch#78961: the modes differ by O(1)."""

    REASON = "no_grad|detach"

    def test_a_no_grad_block_is_constant_and_forward_mode_says_so(self):
        def model(x):
            with torch.no_grad():
                constant = 3 * x
            return x * x + constant

        x = double(1.0, 2.0)
        refused = {"jacfwd": self.REASON}
        answered = answers(gk.jacobian, model, x, batched=False, refused=refused)
        assert_all_equal(answered, torch.diag(double(2.0, 4.0)))
        answered = answers(gk.jacobian, model, x[:, None], refused=refused)
        assert_all_equal(answered, double(2.0, 4.0)[:, None, None])

    def test_a_no_grad_block_inside_a_layer_counts_for_no_parameter(self):
        class Gated(nn.Module):
            def __init__(self):
                super().__init__()
                self.scale = nn.Parameter(double(0.5, -1.0, 2.0))

            def forward(self, x):
                with torch.no_grad():
                    gate = torch.sigmoid(self.scale * x)
                return self.scale * x * gate

        model, x = Gated(), torch.randn(4, 3, dtype=torch.float64)
        gate = torch.sigmoid(model.scale * x).detach()
        rows = answers(gk.parameter_jacobian, model, x)
        assert_all_equal(rows_of(rows, "scale"), torch.diag_embed(x * gate))
        answered = answers(gk.jacobian, model, x, refused={"jacfwd": self.REASON})
        assert_all_equal(answered, torch.diag_embed(model.scale * gate))


class TestPaddingRow:
    """pytorch/pytorch#93950: forward mode and differences do not zero it."""

    def test_of_an_embedding_is_zero(self):
        layer = nn.Embedding(5, 2, padding_idx=3).double()
        tokens = torch.tensor([[1, 3, 4], [3, 3, 1]])
        expected = torch.zeros(2, 3, 2, 5, 2, dtype=torch.float64)
        for n, t in ((0, 0), (0, 2), (1, 2)):
            expected[n, t, :, tokens[n, t]] = torch.eye(2, dtype=torch.float64)
        rows = answers(gk.parameter_jacobian, layer, tokens)
        assert_all_equal(rows_of(rows, "weight"), expected)

    def test_of_an_embedding_bag_is_zero(self):
        layer = nn.EmbeddingBag(5, 2, mode="sum", padding_idx=0).double()
        tokens = torch.tensor([[1, 0, 4], [4, 4, 2], [0, 0, 3]])
        counts = F.one_hot(tokens, 5).sum(1).double()
        counts[:, 0] = 0
        expected = counts[:, None, :, None] * torch.eye(2)[None, :, None, :]
        rows = answers(gk.parameter_jacobian, layer, tokens)
        assert_all_equal(rows_of(rows, "weight"), expected)


class Lookup(nn.Module):
    """An embedding by function: its options are seen in the call alone."""

    def __init__(self, count, width, **options):
        super().__init__()
        self.weight = nn.Parameter(torch.full((count, width), 3.0))
        self.options = options

    def forward(self, tokens):
        return F.embedding(tokens, self.weight, **self.options)


class TestLookupOptions:
    """The kind of pytorch/pytorch#93950: options that bend a look-up's derivative."""

    TOKENS = ((3, 2), (3, 3), (1, 3))

    @pytest.mark.parametrize("network", [nn.Embedding, Lookup])
    @pytest.mark.parametrize(
        "options", [{"scale_grad_by_freq": True}, {"max_norm": 1.0}], ids=str
    )
    def test_that_count_or_write_are_right_or_refused(self, network, options):
        model, tokens = network(5, 2, **options).double(), torch.tensor(self.TOKENS)
        before = model.weight.detach().clone()
        (option,) = options
        for method in methods_of(gk.parameter_jacobian):
            with or_refused(f"{option}|ordinary backward"):
                rows = gk.parameter_jacobian(model, tokens, method=method)
                for n, sample in enumerate(tokens):
                    # What a batch of one gives, whatever travels with it.
                    alone = gk.parameter_jacobian(model, sample[None], method=method)
                    torch.testing.assert_close(rows["weight"][n], alone["weight"][0])
            assert torch.equal(model.weight, before)


class KeepsAnIntermediate(torch.autograd.Function):
    """Its first derivative is right; the derivative of that ignores ``ctx.slope``."""

    @staticmethod
    def forward(ctx, x):
        ctx.slope = 2 * x.detach()
        return x**2

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent * ctx.slope


class SavesItsInput(torch.autograd.Function):
    """The same function, differentiable twice."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return cotangent * 2 * x


class TestCustomFunction:
    """pytorch/pytorch#58509, pytorch/pytorch#76185, pytorch/pytorch#104040."""

    @pytest.mark.parametrize("square", [KeepsAnIntermediate, SavesItsInput])
    def test_first_derivative_is_right_or_refused_naming_the_class(self, square):
        def cube(x):
            return square.apply(x) * x

        x = torch.tensor([[3.0], [-2.0]], dtype=torch.float64)
        refused = {"jacrev": square.__name__, "jacfwd": square.__name__}
        answered = answers(gk.jacobian, cube, x, refused=refused)
        assert_all_equal(answered, (3 * x**2)[:, :, None])

    @pytest.mark.parametrize("square", [KeepsAnIntermediate, SavesItsInput])
    def test_second_derivative_is_right_or_refused_naming_the_class(self, square):
        def gradient(x):
            return gk.input_gradients(
                lambda x: square.apply(x) * x, x, create_graph=True
            )

        x = torch.tensor([[3.0], [-2.0]], dtype=torch.float64)
        with or_refused(square.__name__):
            second = gk.jacobian(gradient, x, method="onehot")
            torch.testing.assert_close(second, (6 * x)[:, :, None])


class TestInPlace:
    """pytorch/pytorch#52390, pytorch/pytorch#1029, meta-pytorch/captum#156."""

    def test_a_function_that_overwrites_its_argument(self):
        x = double(1.2, -0.4)
        before = x.clone()
        answered = answers(gk.jacobian, torch.sin_, x, batched=False)
        assert_all_equal(answered, torch.diag(torch.cos(before)))
        assert torch.equal(x, before)

    def test_an_in_place_activation_as_first_layer(self):
        model = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(3, 2)).double()
        x = torch.randn(4, 3, dtype=torch.float64)
        before = x.clone()
        served = right_or_refused(gk.jacobian, model, x, reason="inplace")
        weight = model.get_parameter("1.weight")
        assert_all_equal(served, weight * (before > 0)[:, None])
        rows = answers(gk.per_sample_gradients, model, x, gk.objectives.output_sum)
        expected = before.relu()[:, None].expand(4, 2, 3)
        assert_all_equal(rows_of(rows, "1.weight"), expected)
        assert torch.equal(x, before)

    def test_an_output_changed_after_it_was_captured(self):
        class Overwrites(nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = nn.Linear(3, 2).double()

            def forward(self, x):
                return self.fc(x).mul_(10)

        model = Overwrites()
        answered = answers(gk.jacobian, model, torch.ones(4, 3).double(), of="fc")
        assert_all_equal(answered, model.fc.weight.expand(4, 2, 3))
