"""Figures show the values that they are given, and refuse what they cannot show."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib import colors
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D
from matplotlib.text import Text
from torch import Tensor

from gradkit import plots
from gradkit.errors import InputError

RED = "#b2182b"
LONG = "features.denseblock4.denselayer16.convolution2"


def images_of(figure: Figure) -> list[AxesImage]:
    """Return every picture, in the order they were drawn."""
    return [image for axes in figure.axes for image in axes.get_images()]


def shown(image: AxesImage) -> np.ndarray:
    """Return the values that a picture shows."""
    return np.asarray(image.get_array())


def data(line: Line2D) -> tuple[np.ndarray, np.ndarray]:
    """Return the places and the heights of a line's points."""
    return np.asarray(line.get_xdata()), np.asarray(line.get_ydata(), dtype=float)


def signed(figure: Figure) -> list[AxesImage]:
    """Return every picture on a scale that is white at 0."""
    return [i for i in images_of(figure) if i.get_cmap().name == "RdBu_r"]


def texts(figure: Figure) -> list[str]:
    """Return what is written beside axes."""
    return [text.get_text() for text in figure.texts]


def colours_of(figure: Figure, text: str) -> list[str]:
    """Return the colours in which a text is written beside axes."""
    return [colors.to_hex(t.get_color()) for t in figure.texts if t.get_text() == text]


def bars(figure: Figure) -> list[list[str]]:
    """Return the ticks of every scale of colours."""
    return [
        [tick.get_text() for tick in axes.get_yticklabels()]
        for axes in figure.axes
        if hasattr(axes, "_colorbar")
    ]


def percentile(values: Tensor) -> float:
    """Return where the colours of maps saturate."""
    return float(np.quantile(values.abs().double().numpy(), 0.998))


def curve(kind: str = "deletion", samples: int = 5, steps: int = 8) -> Any:
    """Return a curve of random scores."""
    values = torch.randn(samples, steps + 1)
    return SimpleNamespace(
        kind=kind,
        fractions=torch.linspace(0, 1, steps + 1),
        values=values,
        area=values.mean(1),
    )


def report(*layers: str, samples: int = 4, depends: bool = True) -> Any:
    """Return a report with random maps and similarities."""
    count = len(layers)
    return SimpleNamespace(
        layers=layers,
        maps=torch.randn(count + 1, samples, 36),
        rank_correlations=torch.rand(count, samples),
        similarities=torch.rand(count, samples),
        depends=depends,
    )


# --- a grid of methods ------------------------------------------------------------


def test_a_grid_divides_each_methods_maps_by_their_limit() -> None:
    maps = {"gradient": torch.randn(3, 36), "occlusion": 1000 * torch.randn(3, 36)}
    figure = plots.saliency_grid(torch.rand(3, 36), maps)
    drawn = signed(figure)
    assert len(drawn) == 6
    assert {image.get_clim() for image in drawn} == {(-1, 1)}
    for n in range(3):
        for image, values in zip(drawn[2 * n :], maps.values(), strict=False):
            expected = values[n].double().reshape(6, 6) / percentile(values)
            np.testing.assert_allclose(shown(image), expected.numpy(), rtol=1e-12)


def test_a_grid_names_the_methods_and_their_limits() -> None:
    maps = {"one": torch.full((2, 9), -0.42), "two": torch.full((2, 9), 123.4)}
    maps["three"] = torch.full((2, 9), 1.9e-5)
    figure = plots.saliency_grid(torch.rand(2, 9), maps)
    assert {"image", *maps, "±0.42", "±123", "±1.9e−5"} <= set(texts(figure))
    assert bars(figure) == [["−1", "0", "1"]]


@pytest.mark.parametrize("title", ["integrated gradients", "guided_backpropagation"])
def test_a_long_title_is_broken_and_whole(title: str) -> None:
    lines = _lines_of(title)
    assert len(lines) > 1
    assert "".join(lines) == title.replace(" ", "")


def test_a_title_of_more_lines_than_four_is_cut() -> None:
    lines = _lines_of("integrated gradients of the score of the class with noise")
    assert len(lines) == 4
    assert lines[0] == "integrated"
    assert lines[3].endswith("…")


def _lines_of(title: str) -> list[str]:
    """Return the lines of a title over one of many columns."""
    maps = {title: torch.rand(1, 9), **{k: torch.rand(1, 9) for k in "ABCDEFGH"}}
    written = texts(plots.saliency_grid(torch.rand(1, 9), maps))
    # Lines are written from the lowest up.
    limit, end = written.index("image") + 1, written.index("A") - 1
    return written[limit + 1 : end][::-1]


