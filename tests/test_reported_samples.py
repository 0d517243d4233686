"""Publicly reported faults in the meaning of "per sample": coupling, scaling, reuse."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import gradkit as gk
from gradkit.errors import InputError, SampleDependenceError
from reported import (
    answers,
    assert_all_equal,
    central_differences,
    methods_of,
    or_refused,
    rows_of,
)


@pytest.fixture(autouse=True)
def _on_device(device):
    with torch.device(device):
        yield


def double(*values):
    return torch.tensor(values, dtype=torch.float64)


class TestBatchNorm:
    """f-dangel/backpack#160, pytorch/functorch#115."""

    def network(self, **options):
        norm = nn.BatchNorm1d(5, affine=False, **options)
        return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), norm, nn.Linear(5, 2)).double()

    @pytest.mark.parametrize("question", [gk.jacobian, gk.parameter_jacobian])
    @pytest.mark.parametrize(
        ("training", "options"),
        [(True, {}), (True, {"track_running_stats": False}),
         (False, {"track_running_stats": False})],
        ids=["training", "training, untracked", "evaluation, untracked"],
    )  # fmt: skip
    def test_coupled_samples_are_refused_by_name(self, question, training, options):
        model = self.network(**options).train(training)
        before = {name: value.clone() for name, value in model.state_dict().items()}
        for method in methods_of(question):
            with pytest.raises(SampleDependenceError, match=r"BatchNorm1d.*'2'"):
                question(model, torch.randn(7, 3).double(), method=method)
        assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())

    def test_the_whole_jacobian_is_there_without_a_sample_axis(self):
        model, x = self.network(), torch.randn(7, 3, dtype=torch.float64)
        with torch.no_grad():
            training = self.network(track_running_stats=False)
            training.load_state_dict(model.state_dict(), strict=False)
            whole = central_differences(
                lambda flat: training(flat.reshape(7, 3)).reshape(1, -1),
                x.reshape(1, -1),
            )
        found = gk.jacobian(model, x, batched=False)
        torch.testing.assert_close(found.reshape(1, 14, 21), whole, atol=1e-7, rtol=0)
        # Normalised values sum to a constant: the summed form shows nothing.
        assert found.sum(0).abs().max() < 1e-12
        assert found[3, :, 3].abs().max() > 1e-2
        assert model[2].num_batches_tracked == 0

    def test_running_statistics_couple_nothing(self):
        model, x = self.network().eval(), torch.randn(7, 3, dtype=torch.float64)
        expected = central_differences(model, x)
        for found in answers(gk.jacobian, model, x).values():
            torch.testing.assert_close(found, expected, atol=1e-7, rtol=0)


class TestReusedLayer:
    """tfjgeorge/nngeometry#94, meta-pytorch/opacus#58, meta-pytorch/captum#1082."""

    def test_both_calls_of_a_layer_count(self):
        layer = nn.Linear(2, 2, bias=False).double()
        layer.weight.data.copy_(double([0.5, 0.0], [0.3, 0.2]))
        x = double([1.0, 2.0], [-1.0, 0.5], [0.0, 3.0])
        rows = answers(
            gk.per_sample_gradients,
            lambda x: layer(torch.tanh(layer(x))),
            x,
            gk.objectives.class_score(0),
            parameters=layer,
        )
        hidden = torch.tanh(x @ layer.weight.T).detach()
        slope = layer.weight.detach()[0] * (1 - hidden**2)
        expected = slope[:, :, None] * x[:, None]  # of the inner call
        expected[:, 0] += hidden  # of the outer one
        assert_all_equal(rows_of(rows, "weight"), expected)
        first = rows["auto"]["weight"][0, 0]
        torch.testing.assert_close(first, double(0.8553, 1.3908), atol=1e-4, rtol=0)

    def test_a_weight_read_by_a_function_and_by_its_layer_counts_twice(self):
        class Tied(nn.Module):
            def __init__(self):
                super().__init__()
                self.encoder = nn.Linear(3, 2, bias=False)

            def forward(self, x):
                return F.linear(torch.tanh(self.encoder(x)), self.encoder.weight.T)

        model, x = Tied().double(), torch.randn(4, 3, dtype=torch.float64)
        rows = answers(gk.parameter_jacobian, model, x)
        weight = model.encoder.weight
        hidden = torch.tanh(x @ weight.T)
        eye = torch.eye(3, dtype=torch.float64)
        # y[n, k] = sum_j h[n, j] W[j, k], h = tanh(x W'): both factors hold W.
        expected = torch.einsum("nj,kd->nkjd", hidden, eye) + torch.einsum(
            "jk,nj,nd->nkjd", weight, 1 - hidden**2, x
        )
        assert_all_equal(rows_of(rows, "encoder.weight"), expected)


