"""Whether maps depend on the model, how far they move: the checks and their parts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from torch import Tensor, nn

import gradkit as gk
from footprint import Footprint
from gradkit import mnist, saliency
from gradkit.errors import InputError
from gradkit.saliency._similarity import rank_correlation, structural_similarity

DIGITS, SIDE = 24, 28


class Trained:
    """A convolutional network on digits, and digits it has not seen."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(
            nn.Conv2d(1, 8, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            nn.Linear(16 * 49, 64), nn.ReLU(), nn.Linear(64, 10),
        )  # fmt: skip
        data = mnist.digits()
        images = data.train_images.reshape(-1, 1, SIDE, SIDE)
        mnist.train(self.model, images, data.train_labels, epochs=3, progress=False)
        self.x = data.test_images[:DIGITS].reshape(-1, 1, SIDE, SIDE)
        self.y = data.test_labels[:DIGITS]

    def check(self, method: Any, **more: Any) -> gk.saliency.RandomizationReport:
        return saliency.randomization_check(method, self.model, self.x, self.y, **more)


@pytest.fixture(scope="module")
def trained() -> Trained:
    with torch.random.fork_rng():
        return Trained()


# --- randomization ------------------------------------------------------------------


def test_guided_backprop_is_told_from_plain_gradients(trained: Trained) -> None:
    plain, guided = trained.check("gradient"), trained.check("guided_backprop")
    assert plain
    assert not guided
    assert plain.layers == guided.layers == ("9", "7", "3", "0")
    # As in the paper: the plain map is lost with the first layer, the guided one stays.
    assert float(plain.rank_correlations[0].median()) < 0.2
    assert float(guided.rank_correlations[:2].median()) > 0.6
    assert float(plain.similarities[1].median()) < 0.3
    assert float(guided.similarities[1].median()) > 0.5


def test_the_verdict_does_not_hang_on_the_draw(trained: Trained) -> None:
    for seed in (1, 2, 3):
        assert trained.check("gradient", seed=seed).correlation < 0.25
        assert trained.check("guided_backprop", seed=seed).correlation > 0.5


def test_the_product_with_the_input_has_ranks_of_the_input(trained: Trained) -> None:
    report = trained.check("gradient_times_input")
    assert report
    assert float(report.magnitude_correlations.min()) > 0.9
    magnitudes = trained.check(
        lambda *given: saliency.gradient_times_input(*given).abs()
    )
    assert not magnitudes


def test_edges_of_the_input_do_not_depend(trained: Trained) -> None:
    report = trained.check(lambda model, x, y: x.diff(dim=-1))
    assert report.correlation == pytest.approx(1)
    assert float(report.similarities.min()) == pytest.approx(1)
    assert not report


def test_a_cascade_keeps_what_was_drawn_and_alone_it_is_put_back() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    trained = [p.detach().clone() for p in model.parameters()]
    seen: list[list[bool]] = []

    def method(twin: nn.Module, x: Tensor, y: Any) -> Tensor:
        assert twin is not model
        pairs = zip(twin.parameters(), trained, strict=True)
        seen.append([torch.equal(p, t) for p, t in pairs])
        return saliency.gradient(twin, x, y)

    x = torch.rand(5, 3, dtype=torch.float64)
    given = (method, model, x, 0)
    assert saliency.randomization_check(*given).layers == ("2", "0")
    assert seen == [[True] * 4, [True, True, False, False], [False] * 4]
    seen.clear()
    saliency.randomization_check(*given, order="independent")
    assert seen[1:] == [[True, True, False, False], [False, False, True, True]]
    seen.clear()
    saliency.randomization_check(*given, layers=["0"])
    assert seen == [[True] * 4, [False, False, True, True]]


