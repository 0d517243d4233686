"""The figure shows the values that it is given, on symmetric scales."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

from gradkit import plots
from gradkit.errors import InputError


@pytest.fixture(params=[1, 4, 37])
def drawn(request: pytest.FixtureRequest) -> dict[str, torch.Tensor]:
    """Return what the figure shows, for a few, some and many samples."""
    count = request.param
    return {
        "images": torch.rand(count, 36),
        "labels": torch.arange(count) % 12,
        "predictions": torch.arange(count) % 5,
        "score_gradients": torch.randn(count, 36),
        "loss_gradients": torch.randn(count, 36),
        "norms": torch.rand(count),
        "jacobian": torch.randn(count, 12, 36),
    }


def test_the_figure_shows_signs_on_symmetric_scales(
    drawn: dict[str, torch.Tensor],
) -> None:
    figure = plots.digit_gradients(**drawn)
    count = len(drawn["images"])
    pictures = [image for axes in figure.axes for image in axes.get_images()]
    signed = [p for p in pictures if p.get_cmap().name == "RdBu_r"]
    columns = min(count, 10)
    details = min(count, 3)
    assert len(signed) == 2 * columns + 10 * details
    assert len(pictures) == 4 * columns + 11 * details
    least, limits = zip(*(p.get_clim() for p in signed), strict=True)
    assert least == tuple(-limit for limit in limits)
    # One scale for score gradients and Jacobian rows, one for loss gradients.
    score, loss = limits[0], limits[columns]
    assert limits == (score,) * columns + (loss,) * columns + (score,) * 10 * details


def test_a_scale_saturates_at_a_percentile(drawn: dict[str, torch.Tensor]) -> None:
    figure = plots.digit_gradients(**drawn)
    limits = {axes.get_images()[0].get_clim()[1] for axes in figure.axes if axes.images}
    hardest = drawn["norms"].argsort(descending=True)[:10]
    shown = drawn["loss_gradients"][hardest].abs().double().numpy()
    assert np.quantile(shown, 0.998) in limits


def test_the_figure_shows_the_values(drawn: dict[str, torch.Tensor]) -> None:
    figure = plots.digit_gradients(**drawn)
    shown = [
        torch.from_numpy(np.asarray(image.get_array())).flatten()
        for axes in figure.axes
        for image in axes.get_images()
    ]
    hardest = int(drawn["norms"].argmax())
    for expected in (
        drawn["images"][0],
        drawn["score_gradients"][0],
        drawn["loss_gradients"][hardest],
        *drawn["jacobian"][hardest][:10],
    ):
        assert any(torch.equal(values, expected) for values in shown)


def test_the_figure_names_classes_and_guesses(drawn: dict[str, torch.Tensor]) -> None:
    figure = plots.digit_gradients(**drawn)
    texts = [text.get_text() for text in figure.texts]
    for n in drawn["norms"].argsort(descending=True)[:10].tolist():
        assert f"{drawn['labels'][n]} → {drawn['predictions'][n]}" in texts
        assert f"{drawn['norms'][n]:#.3g}" in texts


def test_a_figure_of_zeros_has_a_scale() -> None:
    zeros = torch.zeros(2, 9)
    figure = plots.digit_gradients(
        zeros,
        torch.tensor([1, 0]),
        torch.tensor([0, 0]),
        score_gradients=zeros,
        loss_gradients=zeros,
        norms=torch.zeros(2),
        jacobian=torch.zeros(2, 3, 9),
    )
    limits = [image.get_clim() for axes in figure.axes for image in axes.get_images()]
    assert limits.count((-1, 1)) == 2 + 2 + 2 * 3
    figure.canvas.draw()


def test_a_figure_leaves_no_global_state(drawn: dict[str, torch.Tensor]) -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    plots.digit_gradients(**drawn)
    assert dict(matplotlib.rcParams) == before
    pyplot = sys.modules.get("matplotlib.pyplot")
    assert pyplot is None or not pyplot.get_fignums()


def test_without_matplotlib_the_extra_is_named(
    drawn: dict[str, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(InputError) as caught:
        plots.digit_gradients(**drawn)
    assert str(caught.value) == (
        "plots.digit_gradients: figures are drawn by matplotlib, which cannot be"
        " imported (import of matplotlib.figure halted; None in sys.modules)."
        ' Run pip install "gradkit[plot]"'
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"labels": [0, 1, 2, 3]},
            "labels must be a tensor; got list; pass torch.as_tensor(x)",
        ),
        (
            {"norms": torch.ones(3)},
            "norms must be (4,) beside images (4, 36); got (3,)",
        ),
        (
            {"jacobian": torch.ones(4, 36)},
            "jacobian must be (4, K, 36) beside images (4, 36); got (4, 36)",
        ),
        (
            {"images": torch.rand(4, 35)},
            "images must be (N, D), with D a square number and N at least 1; got"
            " (4, 35)",
        ),
    ],
)
@pytest.mark.parametrize("drawn", [4], indirect=True)
def test_what_does_not_fit_is_refused(
    drawn: dict[str, torch.Tensor], change: dict[str, object], message: str
) -> None:
    with pytest.raises(InputError) as caught:
        plots.digit_gradients(**{**drawn, **change})  # pyright: ignore
    assert str(caught.value) == f"plots.digit_gradients: {message}"
