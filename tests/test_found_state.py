"""What a forward moved of the caller's: modules, objects, parameters, gradients."""

import collections
import copy
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import gradkit as gk
from footprint import Footprint, bits
from found import INPUT_METHODS, Holding, ask_all, doubles, output_sum, weighted
from reported import or_refused


@pytest.fixture(autouse=True)
def _on_device(device):
    with torch.device(device):
        yield


class Tally:
    """A plain object that counts, as caches for generation do."""

    def __init__(self):
        self.count = 0
        self.seen = []


class Slotted:
    """The same without an attribute dictionary."""

    __slots__ = ("count", "seen")

    def __init__(self):
        self.count = 0
        self.seen = []


class Outer:
    """Objects two levels deep."""

    def __init__(self):
        self.layers = [Tally(), Tally()]


Pair = collections.namedtuple("Pair", ["values", "seen"])


class Table(dict):
    """A subclass of a container."""


class TestObjectsHeld:
    @staticmethod
    def parts(held):
        return held.layers if isinstance(held, Outer) else [held]

    @pytest.mark.parametrize("kind", [Tally])
    def test_by_the_module_are_as_before(self, kind):
        def forward(model, x):
            for part in self.parts(model.held):
                part.count += 1
                part.seen.append(x)
            # Later forwards inside a call must not see what earlier ones left.
            return x * model.w * self.parts(model.held)[-1].count

        model, x = weighted(forward, held=kind()), doubles(4, 3)
        expected = torch.diag(model.w.detach()).expand(4, 3, 3)
        for method in INPUT_METHODS:
            with or_refused(""):
                found = gk.jacobian(model, x, method=method)
                torch.testing.assert_close(found, expected)
            for part in self.parts(model.held):
                assert (part.count, part.seen) == (0, [])
        assert ask_all(model, x) > 5

    @pytest.mark.parametrize("kind", [Tally, Outer])
    def test_by_the_inputs_are_as_before(self, kind):
        def model(x, held):
            for part in self.parts(held):
                part.count += 1
                part.seen.append(x)
            return x * self.parts(held)[-1].count

        held, x = kind(), doubles(4, 3)
        expected = torch.eye(3, dtype=x.dtype).expand(4, 3, 3)
        for method in INPUT_METHODS:
            found = gk.jacobian(model, (x, held), method=method)[0]
            torch.testing.assert_close(found, expected)
            for part in self.parts(held):
                assert (part.count, part.seen) == (0, [])

    def test_in_subclasses_of_containers_are_as_before(self):
        def forward(model, x):
            model.table["last"] = x
            model.table["count"] += 1
            model.pair.values.add_(1)
            model.pair.seen.append(x)
            model.order.rotate(1)
            return x * model.w * model.table["count"]

        pair = Pair(torch.zeros(2), [])
        model = weighted(
            forward, table=Table(count=1), pair=pair, order=collections.deque([1, 2])
        )
        assert ask_all(model, doubles(4, 3)) > 5
        assert model.table == {"count": 1}
        assert type(model.table) is Table
        assert model.pair is pair
        assert (pair.values.tolist(), pair.seen) == ([0.0, 0.0], [])
        assert list(model.order) == [1, 2]

    def test_as_several_results_of_torch_do_no_harm(self):
        def forward(model, x):
            model.last = (x * model.w).max(1)
            return x * model.w * model.eigen.eigenvalues

        matrix = doubles(3, 3)
        model = weighted(forward, eigen=torch.linalg.eigh(matrix + matrix.mT))
        model(doubles(4, 3))
        eigen, last = model.eigen, model.last
        x = doubles(4, 3)
        slopes = (model.w * eigen.eigenvalues).detach()
        for _ in range(2):
            found = gk.jacobian(model, x)
            torch.testing.assert_close(found, torch.diag(slopes).expand(4, 3, 3))
        assert model.eigen is eigen
        assert model.last is last

    @pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
    @pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
    def test_as_sparse_tensors_do_no_harm(self, layout):
        mask = torch.eye(3, dtype=torch.float64) * 2
        sparse = (
            mask.to_sparse_csr() if layout is torch.sparse_csr else mask.to_sparse()
        )
        model = Holding(lambda model, x: model.layer(x), layer=nn.Linear(3, 2).double())
        model.register_buffer("mask", sparse)
        model.other = sparse.clone()
        x = doubles(4, 3)
        found = gk.jacobian(model, x)
        assert torch.equal(found, model.layer.weight.detach().expand(4, 2, 3))
        rows = gk.per_sample_gradients(model, x, output_sum)
        assert torch.equal(rows["layer.weight"][:, 1], x)
        assert model.mask is sparse

    def test_as_a_complex_nan_are_not_taken_for_moved(self):
        model, x = weighted(lambda model, x: (x * model.w).sum(1)), doubles(4, 3)
        model.register_buffer("phase", torch.full((2,), complex("nan")))
        for method in ("auto", "vmap", "loop"):
            rows = gk.per_sample_gradients(model, x, method=method)
            assert torch.equal(rows["w"], x)


class TestScriptedModules:
    @staticmethod
    def networks() -> Iterator[Any]:
        net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
        yield torch.jit.script(net)
        yield torch.jit.trace(copy.deepcopy(net), doubles(2, 3))

    @pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
    def test_go_on_training_the_same_parameters(self):
        for model in self.networks():
            x = doubles(5, 3)
            optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
            ask_all(model, x)
            with or_refused(""):
                for parameter in model.parameters():
                    parameter.requires_grad_(False)
                gk.per_sample_gradients(model, x, parameters=["0.weight"])
            assert not any(p.requires_grad for p in model.parameters())
            for parameter in model.parameters():
                parameter.requires_grad_(True)
            before = model(x)
            before.sum().backward()
            (group,) = optimiser.param_groups
            assert all(p.grad is not None for p in group["params"])
            optimiser.step()
            assert not torch.equal(before, model(x))

    @pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
    def test_keep_their_running_statistics(self):
        net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).double()
        model: Any = torch.jit.script(net)
        x = doubles(5, 3)
        before = {name: bits(b) for name, b in model.named_buffers()}
        ask_all(model, x)
        assert {name: bits(b) for name, b in model.named_buffers()} == before


def test_nothing_moves_when_a_forward_is_interrupted():
    def forward(model, x):
        model.count += 1
        model.noise = torch.zeros(2)
        torch.rand(1)
        random.random()
        np.random.rand()
        raise KeyboardInterrupt

    model = Holding(forward, layer=nn.Linear(3, 2), count=0)
    x = torch.randn(4, 3)
    before = Footprint(model)
    for ask in (gk.jacobian, gk.parameter_jacobian):
        with pytest.raises(KeyboardInterrupt):
            ask(model, x, seed=3)
        before.assert_unchanged()


def test_a_cache_outside_modules_holds_no_wrapper():
    cache = {}

    def forward(model, x):
        if len(x) not in cache:
            cache[len(x)] = torch.arange(3.0) + x.detach() * 0 + model.w.detach()
        return (x * model.w * cache[len(x)]).sum(1)

    model, x = weighted(forward), doubles(5, 3)
    for method in ("auto", "vmap"):
        cache.clear()
        with or_refused(""):
            gk.per_sample_gradients(model, x, method=method)
        # Finite numbers, not the wrappers of a transform that is over.
        assert model(x[:1]).isfinite().all()
        assert model(x).isfinite().all()