def test_weights_are_drawn_with_the_trained_mean_and_spread() -> None:
    model = nn.Linear(40, 60, bias=True).double()
    with torch.no_grad():
        model.weight.mul_(3).add_(7)
        model.bias.fill_(2)
    drawn: list[nn.Module] = []

    def method(twin: nn.Module, x: Tensor, y: Any) -> Tensor:
        drawn.append(twin)
        return x

    saliency.randomization_check(method, model, torch.rand(2, 40).double(), 0)
    weight, bias = (p.detach() for p in drawn[-1].parameters())
    assert not torch.equal(weight, model.weight)
    own = model.weight.detach()
    deviation = float(own.std())
    assert float(weight.mean()) == pytest.approx(float(own.mean()), abs=deviation / 10)
    assert float(weight.std()) == pytest.approx(deviation, rel=0.1)
    assert torch.equal(bias, model.bias)  # nothing is known of its spread


def test_layers_come_in_the_order_of_their_calls() -> None:
    class Backwards(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Linear(4, 2)
            self.scale = nn.Parameter(torch.rand(3))
            self.first = nn.Linear(3, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.first(x * self.scale).tanh())

    report = saliency.randomization_check("gradient", Backwards(), torch.rand(5, 3), 1)
    assert report.layers == ("last", "first", "")
    assert "(the model)" in str(report)


def test_the_same_seed_draws_the_same(trained: Trained) -> None:
    first, again = trained.check("gradient"), trained.check("gradient")
    other = trained.check("gradient", seed=1)
    assert torch.equal(first.maps, again.maps)
    assert torch.equal(first.maps[0], other.maps[0])
    assert not torch.equal(first.maps[1], other.maps[1])


def test_the_report_says_what_it_holds(trained: Trained) -> None:
    report = trained.check("smoothgrad", settings={"draws": 3}, threshold=0.6)
    values = report.to_dict()
    medians = np.median(report.rank_correlations.numpy(), axis=1)
    assert values["rank_correlations"] == pytest.approx(medians.tolist())
    assert values["correlation"] == pytest.approx(medians.mean())
    assert report.maps.shape == (5, DIGITS, 1, SIDE, SIDE)
    assert values["depends"] is bool(medians.mean() < 0.6)
    lines = str(report).splitlines()
    assert [line.split()[0] for line in lines[1:5]] == ["9", "7", "3", "0"]
    for line, median in zip(lines[1:5], medians, strict=True):
        assert line.split()[1] == f"{median:.2f}"
    assert lines[-1] == (
        "smoothgrad depends on what the model has learned: the mean rank correlation"
        f" {report.correlation:.2f} is below 0.6"
    )


def test_a_check_leaves_no_trace(trained: Trained) -> None:
    before = Footprint(trained.model, tensors={"x": trained.x, "y": trained.y})
    trained.check("guided_backprop")
    saliency.sensitivity("gradient", trained.model, trained.x, trained.y, draws=2)

    def fails(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        model.zero_grad()
        next(model.parameters()).data.zero_()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        trained.check(fails)
    before.assert_unchanged()


LINEAR = nn.Linear(3, 2)
X = torch.rand(4, 3)
CHECK = "randomization_check: "
REFUSED: list[tuple[Callable[[], Any], str]] = [
    (
        lambda: saliency.randomization_check("gradients", LINEAR, X, 0),
        CHECK + "method must be one of 'gradient', 'gradient_times_input',"
        " 'guided_backprop', 'integrated_gradients', 'expected_gradients',"
        " 'smoothgrad', 'grad_cam', 'occlusion', or a callable (model, inputs,"
        " objective, **settings) that returns a map; got 'gradients'",
    ),
    (
        lambda: saliency.randomization_check("gradient", torch.sin, X, 0),  # pyright: ignore[reportArgumentType]
        CHECK + "model must be an nn.Module, whose weights can be drawn anew; got"
        " builtin_function_or_method",
    ),
    (
        lambda: saliency.randomization_check("gradient", nn.Tanh(), X, 0),
        CHECK + "model must have parameters to draw anew; it has none",
    ),
    (
        lambda: saliency.randomization_check("gradient", LINEAR, X, 0, layers=["fc"]),
        CHECK + "layers must name submodules with parameters; got 'fc' (known: '')",
    ),
    (
        lambda: saliency.randomization_check("gradient", LINEAR, X, 0, layers=[]),
        CHECK + "layers must not be empty",
    ),
    (
        lambda: saliency.randomization_check("gradient", LINEAR, X, 0, order="up"),
        CHECK + "order must be one of 'cascade', 'independent'; got 'up'",
    ),
    (
        lambda: saliency.randomization_check(
            "gradient", LINEAR, X, 0, settings={"wrt": LINEAR}
        ),
        CHECK + "settings['wrt'] must be a submodule's dotted name, since the check"
        " works on a copy of the model; got the Linear itself",
    ),
    (
        lambda: saliency.randomization_check(
            "gradient",
            LINEAR,
            X,
            0,
            settings=["wrt"],  # pyright: ignore[reportArgumentType]
        ),
        CHECK + "settings must be a mapping of the method's arguments, such as"
        " {'draws': 20}; got list",
    ),
    (
        lambda: saliency.randomization_check(lambda *_: {}, LINEAR, X, 0),
        CHECK + "method <lambda> must return one floating tensor with the samples"
        " first; got dict. Choose one input or submodule with wrt=",
    ),
    (
        lambda: saliency.sensitivity("gradient", LINEAR, X, 0, draws=0),
        "sensitivity: draws must be a whole number of at least 1; got 0",
    ),
    (
        lambda: saliency.sensitivity("gradient", LINEAR, X, 0, noise=-0.1),
        "sensitivity: noise must be a number of at least 0; got -0.1",
    ),
    (
        lambda: saliency.sensitivity(
            "occlusion",
            nn.Embedding(5, 1),
            torch.ones(2, 3, dtype=torch.long),
            None,
            settings={"window": 1},
        ),
        "sensitivity: inputs must hold a floating tensor that noise can be added to."
        " For integers, such as token ids, give the part of the model behind the"
        " embedding, and the embedding's output as inputs",
    ),
    (
        lambda: saliency.sensitivity("occlusion", LINEAR, X, 0),
        "sensitivity: settings must give 'window', which occlusion needs",
    ),
    (
        lambda: saliency.randomization_check("expected_gradients", LINEAR, X, 0),
        "randomization_check: settings must give 'baselines', which expected_gradients"
        " needs",
    ),
    (
        lambda: saliency.sensitivity(
            "grad_cam", LINEAR, X, 0, settings={"wrt": "a", "window": 1}
        ),
        "sensitivity: settings must not give 'window': grad_cam takes 'wrt', 'of'",
    ),
    (
        lambda: saliency.sensitivity(lambda m, x, y: x[:1], LINEAR, X, 0),
        "sensitivity: method <lambda> must return one map per sample, "
        f"{len(X)}; got a tensor of shape {(1, *X.shape[1:])}",
    ),
]


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_wrong_arguments_are_refused(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        call()
    assert str(caught.value) == message


# --- sensitivity ----------------------------------------------------------------------


def test_a_map_that_is_linear_in_the_input_moves_with_it() -> None:
    # The gradient of x² / 2 is x: the map moves by what the input moves by.
    x = torch.rand(6, 5, dtype=torch.float64) + 1
    noisy: list[Tensor] = []

    def method(model: Any, inputs: Tensor, objective: Any) -> Tensor:
        noisy.append(inputs)
        return saliency.gradient(model, inputs, objective)

    found = saliency.sensitivity(
        method, lambda x: x.square().sum(1) / 2, x, None, noise=0.1, draws=7
    )
    assert len(noisy) == 8
    assert torch.equal(noisy[0], x)
    moves = torch.stack([(other - x).norm(dim=1) / x.norm(dim=1) for other in noisy])
    torch.testing.assert_close(found, moves.amax(0))
    steps = torch.stack([(other - x).abs().amax(1) for other in noisy[1:]])
    widths = x.amax(1) - x.amin(1)
    assert bool((steps <= 0.1 * widths).all())
    assert bool((steps.amax(0) > 0.06 * widths).all())  # of 35 draws each


def test_a_map_out_of_nothing_moves_infinitely() -> None:
    x = torch.tensor([[0.0, 0.0], [1.0, 2.0]])

    def method(model: Any, inputs: Tensor, objective: Any) -> Tensor:
        return (inputs - x) * torch.tensor([[1.0], [0.0]]) + torch.tensor(
            [[0.0, 0.0], [1.0, 1.0]]
        )

    found = saliency.sensitivity(method, None, x + 0, None, draws=3)
    # The first sample has no range, so no noise either; the second's map is constant.
    assert found.tolist() == [0.0, 0.0]
    x = torch.tensor([[0.0, 1.0], [1.0, 2.0]])
    found = saliency.sensitivity(method, None, x + 0, None, draws=3)
    assert found.tolist() == [math.inf, 0.0]


def test_what_a_method_draws_itself_is_drawn_alike() -> None:
    layer, x = nn.Linear(3, 2), torch.rand(4, 3)
    found = saliency.sensitivity(
        "smoothgrad", layer, x, 1, settings={"draws": 3, "noise": 0.5}
    )
    assert float(found.max()) < 1e-6


def test_masks_are_left_alone() -> None:
    ids = torch.ones(4, 3, dtype=torch.long)

    def method(model: Any, inputs: Any, objective: Any) -> Tensor:
        x, kept = inputs
        assert kept is ids
        return x

    assert float(saliency.sensitivity(method, None, (X, ids), None).max()) > 0


# --- similarity ---------------------------------------------------------------------


def test_rank_correlation_is_scipys() -> None:
    generator = torch.Generator().manual_seed(1)
    first = torch.randint(0, 6, (4, 3, 7), generator=generator).double()
    second = torch.randn(4, 3, 7, generator=generator, dtype=torch.float64)
    found = rank_correlation(first, second)
    for n in range(4):
        result: Any = scipy.stats.spearmanr(first[n].flatten(), second[n].flatten())
        assert float(found[n]) == pytest.approx(result.statistic, abs=1e-12)
    assert rank_correlation(first, torch.ones_like(first)).tolist() == [0.0] * 4
    torch.testing.assert_close(
        rank_correlation(first, first.exp()), torch.ones(4, dtype=torch.float64)
    )


def _similarity_by_loops(a: np.ndarray, b: np.ndarray, side: int) -> float:
    places = np.arange(side) - side // 2
    line = np.exp(-((places / 1.5) ** 2) / 2)
    window = np.outer(line, line)
    window /= window.sum()
    found = []
    for i in range(a.shape[0] - side + 1):
        for j in range(a.shape[1] - side + 1):
            x, y = a[i : i + side, j : j + side], b[i : i + side, j : j + side]
            mx, my = (window * x).sum(), (window * y).sum()
            vx, vy = (window * (x - mx) ** 2).sum(), (window * (y - my) ** 2).sum()
            both = (window * (x - mx) * (y - my)).sum()
            top = (2 * mx * my + 0.02**2) * (2 * both + 0.06**2)
            found.append(top / ((mx**2 + my**2 + 0.02**2) * (vx + vy + 0.06**2)))
    return float(np.mean(found))


@pytest.mark.parametrize(("shape", "side"), [((13, 17), 11), ((6, 9), 5)])
def test_structural_similarity_is_its_formula(
    shape: tuple[int, int], side: int
) -> None:
    generator = torch.Generator().manual_seed(2)
    first = torch.randn(2, 1, *shape, generator=generator, dtype=torch.float64)
    second = first + torch.randn(first.shape, generator=generator).double()
    found = structural_similarity(first, second * 5)
    for n in range(2):
        a, b = (m[n, 0] / m[n].abs().max() for m in (first, second))
        by_loops = _similarity_by_loops(a.numpy(), b.numpy(), side)
        assert float(found[n]) == pytest.approx(by_loops, abs=1e-12)


def test_structural_similarity_of_rows_and_of_no_pictures() -> None:
    rows = torch.rand(3, 144)
    pictures = rows.reshape(3, 1, 12, 12)
    other = torch.rand(3, 144)
    torch.testing.assert_close(
        structural_similarity(rows, other),
        structural_similarity(pictures, other.reshape(3, 1, 12, 12)),
    )
    assert bool(structural_similarity(rows[:, :143], other[:, :143]).isnan().all())
