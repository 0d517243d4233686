"""Quantities of a ``ParameterJacobian`` against rows from one backward per entry."""

import pytest
import torch
from torch import Tensor, nn

import gradkit as gk
from gradkit.errors import InputError
from parameter_rows import Problem, assert_same, every_output, one_objective, row_bytes


@pytest.fixture(autouse=True)
def _on_device(device):
    with torch.device(device):
        yield


@pytest.fixture(params=[every_output, one_objective])
def problem(request) -> Problem:
    return request.param()


@pytest.fixture(params=["held", "streamed"])
def found(request, problem) -> gk.ParameterJacobian:
    """The answer, all rows at once or a few at a time."""
    streamed = request.param == "streamed"
    return problem.ask(max_memory=4 * row_bytes(problem) if streamed else None)


def reduced(rows: dict[str, Tensor], lead: int, function) -> dict[str, Tensor]:
    return {name: function(part, tuple(range(lead))) for name, part in rows.items()}


class TestQuantities:
    def test_norms(self, problem, found):
        flat = problem.flat_rows()
        torch.testing.assert_close(found.norms(), flat.norm(dim=-1))
        lead = flat.dim() - 1
        expected = {
            name: part.flatten(lead).norm(dim=-1)
            for name, part in problem.rows().items()
        }
        assert_same(found.norms(per_parameter=True), expected)

    def test_gram_with_itself(self, problem, found):
        flat = problem.flat_rows()
        lead = flat.shape[:-1]
        rows = flat.reshape(-1, flat.shape[-1])
        expected = (rows @ rows.T).reshape(*lead, *lead)
        torch.testing.assert_close(found.gram(), expected)

    def test_gram_with_other_samples(self, problem, found):
        others = problem.inputs[:2].flip(1)
        flat, other = problem.flat_rows(), problem.flat_rows(others)
        rows = flat.reshape(-1, flat.shape[-1]) @ other.reshape(-1, flat.shape[-1]).T
        expected = rows.reshape(*flat.shape[:-1], *other.shape[:-1])
        torch.testing.assert_close(found.gram(problem.ask(others)), expected)

    def test_gram_with_other_parameters_is_refused(self, problem, found):
        names = list(found)
        with pytest.raises(InputError, match=names[0]):
            found.gram(problem.ask().select(names[1:]))

    def test_matvec(self, problem, found):
        flat = problem.flat_rows()
        vector = torch.randn(flat.shape[-1], dtype=torch.float64)
        torch.testing.assert_close(found.matvec(vector), flat @ vector)
        by_name = {
            name: vector[found.columns[name]].reshape(part.shape[flat.dim() - 1 :])
            for name, part in problem.rows().items()
        }
        torch.testing.assert_close(found.matvec(by_name), flat @ vector)

    @pytest.mark.parametrize("size", [0, 3])
    def test_matvec_of_another_size_is_refused(self, found, size):
        total = sum(value.numel() // len(value) for value in found.values())
        with pytest.raises(InputError, match=r"matvec"):
            found.matvec(torch.ones(total + size + 1, dtype=torch.float64))
        with pytest.raises(InputError, match=r"matvec"):
            found.matvec({"no such parameter": torch.ones(3, dtype=torch.float64)})

    def test_rmatvec(self, problem, found):
        lead = problem.flat_rows().shape[:-1]
        weights = torch.randn(lead, dtype=torch.float64)
        axes = len(lead)
        expected = {
            name: torch.tensordot(weights, part, axes)
            for name, part in problem.rows().items()
        }
        assert_same(found.rmatvec(weights), expected)
        with pytest.raises(InputError, match=r"rmatvec"):
            found.rmatvec(weights[:-1])

    def test_matvec_and_rmatvec_are_adjoint(self, found):
        vector = {name: torch.randn_like(part) for name, part in found.sum().items()}
        weights = torch.randn_like(found.norms())
        left = (weights * found.matvec(vector)).sum()
        pulled = found.rmatvec(weights)
        right = sum((pulled[name] * part).sum() for name, part in vector.items())
        torch.testing.assert_close(left, right)

    def test_moments(self, problem, found):
        rows = problem.rows()
        lead = problem.flat_rows().dim() - 1
        assert_same(found.sum(), reduced(rows, lead, torch.sum))
        assert_same(found.mean(), reduced(rows, lead, torch.mean))
        squares = {name: part**2 for name, part in rows.items()}
        assert_same(found.second_moment(), reduced(squares, lead, torch.mean))

    def test_sum_is_the_ordinary_gradient(self, problem, found):
        total = problem.values(problem.model(problem.inputs)).sum()
        gradients = torch.autograd.grad(total, list(problem.model.parameters()))
        names = [name for name, _ in problem.model.named_parameters()]
        assert_same(found.sum(), dict(zip(names, gradients, strict=True)))

    def test_clipped_sum_by_the_whole_norm(self, problem, found):
        flat = problem.flat_rows()
        norms = flat.norm(dim=-1)
        bound = norms.median().item()  # some rows are clipped, some are not
        factors = (bound / norms).clamp(max=1)
        assert 0 < (factors == 1).sum() < factors.numel()
        expected = {
            name: torch.tensordot(factors, part, norms.dim())
            for name, part in problem.rows().items()
        }
        assert_same(found.clipped_sum(bound), expected)

    def test_clipped_sum_by_each_parameter_s_norm(self, problem, found):
        lead = problem.flat_rows().dim() - 1
        bounds, expected = {}, {}
        for name, part in problem.rows().items():
            norms = part.flatten(lead).norm(dim=-1)
            bounds[name] = norms.median().item()
            factors = (bounds[name] / norms).clamp(max=1)
            expected[name] = torch.tensordot(factors, part, lead)
        assert_same(found.clipped_sum(bounds), expected)

    def test_clipping_keeps_a_row_of_zeros(self):
        model = nn.Linear(3, 2, bias=False).double()
        inputs = torch.tensor([[0.0, 0.0, 0.0], [3.0, 0.0, 4.0]], dtype=torch.float64)
        rows = gk.per_sample_gradients(model, inputs, gk.objectives.class_score(1))
        expected = torch.zeros(2, 3, dtype=torch.float64)
        expected[1] = inputs[1] / 5
        assert_same(rows.clipped_sum(1.0), {"weight": expected})
