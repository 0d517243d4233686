"""Numbers that were once wrong without a word: aliases, copies, views, results."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

import gradkit as gk
from found import (
    INPUT_METHODS,
    PARAMETER_METHODS,
    Holding,
    alone,
    assert_rows,
    doubles,
    output_sum,
    refusal,
    weighted,
    with_rows,
)
from gradkit.errors import GradkitError, UnsupportedModelError
from reported import or_refused


@pytest.fixture(autouse=True)
def _on_device(device):
    with torch.device(device):
        yield


class TestWritesThroughViews:
    @pytest.mark.parametrize("method", PARAMETER_METHODS)
    def test_an_index_of_a_tensor_without_axes_selects_a_view(self, method):
        def forward(model, ids):
            hidden = model.table(ids) * 1
            hidden[:, torch.tensor(1)].mul_(5)
            return hidden.sum((1, 2))

        model = Holding(forward, table=nn.Embedding(9, 2).double())
        ids = torch.tensor([[1, 4, 3], [2, 2, 7], [5, 0, 8], [6, 3, 1]])
        rows = gk.per_sample_gradients(model, ids, method=method)
        assert_rows(rows["table.weight"], alone(model, ids, model.table.weight))
        assert rows["table.weight"][0, 4].tolist() == [5.0, 5.0]
        torch.testing.assert_close(rows.objective_values, model(ids).detach())

    @pytest.mark.parametrize("method", INPUT_METHODS)
    def test_a_buffer_and_a_view_of_it_stay_one_memory(self, method):
        def forward(model, x):
            model.buffer.copy_(torch.full_like(model.buffer, 2.0))
            return x * model.view

        model, x = Holding(forward), doubles(4, 3)
        model.register_buffer("buffer", torch.zeros(2, 3, dtype=torch.float64))
        model.view = model.buffer[0]
        with or_refused("the forward moves buffers"):
            found = gk.jacobian(model, x, method=method, with_values=True)
            torch.testing.assert_close(found.outputs, 2 * x)
            assert_rows(found.derivative, 2 * torch.eye(3).double().expand(4, 3, 3))
        assert model.view.tolist() == [0.0, 0.0, 0.0]

    def test_of_a_large_buffer_too(self):
        def forward(model, x):
            model.buffer.add_(2)
            return x * model.view

        model, x = Holding(forward), doubles(4, 3)
        model.register_buffer("buffer", torch.zeros(2_200_000, dtype=torch.float64))
        model.view = model.buffer[:3]
        expected = 2 * torch.eye(3).double().expand(4, 3, 3)
        assert_rows(gk.jacobian(model, x), expected)
        assert not model.view.any()


class TestFrozenParameters:
    @pytest.mark.parametrize("method", PARAMETER_METHODS)
    def test_used_through_a_view_made_early_are_never_zero(self, method):
        frozen = nn.Parameter(doubles(3), requires_grad=False)
        model = Holding(lambda model, x: (x * model.flat).sum(1), frozen=frozen)
        model.flat = frozen.view(-1)
        text = refusal(
            UnsupportedModelError,
            lambda: gk.per_sample_gradients(
                model, doubles(4, 3), parameters=["frozen"], method=method
            ),
        )
        assert "'frozen'" in text

    def test_used_by_the_objective_are_not_lost(self):
        layer, x = nn.Linear(3, 2).double().requires_grad_(False), doubles(4, 3)
        weight = layer.weight

        def objective(y):
            return y.sum(1) + weight.sum()

        def call():
            return gk.per_sample_gradients(layer, x, objective, parameters=["weight"])

        text = refusal_or_none(call)
        assert text is not None
        assert "'weight' is frozen" in text

    def test_keep_their_class_and_attributes(self):
        def forward(model, x):
            trained = isinstance(model.w, nn.Parameter)
            multiplier = getattr(model.w, "multiplier", 1.0)
            return (x * model.w * multiplier).sum(1) * (2.0 if trained else 7.0)

        model, x = weighted(forward), doubles(4, 3)
        model.w.multiplier = 3.0
        for hooked in (True, False):
            if hooked:
                handle = model.w.register_hook(lambda grad: grad * 100)
            else:
                handle.remove()
                model.w.requires_grad_(False)
            for method in PARAMETER_METHODS:
                with or_refused("ordinary backward"):
                    rows = gk.per_sample_gradients(
                        model, x, method=method, parameters=["w"]
                    )
                    assert_rows(rows["w"], 6 * x)
                    expected = model(x).detach()
                    torch.testing.assert_close(rows.objective_values, expected)

    def test_a_view_in_no_graph_is_refused_not_zero(self):
        layer, x = nn.Linear(3, 2).double(), doubles(4, 3)
        asked = {"row": layer.weight[0]}
        text = refusal_or_none(
            lambda: gk.per_sample_gradients(layer, x, output_sum, parameters=asked)
        )
        assert text is not None
        assert "row" in text


def refusal_or_none(call):
    """Return the text of the library's refusal; ``None`` if the call is served."""
    try:
        call()
    except GradkitError as error:
        return str(error)
    return None


class TestParametrizationCache:
    def test_a_filled_one_hides_no_parameter(self):
        layer, x = parametrizations.weight_norm(nn.Linear(3, 2).double()), doubles(4, 3)
        layer.requires_grad_(False)
        name = "parametrizations.weight.original0"

        def rows():
            return gk.per_sample_gradients(layer, x, output_sum, parameters=[name])

        outside = rows()[name]
        with parametrize.cached():
            layer(x)
            assert_rows(rows()[name], outside)

    def test_the_callers_is_not_filled_with_private_copies(self):
        layer, x = parametrizations.weight_norm(nn.Linear(3, 2).double()), doubles(4, 3)
        originals = list(layer.parameters())[1:]  # after the bias
        for original in originals:
            original.register_hook(lambda grad: grad)
        with parametrize.cached():
            gk.per_sample_gradients(layer, x, output_sum)
            layer(x).sum().backward()
        assert [original.grad is not None for original in originals] == [True, True]


