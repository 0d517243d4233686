"""Right rows that a check, or a backward torch cannot vmap, once turned away."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gradkit as gk
from found import PARAMETER_METHODS, Holding, alone, assert_rows, doubles, output_sum
from gradkit._guards._verify import disagreement, tolerance
from gradkit.errors import UnsupportedModelError


@pytest.fixture(autouse=True)
def _on_device(device):
    with torch.device(device):
        yield


class TestDerivativesThatAreZeroButForRounding:
    @pytest.mark.parametrize("method", PARAMETER_METHODS)
    @pytest.mark.parametrize("question", ["rows", "jacobian"])
    def test_are_no_disagreement(self, method, question):
        """A direction of one number is plus or minus one, whatever the number."""

        def forward(m: Any, x: Tensor) -> Tensor:
            return (x @ m.w * (m.p / m.p.norm())).square()

        for _ in range(12):
            w, p = nn.Parameter(doubles(4, 3)), nn.Parameter(doubles(1))
            model, x = Holding(forward, w=w, p=p), doubles(5, 4)
            if question == "jacobian":
                found = gk.parameter_jacobian(model, x, method=method)
                size = float((2 * (x @ w.detach()).abs().max()) ** 2)
            else:
                found = gk.per_sample_gradients(model, x, output_sum, method=method)
                assert_rows(found["w"], alone(model, x, w))
                size = float(found["w"].abs().max())
            assert float(found["p"].abs().max()) <= 1e-13 * max(size, 1)

    @pytest.mark.parametrize("small", [1.0, 1e-6])
    def test_others_are_checked_as_before(self, small):
        """A small parameter's fault does not hide behind a large one."""
        rows = [doubles(5, 1, 4), small * doubles(5, 1, 3)]

        def pull(weights: Tensor) -> tuple[Tensor, ...]:
            return tuple((weights[..., None] * r).sum((0, 1)) for r in rows)

        def gap(given: list[Tensor]) -> float | None:
            limit = tolerance(torch.float64)
            return disagreement(given, pull, over_samples=True, limit=limit)

        assert gap(rows) is None
        for scale in (0.0, -1.0, 1 + 1e-6):
            # A draw of weights may all but cancel, so that its gap is found but small.
            drawn = [gap([rows[0], scale * rows[1]]) for _ in range(8)]
            found = [wrong for wrong in drawn if wrong is not None]
            assert len(found) == len(drawn)
            assert max(found) >= abs(1 - scale) / 10


class TestWritesToFunctionsOfTheInputs:
    """The inputs get a gradient for the proof alone; the model never needs theirs."""

    @staticmethod
    def added(m: Any, x: Tensor) -> Tensor:
        y = x.exp()
        y += m.p
        return y.square()

    @staticmethod
    def multiplied(m: Any, x: Tensor) -> Tensor:
        y = torch.relu(x)
        y *= m.p
        return y.square()

    @pytest.mark.parametrize("method", PARAMETER_METHODS)
    @pytest.mark.parametrize("name", ["added", "multiplied"])
    def test_are_served(self, name, method):
        model = Holding(getattr(self, name), p=nn.Parameter(doubles(4)))
        x = doubles(5, 4)
        if (name, method) == ("multiplied", "rules"):
            with pytest.raises(UnsupportedModelError, match="mul_ takes it in place"):
                gk.per_sample_gradients(model, x, output_sum, method=method)
            return
        for _ in range(3):
            rows = gk.per_sample_gradients(model, x, output_sum, method=method)
            assert_rows(rows["p"], alone(model, x, model.p))

    @pytest.mark.parametrize("name", ["added", "multiplied"])
    def test_of_coupled_samples_are_refused(self, name):
        def forward(m: Any, x: Tensor) -> Tensor:
            return getattr(self, name)(m, x - x.mean(0))

        model = Holding(forward, p=nn.Parameter(doubles(4)))
        with pytest.raises(gk.errors.SampleDependenceError, match="independent"):
            gk.per_sample_gradients(model, doubles(5, 4), output_sum)

    def test_that_the_inputs_own_derivative_needs_are_refused_for_it(self):
        model = Holding(self.added, p=nn.Parameter(doubles(4)))
        with pytest.raises(UnsupportedModelError, match="no reverse derivative"):
            gk.jacobian(model, doubles(5, 4), method="onehot")


