"""What people type first and get wrong, and objectives and parameters refused."""

from typing import Any

import pytest
import torch.nn.functional as F
from torch import nn

import gradkit as gk
from gradkit.errors import (
    InputError,
    SampleDependenceError,
    UnsupportedModelError,
)
from refused import (
    BATCH_NORM,
    IDS,
    NET,
    Named,
    Pair,
    TokenNet,
    X,
    Y,
    frozen,
    inference_layer,
    refusal,
)

SCORE = gk.objectives.class_score(0)
BIAS = NET.get_parameter("0.bias")
# Untyped, for calls that a type checker would refuse as well.
QUESTION: Any = gk.per_sample_gradients

# The calls that people type first and get wrong.
FIRST_TRIES = {
    "labels as objective": (
        lambda: gk.per_sample_gradients(NET, X, Y),
        InputError,
        "per_sample_gradients: objective must be a callable that maps outputs to one"
        " number per sample; got an int64 tensor of shape (5,). Write"
        " gk.objectives.sample_loss(F.cross_entropy, labels) for the loss of each"
        " sample, or gk.objectives.class_score(labels) for one chosen output.",
    ),
    "a loss function as objective": (
        lambda: gk.per_sample_gradients(NET, X, F.cross_entropy),
        InputError,
        "per_sample_gradients: objective must map outputs to one number per sample;"
        " got the loss cross_entropy, which needs targets as well. Write"
        " gk.objectives.sample_loss(F.cross_entropy, y).",
    ),
    "a loss module as objective": (
        lambda: gk.input_gradients(NET, X, nn.CrossEntropyLoss()),
        InputError,
        "input_gradients: objective must map outputs to one number per sample; got"
        " the loss CrossEntropyLoss, which needs targets as well. Write"
        " gk.objectives.sample_loss(nn.CrossEntropyLoss(), y).",
    ),
    "model, loss, x, y": (
        lambda: QUESTION(NET, F.cross_entropy, X, Y),
        InputError,
        "per_sample_gradients: takes at most 3 arguments by position, (model, inputs,"
        " objective); got 4; targets go into the objective,"
        " gk.objectives.sample_loss(F.cross_entropy, y)",
    ),
    "model, loss, x": (
        lambda: gk.input_gradients(NET, F.cross_entropy, X),
        InputError,
        "input_gradients: inputs must be a tensor, a sequence (model(*inputs)) or a"
        " mapping (model(**inputs)); got function; the order is (model, inputs,"
        " objective): the loss comes last",
    ),
    "a loss averaged over the batch": (
        lambda: gk.per_sample_gradients(
            NET, X, lambda outputs: F.cross_entropy(outputs, Y)
        ),
        InputError,
        "per_sample_gradients: objective must return one number per sample, shape"
        " (5,); got a float32 tensor of shape (). A mean or sum over the"
        " batch leaves no number of each sample's own, and a mean scales every row by"
        " 1/N. Reduce over each sample's own axes only, or write"
        " gk.objectives.sample_loss(F.cross_entropy, y).",
    ),
    "a column of values": (
        lambda: gk.input_gradients(NET, X, lambda outputs: outputs[:, :1]),
        InputError,
        "input_gradients: objective must return one number per sample, shape (5,);"
        " got a float32 tensor of shape (5, 1). Write .squeeze(1).",
    ),
    "a numpy array": (
        lambda: gk.jacobian(NET, X.numpy()),
        InputError,
        "jacobian: inputs must be a torch.Tensor; got a numpy.ndarray (float32,"
        " shape (5, 4)); write torch.from_numpy(x).float()",
    ),
    "one sample without batch axis": (
        lambda: gk.jacobian(NET, X[0]),
        InputError,
        "jacobian: inputs must have the samples first; got inputs (4,), which may be"
        " one sample or one number per sample. For one sample pass x[None]; for N"
        " samples of one number x[:, None]; for a function without a sample axis"
        " batched=False",
    ),
    "one sample, for parameters": (
        lambda: gk.parameter_jacobian(NET, X[0]),
        InputError,
        "parameter_jacobian: outputs must have the 4 samples first; got shape (3,)."
        " If the inputs are one sample without a batch axis, pass x[None]; if the"
        " output has no sample axis, choose another with of=",
    ),
    "token ids": (
        lambda: gk.jacobian(TokenNet(), IDS),
        InputError,
        "jacobian: inputs must hold a floating tensor to differentiate with respect"
        " to; got inputs torch.int64 (3, 2). Integers have no derivative: name the"
        " embedding that takes them, wrt='tokens'; or, if they are measurements,"
        " convert them with x.float()",
    ),
    "batch norm in training mode": (
        lambda: gk.per_sample_gradients(BATCH_NORM, X, SCORE),
        SampleDependenceError,
        "per_sample_gradients: samples must be independent; BatchNorm1d (at '1') is"
        " in training mode and mixes them. Call model.eval() first, or replace it by"
        " GroupNorm.",
    ),
    "outputs that are a tuple": (
        lambda: gk.per_sample_gradients(Pair(), X, SCORE),
        InputError,
        "per_sample_gradients: objective class_score takes outputs that are one"
        " tensor; got a tuple (length 2). Name the one to differentiate: of=0.",
    ),
    "outputs that are a dict": (
        lambda: gk.input_gradients(Named(), X, SCORE),
        InputError,
        "input_gradients: objective class_score takes outputs that are one tensor;"
        " got a dict (entries 'logits', 'hidden'). Name the one to differentiate:"
        " of='logits'.",
    ),
    "a tuple, for a parameter Jacobian": (
        lambda: gk.parameter_jacobian(Pair(), X),
        InputError,
        "parameter_jacobian: the model must give one output; it gives 2. Choose one"
        " with of= (a key, a position, an attribute or a function of the outputs)",
    ),
    "no objective": (
        lambda: gk.per_sample_gradients(NET, X),
        InputError,
        "per_sample_gradients: objective may be left out only where a sample has one"
        " output; got 3 (shape (3,)). Pass gk.objectives.class_score(index),"
        " gk.objectives.sample_loss(criterion, targets) or another function of the"
        " outputs; for all outputs take gk.jacobian or gk.parameter_jacobian",
    ),
    "the model last": (
        lambda: gk.jacobian(X, NET),
        InputError,
        "jacobian: model must be an nn.Module or a callable; got Tensor. The order"
        " of the arguments is (model, inputs, ...): pass the model, not its outputs",
    ),
}


