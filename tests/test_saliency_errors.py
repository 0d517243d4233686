"""What saliency functions refuse: each call with its exception's full text."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from gradkit import saliency
from gradkit.errors import InputError
from refused import IDS, NET, TokenNet, X, refusal

CNN = nn.Sequential(
    nn.Conv2d(2, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(3 * 4 * 6, 3)
)
IMAGES = torch.zeros(4, 2, 5, 7)
TOKENS = TokenNet()
NAN, INF = float("nan"), float("inf")
PAIR = (X, X[:, :3])


def both(x, y):
    return NET(x) * y


def integrated(**how: Any):
    return lambda: saliency.integrated_gradients(NET, X, 0, **how)


def integrated_of_both(baseline: Any):
    return lambda: saliency.integrated_gradients(both, PAIR, 0, baseline=baseline)


def integrated_of_tokens(**how: Any):
    return lambda: saliency.integrated_gradients(TOKENS, IDS, 0, **how)


def smoothed(**how: Any):
    return lambda: saliency.smoothgrad(NET, X, 0, **how)


def expected(baselines: Any, **how: Any):
    return lambda: saliency.expected_gradients(NET, X, 0, baselines=baselines, **how)


def expected_of_both(*baselines: Any):
    return lambda: saliency.expected_gradients(both, PAIR, 0, baselines=baselines)


def occluded(**how: Any):
    return lambda: saliency.occlusion(NET, X, 0, **how)


def occluded_images(**how: Any):
    return lambda: saliency.occlusion(CNN, IMAGES, 0, **how)


def cam(wrt: Any):
    return lambda: saliency.grad_cam(CNN, IMAGES, 0, wrt=wrt)


def gap(attributions: Any):
    return lambda: saliency.completeness_gap(attributions, NET, X, 0)


def deleted(attributions: Any, **how: Any):
    return lambda: saliency.deletion_curve(attributions, NET, X, 0, **how)


_STEPS = "integrated_gradients: steps must be a whole number of at least 1; got {}"
_GAP = "integrated_gradients: max_gap must be a number above 0; got {}"
_BASELINE = (
    "integrated_gradients: baseline must be a number, a tensor that broadcasts to what"
    " wrt names, or a list of them; got {}"
)
_FINITE = (
    "integrated_gradients: baseline must hold finite numbers; it holds NaN or an"
    " infinity"
)
_SHAPE = "integrated_gradients: baseline must broadcast to shape (5, 4); got {}"
_NESTED = (
    "integrated_gradients: wrt must name things that do not depend on one another; one"
    " of {} is computed from another. Ask for one at a time"
)
INTEGRATED = [
    (integrated(steps=0), _STEPS.format("0")),
    (integrated(steps=-2), _STEPS.format("-2")),
    (integrated(steps=2.5), _STEPS.format("2.5")),
    (integrated(steps=True), _STEPS.format("True")),
    (
        integrated(rule="simpson"),
        "integrated_gradients: rule must be one of 'gauss_legendre', 'riemann_left',"
        " 'riemann_middle', 'riemann_right', 'trapezoid'; got 'simpson'",
    ),
    (integrated(max_gap=0), _GAP.format("0")),
    (integrated(max_gap=-0.1), _GAP.format("-0.1")),
    (integrated(max_gap=NAN), _GAP.format("nan")),
    (integrated(max_gap=INF), _GAP.format("inf")),
    (integrated(max_gap="0.1"), _GAP.format("'0.1'")),
    (integrated(baseline="zero"), _BASELINE.format("str")),
    (integrated(baseline=None), _BASELINE.format("NoneType")),
    (integrated(baseline=[0.0, None]), _BASELINE.format("NoneType")),
    (integrated(baseline=True), _BASELINE.format("bool")),
    (
        integrated(baseline=[]),
        "integrated_gradients: baseline must not be an empty list",
    ),
    (integrated(baseline=NAN), _FINITE),
    (integrated(baseline=[0.0, -INF]), _FINITE),
    (integrated(baseline=torch.tensor([0.0, 0.0, NAN, 0.0])), _FINITE),
    (integrated(baseline=torch.full((5, 4), INF)), _FINITE),
    (integrated(baseline=torch.zeros(3)), _SHAPE.format("(3,)")),
    (integrated(baseline=torch.zeros(6, 4)), _SHAPE.format("(6, 4)")),
    (
        integrated(baseline=torch.zeros(1, 5, 4)),
        _SHAPE.format("(1, 5, 4); for several baselines give a list, list(b)"),
    ),
    (
        integrated(baseline=(0.0, 0.0)),
        "integrated_gradients: baseline[1] must be the place of one tensor in the"
        " inputs (there: 0)",
    ),
    (
        integrated_of_both(torch.zeros(1)),
        "integrated_gradients: baseline is one tensor, but there are 2 to explain"
        " (shapes (5, 4), (5, 3)); give a number, or a tuple or mapping like the"
        " inputs",
    ),
    (
        integrated_of_both((0.0,)),
        "integrated_gradients: baseline must give a value for inputs[1]",
    ),
    (
        integrated_of_both((0.0, torch.zeros(2))),
        "integrated_gradients: baseline[1] must broadcast to shape (5, 3); got (2,)",
    ),
    (
        integrated_of_both((0.0, "a")),
        "integrated_gradients: baseline[1] must be a number or a tensor; got str",
    ),
    (
        integrated_of_tokens(),
        "integrated_gradients: inputs must hold a floating tensor to differentiate"
        " with respect to; got inputs torch.int64 (3, 2). Integers have no derivative:"
        " name the embedding that takes them, wrt='tokens'; or, if they are"
        " measurements, convert them with x.float()",
    ),
    (
        integrated_of_tokens(wrt="tokens", baseline=(torch.tensor([0.5]),)),
        "integrated_gradients: baseline must be of whole numbers, like inputs; got"
        " torch.float32",
    ),
    (integrated(wrt=["0", "2"]), _NESTED.format("['0', '2']")),
    (integrated(wrt=["1", "0"]), _NESTED.format("['1', '0']")),
    (
        integrated(wrt="nothing"),
        "integrated_gradients: wrt='nothing' names neither an entry of inputs (there:"
        " 0) nor a submodule (known: '0', '1', '2')",
    ),
]

_NOISE = "smoothgrad: noise must be a number of at least 0; got {}"
_SEED = "smoothgrad: seed must be a whole number of at most 64 bits; got {}"
_REFERENCES = "expected_gradients: baselines must be samples (M, 4), at least one; got "
DRAWS = [
    (
        smoothed(draws=-1),
        "smoothgrad: draws must be a whole number of at least 1; got -1",
    ),
    (smoothed(noise=-1), _NOISE.format("-1")),
    (smoothed(noise=NAN), _NOISE.format("nan")),
    (smoothed(noise=INF), _NOISE.format("inf")),
    (smoothed(noise="0.1"), _NOISE.format("'0.1'")),
    (
        smoothed(statistic="median"),
        "smoothgrad: statistic must be one of 'mean', 'square', 'variance'; got"
        " 'median'",
    ),
    (smoothed(seed="a"), _SEED.format("'a'")),
    (smoothed(seed=None), _SEED.format("None")),
    (smoothed(seed=1.5), _SEED.format("1.5")),
    (
        expected(X, draws=0),
        "expected_gradients: draws must be a whole number of at least 1; got 0",
    ),
    (
        expected(0.0),
        "expected_gradients: baselines must be samples (M, *in) to draw from, or a"
        " tuple or mapping of them like the inputs; got float",
    ),
    (
        expected([]),
        "expected_gradients: baselines must be samples (M, *in) to draw from, or a"
        " tuple or mapping of them like the inputs; got list",
    ),
    (expected(torch.zeros(0, 4)), _REFERENCES + "(0, 4)"),
    (expected(torch.zeros(4)), _REFERENCES + "(4,)"),
    (expected(torch.zeros(2, 3)), _REFERENCES + "(2, 3)"),
    (
        expected_of_both(torch.zeros(2, 4)),
        "expected_gradients: baselines[1] must be samples (M, 3), at least one; got"
        " None",
    ),
    (
        expected_of_both(torch.zeros(2, 4), torch.zeros(6, 3)),
        "expected_gradients: baselines must hold as many samples in every tensor; got"
        " [2, 6]",
    ),
]

_ONE_AXIS = (
    "occlusion: {} must be a whole number above 0, one per axis of a sample of shape"
    " (4,); got {}"
)
_AXES = (
    "occlusion: {0} must be whole numbers above 0, one per axis of a sample of shape"
    " (2, 5, 7), such as {0}=(1, {2}, {2}); got {1}"
)
WINDOWS = [
    (
        occluded(window=5),
        "occlusion: window must fit into a sample of shape (4,); got 5, which is larger"
        " along axis 0",
    ),
    (
        occluded_images(window=(1, 6, 2)),
        "occlusion: window must fit into a sample of shape (2, 5, 7); got (1, 6, 2),"
        " which is larger along axis 1",
    ),
    (occluded(window=0), _ONE_AXIS.format("window", "0")),
    (occluded(window=1.5), _ONE_AXIS.format("window", "1.5")),
    (occluded(window=None), _ONE_AXIS.format("window", "None")),
    (occluded(window=(1, 1)), _ONE_AXIS.format("window", "(1, 1)")),
    (occluded(window=()), _ONE_AXIS.format("window", "()")),
    (occluded(window=2, stride=0), _ONE_AXIS.format("stride", "0")),
    (occluded(window=2, stride=-1), _ONE_AXIS.format("stride", "-1")),
    (occluded_images(window=3), _AXES.format("window", "3", 3)),
    (occluded_images(window=(1, 2, 3, 4)), _AXES.format("window", "(1, 2, 3, 4)", 5)),
    (occluded_images(window=(2, 3), stride=2), _AXES.format("stride", "2", 2)),
    (
        occluded_images(window=(2, 3), stride=(0, 2)),
        _AXES.format("stride", "(0, 2)", 5),
    ),
    (
        occluded(window=2, baseline=torch.zeros(3)),
        "occlusion: baseline must broadcast to shape (5, 4); got (3,)",
    ),
]

_LAYER = (
    "grad_cam: wrt must name one submodule, the layer whose maps are weighted; got {}."
    " Take the last layer with a space, such as wrt='0'"
)
_FLAT = (
    "grad_cam: wrt='{}' must return (N, C, *space); it returned {}, which has no space"
    " to map. Name a layer before it is flattened, or take gradient_times_input"
)
_LIKE_INPUTS = (
    "deletion_curve: attributions must be shaped like the inputs, (5, 4), or with 1 in"
    " place of channels; got {}. Make coarser maps as large first:"
    " torch.nn.functional.interpolate(map, inputs.shape[2:], mode='bilinear')"
)
_LIKE_WRT = (
    "completeness_gap: attributions must be tensors shaped like what wrt names, (5, 4);"
    " got {}"
)
MAPS = [
    (cam(None), _LAYER.format("None")),
    (cam(0), _LAYER.format("0")),
    (cam("2"), _FLAT.format("2", "(4, 72)")),
    (cam("3"), _FLAT.format("3", "(4, 3)")),
    (
        cam(["0", "1"]),
        "grad_cam: wrt must name things that do not depend on one another; one of"
        " ['0', '1'] is computed from another. Ask for one at a time",
    ),
    (gap(X[:3]), _LIKE_WRT.format("(3, 4)")),
    (gap((X, X)), _LIKE_WRT.format("(5, 4), (5, 4)")),
    (deleted(X[:3]), _LIKE_INPUTS.format("(3, 4)")),
    (deleted(X[:1]), _LIKE_INPUTS.format("(1, 4)")),
    (deleted(X[0]), _LIKE_INPUTS.format("(4,)")),
    (deleted("a"), _LIKE_INPUTS.format("str")),
    (
        deleted(X * NAN),
        "deletion_curve: attributions must be finite; they hold NaN or an infinity",
    ),
    (
        deleted(X, steps=0),
        "deletion_curve: steps must be a whole number of at least 1; got 0",
    ),
    (lambda: saliency.absolute([X, 1]), "absolute: maps must be tensors; got int"),
    (
        lambda: saliency.channel_sum(X, axis=0),
        "channel_sum: axis must be one of maps' axes (5, 4) after the samples; got 0",
    ),
    (
        lambda: saliency.channel_max(X, axis=-2),
        "channel_max: axis must be one of maps' axes (5, 4) after the samples; got -2",
    ),
    (
        lambda: saliency.channel_norm(X, axis=2),
        "channel_norm: axis must be one of maps' axes (5, 4) after the samples; got 2",
    ),
]


@pytest.mark.parametrize(("ask", "text"), INTEGRATED + DRAWS + WINDOWS + MAPS)
def test_wrong_arguments_are_refused(ask, text):
    assert refusal(InputError, ask) == text