class TestBatchAxis:
    """meta-pytorch/opacus#650, meta-pytorch/opacus#774, meta-pytorch/opacus#158."""

    def test_sequence_first_attention_is_refused_and_transposed_is_right(self):
        attention = nn.MultiheadAttention(4, 1).double()
        x = torch.randn(3, 3, 4, dtype=torch.float64)  # as many steps as samples

        def model(x):
            return attention(x, x, x, need_weights=False)[0]

        def batch_first(x):
            return model(x.transpose(0, 1)).transpose(0, 1)

        def energy(outputs):
            return outputs.pow(2).sum((1, 2))

        for method in methods_of(gk.per_sample_gradients):
            with pytest.raises(SampleDependenceError):
                gk.per_sample_gradients(
                    model, x, energy, parameters=attention, method=method
                )
        rows = answers(
            gk.per_sample_gradients, batch_first, x, energy, parameters=attention
        )
        weight = attention.in_proj_weight
        (total,) = torch.autograd.grad(energy(batch_first(x)).sum(), weight)
        sums = {m: found["in_proj_weight"].sum(0) for m, found in rows.items()}
        assert_all_equal(sums, total)

    @pytest.mark.parametrize("layer", [nn.RNN, nn.GRU, nn.LSTM])
    def test_time_first_recurrence_is_refused(self, layer):
        model = layer(3, 2)
        # torch.func cannot transform these layers at all.
        for method in ("auto", "loop", "onehot", "vmap"):
            for _ in range(5):  # a proof may be remembered, a refusal may not
                with pytest.raises(SampleDependenceError):
                    gk.jacobian(model, torch.randn(5, 4, 3), of=0, method=method)


