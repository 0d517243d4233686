"""Sums that stalled, and methods let through, in few digits or under autocast."""

import copy
from contextlib import nullcontext

import pytest
import torch
from torch import nn

import gradkit as gk
from found import Holding, doubles, output_sum, weighted
from gradkit.errors import UnsupportedModelError
from reported import methods_of, or_refused


@pytest.fixture(autouse=True)
def _on_device(device):
    with torch.device(device):
        yield


def autocast(device):
    return torch.autocast(torch.device(device).type, dtype=torch.bfloat16)


class TestSumsOverSamples:
    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    @pytest.mark.parametrize("max_memory", [None, 1500])
    def test_do_not_stall(self, dtype, max_memory):
        layer = nn.Linear(1, 1, bias=False).to(dtype)
        x = torch.ones(1000, 1, dtype=dtype)
        rows = gk.per_sample_gradients(layer, x, max_memory=max_memory)
        for found, right in (
            (rows.sum(), 1000),
            (rows.mean(), 1),
            (rows.second_moment(), 1),
            (rows.clipped_sum(1.0), 1000),
            (rows.rmatvec(torch.ones(1000)), 1000),
        ):
            # Equal to what the exact sum rounds to.
            assert found["weight"].item() == torch.tensor(right, dtype=dtype)

    @pytest.mark.parametrize("max_memory", [None, 1500])
    def test_clip_rows_longer_than_the_largest_number(self, max_memory):
        layer = nn.Linear(2, 1, bias=False).half()
        x = torch.tensor([[6e4, 6e4], [1.0, 2.0]]).half()
        rows = gk.per_sample_gradients(layer, x, max_memory=max_memory)
        units = x.double() / x.double().norm(dim=1, keepdim=True)
        found = rows.clipped_sum(1.0)["weight"][0].double()
        torch.testing.assert_close(found, units.sum(0), rtol=2e-3, atol=0)


class TestParametersOfSeveralPrecisions:
    @pytest.mark.parametrize("first", [torch.float16, torch.float32])
    def test_products_are_in_the_wider_one(self, first):
        model = Holding(
            lambda model, x: (x.to(first) * model.a).sum(1).double() + x @ model.b,
            a=nn.Parameter(torch.ones(3, dtype=first)),
            b=nn.Parameter(doubles(3)),
        )
        x = (doubles(4, 3) * 30).round() * 40  # exact in float16, its squares are not
        rows = gk.per_sample_gradients(model, x, method="rows")
        gram = 2 * x @ x.mT
        assert rows.gram().dtype == torch.float64
        torch.testing.assert_close(rows.gram(), gram, rtol=1e-12, atol=1e-6)
        direction = {"a": torch.full((3,), 9.0, dtype=first), "b": doubles(3)}
        expected = x @ (9.0 + direction["b"])
        found = rows.matvec(direction)
        assert found.dtype == torch.float64
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-9)


class TestForwardModeSeesThroughConstants:
    """``torch.no_grad`` in a model: forward mode goes on where reverse mode stops."""

    @staticmethod
    def half_constant(x):
        with torch.no_grad():
            constant = x * 1.0
        return x + 0.5 * constant

    @staticmethod
    def casting(x):
        return TestForwardModeSeesThroughConstants.half_constant(x.bfloat16())

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
    def test_refused_in_every_precision(self, dtype):
        x = doubles(4, 3).to(dtype)
        with pytest.raises(UnsupportedModelError, match="no_grad"):
            gk.jacobian(self.half_constant, x, method="jacfwd")
        right = torch.eye(3, dtype=dtype).expand(4, 3, 3)
        assert torch.equal(gk.jacobian(self.half_constant, x), right)

    def test_refused_under_autocast(self, device):
        x = torch.randn(4, 3)
        with (
            autocast(device),
            pytest.raises(UnsupportedModelError, match="no_grad"),
        ):
            gk.jacobian(self.half_constant, x, method="jacfwd")

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
    def test_refused_where_the_model_casts_by_itself(self, dtype):
        x = doubles(4, 3).to(dtype)
        with pytest.raises(UnsupportedModelError, match="no_grad"):
            gk.jacobian(self.casting, x, method="jacfwd")

    @pytest.mark.parametrize("scale", [1e2, 1e4])
    def test_refused_in_a_small_entry_beside_a_large_one(self, scale):
        def model(x):
            with torch.no_grad():
                constant = x[:, 1:] * 1.0
            return scale * x[:, :1] + constant

        with or_refused("no_grad"):
            found = gk.jacobian(model, torch.randn(4, 2), method="jacfwd")
            expected = torch.tensor([[scale, 0.0]]).expand(4, 1, 2)
            assert torch.equal(found, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rows_of_a_transform_that_sees_other_values_are_refused(dtype):
    def forward(model, x):
        return ((x - 0.3 * x.detach().mean(0)) * model.w).sum(1)

    model, x = weighted(forward).to(dtype), doubles(5, 3).to(dtype)
    for method in ("vmap", "loop"):
        with pytest.raises(ValueError, match="samples must be independent"):
            gk.per_sample_gradients(model, x, method=method)


class TestAutocast:
    @staticmethod
    def narrow_inside(kind):
        def forward(model, x):
            with torch.autocast(kind, enabled=False):
                return model.last(model.first(x).tanh())

        return Holding(forward, first=nn.Linear(16, 32), last=nn.Linear(32, 4))

    def test_covers_the_forward_alone(self, device):
        model, x = self.narrow_inside(torch.device(device).type), torch.randn(5, 16)
        double = copy.deepcopy(model).double()
        by_inputs = gk.jacobian(double, x.double()).float()
        by_parameters = gk.parameter_jacobian(double, x.double()).flat().float()
        with autocast(device):
            for method in methods_of(gk.parameter_jacobian):
                with or_refused("autocast|dtype|Expected"):
                    found = gk.parameter_jacobian(model, x, method=method).flat()
                    torch.testing.assert_close(
                        found, by_parameters, rtol=1e-4, atol=1e-5
                    )
            for method in methods_of(gk.jacobian):
                with or_refused("autocast|dtype|Expected"):
                    found = gk.jacobian(model, x, method=method)
                    torch.testing.assert_close(found, by_inputs, rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize(
        "norm", [nn.LayerNorm(8), nn.GroupNorm(2, 8)], ids=["layer", "group"]
    )
    def test_of_norms_is_right_or_refused(self, device, norm):
        norm = copy.deepcopy(norm).to(device)
        model = nn.Sequential(nn.Linear(6, 8), norm, nn.Softmax(-1), nn.Linear(8, 3))
        x = torch.randn(5, 6)
        with autocast(device):
            outputs = model(x).float().sum(1)
            weight = model.get_parameter("0.weight")
            alone = [
                torch.autograd.grad(y, weight, retain_graph=True)[0] for y in outputs
            ]
            right = torch.stack(alone)
            for method in methods_of(gk.per_sample_gradients):
                with or_refused("scalar type") if method == "vmap" else nullcontext():
                    found = gk.per_sample_gradients(
                        model, x, output_sum, method=method
                    )["0.weight"]
                    assert (found - right).norm() < 0.03 * right.norm()

    def test_is_as_it_was_afterwards(self, device):
        kind = torch.device(device).type
        model, x = nn.Linear(3, 2), torch.randn(4, 3)
        with autocast(device):
            for method in methods_of(gk.parameter_jacobian):
                gk.parameter_jacobian(model, x, method=method)
                assert torch.is_autocast_enabled(kind)
                assert torch.get_autocast_dtype(kind) == torch.bfloat16
        assert not torch.is_autocast_enabled(kind)