@pytest.mark.parametrize("shape", [(2, 36), (2, 6, 6), (2, 1, 6, 6)])
def test_pictures_come_in_several_shapes(shape: tuple[int, ...]) -> None:
    images, maps = torch.rand(2, 36), torch.randn(2, 36)
    figure = plots.saliency_grid(images.reshape(shape), {"m": maps.reshape(shape)})
    ink = [i for i in images_of(figure) if i.get_cmap().name == "gray_r"]
    assert [i.get_clim() for i in ink] == [(0, float(images.max()))] * 2
    for n in range(2):
        drawn = shown(ink[n])
        assert np.array_equal(drawn, images[n].double().reshape(6, 6).numpy())
        expected = maps[n].double().reshape(6, 6) / percentile(maps)
        np.testing.assert_allclose(shown(signed(figure)[n]), expected, rtol=1e-12)


def test_channels_are_colours_of_images_and_summed_in_maps() -> None:
    images, maps = torch.rand(2, 3, 4, 5), torch.randn(2, 3, 4, 5)
    figure = plots.saliency_grid(images, {"gradient": maps})
    first, second = images_of(figure)[:2]
    assert np.array_equal(shown(first), images[0].movedim(0, -1).double().numpy())
    summed = maps.double().sum(1)
    np.testing.assert_allclose(shown(second), summed[0] / percentile(summed))


def test_colours_of_bytes_and_of_normalised_images_fit_the_screen() -> None:
    images = torch.tensor([[0, 204], [51, 102]], dtype=torch.uint8)
    images = images.expand(1, 3, 2, 2)
    figure = plots.saliency_grid(images, {"m": torch.rand(1, 4)})
    first = shown(images_of(figure)[0])[..., 0]
    np.testing.assert_allclose(first, [[0, 0.8], [0.2, 0.4]])
    figure = plots.saliency_grid(images.double() / 51 - 1, {"m": torch.rand(1, 4)})
    first = shown(images_of(figure)[0])[..., 0]
    np.testing.assert_allclose(first, [[0, 1], [0.25, 0.5]])


def test_a_coarse_map_is_drawn_as_large_as_its_picture() -> None:
    figure = plots.saliency_grid(torch.rand(1, 28, 28), {"CAM": torch.rand(1, 1, 7, 7)})
    (coarse,) = signed(figure)
    assert shown(coarse).shape == (7, 7)
    assert list(coarse.get_extent()) == [0, 28, 28, 0]
    assert coarse.get_interpolation() == "nearest"


def test_a_wrong_guess_is_red() -> None:
    figure = plots.saliency_grid(
        torch.rand(2, 9),
        {"gradient": torch.rand(2, 9)},
        labels=torch.tensor([7, 2]),
        predictions=[7, 1],
        scores=torch.tensor([9.31, -0.5]),
    )
    assert colours_of(figure, "guess 1") == [RED]
    black = ["class 7", "class 2", "guess 7", "score 9.3", "score −0.50"]
    assert [colours_of(figure, text) for text in black] == [["#000000"]] * 5


def test_a_guess_alone_is_not_wrong() -> None:
    figure = plots.saliency_grid(
        torch.rand(1, 9), {"gradient": torch.rand(1, 9)}, predictions=[7]
    )
    assert colours_of(figure, "guess 7") == ["#000000"]
    assert not any(text.startswith(("class", "score")) for text in texts(figure))


def test_maps_of_zeros_have_a_scale_and_sparse_ones_their_largest() -> None:
    sparse = torch.zeros(1, 1024)
    sparse[0, 5] = -0.02
    maps = {"zero": torch.zeros(1, 1024), "sparse": sparse}
    figure = plots.saliency_grid(torch.rand(1, 1024), maps)
    zero, one = signed(figure)
    assert not shown(zero).any()
    assert shown(one).min() == -1
    assert {"±1.0", "±0.020"} <= set(texts(figure))


# --- ranked samples ---------------------------------------------------------------


def test_ranked_samples_are_drawn_in_their_order() -> None:
    images = torch.rand(13, 2, 3)
    values = [13.0 - n for n in range(13)]
    figure = plots.ranked_samples(
        images,
        values,
        samples=range(100, 113),
        name="norm",
        title="The hardest",
        labels=[n % 5 for n in range(13)],
        predictions=[1] * 13,
    )
    drawn = [shown(image) for image in images_of(figure)]
    assert np.array_equal(drawn, images.double().numpy())
    written = texts(figure)
    assert [t for t in written if t in map(str, range(100, 113))] == [
        str(n) for n in range(100, 113)
    ]
    assert {"The hardest", "norm", "sample", "true → guess", "13", "4.0"} < set(written)
    assert colours_of(figure, "1 → 1") == ["#000000"] * 3
    assert colours_of(figure, "2 → 1") == ["#b2182b"] * 3


