"""Chosen outputs and weighted sums by hand, and what all objectives share."""

import functools
import pickle

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from case import DEVICE
from gradkit.objectives import (
    class_score,
    output_sum,
    sample_loss,
    token_loss,
    weighted_sum,
)

F64 = torch.float64


@pytest.fixture(autouse=True)
def _on_device():
    with torch.device(DEVICE):
        yield


def draw(*shape):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(*shape, dtype=F64, generator=generator, device="cpu").to(DEVICE)


def values_and_gradient(objective, outputs):
    outputs = outputs.detach().requires_grad_()
    values = objective(outputs)
    return values.detach(), torch.autograd.grad(values.sum(), outputs)[0]


Z = draw(5, 3)
Y = torch.tensor([0, 2, 1, 1, 0], device=DEVICE)
Y3 = torch.zeros(5, 4, dtype=torch.int64, device=DEVICE)


def test_output_sum_and_weighted_sum_by_hand():
    outputs = torch.tensor([[[1.0, 2.0, 3.0]], [[4.0, 5.0, 6.0]]])
    assert output_sum(outputs).tolist() == [6, 15]
    assert output_sum(outputs[:, 0, 0]).tolist() == [1, 4]
    assert output_sum(outputs[:0]).shape == (0,)
    assert weighted_sum([1, 0, -2])(outputs).tolist() == [-5, -8]
    assert weighted_sum(np.array([[1.0, 0, -2]]))(outputs).tolist() == [-5, -8]
    each = torch.tensor([[[1.0, 0, 0]], [[0.0, 0, 10]]], dtype=F64)
    assert weighted_sum(each)(outputs).tolist() == [1, 60]
    assert weighted_sum(each)(outputs).dtype == outputs.dtype
    assert weighted_sum(torch.tensor([3.0, 2.0]))(outputs[:, 0, 0]).tolist() == [3, 8]


@pytest.mark.parametrize(
    ("index", "shape", "picked"),
    [
        (2, (3, 4), [(0, 2), (1, 2), (2, 2)]),
        (np.int64(2), (3, 4), [(0, 2), (1, 2), (2, 2)]),
        (torch.tensor(2), (3, 4), [(0, 2), (1, 2), (2, 2)]),
        ((3,), (3, 4), [(0, 3), (1, 3), (2, 3)]),
        ([0, 1, 3], (3, 4), [(0, 0), (1, 1), (2, 3)]),
        (np.array([0, 1, 3]), (3, 4), [(0, 0), (1, 1), (2, 3)]),
        (torch.tensor([0, 1, 3], dtype=torch.int32), (3, 4), [(0, 0), (1, 1), (2, 3)]),
        ((1, 2), (3, 2, 4), [(0, 1, 2), (1, 1, 2), (2, 1, 2)]),
        (0, (3,), [0, 1, 2]),
        ((), (3,), [0, 1, 2]),
        ([0, 0, 0], (3,), [0, 1, 2]),
        ([0, 0, 0], (3, 1), [(0, 0), (1, 0), (2, 0)]),
    ],
)
def test_class_score_picks_one_output_per_sample(index, shape, picked):
    outputs = draw(*shape)
    values, gradient = values_and_gradient(class_score(index), outputs)
    expected = torch.zeros(shape, dtype=F64)
    for place in picked:
        expected[place] = 1
    assert values.tolist() == [outputs[place].item() for place in picked]
    assert torch.equal(gradient, expected)


def test_numbers_follow_the_outputs_not_a_default_device():
    outputs = draw(3, 4)
    with torch.device("meta"):
        picked = class_score([0, 1, 3])(outputs)
        weighted = weighted_sum([0.0, 1.0, 0.0, 0.0])(outputs)
    assert picked.tolist() == [outputs[n, k].item() for n, k in enumerate([0, 1, 3])]
    assert torch.equal(weighted, outputs[:, 1])


def test_class_score_keeps_labels_of_its_own():
    numbers = np.array([0, 1, 3])
    objective = class_score(numbers)
    numbers[:] = 2
    outputs = draw(3, 4)
    assert objective(outputs)[0] == outputs[0, 0]


@pytest.mark.parametrize(
    "objective",
    [
        output_sum,
        weighted_sum(draw(3)),
        class_score([0, 1, 2, 0, 1]),
        sample_loss(functools.partial(F.cross_entropy, label_smoothing=0.1), Y),
        sample_loss(nn.CrossEntropyLoss(), Y),
    ],
)
def test_objectives_are_immutable_and_pickle(objective):
    copy = pickle.loads(pickle.dumps(objective))
    assert torch.equal(copy(Z), objective(Z))
    if objective is not output_sum:
        name = next(iter(vars(objective)))
        with pytest.raises(AttributeError):
            setattr(objective, name, None)


def test_repr():
    assert repr(class_score(2)) == "class_score(2)"
    assert repr(class_score([1, 2])) == "class_score(2 labels)"
    assert repr(weighted_sum(draw(3))) == (
        "weighted_sum(a float64 tensor of shape (3,))"
    )
    assert repr(sample_loss(F.cross_entropy, Y, reduction="sum")) == (
        "sample_loss(cross_entropy, an int64 tensor of shape (5,), reduction='sum')"
    )
    assert repr(token_loss(Y3)) == (
        "token_loss(an int64 tensor of shape (5, 4), shift=False,"
        " ignore_index=-100, reduction='mean')"
    )


def test_numbers_made_in_inference_mode():
    with torch.inference_mode():
        weight = torch.ones(3, dtype=F64)
        objectives = [
            class_score(torch.tensor([0, 2, 1, 1, 0])),
            weighted_sum(weight),
            sample_loss(nn.CrossEntropyLoss(weight), Y.clone()),
            sample_loss(functools.partial(F.cross_entropy, weight=weight), Y.clone()),
            sample_loss(F.mse_loss, Z.flip(0)),
        ]
        tokens = token_loss(Y3.clone())
    for objective in objectives:
        values, gradient = values_and_gradient(objective, Z)
        assert torch.equal(values, objective(Z))
        assert gradient.abs().sum() > 0
    assert values_and_gradient(tokens, draw(5, 4, 3))[1].abs().sum() > 0
