"""What objectives refuse: each call with its exception's full text."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gradkit.errors import InputError
from gradkit.objectives import (
    class_score,
    sample_loss,
    token_loss,
    weighted_sum,
)

Z, Z1, Z3 = torch.zeros(5, 4), torch.zeros(5), torch.zeros(5, 3, 4)
Y, T = torch.tensor([0, 1, 2, 3, 0]), torch.zeros(5, 3, dtype=torch.int64)
META = torch.zeros(5, 4, device="meta")

_ONE_OF_FOUR = (
    "objective class_score takes a whole number from 0 to 3, or a list, array or tensor"
    " of 5 such numbers, for outputs of shape (5, 4); got "
)
_ONE_OF_TWELVE = (
    "objective class_score takes a tuple of 2 whole numbers (0 to 2, 0 to 3), or a"
    " list of 5 such tuples, for outputs of shape (5, 3, 4); got "
)
_LAST_OF_TWELVE = " Write class_score((2, 3)) for the last output of each sample."
_ONE_OUTPUT = (
    "objective class_score takes the whole number 0, or a list, array or tensor of 5"
    " such numbers, for outputs of shape {}; got {}. A sample has one output here:"
    " leave the objective out for that output's own derivative; for a loss write"
    " gk.objectives.sample_loss(F.mse_loss, targets)."
)
_A_TUPLE = (
    " A tuple is the index of one output, the same for all samples; write"
    " class_score(list(labels)) for one class per sample."
)
_NOT_WHOLE = (
    " Write labels.long() if they are classes; for other targets use"
    " gk.objectives.sample_loss(F.mse_loss, targets)."
)

CLASS_SCORES = [
    (4, Z, _ONE_OF_FOUR + "the index 4."),
    (-1, Z, _ONE_OF_FOUR + "the index -1."),
    (True, Z, _ONE_OF_FOUR + "the bool True."),
    (2.0, Z, _ONE_OF_FOUR + "the float 2.0."),
    ("3", Z, _ONE_OF_FOUR + "the string '3'."),
    ([0, 1, 2], Z, _ONE_OF_FOUR + "3 labels."),
    ([0, 1, 2, 3, -1], Z, _ONE_OF_FOUR + "the label -1 of sample 4."),
    ([0, 1, 4, 3, 0], Z, _ONE_OF_FOUR + "the label 4 of sample 2."),
    ([0, 1.5, 2, 3, 0], Z, _ONE_OF_FOUR + "a list with the float 1.5."),
    ([0, True, 2, 3, 0], Z, _ONE_OF_FOUR + "a list with the bool True."),
    (
        Y.float(),
        Z,
        _ONE_OF_FOUR + "a float32 tensor of shape (5,)." + _NOT_WHOLE,
    ),
    (Y > 0, Z, _ONE_OF_FOUR + "a bool tensor of shape (5,)." + _NOT_WHOLE),
    (np.zeros(5), Z, _ONE_OF_FOUR + "a float64 array of shape (5,)."),
    (
        Y[:, None],
        Z,
        _ONE_OF_FOUR + "an int64 tensor of shape (5, 1). Write labels[:, 0].",
    ),
    (
        Y[None],
        Z,
        _ONE_OF_FOUR + "an int64 tensor of shape (1, 5). Write labels[0].",
    ),
    (
        F.one_hot(Y, 4),
        Z,
        _ONE_OF_FOUR
        + "an int64 tensor of shape (5, 4). Write labels.argmax(1) for one-hot labels.",
    ),
    ((1, 2), Z, _ONE_OF_FOUR + "the index (1, 2)." + _A_TUPLE),
    ((1.0,), Z, _ONE_OF_FOUR + "the tuple (1.0,)." + _A_TUPLE),
    (2, Z3, _ONE_OF_TWELVE + "the index 2." + _LAST_OF_TWELVE),
    ((3, 0), Z3, _ONE_OF_TWELVE + "the index (3, 0)." + _LAST_OF_TWELVE),
    (
        Y,
        Z3,
        _ONE_OF_TWELVE + "5 single classes." + _LAST_OF_TWELVE,
    ),
    (1, Z1, _ONE_OUTPUT.format("(5,)", "the index 1")),
    (1, Z[:, :1], _ONE_OUTPUT.format("(5, 1)", "the index 1")),
    (Y, Z[:, :1], _ONE_OUTPUT.format("(5, 1)", "the label 1 of sample 1")),
    (
        0,
        (Z, Z),
        "objective class_score takes outputs that are one tensor; got a tuple"
        " (length 2). Name the one to differentiate: of=0.",
    ),
    (
        0,
        {"loss": Z1, "logits": Z},
        "objective class_score takes outputs that are one tensor; got a dict (entries"
        " 'loss', 'logits'). Name the one to differentiate: of='logits'.",
    ),
    (
        0,
        Y,
        "objective class_score takes floating outputs with the samples on their first"
        " axis, (N, ...); got an int64 tensor of shape (5,). Let the model return such"
        " a tensor.",
    ),
]


_CLASSES = (
    "objective {} needs classes from 0 to 3 for outputs of shape {}; got the class {}."
    " Mark labels that do not count by ignore_index."
)
OTHERS = [
    (
        lambda: weighted_sum(torch.zeros(3))(Z),
        "objective weighted_sum takes weights of shape (4,) or (5, 4) for outputs of"
        " shape (5, 4); got weights of shape (3,).",
    ),
    (
        lambda: weighted_sum(torch.zeros(3, 1))(Z3),
        "objective weighted_sum takes weights of shape (12,), (3, 4) or (5, 3, 4) for"
        " outputs of shape (5, 3, 4); got weights of shape (3, 1).",
    ),
    (
        lambda: weighted_sum(META)(Z),
        "objective weighted_sum needs weights on the device of the outputs, cpu;"
        " got weights on meta. Write weights.to('cpu').",
    ),
    (
        lambda: weighted_sum("ab"),
        "weighted_sum takes weights that are a tensor of real numbers; got the string"
        " 'ab'.",
    ),
    (
        lambda: weighted_sum(torch.zeros(3, dtype=torch.complex64)),
        "weighted_sum takes weights that are a tensor of real numbers; got a complex64"
        " tensor of shape (3,).",
    ),
    (
        lambda: sample_loss(nn.CrossEntropyLoss, Y),
        "sample_loss takes a criterion that can be called; got the class"
        " CrossEntropyLoss. Write CrossEntropyLoss().",
    ),
    (
        lambda: sample_loss(Y, F.cross_entropy),  # type: ignore[arg-type]
        "sample_loss takes a criterion that can be called; got an int64 tensor of shape"
        " (5,). Write sample_loss(cross_entropy, targets).",
    ),
    (
        lambda: sample_loss(F.cross_entropy, Y, reduction="none"),
        "sample_loss takes reduction None or 'mean' or 'sum', over the elements of one"
        " sample; got 'none'.",
    ),
    (
        lambda: token_loss(T)(Z),
        "objective token_loss takes outputs (N, T, V) and labels (N, T); got outputs of"
        " shape (5, 4) and labels of shape (5, 3).",
    ),
    (
        lambda: token_loss(T + 4)(Z3),
        _CLASSES.format("token_loss", "(5, 3, 4)", "4 of sample 0"),
    ),
    (
        lambda: token_loss(T[:, :1], shift=True)(Z3[:, :1]),
        "objective token_loss with shift=True needs at least two tokens, since each"
        " predicts the next; got labels of shape (5, 1).",
    ),
    (
        lambda: token_loss(T.float()),
        "token_loss takes labels that are an integer tensor (N, T); got a float32"
        " tensor of shape (5, 3).",
    ),
    (
        lambda: token_loss(T, reduction="none"),
        "token_loss takes reduction 'mean' or 'sum', over the elements of one sample;"
        " got 'none'.",
    ),
]


def refusal(call, *args, **kwargs):
    with pytest.raises(InputError) as caught:
        call(*args, **kwargs)
    assert caught.value.function is None
    return str(caught.value)


@pytest.mark.parametrize(("index", "outputs", "text"), CLASS_SCORES)
def test_class_score(index, outputs, text):
    assert refusal(class_score(index), outputs) == text


@pytest.mark.parametrize(("call", "text"), OTHERS)
def test_other_objectives(call, text):
    assert refusal(call) == text
