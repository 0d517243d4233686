"""Occlusion, deletion and insertion: loops that cover and uncover entries by hand."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from case import DEVICE
from gradkit import saliency
from gradkit.errors import InputError
from maps import LABELS, C, D, N, assert_close, draw, smooth_net
from maps_asked import one_thread

IMAGE = (3, 5, 7)


@pytest.fixture(autouse=True)
def _on_device():
    with torch.device(DEVICE), one_thread():
        yield


def image_net() -> Any:
    layers = nn.Conv2d(3, 4, 2), nn.Tanh(), nn.Flatten(), nn.Linear(4 * 4 * 6, C)
    return nn.Sequential(*layers).double()


def occluded(model: Any, x: Tensor, window: Any, stride: Any, base: Any) -> Tensor:
    """Return the occlusion of one sample's score, entry by entry."""
    lost = torch.zeros_like(x)
    count = torch.zeros_like(x)
    sizes = zip(x.shape, window, stride, strict=True)
    starts = [
        [s for s in range(0, n, step) if s == 0 or s + size - step < n]
        for n, size, step in sizes
    ]
    for corner in itertools.product(*starts):
        box = tuple(slice(c, c + w) for c, w in zip(corner, window, strict=True))
        covered = x.clone()
        covered[box] = base[box]
        lost[box] += model(x) - model(covered)
        count[box] += 1
    return lost / count.clamp(min=1)


@pytest.mark.parametrize(
    ("window", "stride", "windows", "strides"),
    [
        ((1, 1, 1), None, (1, 1, 1), (1, 1, 1)),
        ((3, 2, 3), (3, 1, 2), (3, 2, 3), (3, 1, 2)),  # overlap
        ((2, 2, 3), None, (2, 2, 3), (2, 2, 3)),  # cut at every far edge
        ((2, 4), (1, 3), (3, 2, 4), (3, 1, 3)),  # whole along the channels
        ((7,), None, (3, 5, 7), (3, 5, 7)),
        ([2, 2], [3, 4], (3, 2, 2), (3, 3, 4)),  # some are never covered
        ((1, 5, 7), None, (1, 5, 7), (1, 5, 7)),
        ((2, 5, 4), (2,), (2, 5, 4), (2, 5, 2)),
    ],
)
def test_occlusion_by_a_loop(window, stride, windows, strides):
    model, x, base = image_net(), draw(N, *IMAGE), draw(1, *IMAGE)
    expected = [
        occluded(lambda x, k=k: model(x[None])[0, k].detach(), s, windows, strides, b)
        for s, k, b in zip(x, LABELS, base.expand_as(x), strict=True)
    ]
    found = saliency.occlusion(
        model, x, LABELS, window=window, stride=stride, baseline=base
    )
    assert_close(found, torch.stack(expected))


def test_entries_that_no_window_covers_have_zero():
    x = draw(N, 7)
    found = saliency.occlusion(lambda x: x.sum(1), x, None, window=2, stride=3)
    left_out = torch.tensor([False, False, True, False, False, True, False])
    assert torch.equal(found[:, left_out], torch.zeros(N, 2, dtype=torch.float64))
    assert_close(found[:, 0], x[:, :2].sum(1))
    assert_close(found[:, 6], x[:, 6])


def test_occlusion_of_a_linear_layer_by_single_entries():
    layer, x = nn.Linear(D, C).double(), draw(N, D)
    found = saliency.occlusion(layer, x, LABELS, window=1)
    assert_close(found, layer.weight.detach()[LABELS] * x)


def test_occlusion_over_a_list_of_baselines_is_the_mean():
    model, x = smooth_net(), draw(N, D)
    bases = [0.5, draw(D), draw(N, D)]
    single = [saliency.occlusion(model, x, LABELS, window=2, baseline=b) for b in bases]
    found = saliency.occlusion(model, x, LABELS, window=2, baseline=bases)
    assert_close(found, torch.stack(single).mean(0))


def test_occlusion_of_a_count_without_a_derivative():
    x = draw(N, D)
    found = saliency.occlusion(
        lambda x: x, x, lambda y: (y > 0).sum(1).to(y), window=1, baseline=-1.0
    )
    assert torch.equal(found, (x > 0).double())


def test_occlusion_of_ids_by_a_loop():
    table = draw(11, C)

    def model(ids):
        return table[ids].prod(1)

    ids = torch.randint(11, (N, D))
    expected = torch.zeros(N, D, dtype=torch.float64)
    for n in range(N):
        for d in range(D):
            covered = ids[n].clone()
            covered[d] = 7
            expected[n, d] = (model(ids[n : n + 1]) - model(covered[None]))[0, 1]
    found = saliency.occlusion(model, ids, 1, window=1, baseline=7)
    assert_close(found, expected)
    ones = torch.full((D,), 7)
    assert_close(saliency.occlusion(model, ids, 1, window=1, baseline=ones), expected)


def test_occlusion_leaves_integers_beside_a_floating_tensor_as_they_are():
    x, ids = draw(N, D), torch.randint(3, (N, 2))
    found = saliency.occlusion(
        lambda x, ids: x.sum(1) * (1 + ids.sum(1)), (x, ids), None, window=1
    )
    assert_close(found, x * (1 + ids.sum(1, keepdim=True)))


# -- deletion and insertion ----------------------------------------------------------


def order_of(maps: Tensor) -> list[int]:
    """Return the entries of one sample, the largest first, equals as in memory."""
    values = maps.flatten().tolist()
    return sorted(range(len(values)), key=lambda i: (-values[i], i))


