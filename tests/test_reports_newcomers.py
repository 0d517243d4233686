"""What is printed of results and subjects: readable, and true of itself."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gradkit as gk
from gradkit.numerics._report import Place
from gradkit.testing import check_gradients
from planted_functions import custom, randn


def test_a_custom_function_is_said_to_be_shared() -> None:
    square = custom(lambda x: x * x, lambda s, g: g * s[0])  # half of it

    def model(x: Tensor) -> Any:
        return square(x).sum(1, keepdim=True)

    report = gk.compare_methods("jacobian", model, torch.randn(4, 3), methods=["loop"])
    assert report
    assert report.custom == ("Planted",)
    assert (
        "custom Function Planted: every method uses its backward, so a wrong one agrees"
        " with itself; gk.testing.check_gradients compares it with differences"
    ) in str(report)
    assert report.to_dict()["custom"] == ["Planted"]
    plain = gk.compare_methods(
        "jacobian", nn.Linear(3, 2), torch.randn(4, 3), methods=["loop"]
    )
    assert plain.custom == ()
    assert "custom" not in str(plain)


def test_the_table_of_an_agreement_is_of_one_entry_and_one_bound() -> None:
    torch.manual_seed(0)
    # Rows of very different sizes: the largest error is not the one nearest to what is
    # allowed.
    scales = torch.tensor([1e4, 1e-4])[:, None]
    model = nn.Sequential(nn.Linear(9, 8), nn.Tanh(), nn.Linear(8, 3))
    x = torch.randn(2, 9) * scales
    report = gk.compare_methods("jacobian", model, x, methods=["onehot"])
    assert "error / allowed" in str(report).splitlines()[1]
    assert " allowed" in report.to_markdown()
    method = report["onehot"]
    assert method.verdict in ("rounding", "equal")
    values = json.loads(json.dumps(report.to_dict()))["methods"][0]
    if method.worst is not None:
        assert method.ratio == values["ratio"] <= 1
        assert method.cells()[-1] == f"{method.ratio:.2g}"
        assert values["worst"]["allowed"] == method.worst.allowed


@pytest.mark.parametrize(
    ("found", "right", "ratio"),
    [
        (1.5, 1.0, 2.0),
        (float("nan"), float("nan"), 0.0),
        (float("inf"), float("inf"), 0.0),
        (float("nan"), 1.0, float("inf")),
        (float("inf"), 1.0, float("inf")),
    ],
)
def test_the_ratio_of_a_place(found: float, right: float, ratio: float) -> None:
    assert Place(0, (), "inputs", (), found, right, 0.25).ratio == ratio


def test_a_subject_shows_shapes_and_takes_names_behind_inputs() -> None:
    x, score = torch.zeros(5, 4), gk.objectives.class_score(0)
    subject = gk.Subject(nn.Linear(4, 2), x, objective=score)
    assert repr(subject) == (
        "Subject(model=Linear, inputs=float32 (5, 4), objective=class_score(0))"
    )
    nested = gk.Subject(torch.sin, {"a": [x, x], "b": 3}, targets=x.long())
    assert repr(nested) == (
        "Subject(model=sin, inputs={'a': [float32 (5, 4), float32 (5, 4)], 'b': int},"
        " targets=int64 (5, 4))"
    )
    with pytest.raises(TypeError, match="positional argument"):
        gk.Subject(nn.Linear(4, 2), x, score)  # pyright: ignore[reportCallIssue]


def test_results_are_shown_as_they_are_printed() -> None:
    b = torch.arange(6.0)
    for found in (
        gk.numerics.explain_difference(b + 1, b),
        gk.numerics.explain_difference(b, b),
        check_gradients(torch.tanh, randn(3)),
        gk.saliency.randomization_check("gradient", nn.Linear(3, 2), b.view(2, 3), 1),
    ):
        assert repr(found) == str(found)
        assert "(verdict=" not in repr(found)