OBJECTIVES = {
    "a parameter inside": (
        lambda: gk.per_sample_gradients(NET, X, lambda y: y[:, 0] * BIAS.sum()),
        InputError,
        "per_sample_gradients: objective must depend on the outputs alone; it uses a"
        " tensor of shape (6,) that requires grad, whose part of the gradient would"
        " be lost. Move it into the model, or detach it",
    ),
    "samples coupled": (
        lambda: gk.input_gradients(NET, X, lambda y: (y - y.mean(0)).square().sum(1)),
        SampleDependenceError,
        "input_gradients: samples must be independent; the objective's value of"
        " sample 0 depends on another sample of the batch. Return each sample's own"
        " number, without a mean, sum or normalisation over the batch",
    ),
    "a class out of range": (
        lambda: gk.input_gradients(NET, X, 7),
        InputError,
        "input_gradients: objective class_score takes a whole number from 0 to 2, or"
        " a list, array or tensor of 5 such numbers, for outputs of shape (5, 3);"
        " got the index 7.",
    ),
    "fractions as labels": (
        lambda: gk.input_gradients(NET, X, Y.float()),
        InputError,
        "input_gradients: objective class_score takes a whole number from 0 to 2, or"
        " a list, array or tensor of 5 such numbers, for outputs of shape (5, 3);"
        " got a float32 tensor of shape (5,). Write labels.long() if they are"
        " classes; for other targets use gk.objectives.sample_loss(F.mse_loss,"
        " targets).",
    ),
    "a string": (
        lambda: gk.per_sample_gradients(NET, X, "cross_entropy"),
        InputError,
        "per_sample_gradients: objective must be a callable that maps outputs to one"
        " number per sample; got the string 'cross_entropy'. Write"
        " gk.objectives.output_sum, gk.objectives.class_score(index) or"
        " gk.objectives.sample_loss(F.cross_entropy, y).",
    ),
    "no objective, two outputs": (
        lambda: gk.input_gradients(Pair(), X),
        InputError,
        "input_gradients: objective may be left out only where a sample has one"
        " output; got 6 (shape (3,), (3,)). Pass gk.objectives.class_score(index),"
        " gk.objectives.sample_loss(criterion, targets) or another function of the"
        " outputs; for all outputs take gk.jacobian or gk.parameter_jacobian",
    ),
}


