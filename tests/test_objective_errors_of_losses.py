"""What losses refuse: each call with its exception's full text."""

import functools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gradkit.errors import InputError
from gradkit.objectives import sample_loss

Z, Z1, Z3 = torch.zeros(5, 4), torch.zeros(5), torch.zeros(5, 3, 4)
Y, T = torch.tensor([0, 1, 2, 3, 0]), torch.zeros(5, 3, dtype=torch.int64)
META = torch.zeros(5, 4, device="meta")

_SHAPES = (
    "objective sample_loss needs outputs (N, C, ...) and class targets (N, ...) for"
    " cross_entropy; got outputs of shape {} and {}. Token labels (N, T) for outputs"
    " (N, T, V) belong to gk.objectives.token_loss."
)
_BROADCASTS = (
    "objective sample_loss needs targets with the axes of the outputs for mse_loss,"
    " which would broadcast one sample's target to others; got targets of shape {} for"
    " outputs of shape {}."
)
_RESHAPE = " Write targets.reshape(outputs.shape)."
_ONE_HOT = " Write F.one_hot(targets{}, 4).float() if they are classes."
_CLASSES = (
    "objective {} needs classes from 0 to 3 for outputs of shape {}; got the class {}."
    " Mark labels that do not count by ignore_index."
)
_UNREDUCED = (
    "objective sample_loss needs a criterion that returns one loss, or a block of"
    " losses, per sample: (5, ...); got {} from {}. A loss that averages over the"
    ' batch cannot be taken apart again: build it with reduction="none".'
)
_CTC = (
    "sample_loss needs a criterion of (outputs, targets) that returns (N, ...);"
    " {} has the samples on the second axis and takes lengths. Pass a callable: lambda"
    " outputs, targets: F.ctc_loss(outputs.transpose(0, 1), targets, lengths,"
    ' target_lengths, reduction="none").'
)


def closed_mean(outputs, targets):
    return F.cross_entropy(outputs, targets)


def squares(outputs, targets):
    return (outputs - targets) ** 2


LOSSES = [
    (
        closed_mean,
        Y,
        Z,
        _UNREDUCED.format("a float32 tensor of shape ()", "closed_mean"),
    ),
    (lambda o, t: [t], Y, Z, _UNREDUCED.format("a list", "<lambda>")),
    (
        F.cross_entropy,
        Y[:3],
        Z,
        "objective sample_loss needs one target per sample, 5 for outputs of shape"
        " (5, 4); got an int64 tensor of shape (3,).",
    ),
    (
        F.cross_entropy,
        Y[:, None],
        Z,
        _SHAPES.format("(5, 4)", "an int64 tensor of shape (5, 1)"),
    ),
    (F.cross_entropy, Y, Z1, _SHAPES.format("(5,)", "an int64 tensor of shape (5,)")),
    (
        F.cross_entropy,
        T,
        Z3,
        _SHAPES.format("(5, 3, 4)", "an int64 tensor of shape (5, 3)"),
    ),
    (
        F.cross_entropy,
        Y.float(),
        Z,
        "objective sample_loss needs int64 classes for cross_entropy; got a float32"
        " tensor of shape (5,). Write targets.long().",
    ),
    (
        nn.CrossEntropyLoss(),
        Y + 1,
        Z,
        _CLASSES.format("sample_loss", "(5, 4)", "4 of sample 3"),
    ),
    (
        functools.partial(F.nll_loss, ignore_index=-1),
        Y - 2,
        Z,
        _CLASSES.format("sample_loss", "(5, 4)", "-2 of sample 0"),
    ),
    (
        F.cross_entropy,
        Y.numpy(),
        Z,
        "objective sample_loss needs targets that are a tensor for cross_entropy; got"
        " an int64 array of shape (5,). Write torch.as_tensor(targets).",
    ),
    (F.mse_loss, Z1, Z[:, :1], _BROADCASTS.format("(5,)", "(5, 1)") + _RESHAPE),
    (F.mse_loss, Z[:, :1], Z1, _BROADCASTS.format("(5, 1)", "(5,)") + _RESHAPE),
    (F.mse_loss, Y, Z, _BROADCASTS.format("(5,)", "(5, 4)") + _ONE_HOT.format("")),
    (
        nn.BCEWithLogitsLoss(),
        Y.int(),
        Z,
        _BROADCASTS.format("(5,)", "(5, 4)").replace("mse_loss", "BCEWithLogitsLoss")
        + _ONE_HOT.format(".long()"),
    ),
    (
        F.mse_loss,
        Z1,
        Z,
        _BROADCASTS.format("(5,)", "(5, 4)")
        + " Write targets[:, None].expand(-1, 4) if all 4 outputs of a sample have one"
        " target.",
    ),
    (F.mse_loss, Y, Z3, _BROADCASTS.format("(5,)", "(5, 3, 4)")),
    (
        F.cross_entropy,
        torch.tensor(2),
        Z[:1],
        "objective sample_loss needs one target per sample, 1 for outputs of shape"
        " (1, 4); got an int64 tensor of shape (). Write targets[None].",
    ),
    (
        squares,
        Z1,
        Z[:, :1],
        "objective sample_loss: squares compared every output with every target:"
        " outputs of shape (5, 1) and targets of shape (5,) gave (5, 5). Write"
        " targets.reshape(outputs.shape).",
    ),
    (
        F.mse_loss,
        META,
        Z,
        "objective sample_loss needs targets on the device of the outputs, cpu; got"
        " targets on meta. Write targets.to('cpu').",
    ),
    (F.ctc_loss, Y, Z, _CTC.format("ctc_loss")),
    (nn.CTCLoss(), Y, Z, _CTC.format("CTCLoss")),
    (
        functools.partial(F.mse_loss, size_average=False),
        Z,
        Z,
        "sample_loss takes the setting reduction= of mse_loss; got the deprecated"
        ' size_average= or reduce=. Write reduction="mean" or reduction="sum".',
    ),
    (
        functools.partial(F.mse_loss, reduction="max"),
        Z,
        Z,
        "sample_loss follows a criterion's own reduction if it is one of 'mean', 'sum',"
        " 'none', 'batchmean'; got 'max', of mse_loss. Pass a callable that returns"
        " the loss of each sample, (N,).",
    ),
]


def refusal(call, *args, **kwargs):
    with pytest.raises(InputError) as caught:
        call(*args, **kwargs)
    assert caught.value.function is None
    return str(caught.value)


@pytest.mark.parametrize(("criterion", "targets", "outputs", "text"), LOSSES)
def test_sample_loss(criterion, targets, outputs, text):
    assert refusal(sample_loss(criterion, targets), outputs) == text


def test_the_advice_for_classes_is_sound():
    one_hot = F.one_hot(Y, 4).float()
    values = sample_loss(F.mse_loss, one_hot)(Z)
    assert torch.equal(values, torch.full((5,), 0.25))


def test_the_advice_for_one_target_of_all_outputs_is_sound():
    targets = torch.arange(5.0)
    values = sample_loss(F.mse_loss, targets[:, None].expand(-1, 4))(Z)
    assert torch.equal(values, targets.square())


def test_the_advice_for_a_lone_target_is_sound():
    values = sample_loss(F.cross_entropy, torch.tensor(2)[None])(Z[:1])
    torch.testing.assert_close(values, torch.tensor([4.0]).log())
