"""Several threads ask at once: right numbers, and the caller's module as it was."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import gradkit as gk
from footprint import Footprint
from found import doubles, output_sum

THREADS, ROUNDS = 4, 6


def network(width):
    layers = nn.Linear(3, width), nn.Tanh(), nn.Linear(width, 2)
    return nn.Sequential(*layers).double()


def in_threads(task):
    """Run ``task(n)`` for each thread several times; return all that came."""
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(task, list(range(THREADS)) * ROUNDS))


@pytest.fixture
def batches(device):
    return [doubles(5, 3).to(device) for _ in range(THREADS)]


@pytest.mark.parametrize("method", ["auto", "vmap", "rows", "loop"])
def test_rows_are_those_of_ones_own_batch(device, batches, method):
    model = network(4).to(device)

    def rows(n):
        return gk.per_sample_gradients(
            model, batches[n], output_sum, method=method
        ).flat()

    right = [rows(n) for n in range(THREADS)]
    before = Footprint(model)
    for n, found in enumerate(in_threads(rows)):
        assert torch.equal(found, right[n % THREADS])
    before.assert_unchanged()


@pytest.mark.parametrize("method", ["auto", "jacrev", "loop"])
def test_jacobians_are_those_of_ones_own_batch(device, batches, method):
    model = network(4).to(device)

    def jacobian(n):
        return gk.jacobian(model, batches[n], method=method)

    right = [jacobian(n) for n in range(THREADS)]
    for n, found in enumerate(in_threads(jacobian)):
        assert torch.equal(found, right[n % THREADS])


def test_recomputed_rows_leave_the_module_its_parameters(device, batches):
    model = network(40).to(device)
    streams = [
        gk.per_sample_gradients(model, x, output_sum, max_memory=7000) for x in batches
    ]
    right = [rows.flat() for rows in streams]
    jacobians = [gk.jacobian(model, x, method="loop") for x in batches]
    before = Footprint(model)

    def both(n):
        again = streams[n].flat()
        return again, gk.jacobian(model, batches[n], method="loop")

    for n, (rows, jacobian) in enumerate(in_threads(both)):
        assert torch.equal(rows, right[n % THREADS])
        assert torch.equal(jacobian, jacobians[n % THREADS])
    before.assert_unchanged()
    assert all(type(p) is nn.Parameter for p in model.parameters())