def test_ranked_samples_need_no_classes_and_refuse_other_counts() -> None:
    figure = plots.ranked_samples(torch.rand(2, 9), [2.0, 1.0], samples=[4, 7])
    assert {"value", "sample"} < set(texts(figure))
    assert not any("→" in text or text == "class" for text in texts(figure))
    figure = plots.ranked_samples(
        torch.rand(2, 9), [2.0, 1.0], samples=[4, 7], labels=[1, 0]
    )
    assert "class" in texts(figure)
    for given in (
        {"values": [1.0], "samples": [4, 7]},
        {"values": [1.0, 2.0], "samples": [4]},
        {"values": [1.0, 2.0], "samples": [4, 7], "labels": [1]},
    ):
        with pytest.raises(InputError, match=r"plots.ranked_samples: \w+ must be one"):
            plots.ranked_samples(torch.rand(2, 9), **given)
    with pytest.raises(InputError, match="images must hold 1 to 50 samples"):
        plots.ranked_samples(torch.rand(51, 9), range(51), samples=range(51))


# --- rows of a Jacobian -----------------------------------------------------------


def test_jacobian_rows_share_one_scale_in_real_units() -> None:
    jacobian = torch.full((2, 4, 36), -0.25)
    jacobian[1, 3] = torch.rand(36) / 8
    figure = plots.jacobian_rows(torch.rand(2, 36), jacobian)
    drawn = signed(figure)
    assert {image.get_clim() for image in drawn} == {(-0.25, 0.25)}
    for image, values in zip(drawn, jacobian.flatten(0, 1), strict=True):
        assert np.array_equal(shown(image), values.double().reshape(6, 6).numpy())
    assert bars(figure) == [["−0.25", "0", "0.25"]]
    assert {f"output {k}" for k in range(4)} < set(texts(figure))


def test_the_gradient_of_the_own_class_is_framed() -> None:
    figure = plots.jacobian_rows(
        torch.rand(3, 9), torch.randn(3, 4, 9), labels=torch.tensor([2, 0, 3])
    )
    widths = [i.axes.spines["top"].get_linewidth() for i in signed(figure)]
    framed = [place for place, width in enumerate(widths) if width == 1.5]
    assert framed == [2, 4, 11]
    assert {"class 2", "class 0", "class 3"} < set(texts(figure))


def test_without_labels_nothing_is_framed() -> None:
    figure = plots.jacobian_rows(torch.rand(2, 9), torch.randn(2, 4, 9))
    widths = {i.axes.spines["top"].get_linewidth() for i in images_of(figure)}
    assert widths == {0.4}


# --- curves -----------------------------------------------------------------------


def test_a_curve_is_the_mean_with_a_standard_error_around_it() -> None:
    one = curve(samples=5)
    figure = plots.curves({"gradient": one}, ylabel="logit", title="Deletion")
    (axes,) = figure.axes
    (line,) = axes.get_lines()
    mean = one.values.double().mean(0)
    np.testing.assert_allclose(data(line)[0], one.fractions)
    np.testing.assert_allclose(data(line)[1], mean)
    (band,) = axes.collections
    corners = np.asarray(band.get_paths()[0].vertices)
    error = one.values.double().std(0) / math.sqrt(5)
    for place, (least, most) in enumerate(zip(mean - error, mean + error, strict=True)):
        there = corners[np.isclose(corners[:, 0], one.fractions[place]), 1]
        np.testing.assert_allclose([there.min(), there.max()], [least, most])
    assert axes.get_xlabel() == "share of entries deleted"
    assert axes.get_ylabel() == "logit"
    assert "Deletion" in texts(figure)


def test_the_legend_says_the_mean_area() -> None:
    one, other = curve(), curve()
    one.area, other.area = torch.tensor([2.0] * 4 + [7.5]), torch.full((5,), -40.0)
    figure = plots.curves({"integrated gradients": one, "_x $5": other})
    (legend,) = figure.legends
    names = [text.get_text() for text in legend.get_texts()]
    assert names == ["integrated gradients, area 3.1", "_x $5, area −40"]


def test_one_sample_has_no_band() -> None:
    figure = plots.curves({"gradient": curve(samples=1)})
    assert len(figure.axes[0].get_lines()) == 1
    assert not figure.axes[0].collections


def test_two_kinds_are_drawn_side_by_side_on_one_scale() -> None:
    inserted = curve("insertion")
    inserted.values = inserted.values + 20
    figure = plots.curves({"a": inserted, "b": curve(), "c": curve()})
    left, right = figure.axes
    assert left.get_xlabel() == "share of entries deleted"
    assert right.get_xlabel() == "share of entries inserted"
    assert [len(axes.get_lines()) for axes in (left, right)] == [2, 1]
    assert left.get_ylim() == right.get_ylim()
    assert right.get_ylim()[1] > 20
    assert left.get_position().x1 < right.get_position().x0