def curve_by_hand(kind: str, model: Any, maps: Any, x: Any, base: Any, counts: Any):
    """Return the values of one sample; maps have one channel, or all."""
    space = maps.shape[1:].numel()
    before, after = (x, base) if kind == "deletion" else (base, x)
    values = []
    for count in counts:
        point = before.clone().reshape(len(x), -1)
        for entry in order_of(maps)[:count]:
            channel, place = divmod(entry, space)
            rows = slice(None) if len(maps) == 1 else channel
            point[rows, place] = after.reshape(len(x), -1)[rows, place]
        values.append(float(model(point.reshape(x.shape))))
    return values


def ask_curve(kind: str) -> Any:
    return {
        "deletion": saliency.deletion_curve,
        "insertion": saliency.insertion_curve,
    }[kind]


@pytest.mark.parametrize("kind", ["deletion", "insertion"])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("steps", [1, 4, 28])
def test_curves_by_a_loop(kind, channels, steps):
    model, x, base = image_net(), draw(N, *IMAGE), draw(*IMAGE)
    maps = draw(N, channels, 5, 7).round()  # many are equal
    curve = ask_curve(kind)(maps, model, x, LABELS, steps=steps, baseline=base)
    entries = maps[0].numel()
    counts = [round(float(f) * entries) for f in curve.fractions]
    expected = [
        curve_by_hand(
            kind, lambda x, k=k: model(x[None])[0, k].detach(), m, s, base, counts
        )
        for m, s, k in zip(maps, x, LABELS, strict=True)
    ]
    assert_close(curve.values, torch.tensor(expected, dtype=torch.float64))
    assert curve.kind == kind


@pytest.mark.parametrize(("steps", "points"), [(1, 1), (2, 2), (3, 3), (28, 5)])
def test_shares_are_equal_but_for_one_entry_and_at_most_one_entry_each(steps, points):
    x = draw(N, D)
    curve = saliency.deletion_curve(x, nn.Identity(), x, 2, steps=steps)
    assert curve.fractions[0] == 0
    assert curve.fractions[-1] == 1
    counts = curve.fractions * D
    assert_close(counts, counts.round(), 1e-15)
    assert len(counts) == points + 1
    for i, count in enumerate(counts.tolist()):
        assert abs(count - i * D / points) < 1
    assert (counts.diff() >= 1).all()


def test_curves_start_at_the_inputs_and_end_at_the_baseline_or_the_other_way():
    model, x, base = smooth_net(), draw(N, D), draw(D)
    at_x = model(x).detach()[range(N), LABELS]
    at_base = model(base.expand(N, D)).detach()[range(N), LABELS]
    for kind, first, last in (
        ("deletion", at_x, at_base),
        ("insertion", at_base, at_x),
    ):
        curve = ask_curve(kind)(draw(N, D), model, x, LABELS, baseline=base)
        assert_close(curve.values[:, 0], first)
        assert_close(curve.values[:, -1], last)


def test_curves_are_averaged_over_a_list_of_baselines():
    model, x, maps = smooth_net(), draw(N, D), draw(N, D)
    bases = [0.0, draw(D), draw(N, D)]
    single = [
        saliency.insertion_curve(maps, model, x, LABELS, baseline=b) for b in bases
    ]
    found = saliency.insertion_curve(maps, model, x, LABELS, baseline=bases)
    assert_close(found.values, torch.stack([c.values for c in single]).mean(0))


def test_the_most_negative_goes_last_and_magnitudes_reorder():
    x = torch.ones(1, 3, dtype=torch.float64)
    weights = torch.tensor([-5.0, 1.0, 3.0], dtype=torch.float64)

    def model(x):
        return x @ weights

    maps = weights[None]
    signed = saliency.deletion_curve(maps, model, x, None)
    assert signed.values.tolist() == [[-1, -4, -5, 0]]
    magnitudes = saliency.deletion_curve(saliency.absolute(maps), model, x, None)
    assert magnitudes.values.tolist() == [[-1, 4, 1, 0]]


def test_equal_entries_go_in_the_order_of_memory():
    x = torch.tensor([[8.0, 4.0, 2.0, 1.0]], dtype=torch.float64)
    maps = torch.tensor([[1.0, 1.0, 2.0, 1.0]], dtype=torch.float64)
    curve = saliency.deletion_curve(maps, lambda x: x.sum(1), x, None)
    assert curve.values.tolist() == [[15, 13, 5, 1, 0]]


def test_area_is_that_of_trapezoids():
    x, maps = draw(N, 7), draw(N, 7)
    curve = saliency.insertion_curve(maps, smooth_net_of(7), x, LABELS, steps=3)
    expected = torch.zeros(N, dtype=torch.float64)
    for i in range(len(curve.fractions) - 1):
        width = curve.fractions[i + 1] - curve.fractions[i]
        expected += width * (curve.values[:, i] + curve.values[:, i + 1]) / 2
    assert curve.fractions.diff().unique().numel() > 1
    assert_close(curve.area, expected)


def smooth_net_of(width: int) -> Any:
    return nn.Sequential(nn.Linear(width, 6), nn.Tanh(), nn.Linear(6, C)).double()


def test_a_curve_says_what_it_is():
    x = torch.ones(2, 4)
    curve = saliency.deletion_curve(x, lambda x: x.sum(1), x, None, steps=2)
    assert repr(curve) == "Curve(deletion of 2 samples at 3 shares, mean area 2)"
    assert not curve.values.requires_grad


@pytest.mark.parametrize("value", [0.5, float("nan"), float("inf")])
def test_ids_are_covered_by_whole_numbers_alone(value):
    ids = torch.ones(2, 3, dtype=torch.long)
    with pytest.raises(
        InputError, match="must be a whole number, like the inputs; got"
    ):
        saliency.occlusion(
            nn.Embedding(5, 1), ids, lambda e: e.sum((1, 2)), window=1, baseline=value
        )
