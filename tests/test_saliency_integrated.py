"""Integrated gradients and what they add up to, by definition."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from case import DEVICE
from gradkit import saliency
from gradkit.errors import InputError
from maps import LABELS, C, D, N, Seen, assert_close, draw, slope, smooth_net, squares


@pytest.fixture(autouse=True)
def _on_device():
    with torch.device(DEVICE):
        yield


def test_integrated_gradients_of_a_product_share_it():
    x, base = draw(N, 2), draw(2)
    found = saliency.integrated_gradients(
        lambda x: x[:, 0] * x[:, 1], x, None, baseline=base
    )
    expected = (x - base) * (x + base).flip(1) / 2
    assert_close(found, expected)


def test_two_gauss_legendre_nodes_are_exact_for_quartics_and_one_is_not():
    # A gradient of degree three.
    x, base = draw(N, D), draw(D)
    exact = x.pow(4) - base.pow(4)

    def found(steps):
        return saliency.integrated_gradients(
            lambda x: x.pow(4).sum(1), x, None, baseline=base, steps=steps
        )

    assert_close(found(2), exact)
    assert (found(1) - exact).abs().max() > 1e-2


@pytest.mark.parametrize(
    ("rule", "share"),
    [
        ("gauss_legendre", lambda s: 1),
        ("riemann_left", lambda s: (s - 1) / s),
        ("riemann_middle", lambda s: 1),
        ("riemann_right", lambda s: (s + 1) / s),
        ("trapezoid", lambda s: 1),
    ],
)
@pytest.mark.parametrize("steps", [1, 2, 7, 50])
def test_rules_on_a_square(rule, share, steps):
    x = draw(N, D)
    found = saliency.integrated_gradients(squares, x, None, rule=rule, steps=steps)
    if share(steps):
        assert_close(found, share(steps) * x.square())
    else:
        assert torch.equal(found, torch.zeros_like(x))


NODES = {
    "riemann_left": [0, 1 / 4, 2 / 4, 3 / 4],
    "riemann_middle": [1 / 8, 3 / 8, 5 / 8, 7 / 8],
    "riemann_right": [1 / 4, 2 / 4, 3 / 4, 1],
    "trapezoid": [0, 1 / 3, 2 / 3, 1],
    "gauss_legendre": [0.06943184420297371, 0.33000947820757187,
                       0.66999052179242813, 0.93056815579702629],
}  # fmt: skip
WEIGHTS = {
    "trapezoid": [1 / 6, 1 / 3, 1 / 3, 1 / 6],
    "gauss_legendre": [0.17392742256872693, 0.32607257743127307,
                       0.32607257743127307, 0.17392742256872693],
}  # fmt: skip


@pytest.mark.parametrize("rule", NODES)
def test_nodes_in_order_and_weights_of_every_rule(rule):
    x, base, seen = draw(N, D), draw(D), Seen()
    found = saliency.integrated_gradients(
        nn.Identity(), x, seen, baseline=base, rule=rule, steps=4
    )
    points = [x, *(base + a * (x - base) for a in NODES[rule])]
    assert_close(torch.stack(seen.points), torch.stack(points))
    weights = torch.tensor(WEIGHTS.get(rule, [1 / 4] * 4), dtype=torch.float64)
    assert_close(found, (x - base) * torch.einsum("s,snd->nd", weights, seen.slopes))


def test_integrated_gradients_by_a_loop_over_samples():
    model, x, base = smooth_net(), draw(N, D), draw(N, D)
    expected = torch.zeros_like(x)
    for n in range(N):
        for step in range(6):
            point = base[n] + (step + 0.5) / 6 * (x[n] - base[n])
            expected[n] += (x[n] - base[n]) * slope(model, point, LABELS[n]) / 6
    found = saliency.integrated_gradients(
        model, x, LABELS, baseline=base, rule="riemann_middle", steps=6
    )
    assert_close(found, expected)


def test_a_list_of_baselines_is_averaged_over():
    model, x = smooth_net(), draw(N, D)
    bases = [0.0, draw(D), draw(1, D), draw(N, D), 2]
    single = [
        saliency.integrated_gradients(model, x, LABELS, baseline=b, steps=4)
        for b in bases
    ]
    found = saliency.integrated_gradients(model, x, LABELS, baseline=bases, steps=4)
    assert_close(found, torch.stack(single).mean(0))
    zero = saliency.integrated_gradients(model, x, LABELS, baseline=[0.0], steps=4)
    assert torch.equal(zero, single[0])


def product(x: Tensor, y: Tensor) -> Tensor:
    return x.sum(1) * y.sum(1)


BASES = {
    "number": (0.5, 0.5, 0.5),
    "tuple": ((0.5, -1.0), 0.5, -1.0),
    "tensors": ((torch.full((D,), 0.5), torch.full((1, 1), -1)), 0.5, -1.0),
    "mapping": ({"y": -1.0, "x": 0.5}, 0.5, -1.0),
}


@pytest.mark.parametrize("name", BASES)
def test_several_inputs_are_moved_together(name):
    baseline, b, c = BASES[name]
    if isinstance(baseline, tuple):
        baseline = tuple(v.to(DEVICE) if isinstance(v, Tensor) else v for v in baseline)
    x, y = draw(N, D), draw(N, C)
    inputs: Any = {"x": x, "y": y} if name == "mapping" else (x, y)
    found = saliency.integrated_gradients(product, inputs, None, baseline=baseline)
    first, second = found.values() if name == "mapping" else found
    assert_close(first, (x - b) * (y + c).sum(1, keepdim=True) / 2)
    assert_close(second, (y - c) * (x + b).sum(1, keepdim=True) / 2)


def test_an_input_that_wrt_leaves_out_stays_as_it_is():
    x, y = draw(N, D), draw(N, C)
    found = saliency.integrated_gradients(product, (x, y), None, wrt=1)
    assert_close(found, y * x.sum(1, keepdim=True))


def test_a_floating_baseline_stands_for_a_submodules_output():
    layers = nn.Linear(D, 7), nn.Tanh(), nn.Linear(7, 7, bias=False), nn.Softplus()
    model: Any = nn.Sequential(*layers).double()
    x = draw(N, D)
    base, hidden = draw(7), model[:2](x).detach()
    found = saliency.integrated_gradients(model, x, 4, wrt="1", baseline=base, steps=9)
    alone = saliency.integrated_gradients(model[2:], hidden, 4, baseline=base, steps=9)
    assert_close(found, alone)


def test_a_tuple_baseline_is_run_up_to_a_submodule():
    model, x, base = smooth_net(), draw(N, D), draw(D)
    found = saliency.integrated_gradients(
        model, x, LABELS, wrt="1", baseline=(base,), steps=3
    )
    hidden = (model[:2](x) - model[:2](base)).detach()
    assert_close(found, hidden * model[2].weight.detach()[LABELS])


class Sum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.sum, self.head = Add(), nn.Linear(D, C)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.head(self.sum(x, y).relu_())


class Add(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y


def test_what_a_baseline_lacks_is_as_in_the_inputs_and_writes_below_do_not_matter():
    # At the inputs all is positive, so that the ReLU does nothing.
    model, x, y, base = Sum().double(), draw(N, D).abs(), draw(N, D).abs(), draw(D)
    rows = model.head.weight.detach()[LABELS]
    for given in ({"x": base.abs()}, {"x": base.abs(), "y": None}):
        found = saliency.integrated_gradients(
            model, {"x": x, "y": y}, LABELS, wrt="sum", baseline=given, steps=2
        )
        assert_close(found, (x - base.abs()) * rows)
    below = saliency.integrated_gradients(
        model, (x, y), LABELS,
        wrt="sum", baseline=(-x - y - 1, 0.0), rule="riemann_right", steps=1,
    )  # fmt: skip
    assert_close(below, (2 * (x + y) + 1) * rows)


def test_maximal_gap_doubles_the_steps_until_every_sample_is_under_it():
    x, seen = draw(N, D).abs(), Seen()
    found = saliency.integrated_gradients(
        nn.Identity(), x, seen, rule="riemann_middle", steps=2, max_gap=0.005
    )
    # The middle rule misses 1 / (4 steps**2) of the integral of 3 a**2.
    assert_close(found, x.pow(3) * (1 - 1 / (4 * 8**2)))
    assert len(seen.points) == 1 + (2 + 1) + (4 + 1) + (8 + 1)


def test_maximal_gap_that_is_not_reached_is_refused():
    x = torch.ones(2, D, dtype=torch.float64)
    x[1] = 0
    with pytest.raises(InputError) as caught:
        saliency.integrated_gradients(
            squares, x, None, rule="riemann_left", steps=2, max_gap=1e-3
        )
    assert str(caught.value) == (
        "integrated_gradients: max_gap=0.001 is not reached with 128 steps: sample 0"
        " has a gap of -0.0391 on a difference of 5. Rounding may forbid it; compute"
        " in float64, or allow more"
    )


def test_completeness_gap_by_its_definition():
    model, x, maps = smooth_net(), draw(N, D), draw(N, D)
    bases = [0.0, draw(D)]
    at_bases = [model(torch.zeros(N, D).double()), model(bases[1].expand(N, D))]
    difference = (model(x) - sum(at_bases) / 2).detach()[range(N), LABELS]
    found = saliency.completeness_gap(maps, model, x, LABELS, baseline=bases)
    assert_close(found, maps.sum(1) - difference)


def test_completeness_gap_of_several_inputs():
    x, y = draw(N, D), draw(N, C)
    found = saliency.completeness_gap((x, y), product, (x, y), None)
    assert_close(found, x.sum(1) + y.sum(1) - product(x, y))


@pytest.mark.parametrize("baseline", [0.0, [1.0, -2.0]])
def test_integrated_gradients_are_complete(baseline):
    model, x = smooth_net(), draw(N, D)
    maps = saliency.integrated_gradients(model, x, LABELS, baseline=baseline)
    gap = saliency.completeness_gap(maps, model, x, LABELS, baseline=baseline)
    assert gap.abs().max() < 1e-12