def test_curves_can_be_told_apart_without_colours() -> None:
    figure = plots.curves({str(k): curve() for k in range(12)})
    lines: list[Any] = list(figure.axes[0].get_lines())
    styles = {(str(line._unscaled_dash_pattern), line.get_marker()) for line in lines}
    assert len(styles) == 12
    assert len({line.get_color() for line in lines}) == 7


# --- layers that are re-drawn -----------------------------------------------------


def test_a_cascade_divides_each_map_by_its_own_limit() -> None:
    one, other = report("fc2", "fc1"), report("fc2", "fc1", depends=False)
    one.maps[1] *= 1000
    image = torch.rand(36)
    reports = {"gradient": one, "guided": other}
    figure = plots.randomization_cascade(reports, sample=2, image=image)
    drawn = signed(figure)
    assert len(drawn) == 6
    assert {i.get_clim() for i in drawn} == {(-1, 1)}
    maps = [m for each in (one, other) for m in each.maps[:, 2]]
    for picture, values in zip(drawn, maps, strict=True):
        expected = values.double().reshape(6, 6) / percentile(values)
        np.testing.assert_allclose(shown(picture), expected, rtol=1e-12)
    ink = [shown(i) for i in images_of(figure) if i.get_cmap().name == "gray_r"]
    assert len(ink) == 2
    assert np.array_equal(ink[0], image.double().reshape(6, 6).numpy())
    assert bars(figure) == [["−1", "0", "1"]]


def test_a_cascade_names_layers_and_verdicts() -> None:
    reports = {
        "gradient": report("fc2", "fc1"),
        "guided": report("fc2", "fc1", depends=False),
    }
    figure = plots.randomization_cascade(reports)
    written = {"trained", "fc2", "fc1", "gradient", "guided"}
    assert written < set(texts(figure))
    assert "image" not in texts(figure)
    assert colours_of(figure, "depends") == ["#000000"]
    assert colours_of(figure, "does not") == [RED]


def test_of_many_layers_nine_are_drawn_with_the_last() -> None:
    one = report(*(f"l{k}" for k in range(1, 21)))
    figure = plots.randomization_cascade({"gradient": one})
    heads = [text for text in texts(figure) if text[0] == "l"]
    assert len(heads) == 9
    assert (heads[0], heads[-1]) == ("l1", "l20")
    drawn = signed(figure)
    assert len(drawn) == 10
    last = one.maps[20, 0].double().reshape(6, 6) / percentile(one.maps[20, 0])
    np.testing.assert_allclose(shown(drawn[-1]), last, rtol=1e-12)
    # The panels show them all.
    assert len(data(figure.axes[-1].get_lines()[1])[0]) == 20


def test_a_cascade_shows_medians_and_a_line_at_zero() -> None:
    one, other = report("b", "a"), report("b", "a")
    one.similarities = torch.tensor([[0.1, 0.2, 0.6, 0.9], [-0.5, -0.4, -0.3, 0.0]])
    one.rank_correlations[1, 2] = math.nan
    figure = plots.randomization_cascade({"one": one, "other": other})
    ranks, similarities = figure.axes[-2:]
    assert (ranks.get_ylabel(), similarities.get_ylabel()) == (
        "rank correlation",
        "SSIM",
    )
    zero, first, second = similarities.get_lines()
    assert list(data(zero)[1]) == [0, 0]
    assert zero.is_dashed()
    assert list(data(first)[0]) == [1, 2]
    np.testing.assert_allclose(data(first)[1], [0.4, -0.35], rtol=1e-6)
    expected = np.median(other.similarities.double().numpy(), axis=1)
    np.testing.assert_allclose(data(second)[1], expected)
    assert similarities.get_ylim()[0] < -0.35
    gap = np.isnan(data(ranks.get_lines()[1])[1])
    assert list(gap) == [False, True]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["one", "other"]


def test_layers_that_are_redrawn_alone_are_said_to_be() -> None:
    one = report("fc2", "")
    figure = plots.randomization_cascade({"gradient": one})
    assert "Parameters re-drawn up to and including the layer named" in texts(figure)
    assert "(the model)" in texts(figure)
    one.order = "independent"
    figure = plots.randomization_cascade({"gradient": one})
    assert "Parameters re-drawn in the layer named alone" in texts(figure)
    assert figure.axes[-1].get_xlabel() == "number of the layer re-drawn"


def test_a_similarity_without_values_is_undefined() -> None:
    one = report("b", "a")
    one.similarities[:] = math.nan
    figure = plots.randomization_cascade({"one": one})
    ranks, similarities = figure.axes[-2:]
    assert [text.get_text() for text in similarities.texts] == ["undefined"]
    assert not ranks.texts


