"""SmoothGrad and expected gradients: the points drawn, and what is made of them.

The objective of an identity is given the points themselves, so that sums over the
very points can be taken by hand; how the points are distributed is then compared with
moments in closed form, within five standard errors.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from case import DEVICE
from gradkit import saliency
from maps import LABELS, C, D, N, Seen, assert_close, draw, smooth_net, squares

#: Samples of very different ranges.
SCALES = torch.tensor([[0.1], [1.0], [10.0], [100.0]], dtype=torch.float64)
ERRORS = 5  # standard errors


@pytest.fixture(autouse=True)
def _on_device():
    with torch.device(DEVICE):
        yield


def spread(x: Tensor) -> Tensor:
    return (x.amax(1) - x.amin(1))[:, None]


def within(found: Tensor, expected: Tensor, deviation: Tensor, count: int) -> bool:
    error = (found - expected).abs() / (deviation / count**0.5)
    return bool((error < ERRORS).all())


@pytest.mark.parametrize("statistic", ["mean", "square", "variance"])
def test_smoothgrad_is_its_statistic_over_the_points_it_drew(statistic):
    x, seen = draw(N, D), Seen()
    found = saliency.smoothgrad(
        nn.Identity(), x, seen, draws=7, noise=0.3, statistic=statistic
    )
    slopes = seen.slopes
    assert len(slopes) == 7
    mean = slopes.sum(0) / 7
    expected = {
        "mean": mean,
        "square": (slopes * slopes).sum(0) / 7,
        "variance": ((slopes - mean) ** 2).sum(0) / 7,
    }
    assert_close(found, expected[statistic])


def test_noise_is_normal_by_a_share_of_each_samples_own_range():
    draws, noise = 4000, 0.2
    x, seen = SCALES * draw(N, D), Seen()
    saliency.smoothgrad(nn.Identity(), x, seen, draws=draws, noise=noise)
    added = (torch.stack(seen.points[1:]) - x) / (noise * spread(x))
    one, zero = torch.ones_like(x), torch.zeros_like(x)
    assert within(added.mean(0), zero, one, draws)
    assert within(added.square().mean(0), one, 2**0.5 * one, draws)
    assert within(added.pow(4).mean(0), 3 * one, 96**0.5 * one, draws)
    # No entry, sample or draw has another's noise.
    assert added.unique().numel() == added.numel()


def test_mean_of_a_quadratic_is_its_gradient():
    draws = 2000
    x = SCALES * draw(N, D)
    deviation = (2 * 0.15 * spread(x)).expand_as(x)
    found = saliency.smoothgrad(squares, x, None, draws=draws)
    assert within(found, 2 * x, deviation, draws)
    assert (found - 2 * x).abs().max() > 0


def test_variance_of_a_quadratic_is_four_times_that_of_the_noise():
    draws = 2000
    x = SCALES * draw(N, D)
    expected = (4 * (0.25 * spread(x)) ** 2).expand_as(x)
    found = saliency.smoothgrad(
        squares, x, None, draws=draws, noise=0.25, statistic="variance"
    )
    assert within(found, expected, expected * 2**0.5, draws)


def test_a_linear_model_has_its_rows_and_no_variance():
    layer, x = nn.Linear(D, C).double(), draw(N, D)
    rows = layer.weight.detach()[LABELS]
    assert_close(saliency.smoothgrad(layer, x, LABELS, draws=9), rows)
    found = saliency.smoothgrad(layer, x, LABELS, draws=9, statistic="variance")
    assert torch.equal(found, torch.zeros_like(x))


def test_square_is_variance_plus_squared_mean():
    model, x = smooth_net(), draw(N, D)
    mean, square, variance = (
        saliency.smoothgrad(model, x, LABELS, draws=11, statistic=statistic)
        for statistic in ("mean", "square", "variance")
    )
    assert_close(square, variance + mean.square())


def test_variance_does_not_cancel_where_the_mean_is_large():
    x = draw(N, D)

    def model(x):
        return (1e8 * x + x.square()).sum(1)

    found, expected = (
        saliency.smoothgrad(f, x, None, draws=9, statistic="variance")
        for f in (model, squares)
    )
    assert_close(found, expected, 1e-6)


@pytest.mark.parametrize("statistic", ["mean", "square"])
def test_without_noise_it_is_the_gradient(statistic):
    model, x = smooth_net(), draw(N, D)
    plain = saliency.gradient(model, x, LABELS)
    found = saliency.smoothgrad(model, x, LABELS, noise=0, draws=3, statistic=statistic)
    assert_close(found, plain if statistic == "mean" else plain.square())


def test_noise_of_several_inputs_is_by_the_range_of_each():
    draws = 2000
    x, y = draw(N, D), 100 * draw(N, C)
    found: Any = saliency.smoothgrad(
        lambda x, y: squares(x) + squares(y), (x, y), None,
        draws=draws, statistic="variance", noise=0.1,
    )  # fmt: skip
    for values, variance in zip((x, y), found, strict=True):
        expected = (4 * (0.1 * spread(values)) ** 2).expand_as(values)
        assert within(variance, expected, expected * 2**0.5, draws)


def test_noise_is_added_to_what_wrt_names_alone():
    x, y = draw(N, D), draw(N, D)
    seen: list[Tensor] = []

    def objective(outputs):
        seen.append(outputs.detach()[:, D:].clone())
        return outputs.square().sum(1)

    saliency.smoothgrad(lambda x, y: torch.cat([x, y], 1), (x, y), objective, wrt=0)
    assert all(torch.equal(s, y) for s in seen)


def test_noise_of_a_submodule_is_by_the_range_of_its_output():
    draws = 2000
    model, x = smooth_net(), draw(N, D)
    hidden = model[:1](x).detach()
    model = nn.Sequential(model[0], nn.Flatten())
    found = saliency.smoothgrad(
        model, x, squares, wrt="0", draws=draws, noise=0.2, statistic="variance"
    )
    expected = (4 * (0.2 * spread(hidden)) ** 2).expand_as(hidden)
    assert within(found, expected, expected * 2**0.5, draws)


# -- expected gradients --------------------------------------------------------------


def test_one_baseline_and_a_linear_model():
    layer, x, base = nn.Linear(D, C).double(), draw(N, D), draw(1, D)
    found = saliency.expected_gradients(layer, x, LABELS, baselines=base, draws=6)
    assert_close(found, (x - base) * layer.weight.detach()[LABELS])


def test_expected_gradients_are_the_mean_over_the_points_they_drew():
    draws = 300
    x, bases, seen = draw(N, D), draw(3, D), Seen()
    found = saliency.expected_gradients(
        nn.Identity(), x, seen, baselines=bases, draws=draws
    )
    points = torch.stack(seen.points[1:])
    assert len(points) == draws
    ways = x[:, None] - bases  # sample, baseline, entry
    # The baseline on whose way a point lies, and where on it.
    places = ((points[:, :, None] - bases) * ways).sum(-1) / ways.square().sum(-1)
    off = (points[:, :, None] - bases - places[..., None] * ways).abs().amax(-1)
    least, chosen = off.min(-1)
    assert least.max() < 1e-12
    drawn = ways[torch.arange(N), chosen]
    assert_close(found, (drawn * seen.slopes).mean(0))
    place = places.gather(2, chosen[..., None])[..., 0]
    assert 0 <= place.min() < 0.01
    assert 0.99 < place.max() <= 1
    assert place.unique().numel() == place.numel()
    assert abs(place.mean() - 1 / 2) < ERRORS * (1 / 12 / place.numel()) ** 0.5
    share = torch.stack([(chosen == m).double().mean() for m in range(3)])
    assert (share - 1 / 3).abs().max() < ERRORS * (2 / 9 / chosen.numel()) ** 0.5
    # Every sample draws for itself.
    assert (chosen[:, 0] != chosen[:, 1]).any()


def test_expectation_of_a_quadratic():
    draws = 4000
    x, bases = draw(N, D), draw(7, D)
    found = saliency.expected_gradients(squares, x, None, baselines=bases, draws=draws)
    expected = x.square() - bases.square().mean(0)
    # (x - b) 2 (b + a (x - b)) has for one b, with w = x - b, the mean w (2 b + w),
    # and the mean square 4 w**2 (b**2 + b w + w**2 / 3).
    way = x[:, None] - bases
    second = 4 * way**2 * (bases**2 + bases * way + way**2 / 3)
    deviation = (second.mean(1) - expected.square()).sqrt()
    assert within(found, expected, deviation, draws)
    assert (found - expected).abs().max() > 0


def test_a_list_of_baselines_is_the_set_of_them():
    model, x, bases = smooth_net(), draw(N, D), draw(3, D)
    stacked, listed = (
        saliency.expected_gradients(model, x, LABELS, baselines=b, draws=5)
        for b in (bases, list(bases))
    )
    assert torch.equal(stacked, listed)


@pytest.mark.parametrize("name", ["tuple", "mapping"])
def test_baselines_of_several_inputs_are_drawn_together(name):
    x, y = draw(N, D), draw(N, C)
    signs = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    bases: Any = (signs.expand(2, D), signs.expand(2, C))
    inputs: Any = (0 * x, 0 * y)
    if name == "mapping":
        inputs, bases = (dict(zip("xy", v, strict=True)) for v in (inputs, bases))
    draws = 500
    found = saliency.expected_gradients(
        lambda x, y: x.sum(1) * y.sum(1), inputs, None, baselines=bases, draws=draws
    )
    first, second = found.values() if name == "mapping" else found
    # From (s, s): -s C (1 - a) s, whichever sign was drawn.
    for values, size in ((first, C), (second, D)):
        expected = torch.full_like(values, -size / 2)
        assert within(values, expected, torch.full_like(values, size / 12**0.5), draws)
    assert_close(first[:, :1] * D, second[:, :1] * C)


def test_integer_baselines_are_run_up_to_a_submodule():
    class Text(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.head = nn.Embedding(9, 4), nn.Linear(4, C)

        def forward(self, ids):
            return self.head(self.tokens(ids).sum(1))

    model, ids = Text().double(), torch.randint(9, (N, 6))
    blank = torch.full((1, 6), 8)
    found = saliency.expected_gradients(
        model, ids, LABELS, wrt="tokens", baselines=blank, draws=3
    )
    way = (model.tokens(ids) - model.tokens(blank)).detach()
    assert_close(found, way * model.head.weight.detach()[LABELS][:, None])


@pytest.mark.parametrize(
    "ask",
    [
        saliency.smoothgrad,
        lambda *a, **k: saliency.expected_gradients(
            *a, baselines=torch.zeros(2, D, dtype=torch.float64), **k
        ),
    ],
    ids=["smoothgrad", "expected_gradients"],
)
def test_a_seed_gives_the_same_bits_and_another_seed_others(ask):
    model, x = smooth_net(), draw(N, D)
    first, again, other = (ask(model, x, LABELS, draws=4, seed=s) for s in (3, 3, 4))
    assert torch.equal(first, again)
    assert (first - other).abs().max() > 1e-6
    assert torch.equal(ask(model, x, LABELS, draws=4), ask(model, x, LABELS, draws=4))