PARAMETERS = {
    "a misspelt name": (
        lambda: gk.parameter_jacobian(NET, X, parameters="0.wieght"),
        InputError,
        "parameter_jacobian: parameters='0.wieght' matches no parameter (nearest:"
        " '0.weight', '2.weight')",
    ),
    "a glob that matches nothing": (
        lambda: gk.parameter_jacobian(NET, X, parameters="*lora*"),
        InputError,
        "parameter_jacobian: parameters='*lora*' matches no parameter (known:"
        " '0.weight', '0.bias', '2.weight', '2.bias')",
    ),
    "nothing": (
        lambda: gk.parameter_jacobian(NET, X, parameters=[]),
        InputError,
        "parameter_jacobian: parameters must name something; got an empty list",
    ),
    "a number": (
        lambda: gk.parameter_jacobian(NET, X, parameters=3),
        InputError,
        "parameter_jacobian: parameters takes names, submodule names, globs, a"
        " module or a mapping of tensors; got int",
    ),
    "a mapping to numbers": (
        lambda: gk.parameter_jacobian(NET, X, parameters={"a": 1}),
        InputError,
        "parameter_jacobian: a mapping of parameters goes from names to tensors; got"
        " 'a': int",
    ),
    "a function alone": (
        lambda: gk.parameter_jacobian(lambda x: NET(x), X),
        InputError,
        "parameter_jacobian: model is a function, so parameters= must say whose"
        " parameters: a module, or a mapping of names to tensors",
    ),
    "all frozen": (
        lambda: gk.parameter_jacobian(frozen(), X),
        InputError,
        "parameter_jacobian: the default (all that require grad) covers only"
        " parameters that do not require grad ('weight', 'bias'); name frozen ones"
        " exactly, parameters=['weight']",
    ),
    "a frozen submodule": (
        lambda: gk.parameter_jacobian(
            nn.Sequential(frozen(), nn.Linear(3, 2)), X, parameters="0"
        ),
        InputError,
        "parameter_jacobian: parameters='0' covers only parameters that do not"
        " require grad ('0.weight', '0.bias'); name frozen ones exactly,"
        " parameters=['0.weight']",
    ),
    "none at all": (
        lambda: gk.parameter_jacobian(nn.ReLU(), X),
        InputError,
        "parameter_jacobian: parameters must name something; the model has no"
        " parameter to differentiate with respect to",
    ),
    "inference parameters": (
        lambda: gk.parameter_jacobian(inference_layer(), X),
        UnsupportedModelError,
        "parameter_jacobian: parameter 'weight' of Linear (at '0') was made under"
        " torch.inference_mode, so autograd cannot record it; build or load the model"
        " outside inference_mode, or copy.deepcopy(model) there",
    ),
    "max_norm": (
        lambda: gk.parameter_jacobian(
            nn.Sequential(nn.Embedding(7, 4, max_norm=1.0)), IDS
        ),
        UnsupportedModelError,
        "parameter_jacobian: Embedding (at '0') has max_norm=1.0, so its forward"
        " overwrites its own weight; renormalise the weight once with"
        " torch.no_grad() and set max_norm=None",
    ),
}


@pytest.mark.parametrize("name", FIRST_TRIES)
def test_first_tries(name):
    call, kind, text = FIRST_TRIES[name]
    assert refusal(kind, call) == text


def test_the_models_own_error_is_its_own_with_a_note():
    for ask in (gk.jacobian, gk.parameter_jacobian):
        with pytest.raises(RuntimeError, match="must have the same dtype") as caught:
            ask(NET, X.double())
        if not hasattr(caught.value, "add_note"):  # Python 3.10 has no notes.
            continue
        assert getattr(caught.value, "__notes__", None) == [
            "gradkit: inputs are torch.float64 and the model's parameters"
            " torch.float32; convert one of them, for instance"
            " inputs.to(torch.float32) or model.to(torch.float64)"
        ]


@pytest.mark.parametrize("name", OBJECTIVES)
def test_objectives(name):
    call, kind, text = OBJECTIVES[name]
    assert refusal(kind, call) == text


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters(name):
    call, kind, text = PARAMETERS[name]
    assert refusal(kind, call) == text