def test_long_names_of_layers_are_slanted_and_shortened() -> None:
    figure = plots.randomization_cascade({"gradient": report(LONG, "fc")})
    (long,) = [text for text in figure.texts if "…" in text.get_text()]
    start, _, end = long.get_text().partition("…")
    assert LONG.startswith(start)
    assert LONG.endswith(end)
    slanted = [t.get_text() for t in figure.texts if t.get_rotation()]
    assert slanted == [long.get_text(), "fc"]


# --- all figures ------------------------------------------------------------------


def some_grid(samples: int = 2, methods: int = 2, **cast: Any) -> tuple[Any, ...]:
    images = torch.rand(samples, 36).to(**cast)
    maps = {"integrated_gradients_of_the_score": torch.randn(samples, 36).to(**cast)}
    maps |= {f"method {k}": torch.randn(samples, 6, 6) for k in range(methods - 1)}
    own = {"labels": torch.arange(samples), "scores": torch.randn(samples).to(**cast)}
    return (images, maps), own


def some_rows(samples: int = 2, methods: int = 2, **cast: Any) -> tuple[Any, ...]:
    jacobian = torch.randn(samples, methods + 1, 36).to(**cast)
    images = torch.rand(samples, 36).to(**cast)
    return (images, jacobian), {"labels": torch.zeros(samples, dtype=torch.long)}


def some_curves(samples: int = 2, methods: int = 2, **cast: Any) -> tuple[Any, ...]:
    found = {}
    for k in range(methods):
        one = curve(["deletion", "insertion"][k % 2], samples)
        one.values, one.area = one.values.to(**cast), one.area.to(**cast)
        found[f"{k} of many methods with a long name and settings, steps=50"] = one
    return (found,), {"title": "Scores"}


def some_ranked(samples: int = 2, methods: int = 2, **cast: Any) -> tuple[Any, ...]:
    count = samples * methods
    images, values = torch.rand(count, 36).to(**cast), torch.rand(count).to(**cast)
    labels = torch.arange(count)
    long = "a quantity with a name that goes on and on"
    return (images[:50], values[:50]), {
        "samples": labels[:50],
        "labels": labels[:50] % 10,
        "predictions": (labels[:50] + 1) % 10,
        "name": long,
        "title": f"{long}, of samples that were found to have the largest of all",
    }


def some_cascade(samples: int = 2, methods: int = 2, **cast: Any) -> tuple[Any, ...]:
    found = {}
    for k in range(methods):
        layers = [f"{LONG}.{n}" for n in range(1 if samples == 1 else 14)]
        one = report(*layers, samples=samples)
        one.maps = one.maps.to(**cast)
        found[f"{k}_integrated_gradients_of_the_score"] = one
    return (found,), {"image": torch.rand(6, 6).to(**cast)}


FIGURES: dict[str, tuple[Callable[..., Figure], Callable[..., Any]]] = {
    "saliency_grid": (plots.saliency_grid, some_grid),
    "jacobian_rows": (plots.jacobian_rows, some_rows),
    "curves": (plots.curves, some_curves),
    "ranked_samples": (plots.ranked_samples, some_ranked),
    "randomization_cascade": (plots.randomization_cascade, some_cascade),
}
every_figure = pytest.mark.parametrize("name", sorted(FIGURES))


def draw(name: str, *sizes: int, **cast: Any) -> Figure:
    function, some = FIGURES[name]
    args, kwargs = some(*sizes, **cast)
    return function(*args, **kwargs)


def test_every_public_figure_is_here() -> None:
    assert set(plots.__all__) == {*FIGURES, "digit_gradients"}


@every_figure
@pytest.mark.parametrize("sizes", [(1, 1), (1, 9), (12, 1), (12, 9), (3, 4)])
def test_all_text_is_readable_and_inside_the_sheet(
    name: str, sizes: tuple[int, int]
) -> None:
    figure = draw(name, *sizes)
    assert figure.get_size_inches()[0] <= 7.2 + 1e-9
    FigureCanvasAgg(figure).draw()
    written = [t for t in figure.findobj(Text) if isinstance(t, Text)]
    written = [text for text in written if text.get_visible() and text.get_text()]
    assert {text.get_size() for text in written} <= {7, 8.5}
    whole = figure.bbox
    outside = [
        text.get_text()
        for text in written
        for box in [text.get_window_extent()]
        if box.x0 < 0 or box.y0 < 0 or box.x1 > whole.x1 or box.y1 > whole.y1
    ]
    assert outside == []


@every_figure
@pytest.mark.parametrize("sizes", [(1, 1), (1, 9), (12, 9)])
def test_no_text_lies_over_another_or_over_a_picture(
    name: str, sizes: tuple[int, int]
) -> None:
    figure = draw(name, *sizes)
    FigureCanvasAgg(figure).draw()
    # Boxes of slanted text are larger than the text.
    boxes = [(t, t.get_window_extent()) for t in figure.texts if t.get_text()]
    boxes = [(t, box) for t, box in boxes if not t.get_rotation()]
    for place, (text, box) in enumerate(boxes):
        for other, another in boxes[:place]:
            # Lines of one text share the blank between ascenders and descenders.
            assert _overlap(box, another) < 3, (text, other)
        for image in images_of(figure):
            assert _overlap(box, image.get_window_extent()) < 1, text


