"""Samples that met without being seen, and honest models that were refused."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import gradkit as gk
from found import (
    PARAMETER_METHODS,
    Holding,
    alone,
    assert_always_coupled,
    assert_rows,
    doubles,
    is_coupled,
    output_sum,
    weighted,
)
from gradkit.errors import GradkitError
from reported import or_refused

CALLS = 9  # a proof that held is renewed at calls 2, 4 and 8 only


@pytest.fixture(autouse=True)
def _on_device(device):
    with torch.device(device):
        yield


def test_a_refused_model_is_refused_at_every_call():
    model, x = nn.GRU(3, 2), torch.randn(5, 4, 3)
    assert_always_coupled(CALLS, lambda: lambda: gk.jacobian(model, x, of=0))


class TestAnotherOutputIsAskedFor:
    """What was proved of one output says nothing of the next."""

    @staticmethod
    def second_coupled(x):
        return torch.stack([x[:, 0] * 2, (x.roll(1, 0) * x)[:, 0]], 1)

    def test_by_the_objective(self):
        model, x = self.second_coupled, doubles(5, 3)
        for objective in (0, 0, 1, 1, 1):
            assert is_coupled(lambda o=objective: gk.input_gradients(model, x, o))

    def test_by_a_function_of_the_outputs(self):
        model, x = self.second_coupled, doubles(5, 3)
        for column in (0, 0, 1, 1, 1, 1, 1):
            coupled = is_coupled(
                lambda c=column: gk.jacobian(model, x, of=lambda y: y[:, c])
            )
            assert coupled == (column == 1)

    def test_by_parameters(self):
        def forward(model, x):
            hidden = x * model.w
            return torch.cat([hidden, hidden.cumsum(0)], 1)

        model, x = weighted(forward), doubles(6, 3)
        for objective in (0, 0, 4, 4, 4):
            score = gk.objectives.class_score(objective)
            assert is_coupled(
                lambda s=score: gk.per_sample_gradients(model, x, s, method="rows")
            )

    def test_where_the_cotangent_was_zero_when_it_was_proved(self):
        x = doubles(5, 3)

        def hinge(y):
            return F.relu(y.sum(1) - 1e3)

        assert is_coupled(lambda: gk.input_gradients(lambda x: x.roll(1, 0), x, hinge))


class TestSomethingChangesBetweenCalls:
    """Two calls that are honest, then the same model couples samples."""

    @staticmethod
    def coupled_once_changed(model, change, samples=6):
        x = doubles(samples, 3)
        honest = [is_coupled(lambda: gk.jacobian(model, x)) for _ in range(2)]
        change()
        later = [is_coupled(lambda: gk.jacobian(model, x)) for _ in range(CALLS - 2)]
        assert honest == [False, False]
        assert later == [True] * (CALLS - 2)

    def test_an_axis(self):
        model = nn.Softmax(dim=1)
        self.coupled_once_changed(model, lambda: setattr(model, "dim", 0))

    def test_a_number(self):
        model = Holding(lambda model, x: x * x.roll(model.shift, 0), shift=0)
        self.coupled_once_changed(model, lambda: setattr(model, "shift", 1))

    def test_a_number_to_and_fro(self):
        model, x = Holding(lambda m, x: x * x.roll(m.shift, 0), shift=0), doubles(6, 3)
        for shift in (0, 1, 1, 1, 0, 1, 1, 0, 1):
            model.shift = shift
            assert is_coupled(lambda: gk.jacobian(model, x)) == (shift == 1)

    def test_a_buffer_of_indices(self):
        model = Holding(lambda model, x: x * x[model.order])
        model.register_buffer("order", torch.arange(6))
        self.coupled_once_changed(model, lambda: model.order.copy_(model.order.flip(0)))

    def test_an_attribute_of_indices(self):
        model = Holding(lambda model, x: x * x[model.order], order=torch.arange(6))
        changed = torch.arange(6).flip(0)
        self.coupled_once_changed(model, lambda: setattr(model, "order", changed))

    def test_a_buffer_that_mixes(self):
        model = Holding(lambda model, x: model.mix @ x)
        model.register_buffer("mix", torch.eye(6, dtype=torch.float64))
        self.coupled_once_changed(model, lambda: model.mix.fill_(1.0))

    def test_what_a_function_reads(self):
        held = {"shift": 0}

        def model(x):
            return x * x.roll(held["shift"], 0)

        self.coupled_once_changed(model, lambda: held.update(shift=1))


@pytest.mark.parametrize("ids", [False, True])
def test_a_proof_that_held_is_remembered(ids):
    forwards = []

    def forward(model, x):
        forwards.append(len(x))
        return model.layer(x)

    model, x = Holding(forward, layer=nn.Linear(3, 2).double()), doubles(6, 3)
    if ids:  # as models of text keep the positions of their tokens
        model.register_buffer("ids", torch.arange(3))
    counts = []
    for _ in range(CALLS):
        forwards.clear()
        gk.jacobian(model, x)
        counts.append(len(forwards))
    proving, quiet = counts[0], counts[2]
    assert quiet < proving
    # Renewed at calls 2, 4 and 8.
    renewed = [n in (1, 2, 4, 8) for n in range(1, CALLS + 1)]
    assert counts == [proving if due else quiet for due in renewed]


class TestPathsThatInputsDoNotSee:
    """Samples that meet through integers, detached values or a Python branch."""

    @pytest.mark.parametrize("method", PARAMETER_METHODS)
    def test_integers_beside_a_floating_input(self, method):
        def forward(model, x, ids):
            hot = F.one_hot(ids[:, 0], 9).double() @ model.table
            return (x * model.w).sum(1) + hot.mean(0).sum()

        model = weighted(forward, table=nn.Parameter(doubles(9, 4)))

        def draw():
            inputs = (doubles(5, 3), torch.randperm(9)[:5, None])
            return lambda: gk.per_sample_gradients(model, inputs, method=method)

        assert_always_coupled(12, draw)

    @pytest.mark.parametrize("method", ["auto", "rows"])
    def test_integers_scaled_by_the_largest(self, method):
        def forward(model, x, ids):
            hidden = F.dropout(x * model.w, 0.5)
            return (hidden * (ids / ids.max())).sum(1)

        def draw():
            inputs = (doubles(5, 3), torch.randperm(40)[:5, None] + 1)
            return lambda: gk.per_sample_gradients(
                weighted(forward), inputs, method=method, seed=3
            )

        assert_always_coupled(12, draw)

    @pytest.mark.parametrize("dropout", [0.0, 0.3])
    def test_a_detached_mean(self, dropout):
        def forward(model, x):
            centred = x - 0.3 * x.detach().mean(0)
            return (F.dropout(centred, dropout) * model.w).sum(1)

        def draw():
            x, seed = doubles(5, 3), 3 if dropout else None
            model = weighted(forward)
            return lambda: gk.per_sample_gradients(model, x, seed=seed)

        assert_always_coupled(12, draw)

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
    def test_a_detached_mean_in_low_precision(self, dtype):
        def forward(model, x):
            return ((x - 0.3 * x.detach().mean(0)) * model.w).sum(1)

        def draw():
            model, x = weighted(forward).to(dtype), doubles(5, 3).to(dtype) + 2
            return lambda: gk.per_sample_gradients(model, x)

        assert_always_coupled(12, draw)

    @pytest.mark.parametrize("method", PARAMETER_METHODS)
    @pytest.mark.parametrize("decider", ["others", "first"])
    def test_a_sum_over_the_batch_that_picks_a_branch(self, method, decider):
        def forward(model, x):
            return (x * model.w).sum(1) * (2 if x.sum() > 0 else 3)

        for _ in range(10):
            x = doubles(6, 3).abs()
            # Alone, the first or all others take another branch than in the batch.
            x[0] *= -100 if decider == "first" else -0.1
            with or_refused("must be independent|ordinary backward|data-dependent"):
                gk.per_sample_gradients(weighted(forward), x, method=method)
                raise AssertionError("served")

    def test_the_number_of_samples(self):
        def forward(model, x):
            return (x * model.w).sum(1) / len(x)

        for method in PARAMETER_METHODS:
            with or_refused("samples must be independent|ordinary backward"):
                gk.per_sample_gradients(weighted(forward), doubles(5, 3), method=method)
                raise AssertionError(f"served by {method}")


class TestHonestModelsAreServed:
    @pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_sequences_packed_inside_the_model(self, kind, dtype):
        def forward(model, x, lengths):
            packed = nn.utils.rnn.pack_padded_sequence(
                x, lengths.cpu(), batch_first=True, enforce_sorted=False
            )
            found, _ = model.rnn(packed)
            return nn.utils.rnn.pad_packed_sequence(
                found, batch_first=True, total_length=x.shape[1]
            )[0]

        model = Holding(forward, rnn=kind(3, 4, batch_first=True)).to(dtype)
        x, lengths = doubles(5, 6, 3).to(dtype), torch.tensor([2, 6, 3, 1, 4])
        rows = gk.parameter_jacobian(model, (x, lengths))
        gk.jacobian(model, (x, lengths))
        one = gk.parameter_jacobian(model, (x[3:4], lengths[3:4]), method="rows")
        name = "rnn.weight_ih_l0"
        torch.testing.assert_close(
            rows[name][3], one[name][0], rtol=1e-4, atol=1e-5 if x.itemsize < 8 else 0
        )

    def test_samples_sorted_by_their_tokens(self):
        def forward(model, ids):
            kind = ids[:, 0] % 2
            order = kind.argsort()
            hidden = model.table(ids).mean(1)[order]
            first = int((kind == 0).sum())
            mixed = [model.even(hidden[:first]), model.odd(hidden[first:])]
            return torch.cat(mixed)[order.argsort()]

        model = Holding(
            forward,
            table=nn.Embedding(9, 3),
            even=nn.Linear(3, 3),
            odd=nn.Linear(3, 2 + 1),
        ).double()
        ids = torch.randint(0, 9, (6, 4))
        rows = gk.per_sample_gradients(model, ids, output_sum)
        weight = model.table.weight
        assert_rows(rows["table.weight"], alone(model, ids, weight))

    def test_a_gradient_penalty_by_parameters(self):
        net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1)).double()
        x = doubles(4, 3)

        def penalty(x):
            return gk.input_gradients(net, x, create_graph=True).norm(dim=1)

        def plain(x):
            grown = x.detach().requires_grad_()
            (slope,) = torch.autograd.grad(net(grown).sum(), grown, create_graph=True)
            return slope.norm(dim=1)

        weight = net.get_parameter("0.weight")
        right = [torch.autograd.grad(plain(s[None]).sum(), weight)[0] for s in x]
        rows = gk.per_sample_gradients(penalty, x, parameters=net)
        assert_rows(rows["0.weight"], torch.stack(right))
        inside = Holding(lambda model, x: penalty(x), net=net)
        rows = gk.per_sample_gradients(inside, x)
        assert_rows(rows["net.0.weight"], torch.stack(right))


def test_a_foreign_coupling_by_tokens_is_refused_not_passed_on():
    # Where one method's result is doubted, the next must not serve it unseen.
    layer = nn.Embedding(5, 2, scale_grad_by_freq=True)
    tokens = torch.tensor([[3, 2], [3, 3], [1, 3]])
    for method in PARAMETER_METHODS:
        with pytest.raises(GradkitError, match="scale_grad_by_freq"):
            gk.parameter_jacobian(layer, tokens, method=method)


def test_a_criterion_that_couples_is_refused_whatever_was_proved_of_others():
    """A proof is remembered per model, and a criterion is no part of the model."""
    model, x, y = nn.Linear(3, 2), torch.randn(5, 3), torch.tensor([0, 1, 1, 0, 1])

    def good(outputs, targets):
        return F.cross_entropy(outputs, targets, reduction="none")

    def coupled(outputs, targets):
        return good(outputs - outputs.mean(0), targets)

    for question in (gk.input_gradients, gk.per_sample_gradients):
        for _ in range(CALLS):
            question(model, x, gk.objectives.sample_loss(good, y))
            loss = gk.objectives.sample_loss(coupled, y)
            assert is_coupled(lambda q=question, o=loss: q(model, x, o))
