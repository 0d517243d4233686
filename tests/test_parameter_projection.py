"""Random projections of parameter rows: what they keep and what they depend on."""

import pytest
import torch
from torch import nn

import gradkit as gk
from gradkit.errors import InputError


@pytest.fixture(autouse=True)
def _on_device(device):
    with torch.device(device):
        yield


def network(outputs=2):
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, outputs)).double()


def flat_rows(model, inputs):
    """Return ``(N, *out, P)``, one ordinary backward for each entry."""
    outputs = model(inputs)
    rows = [
        torch.cat(
            [
                part.flatten()
                for part in torch.autograd.grad(
                    entry, list(model.parameters()), retain_graph=True
                )
            ]
        )
        for entry in outputs.flatten()
    ]
    return torch.stack(rows).reshape(*outputs.shape, -1)


@pytest.fixture
def model():
    return network()


@pytest.fixture
def inputs():
    return torch.randn(5, 3, dtype=torch.float64)


def test_the_whole_is_the_sum_of_the_parameters(model, inputs):
    found = gk.parameter_jacobian(model, inputs)
    projected = found.project(6, seed=1)
    assert projected.shape == (5, 2, 6)
    assert projected.dtype == torch.float64
    parts = found.project(6, seed=1, per_parameter=True)
    assert list(parts) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    torch.testing.assert_close(sum(parts.values()), projected)


def test_is_linear_in_the_rows(model):
    # 30 rows of 26 parameters fix the matrix; new rows must then follow it.
    many = torch.randn(15, 3, dtype=torch.float64)
    rows = flat_rows(model, many).flatten(0, 1)
    projected = gk.parameter_jacobian(model, many).project(6, seed=1).flatten(0, 1)
    matrix = torch.linalg.pinv(rows, rtol=1e-9) @ projected
    torch.testing.assert_close(rows @ matrix, projected)


def test_other_values_of_the_parameters_meet_the_same_matrix(inputs):
    one, two = nn.Linear(3, 2).double(), nn.Linear(3, 2).double()
    for size in (1, 7):
        first = gk.parameter_jacobian(one, inputs).project(size, seed=3)
        second = gk.parameter_jacobian(two, inputs).project(size, seed=3)
        # The Jacobian of a linear layer does not depend on its weight.
        torch.testing.assert_close(first, second)


def test_squared_norms_and_products_are_unbiased(model, inputs):
    found = gk.parameter_jacobian(model, inputs)
    gram = found.gram().reshape(10, 10)
    seeds, size = 300, 20
    estimate = torch.zeros_like(gram)
    for seed in range(seeds):
        rows = found.project(size, seed=seed).reshape(10, size)
        estimate += rows @ rows.T / seeds
    scale = gram.diagonal().sqrt()
    error = (estimate - gram) / (scale[:, None] * scale)
    # One product has the relative deviation sqrt(2 / size); the mean, that of
    # 6,000 draws: 0.018. Five deviations for the worst of a hundred entries.
    assert error.abs().max() < 5 * (2 / (seeds * size)) ** 0.5


def test_depends_on_the_seed(model, inputs):
    found = gk.parameter_jacobian(model, inputs)
    assert torch.equal(found.project(4, seed=1), found.project(4, seed=1))
    assert not torch.allclose(found.project(4, seed=1), found.project(4, seed=2))


def test_depends_on_the_name(inputs):
    class Named(nn.Module):
        def __init__(self, name):
            super().__init__()
            self.name = name
            weight = torch.linspace(-1, 1, 6, dtype=torch.float64).reshape(2, 3)
            setattr(self, name, nn.Parameter(weight))

        def forward(self, x):
            return x @ getattr(self, self.name).T

    one, same, other = (Named(name) for name in ("first", "first", "second"))
    rows = [gk.parameter_jacobian(m, inputs).project(4, seed=1) for m in (one, same)]
    assert torch.equal(*rows)
    moved = gk.parameter_jacobian(other, inputs).project(4, seed=1)
    assert not torch.allclose(rows[0], moved)


def test_two_parameters_of_one_shape_meet_different_matrices(inputs):
    class Twins(nn.Module):
        def __init__(self):
            super().__init__()
            self.one = nn.Parameter(torch.ones(3, dtype=torch.float64))
            self.two = nn.Parameter(torch.ones(3, dtype=torch.float64))

        def forward(self, x):
            return x @ (self.one + self.two)

    found = gk.parameter_jacobian(Twins(), inputs)
    parts = found.project(4, seed=1, per_parameter=True)
    assert torch.equal(found["one"], found["two"])
    assert not torch.allclose(parts["one"], parts["two"])


def test_does_not_depend_on_batch_chunk_or_selection(model, inputs):
    found = gk.parameter_jacobian(model, inputs)
    expected = found.project(6, seed=1)
    parts = [
        gk.parameter_jacobian(model, part).project(6, seed=1)
        for part in inputs.split([1, 3, 1])
    ]
    torch.testing.assert_close(torch.cat(parts), expected)
    streamed = gk.parameter_jacobian(model, inputs, max_memory=3 * 26 * 8)
    torch.testing.assert_close(streamed.project(6, seed=1), expected)
    torch.testing.assert_close(
        found.samples([4, 1]).project(6, seed=1), expected[[4, 1]]
    )
    whole = found.project(6, seed=1, per_parameter=True)["2.weight"]
    selected = found.select("2.weight").project(6, seed=1)
    torch.testing.assert_close(selected, whole)
    alone = gk.parameter_jacobian(model, inputs, parameters="2.weight")
    torch.testing.assert_close(alone.project(6, seed=1), whole)


def test_leaves_the_caller_s_generators_alone(model, inputs):
    state = torch.get_rng_state()
    gk.parameter_jacobian(model, inputs).project(6, seed=1)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("size", [0, -1, 2.5])
def test_a_size_that_is_not_a_positive_whole_number_is_refused(model, inputs, size):
    with pytest.raises(InputError, match="size"):
        gk.parameter_jacobian(model, inputs).project(size, seed=1)