class Doubled(torch.autograd.Function):
    """Its backward asks for a value, which torch's vmap has none of."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        del ctx
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        del ctx
        return grads[0] * (2 if float(grads[0].abs().max()) >= 0 else 1)


@pytest.mark.parametrize("max_memory", [None, 4000])
def test_a_backward_that_torch_cannot_vmap_is_run_row_by_row(max_memory):
    def forward(m: Any, x: Tensor) -> Tensor:
        h: Any = Doubled.apply(m.first(x))
        return m.last(h)

    first, last = nn.Linear(3, 4).double(), nn.Linear(4, 2).double()
    model, x = Holding(forward, first=first, last=last), doubles(5, 3)
    found = gk.parameter_jacobian(model, x, method="rules", max_memory=max_memory)
    weight = last.weight.detach()
    expected = 2 * torch.einsum("ki,nj->nkij", weight, x)
    torch.testing.assert_close(found["first.weight"], expected)
    torch.testing.assert_close(found["first.bias"], (2 * weight).expand(5, 2, 4))


@pytest.mark.parametrize("chosen", [(), (1,), (0, 2)])
def test_a_parameter_as_long_as_the_batch_that_no_sample_takes(chosen):
    """Where its cotangents are zero, its own axis is not taken for the samples'."""

    def forward(m: Any, x: Tensor, k: Tensor) -> Tensor:
        x = x * m.scale
        x[k > 6] += m.shift.reshape((3,))
        return x * 1

    scale, shift = nn.Parameter(doubles(3)), nn.Parameter(doubles(3, 1))
    model, x = Holding(forward, scale=scale, shift=shift), doubles(3, 3)
    k = torch.tensor([7 if n in chosen else 1 for n in range(3)])
    expected = torch.zeros(3, 3, 3, 1, dtype=torch.float64)
    for n in chosen:
        expected[n, :, :, 0] = torch.eye(3, dtype=torch.float64)
    for _ in range(3):
        found = gk.parameter_jacobian(model, (x, k))
        torch.testing.assert_close(found.to_dict()["shift"], expected)
        torch.testing.assert_close(found["scale"], torch.diag_embed(x))


@pytest.mark.parametrize("samples", [1, 3])
def test_a_layer_that_no_sample_is_sent_to(samples):
    """As an expert that a router chooses for nobody."""

    def forward(m: Any, x: Tensor) -> Tensor:
        chosen = x.detach().sum(1) > 100
        y = torch.zeros_like(x)
        y[chosen] = m.expert(x[chosen])
        return y + x * m.scale

    scale, expert = nn.Parameter(doubles(4)), nn.Linear(4, 4).double()
    model, x = Holding(forward, scale=scale, expert=expert), doubles(samples, 4)
    rows = gk.per_sample_gradients(model, x, output_sum)
    expected = {"scale": x, "expert.weight": x.new_zeros(samples, 4, 4)}
    expected["expert.bias"] = x.new_zeros(samples, 4)
    torch.testing.assert_close(rows.to_dict(), expected)
    for quantity in (rows.sum(), rows.second_moment(), rows.clipped_sum(1e9)):
        assert not quantity["expert.weight"].any()
    torch.testing.assert_close(rows.norms(), x.norm(dim=1))
    torch.testing.assert_close(rows.gram(), x @ x.T)
    ones = {name: torch.ones_like(part[0]) for name, part in expected.items()}
    torch.testing.assert_close(rows.matvec(ones), x.sum(1))
