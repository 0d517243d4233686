"""What entry points take as an objective, and take back from one."""

import functools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gradkit.errors import InputError
from gradkit.objectives import as_objective, check_objective_values, class_score

Z, Y = torch.zeros(5, 4), torch.tensor([0, 1, 2, 3, 0])

_CALLABLE = (
    "objective must be a callable that maps outputs to one number per sample; got {}."
    " Write "
)
_LOSS_OR_SCORE = (
    "gk.objectives.sample_loss(F.cross_entropy, labels) for the loss of each sample, or"
    " gk.objectives.class_score({}) for {}."
)
_ANY = (
    "gk.objectives.output_sum, gk.objectives.class_score(index) or"
    " gk.objectives.sample_loss(F.cross_entropy, y)."
)
_BARE_LOSS = (
    "objective must map outputs to one number per sample; got the loss {}, which needs"
    " targets as well. Write gk.objectives.sample_loss({}, y)."
)
_CHOSEN = ("labels", "one chosen output")

LABELS = [
    (3, "the int 3", _LOSS_OR_SCORE.format("3", "that output")),
    ([1, 2], "a list of length 2", _LOSS_OR_SCORE.format(*_CHOSEN)),
    ((1, 2), "a tuple of length 2", _LOSS_OR_SCORE.format(*_CHOSEN)),
    (Y, "an int64 tensor of shape (5,)", _LOSS_OR_SCORE.format(*_CHOSEN)),
    (Y.numpy(), "an int64 array of shape (5,)", _LOSS_OR_SCORE.format(*_CHOSEN)),
    (
        Z,
        "a float32 tensor of shape (5, 4)",
        "gk.objectives.sample_loss(F.mse_loss, targets) for the loss of each sample, or"
        " gk.objectives.weighted_sum(weights).",
    ),
]

NOT_OBJECTIVES = [
    ("ce", _CALLABLE.format("the string 'ce'") + _ANY),
    ({}, _CALLABLE.format("a dict") + _ANY),
    (nn.Linear, _CALLABLE.format("the class Linear") + _ANY),
    ([[1, 2]], _CALLABLE.format("a list of length 1") + _ANY),
    (
        nn.Linear(2, 3),
        "objective must map outputs to one number per sample; got the module Linear."
        " The order is (model, inputs, objective). Write lambda outputs:"
        " module(outputs) if it is meant.",
    ),
    (F.cross_entropy, _BARE_LOSS.format("cross_entropy", "F.cross_entropy")),
    (
        functools.partial(F.cross_entropy, label_smoothing=0.1),
        _BARE_LOSS.format("cross_entropy", "F.cross_entropy"),
    ),
    (nn.MSELoss(), _BARE_LOSS.format("MSELoss", "nn.MSELoss()")),
    (nn.MSELoss, _BARE_LOSS.format("MSELoss", "nn.MSELoss()")),
]

_VALUES = "objective must return one number per sample, shape (5,); got {}. {}"
VALUES = [
    (
        torch.zeros(()),
        _VALUES.format(
            "a float32 tensor of shape ()",
            "A mean or sum over the batch leaves no number of each sample's own, and a"
            " mean scales every row by 1/N. Reduce over each sample's own axes only, or"
            " write"
            " gk.objectives.sample_loss(F.cross_entropy, y).",
        ),
    ),
    (
        torch.zeros(5, 1),
        _VALUES.format("a float32 tensor of shape (5, 1)", "Write .squeeze(1)."),
    ),
    (
        torch.zeros(5, 5),
        _VALUES.format(
            "a float32 tensor of shape (5, 5)",
            "Every sample was compared with every other: (N,) against (N, 1)"
            " broadcasts. Give both the same shape.",
        ),
    ),
    (
        torch.zeros(5, 3),
        _VALUES.format(
            "a float32 tensor of shape (5, 3)",
            "Reduce each sample's own axes, for instance by .flatten(1).sum(1); without"
            " an objective, gk.jacobian or gk.parameter_jacobian take all 3 outputs.",
        ),
    ),
    (
        torch.zeros(4),
        _VALUES.format(
            "a float32 tensor of shape (4,)",
            "The first axis of (4,) should be the 5 samples.",
        ),
    ),
    (
        Y,
        "objective must return floating numbers; got an int64 tensor of shape (5,),"
        " which has no derivative. Return a score, not an index or a count.",
    ),
    (
        3.0,
        "objective must return a floating tensor of shape (5,), one number per sample;"
        " got the float 3.0. Return the tensor alone.",
    ),
]


def refusal(call, *args, **kwargs):
    with pytest.raises(InputError) as caught:
        call(*args, **kwargs)
    assert caught.value.function is None
    return str(caught.value)


@pytest.mark.parametrize(("labels", "came", "advice"), LABELS)
def test_labels_where_they_could_be_targets(labels, came, advice):
    text = refusal(as_objective, labels, labels_mean_class_score=False)
    assert text == _CALLABLE.format(came) + advice


@pytest.mark.parametrize(("objective", "text"), NOT_OBJECTIVES)
@pytest.mark.parametrize("labels_mean_class_score", [False, True])
def test_what_is_no_objective(objective, text, labels_mean_class_score):
    kwargs = {"labels_mean_class_score": labels_mean_class_score}
    assert refusal(as_objective, objective, **kwargs) == text


@pytest.mark.parametrize("labels", [3, [0, 1, 3, 2, 0], (3,), Y, Y.numpy()])
def test_labels_that_mean_a_class_score(labels):
    objective = as_objective(labels, labels_mean_class_score=True)
    assert objective is not None
    outputs = torch.arange(20.0).reshape(5, 4)
    assert torch.equal(objective(outputs), class_score(labels)(outputs))


def test_what_is_an_objective():
    for objective in (None, torch.sum, lambda outputs: outputs[:, 0], class_score(2)):
        assert as_objective(objective, labels_mean_class_score=False) is objective


@pytest.mark.parametrize(("values", "text"), VALUES)
def test_values_of_an_objective(values, text):
    assert refusal(check_objective_values, values, 5) == text


def test_values_that_are_right_are_returned():
    assert check_objective_values(Z[:, 1], 5).shape == (5,)
