"""A forward that writes to the caller's parameters, or to their gradients."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import gradkit as gk
from footprint import Footprint, bits
from found import Holding, ask_all, doubles, output_sum, refusal, weighted
from gradkit.errors import GradkitError, UnsupportedModelError


@pytest.fixture(autouse=True)
def _on_device(device):
    with torch.device(device):
        yield


WRITES = {
    "init": lambda w: nn.init.normal_(w),
    "overload": lambda w: torch.ops.aten.mul_.Scalar(w, 2.0),
    "method": lambda w: w.mul_(2),
    "through data": lambda w: w.data.mul_(2),
    "through a view": lambda w: w.detach()[:2].zero_(),
    "item": lambda w: w.detach().__setitem__(0, 9.0),
    "operator": lambda w: w.data.__iadd__(1),
    "out": lambda w: torch.add(w.detach(), 1, out=w.detach()),
}


class TestWrites:
    """A parameter that the forward writes to: refused, and its values are kept."""

    @pytest.mark.parametrize("name", WRITES)
    @pytest.mark.parametrize("place", ["parameter", "list", "attribute", "buffer"])
    def test_are_refused(self, name, place):
        def forward(model, x):
            with torch.no_grad():
                WRITES[name](written)
            return x * model.w * written

        written = nn.Parameter(doubles(3))
        model = weighted(forward)
        if place == "parameter":
            model.written = written
        elif place == "buffer":
            model.register_buffer("written", written.detach().requires_grad_())
            written = model.written
        elif place == "list":
            model.written = [written]
        else:
            model.written = written = written.detach().requires_grad_()
        before, x = bits(written), doubles(4, 3)
        for ask in (gk.jacobian, gk.parameter_jacobian):
            text = refusal(UnsupportedModelError, ask, model, x)
            assert "the model's forward writes to" in text
            assert bits(written) == before

    def test_of_a_renormalising_look_up_by_function(self):
        model = Holding(
            lambda model, ids: F.embedding(ids, model.w, max_norm=1.0),
            w=nn.Parameter(torch.full((5, 2), 3.0)),
        )
        text = refusal(
            UnsupportedModelError,
            gk.parameter_jacobian,
            model,
            torch.tensor([[3, 2], [3, 3]]),
        )
        assert "max_norm" in text
        assert bool((model.w == 3).all())


class TestGradients:
    @pytest.mark.parametrize(
        "backward",
        [
            lambda loss: loss.backward(),
            lambda loss: torch.autograd.backward(loss),
            lambda loss: torch.autograd.backward([loss], inputs=None),
        ],
        ids=["method", "function", "list"],
    )
    @pytest.mark.parametrize("had", [False, True])
    def test_filled_by_a_backward_in_the_forward_are_as_before(self, backward, had):
        def forward(model, x):
            backward(model.layer(x.detach()).sum())
            return model.layer(x)

        model = Holding(forward, layer=nn.Linear(3, 2).double())
        if had:
            model.layer.weight.grad = doubles(2, 3)
        x = doubles(4, 3)
        before = Footprint(model)
        ask_all(model, x)
        before.assert_unchanged()

    def test_of_the_forwards_own_tensors_alone_are_served(self):
        def forward(model, x):
            with torch.enable_grad():
                grown = x.detach().requires_grad_()
                grown.pow(2).sum().backward(inputs=[grown])
            return model.layer(x) + grown.grad.sum(1, keepdim=True)

        model, x = Holding(forward, layer=nn.Linear(3, 2).double()), doubles(4, 3)
        before = Footprint(model)
        rows = gk.per_sample_gradients(model, x, output_sum, method="rows")
        assert torch.equal(rows["layer.weight"][:, 0], x)
        before.assert_unchanged()


class TestPlainFunctions:
    """Modules that a function refers to, without calling them as modules."""

    def test_that_set_a_mode(self):
        net = nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.5)).double()

        def model(x):
            net.eval()
            return net(x)

        gk.jacobian(model, doubles(4, 3))
        assert net.training
        assert net[1].training

    def test_that_call_forward_itself(self):
        def forward(model, x):
            model.count += 1
            return x * model.w * model.count

        net = weighted(forward, count=0)
        found = gk.jacobian(lambda x: net.forward(x), doubles(4, 3), method="loop")
        assert torch.equal(found[0].diagonal(), net.w.detach())
        assert net.count == 0

    def test_that_use_its_buffers(self):
        norm = nn.BatchNorm1d(3).double()

        def model(x):
            return F.batch_norm(x, norm.running_mean, norm.running_var, training=True)

        x = doubles(4, 3)
        before = Footprint(norm)
        with pytest.raises(GradkitError):
            gk.jacobian(model, x)
        before.assert_unchanged()
