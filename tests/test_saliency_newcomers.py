"""What people who know other saliency libraries try first."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import gradkit as gk

S = gk.saliency
N, IN, T, C = 4, 5, 3, 2


class Tagger(nn.Module):
    """Scores of classes for each token, in a mapping."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(IN, T * C, dtype=torch.float64)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"logits": self.head(x).reshape(-1, T, C), "twice": 2 * x}


def tagger() -> tuple[Tagger, Tensor]:
    torch.manual_seed(0)
    return Tagger(), torch.randn(N, IN, dtype=torch.float64)


PLACES = [(0, 1), (2, 0), (1, 1), (2, 1)]


@pytest.mark.parametrize(
    "places", [PLACES, torch.tensor(PLACES), np.array(PLACES)], ids=type
)
def test_one_index_per_sample(places) -> None:
    model, x = tagger()
    found = S.gradient(model, x, places, of="logits")
    weight = model.head.weight.reshape(T, C, IN)
    right = torch.stack([weight[i, k] for i, k in PLACES])
    assert torch.equal(found, right)
    assert torch.equal(gk.input_gradients(model, x, places, of="logits"), right)
    asked = gk.objectives.class_score(places)
    rows = gk.per_sample_gradients(model, x, asked, of="logits")
    for n, (i, k) in enumerate(PLACES):
        assert torch.equal(rows["head.weight"].reshape(N, T, C, IN)[n, i, k], x[n])


def test_a_tuple_stays_one_index_for_all() -> None:
    model, x = tagger()
    found = S.gradient(model, x, (2, 1), of="logits")
    assert torch.equal(found, model.head.weight[5].expand(N, IN))


@pytest.mark.parametrize(
    ("places", "text"),
    [
        ([(0, 1), (2, 0)], "got 2 labels"),
        ([(0, 1), (3, 0), (0, 0), (0, 0)], r"the index \(3, 0\) of sample 1"),
        ([(0, 1), (2,), (0, 0), (0, 0)], "a list with a tuple"),
        ([(0, 1), (2, 0.5), (0, 0), (0, 0)], "a list with the float 0.5"),
        ([0, 1, 0, 1], "got 4 single classes"),
        (torch.zeros(N, 3, dtype=torch.int64), r"indices of shape \(4, 3\)"),
    ],
)
def test_wrong_indices_are_refused(places, text) -> None:
    model, x = tagger()
    with pytest.raises(gk.errors.InputError, match=text):
        S.gradient(model, x, places, of="logits")


def test_columns_of_labels_stay_refused() -> None:
    labels = torch.zeros(N, 1, dtype=torch.int64)
    with pytest.raises(gk.errors.InputError, match="class_score"):
        S.gradient(nn.Linear(IN, C), torch.ones(N, IN), labels)


def test_what_takes_no_derivative_takes_of_too() -> None:
    model, x = tagger()

    def plain(x: Tensor) -> Tensor:
        return model(x)["logits"]

    maps = S.occlusion(model, x, (1, 1), window=1, of="logits")
    assert torch.equal(maps, S.occlusion(plain, x, (1, 1), window=1))
    # A linear score loses what the covered entry brought.
    assert torch.allclose(maps, model.head.weight[3] * x)
    for curve in (S.deletion_curve, S.insertion_curve):
        found = curve(maps, model, x, (1, 1), of="logits")
        assert torch.equal(found.values, curve(maps, plain, x, (1, 1)).values)


def test_outputs_with_attributes_are_chosen_from_too() -> None:
    model, x = tagger()

    def answering(x: Tensor) -> SimpleNamespace:
        return SimpleNamespace(**model(x))

    found = S.occlusion(answering, x, (1, 1), window=1, of=lambda o: o.logits)
    assert torch.equal(found, S.occlusion(model, x, (1, 1), window=1, of="logits"))


@pytest.mark.parametrize(
    ("function", "keyword", "text"),
    [
        ("gradient", "abs", "gk.saliency.absolute"),
        ("gradient", "additional_forward_args", "wrt=0"),
        ("grad_cam", "relu_attributions", r"\.relu\(\)"),
        ("integrated_gradients", "method", "'rule'"),
        ("integrated_gradients", "multiply_by_inputs", "inputs - baseline"),
        ("integrated_gradients", "return_convergence_delta", "completeness_gap"),
        ("occlusion", "perturbations_per_eval", "max_memory"),
        ("smoothgrad", "nt_type", "'statistic'"),
        ("smoothgrad", "stdevs", "a share of each sample's range"),
    ],
)
def test_captums_keywords_are_answered(function, keyword, text) -> None:
    ask = getattr(S, function)
    with pytest.raises(TypeError, match=f"argument '{keyword}'; .*{text}"):
        ask(nn.Linear(IN, C), torch.ones(N, IN), 0, **{keyword: 1})