def test_names_are_no_mathematics() -> None:
    # As mathematics this cannot be parsed.
    name = r"$\frac$"
    for figure in (
        plots.saliency_grid(X, {name: X}),
        plots.curves({name: curve()}, ylabel=name, title=name),
        plots.randomization_cascade({name: report(name)}),
    ):
        FigureCanvasAgg(figure).draw()
        written = [t for t in figure.findobj(Text) if isinstance(t, Text)]
        assert any(text.get_text().startswith(name) for text in written)


def _overlap(one: Any, other: Any) -> float:
    """Return how many pixels deep one box lies in another."""
    width = min(one.x1, other.x1) - max(one.x0, other.x0)
    height = min(one.y1, other.y1) - max(one.y0, other.y0)
    return max(0.0, min(width, height))


@every_figure
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_tensors_of_any_kind_are_taken(
    name: str, dtype: torch.dtype, device: torch.device
) -> None:
    torch.manual_seed(0)
    expected = draw(name, 3, 2, dtype=dtype)
    torch.manual_seed(0)
    _, some = FIGURES[name]
    args, kwargs = some(3, 2, dtype=dtype)
    for tensor in _tensors((args, kwargs)):
        tensor.data = tensor.data.to(device)
        if tensor.is_floating_point():
            tensor.requires_grad_()
    figure = FIGURES[name][0](*args, **kwargs)
    assert _pixels(figure) == _pixels(expected)


@every_figure
def test_inputs_stay_as_they_were(name: str) -> None:
    function, some = FIGURES[name]
    args, kwargs = some(3, 2)
    tensors = _tensors((args, kwargs))
    before = [tensor.clone() for tensor in tensors]
    function(*args, **kwargs)
    assert before
    assert all(map(torch.equal, tensors, before))
    assert {tensor._version for tensor in tensors} == {0}


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, SimpleNamespace):
        value = vars(value)
    if isinstance(value, dict):
        value = tuple(value.values())
    return [t for v in value for t in _tensors(v)] if isinstance(value, tuple) else []


def _pixels(figure: Figure) -> bytes:
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return bytes(canvas.buffer_rgba())