class TestLossScaling:
    def test_class_weights_stay_factors(self):
        """pytorch/pytorch#8062, pytorch/pytorch#25571, pytorch/pytorch#14184."""
        logits = double([1.0, 0.0], [0.0, 0.0], [0.0, 2.0])
        labels, weight = torch.tensor([0, 1, 1]), double(10.0, 1.0)
        onehot = F.one_hot(labels, 2)
        rows = weight[labels][:, None] * (logits.softmax(1) - onehot)
        identity = nn.Identity()
        for criterion in (
            nn.CrossEntropyLoss(weight=weight),
            nn.CrossEntropyLoss(weight=weight, reduction="sum"),
            lambda z, y: F.cross_entropy(z, y, weight=weight, reduction="none"),
        ):
            objective = gk.objectives.sample_loss(criterion, labels)
            found = answers(gk.input_gradients, identity, logits, objective)
            assert_all_equal(found, rows)
        batch = logits.clone().requires_grad_()
        loss = F.cross_entropy(batch, labels, weight=weight)
        (reduced,) = torch.autograd.grad(loss, batch)
        torch.testing.assert_close(reduced, rows / weight[labels].sum())

    def test_class_weights_of_a_log_likelihood_stay_factors(self):
        """pytorch/pytorch#25571."""
        logits = torch.randn(4, 3, dtype=torch.float64)
        labels, weight = torch.tensor([2, 0, 1, 2]), double(2.0, 0.5, 4.0)
        objective = gk.objectives.sample_loss(nn.NLLLoss(weight=weight), labels)
        found = answers(gk.input_gradients, nn.LogSoftmax(1), logits, objective)
        onehot = F.one_hot(labels, 3)
        rows = weight[labels][:, None] * (logits.softmax(1) - onehot)
        assert_all_equal(found, rows)

    @pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
    def test_rows_are_not_divided_by_the_batch_size(self, reduction):
        """f-dangel/backpack#49, pytorch/pytorch#80892."""
        model = nn.Linear(2, 1, bias=False).double()
        model.weight.data.fill_(1.0)
        x, targets = double([1.0, 0.0], [0.0, 2.0]), torch.zeros(2, 1).double()
        criterion = nn.MSELoss(reduction=reduction)
        objective = gk.objectives.sample_loss(criterion, targets)
        rows = answers(gk.per_sample_gradients, model, x, objective)
        assert_all_equal(rows_of(rows, "weight"), [[[2.0, 0.0]], [[0.0, 8.0]]])
        for found in rows.values():
            mean, square = found.mean()["weight"], found.second_moment()["weight"]
            torch.testing.assert_close(mean, double([1.0, 4.0]))
            # The unbiased variance, N / (N - 1) = 2 times the biased one.
            torch.testing.assert_close(2 * (square - mean**2), double([2.0, 32.0]))

    @pytest.mark.parametrize(("reduction", "factor"), [("mean", 1 / 3), ("sum", 1.0)])
    def test_a_mean_is_over_the_sample_s_own_elements(self, reduction, factor):
        """f-dangel/backpack#49: three outputs a sample, and still no 1/N."""
        x, targets = torch.randn(5, 3).double(), torch.randn(5, 3).double()
        criterion = nn.MSELoss(reduction=reduction)
        objective = gk.objectives.sample_loss(criterion, targets)
        found = answers(gk.input_gradients, nn.Identity(), x, objective)
        assert_all_equal(found, factor * 2 * (x - targets))

    def test_a_loss_that_is_reduced_over_the_batch_is_refused(self):
        """f-dangel/backpack#49: its rows would be scaled by 1/N."""
        targets = torch.zeros(5, 2)
        with pytest.raises(InputError, match=r"\(5,\)"):
            gk.per_sample_gradients(
                nn.Linear(3, 2), torch.ones(5, 3), lambda y: F.mse_loss(y, targets)
            )


class TestBatchOfOne:
    """pytorch/pytorch#13223."""

    @pytest.mark.parametrize("samples", [3, 1])
    def test_a_model_that_squeezes_is_right_or_refused(self, samples):
        layer = nn.Linear(2, 1).double()
        x = torch.randn(samples, 2, dtype=torch.float64)
        for method in methods_of(gk.jacobian):
            with or_refused(r"\(\)|axis"):
                found = gk.jacobian(lambda x: layer(x).squeeze(), x, method=method)
                assert torch.equal(found, layer.weight.expand(samples, 2))

    @pytest.mark.parametrize("samples", [3, 1])
    def test_a_model_that_squeezes_its_own_axis_is_right(self, samples):
        layer = nn.Linear(2, 1).double()
        x = torch.randn(samples, 2, dtype=torch.float64)
        answered = answers(gk.jacobian, lambda x: layer(x).squeeze(-1), x)
        assert_all_equal(answered, layer.weight.expand(samples, 2))

    def test_batch_norm_in_training_mode_is_refused_by_name(self):
        model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
        with pytest.raises(SampleDependenceError, match=r"BatchNorm1d.*'1'"):
            gk.jacobian(model, torch.ones(1, 3))
        found = gk.jacobian(model.eval(), torch.ones(1, 3))
        expected = model.get_parameter("0.weight") / (1 + 1e-5) ** 0.5
        torch.testing.assert_close(found, expected[None].detach())