class TestResults:
    @pytest.mark.parametrize(
        ("question", "model"),
        [
            (gk.jacobian, lambda x: torch.ones(len(x), 2).double()),
            (gk.input_gradients, lambda x: x.sum(1)),
            (gk.jacobian, lambda x: x.sum(1, keepdim=True)),
        ],
        ids=["unused", "sum", "kept axis"],
    )
    def test_own_all_of_their_memory(self, question, model):
        x = doubles(4, 3)
        found = question(model, x)
        expected = found.clone()
        found += torch.arange(found.numel()).reshape(found.shape)
        expected += torch.arange(found.numel()).reshape(found.shape)
        assert torch.equal(found, expected)

    def test_of_an_input_that_is_not_used_own_their_memory(self):
        x, z = doubles(4, 3), doubles(4, 2)
        found = gk.jacobian(lambda x, z: x * 1, (x, z), wrt=1)
        assert found.shape == (4, 3, 2)
        found[0, 0, 0] = 5
        assert found.sum() == 5

    @pytest.mark.parametrize("create_graph", [False, True])
    def test_of_a_foreign_method_are_checked_also_with_a_graph(self, create_graph):
        method = with_rows(lambda block, rows: 2 * rows)
        text = refusal(
            UnsupportedModelError,
            lambda: gk.jacobian(
                lambda x: x * x, doubles(4, 3), method=method, create_graph=create_graph
            ),
        )
        assert "differs from the ordinary backward" in text

    def test_no_sample_has_no_gradient_but_a_shape(self):
        layer = nn.Linear(4, 2).double()
        for method in ("auto", "loop", "onehot", "vmap"):
            found = gk.input_gradients(
                layer, doubles(5, 4)[:0], output_sum, method=method
            )
            assert found.shape == (0, 4)

    def test_no_feature_has_a_shape_by_every_method(self):
        for method in INPUT_METHODS:
            found = gk.jacobian(
                lambda x: x.sum(1, keepdim=True) + x.new_ones(2),
                doubles(3, 4)[:, :0],
                method=method,
            )
            assert found.shape == (3, 2, 0)

    def test_of_a_scalar_function_without_samples(self):
        x = doubles(3, 4)
        for ask in (gk.jacobian, gk.input_gradients):
            found = ask(lambda x: (x * x).sum(), x, batched=False)
            torch.testing.assert_close(found, 2 * x)


def test_a_small_source_is_not_excused_by_a_large_one():
    centres = torch.randn(5, 2)

    def model(x, z):
        return z * 100 + 1e-5 * torch.cdist(x, centres).flatten(1)

    inputs = (torch.randn(4, 3, 2), torch.randn(4, 15))
    right = gk.jacobian(model, inputs, method="onehot")[0]
    for method in ("auto", "jacrev", "vmap", "loop"):
        with or_refused("ordinary backward"):
            found = gk.jacobian(model, inputs, method=method)[0]
            gap = (found - right).abs().max() / right.abs().max()
            assert gap < 1e-3, method


class TestASmallRowDoesNotHideBehindLargeOnes:
    """Every row is checked on its own scale."""

    SIZES = (1e3, 1e3, 5e-3, 1e3, 1e3, 1e3)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_of_another_sample(self, dtype):
        def doubled(block, rows):
            rows[2 - block.samples.start] *= 2
            return rows

        model = weighted(lambda model, x: (x * model.w).sum(1)).to(dtype)
        for size in (1.0, 5e-6):
            x = doubles(6, 3).to(dtype).sign() * torch.tensor(self.SIZES)[:, None]
            x[2] *= size
            with pytest.raises(UnsupportedModelError, match="ordinary backward"):
                gk.per_sample_gradients(
                    model, x.to(dtype), method=with_rows(doubled, "parameters")
                )

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_of_another_output(self, dtype):
        def doubled(block, rows):
            if block.rows.start <= 2 < block.rows.stop:
                rows[:, 2 - block.rows.start] *= 2
            return rows

        sizes = torch.tensor(self.SIZES, dtype=dtype)
        sizes[2] = 1e5 * torch.finfo(dtype).eps
        x = doubles(4, 3).to(dtype)
        with pytest.raises(UnsupportedModelError, match="ordinary backward"):
            gk.jacobian(
                lambda x: x.sin().sum(1, keepdim=True) * sizes,
                x,
                method=with_rows(doubled),
            )


def test_a_mean_over_no_samples_is_refused_or_zero_like_the_other_sums():
    rows = gk.per_sample_gradients(nn.Linear(3, 1), torch.zeros(0, 3))
    for found in (rows.sum(), rows.mean(), rows.second_moment()):
        assert found["weight"].shape == (1, 3)
    assert torch.equal(
        rows.mean()["weight"].isnan(), rows.second_moment()["weight"].isnan()
    )


def test_an_unknown_model_made_lazy_is_refused_by_name():
    model = nn.Sequential(nn.LazyLinear(2))
    for ask in (gk.parameter_jacobian, gk.jacobian):
        text = refusal(UnsupportedModelError, ask, model, doubles(4, 3))
        assert "LazyLinear" in text