@every_figure
@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_a_figure_can_be_saved(name: str, kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"figure.{kind}"
    draw(name).savefig(path)
    begin = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[kind]
    assert path.read_bytes().startswith(begin)


@every_figure
def test_no_setting_of_matplotlib_changes(name: str) -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    draw(name)
    assert dict(matplotlib.rcParams) == before


def test_pyplot_is_not_imported() -> None:
    script = (
        "import sys, torch; from gradkit import plots; x = torch.rand(1, 9);"
        " assert 'matplotlib' not in sys.modules;"
        " plots.saliency_grid(x, {'g': x}).savefig(sys.argv[1], format='png');"
        " plots.jacobian_rows(x, x[None]);"
        " from types import SimpleNamespace as N;"
        " c = N(kind='deletion', fractions=x[0], values=x, area=x[:, 0]);"
        " plots.curves({'g': c});"
        " r = N(layers='a', maps=x.expand(2, 1, 9), rank_correlations=x[:, :1],"
        " similarities=x[:, :1], depends=True);"
        " plots.randomization_cascade({'g': r});"
        " print('matplotlib' in sys.modules, 'matplotlib.pyplot' in sys.modules)"
    )
    run = subprocess.run(
        [sys.executable, "-c", script, "/dev/null"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.split() == ["True", "False"]


@every_figure
def test_without_matplotlib_the_extra_is_named(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(
        InputError, match=r'Run pip install "gradkit\[plot\]"$'
    ) as caught:
        draw(name)
    assert caught.value.function == f"plots.{name}"


# --- refusals ---------------------------------------------------------------------

X = torch.rand(2, 9)
NAN = torch.tensor([[0.0] * 9, [math.nan] * 9])


def grid(images: Any = X, maps: Any = None, **own: Any) -> Figure:
    return plots.saliency_grid(images, {"m": X} if maps is None else maps, **own)


def rows(images: Any = X, jacobian: Any = None, **own: Any) -> Figure:
    given = torch.rand(2, 3, 9) if jacobian is None else jacobian
    return plots.jacobian_rows(images, given, **own)


def one_curve(**changed: Any) -> Figure:
    one: Any = SimpleNamespace(**{**vars(curve()), **changed})
    return plots.curves({"m": one})


def cascade(image: Any = None, sample: Any = 0, **changed: Any) -> Figure:
    one: Any = SimpleNamespace(**{**vars(report("b", "a")), **changed})
    return plots.randomization_cascade({"m": one}, sample=sample, image=image)


def ordered(order: str) -> Any:
    return SimpleNamespace(**vars(report("a")), order=order)


REFUSALS: list[tuple[Callable[[], Figure], str]] = [
    (
        lambda: grid(np.zeros((2, 9))),
        "plots.saliency_grid: images must be a tensor; got ndarray; pass"
        " torch.as_tensor(x)",
    ),
    (
        lambda: grid(X.to(torch.complex64)),
        "plots.saliency_grid: images must be a dense tensor of real numbers; got"
        " complex64; pass x.abs() or x.to_dense()",
    ),
    (
        lambda: grid(maps={"m": X.to_sparse()}),
        "plots.saliency_grid: maps['m'] must be a dense tensor of real numbers; got"
        " sparse_coo; pass x.abs() or x.to_dense()",
    ),
    (
        lambda: grid(torch.rand(2, 10)),
        "plots.saliency_grid: images must be pictures (N, D) with D a square number,"
        " (N, H, W) or (N, C, H, W), and not empty; got (2, 10); reshape it",
    ),
    (
        lambda: grid(X[:0]),
        "plots.saliency_grid: images must be pictures (N, D) with D a square number,"
        " (N, H, W) or (N, C, H, W), and not empty; got (0, 9); reshape it",
    ),
    (
        lambda: grid(torch.rand(2, 2, 3, 3)),
        "plots.saliency_grid: images must have 1 or 3 channels; got 2; pass the mean"
        " over channels, x.mean(1)",
    ),
    (
        lambda: grid(torch.rand(13, 9)),
        "plots.saliency_grid: images must hold 1 to 12 samples to be readable; got"
        " 13; slice images[:12], and all else alike",
    ),
    (
        lambda: grid(maps={str(k): X for k in range(10)}),
        "plots.saliency_grid: maps must hold 1 to 9 methods to be readable; got 10;"
        " slice it, or draw two figures",
    ),
    (
        lambda: grid(maps={}),
        "plots.saliency_grid: maps must hold 1 to 9 methods to be readable; got 0;"
        " slice it, or draw two figures",
    ),
    (
        lambda: grid(maps=X),
        "plots.saliency_grid: maps must be a mapping of titles to tensors; got Tensor;"
        " pass {'gradient': x}",
    ),
    (
        lambda: grid(maps={"gradient": X, "m": X[:1]}),
        "plots.saliency_grid: maps['m'] must have a map for each of the images (2, 9);"
        " got (1, 9); slice both alike",
    ),
    (
        lambda: grid(maps={"m": NAN}),
        "plots.saliency_grid: maps['m'] must be finite; got NaN or infinity at index"
        " 1; leave such samples out",
    ),
    (
        lambda: grid(labels=[1, 2, 3]),
        "plots.saliency_grid: labels must be one number per sample, (2,); got (3,);"
        " pass those of the samples that are drawn",
    ),
    (
        lambda: grid(scores=["high", "low"]),
        "plots.saliency_grid: scores must be one number per sample, (2,); got list;"
        " pass those of the samples that are drawn",
    ),
    (
        lambda: rows(torch.rand(13, 9)),
        "plots.jacobian_rows: images must hold 1 to 12 samples to be readable; got 13;"
        " slice images[:12], and all else alike",
    ),
    (
        lambda: rows(jacobian=torch.rand(2, 11, 9)),
        "plots.jacobian_rows: jacobian must hold 1 to 10 outputs to be readable; got"
        " 11; slice jacobian[:, :10]",
    ),
    (
        lambda: rows(jacobian=torch.rand(3, 4, 9)),
        "plots.jacobian_rows: jacobian must be (N, K, *pic) for images (2, 9); got"
        " (3, 4, 9); take gradkit.jacobian of the images drawn",
    ),
    (
        lambda: rows(jacobian=torch.rand(2, 9)),
        "plots.jacobian_rows: jacobian must be (N, K, *pic) for images (2, 9); got"
        " (2, 9); take gradkit.jacobian of the images drawn",
    ),
    (
        lambda: rows(jacobian=torch.stack([X, NAN], 1)),
        "plots.jacobian_rows: jacobian[:, 1] must be finite; got NaN or infinity at"
        " index 1; leave such samples out",
    ),
    (
        lambda: rows(labels=[0, 3]),
        "plots.jacobian_rows: labels must be numbers of outputs, 0 to 2; got 3; pass"
        " the outputs of these classes too, or no labels",
    ),
    (
        lambda: plots.curves({}),
        "plots.curves: curves must be a mapping of names to curves; got an empty one;"
        " pass {'gradient': curve}",
    ),
    (
        lambda: plots.curves(curve()),
        "plots.curves: curves must be a mapping of names to curves; got"
        " SimpleNamespace; pass {'gradient': curve}",
    ),
    (
        lambda: plots.curves({"m": X}),  # pyright: ignore[reportArgumentType]
        "plots.curves: curves['m'] must have kind, fractions, values, area; got Tensor"
        " without kind, fractions, area; pass a curve",
    ),
    (
        lambda: one_curve(kind="removal"),
        "plots.curves: curves['m'].kind must be 'deletion' or 'insertion'; got"
        " 'removal'; name one of them",
    ),
    (
        lambda: one_curve(area=torch.tensor(2.0)),
        "plots.curves: curves['m'] must have fractions (S+1,), values (N, S+1) and"
        " area (N,); got (9,), (5, 9) and (); keep the sample axis",
    ),
    (
        lambda: one_curve(fractions=torch.rand(8)),
        "plots.curves: curves['m'] must have fractions (S+1,), values (N, S+1) and"
        " area (N,); got (8,), (5, 9) and (5,); keep the sample axis",
    ),
    (
        lambda: one_curve(values=torch.full((5, 9), math.inf)),
        "plots.curves: curves['m'].values must be finite; got NaN or infinity at index"
        " 0; leave such samples out",
    ),
    (
        lambda: plots.randomization_cascade(report("a")),
        "plots.randomization_cascade: reports must be a mapping of methods to reports;"
        " got SimpleNamespace; pass {'gradient': report}",
    ),
    (
        lambda: plots.randomization_cascade({}),
        "plots.randomization_cascade: reports must hold 1 to 9 methods to be readable;"
        " got 0; draw some of them",
    ),
    (
        lambda: plots.randomization_cascade(
            {"m": X}  # pyright: ignore[reportArgumentType]
        ),
        "plots.randomization_cascade: reports['m'] must have layers, maps,"
        " rank_correlations, similarities, depends; got Tensor without layers, maps,"
        " rank_correlations, similarities, depends; pass a report",
    ),
    (
        lambda: plots.randomization_cascade(
            {"m": report("b", "a"), "n": report("b", "c")}
        ),
        "plots.randomization_cascade: reports must share their layers; got ('b', 'a')"
        " in 'm' and ('b', 'c') in 'n'; re-draw the same ones for each method",
    ),
    (
        lambda: cascade(order="backwards"),
        "plots.randomization_cascade: reports must share an order, 'cascade' or"
        " 'independent'; got 'backwards'; draw two figures",
    ),
    (
        lambda: plots.randomization_cascade({"m": report("a"), "n": ordered("x")}),
        "plots.randomization_cascade: reports must share an order, 'cascade' or"
        " 'independent'; got 'cascade', 'x'; draw two figures",
    ),
    (
        lambda: cascade(similarities=torch.rand(2, 3)),
        "plots.randomization_cascade: reports['m'] must have maps (L+1, N, *pic),"
        " rank_correlations (L, N) and similarities (L, N) of L = 2 layers, at least"
        " one; got (3, 4, 36), (2, 4), (2, 3); keep the sample axis",
    ),
    (
        lambda: cascade(maps=torch.rand(2, 4, 36)),
        "plots.randomization_cascade: reports['m'] must have maps (L+1, N, *pic),"
        " rank_correlations (L, N) and similarities (L, N) of L = 2 layers, at least"
        " one; got (2, 4, 36), (2, 4), (2, 4); keep the sample axis",
    ),
    (
        lambda: cascade(maps=torch.full((3, 4, 36), math.nan)),
        "plots.randomization_cascade: reports['m'].maps[:, 0] must be finite; got NaN"
        " or infinity at index 0; leave such samples out",
    ),
    (
        lambda: cascade(sample=4),
        "plots.randomization_cascade: sample must be the number of a sample of"
        " reports['m'], 0 to 3; got 4; count from 0",
    ),
    (
        lambda: cascade(sample=-1),
        "plots.randomization_cascade: sample must be the number of a sample of"
        " reports['m'], 0 to 3; got -1; count from 0",
    ),
    (
        lambda: cascade(sample=1.0),
        "plots.randomization_cascade: sample must be the number of a sample of"
        " reports['m'], 0 to 3; got 1.0; count from 0",
    ),
    (
        lambda: cascade(image=[0.0]),
        "plots.randomization_cascade: image must be a tensor; got list; pass"
        " torch.as_tensor(x)",
    ),
]


@pytest.mark.parametrize(("call", "message"), REFUSALS)
def test_refusals_say_what_to_do(call: Callable[[], Figure], message: str) -> None:
    with pytest.raises(InputError) as caught:
        call()
    assert str(caught.value) == message
    assert caught.value.argument == message.split(": ")[1].split(" ")[0].split("[")[0]
