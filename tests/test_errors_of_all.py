"""Refused by all four functions alike: call, exception, full text."""

import functools
import warnings

import pytest
import torch
from torch import nn

import gradkit as gk
from gradkit.errors import (
    InputError,
    SampleDependenceError,
    UnsupportedModelError,
)
from refused import (
    BATCH_NORM,
    NET,
    Named,
    Odd,
    Pair,
    TimeFirst,
    X,
    of_net,
    refusal,
)

ASK = {
    "jacobian": gk.jacobian,
    "input_gradients": functools.partial(
        gk.input_gradients, objective=gk.objectives.output_sum
    ),
    "parameter_jacobian": gk.parameter_jacobian,
    "per_sample_gradients": functools.partial(
        gk.per_sample_gradients, objective=gk.objectives.output_sum
    ),
}


def packed():
    return nn.utils.rnn.pack_sequence([X, X[:2]])


def nested():
    with warnings.catch_warnings():
        # torch calls its own layout a prototype.
        warnings.simplefilter("ignore", UserWarning)
        return torch.nested.nested_tensor([X[0], X[1]])


# The text follows the name of the function.
REFUSED = {
    "array in a list": (
        lambda ask: ask(NET, [X.numpy()]),
        InputError,
        "inputs[0] must be a torch.Tensor; got a numpy.ndarray (float32, shape (5,"
        " 4)); write torch.from_numpy(x).float()",
    ),
    "complex": (
        lambda ask: ask(NET, X.to(torch.complex64)),
        InputError,
        "inputs is a complex tensor, which is not supported; pass"
        " torch.view_as_real(x)",
    ),
    "sparse": (
        lambda ask: ask(NET, X.to_sparse()),
        InputError,
        "inputs is a sparse tensor, which is not supported; pass x.to_dense()",
    ),
    "nested": (
        lambda ask: ask(NET, nested()),
        InputError,
        "inputs is a nested tensor, which is not supported; pad it to one tensor with"
        " a mask",
    ),
    "packed": (
        lambda ask: ask(NET, packed()),
        InputError,
        "inputs is a PackedSequence, whose first axis mixes samples and steps; pass"
        " the padded tensor and its lengths, and pack inside the model",
    ),
    "meta": (
        lambda ask: ask(NET, X.to("meta")),
        InputError,
        "inputs is a meta tensor, which is not supported; pass a tensor that holds"
        " values",
    ),
    "a number": (
        lambda ask: ask(NET, 3),
        InputError,
        "inputs must be a tensor, a sequence (model(*inputs)) or a mapping"
        " (model(**inputs)); got int",
    ),
    "a set": (
        lambda ask: ask(NET, {1, 2}),
        InputError,
        "inputs must be a tensor, a sequence (model(*inputs)) or a mapping"
        " (model(**inputs)); got set",
    ),
    "nothing": (
        lambda ask: ask(NET, []),
        InputError,
        "inputs must hold a tensor with the samples first; got no tensor. For a"
        " function without a sample axis pass batched=False, where the function takes"
        " it",
    ),
    "a scalar tensor": (
        lambda ask: ask(NET, torch.tensor(1.0)),
        InputError,
        "inputs must hold a tensor with the samples first; got inputs (). For a"
        " function without a sample axis pass batched=False, where the function takes"
        " it",
    ),
    "unequal numbers of samples": (
        lambda ask: ask(NET, (X, torch.ones(4, 3))),
        InputError,
        "every tensor in inputs must have the same number of samples first; got"
        " inputs[0] (5, 4), inputs[1] (4, 3). Mark a tensor that all samples share"
        " with gk.shared(t)",
    ),
    "a mapping without names": (
        lambda ask: ask(NET, {0: X}),
        InputError,
        "a mapping of inputs is passed as model(**inputs), so its keys must be"
        " strings; got 0",
    ),
    "a class as model": (
        lambda ask: ask(nn.Linear, X),
        InputError,
        "model must be an instance; got the class Linear. Build it first: Linear(...)",
    ),
    "a string as model": (
        lambda ask: ask("model", X),
        InputError,
        "model must be an nn.Module or a callable; got str. The order of the"
        " arguments is (model, inputs, ...): pass the model, not its outputs",
    ),
    "outputs without samples": (
        lambda ask: ask(of_net(lambda y: y.sum(0)), X),
        InputError,
        "outputs must have the 5 samples first; got shape (3,). If the inputs are"
        " one sample without a batch axis, pass x[None]; if the output has no sample"
        " axis, choose another with of=",
    ),
    "one output for all samples": (
        lambda ask: ask(of_net(torch.mean), X),
        InputError,
        "outputs must have the 5 samples first; got shape (). Return each sample's"
        " own outputs: a mean or sum over the batch cannot be taken apart. A loss goes"
        " into the objective, gk.objectives.sample_loss(F.cross_entropy, labels)",
    ),
    "no output": (
        lambda ask: ask(of_net(lambda y: None), X),
        InputError,
        "the model must return a floating tensor; got NoneType. Choose an output"
        " with of= (a key, an attribute, a submodule or a function of the outputs)",
    ),
    "integer outputs": (
        lambda ask: ask(of_net(lambda y: y.argmax(1)), X),
        InputError,
        "the model must return a floating tensor; got a torch.int64 tensor of shape"
        " (5,). Choose an output with of= (a key, an attribute, a submodule or a"
        " function of the outputs)",
    ),
    "complex outputs": (
        lambda ask: ask(of_net(torch.fft.fft), X),
        InputError,
        "outputs is complex, which is not supported; return torch.view_as_real(z),"
        " or choose a real part with of=",
    ),
    "dropout without a seed": (
        lambda ask: ask(nn.Sequential(nn.Linear(4, 6), nn.Dropout()), X),
        InputError,
        "the model draws random numbers (torch), so its derivative depends on the"
        " draw; pass seed=<int> (in a loop, the step number) for the draw of"
        " torch.manual_seed(seed), or call model.eval() first",
    ),
    "batch norm in training": (
        lambda ask: ask(BATCH_NORM, X),
        SampleDependenceError,
        "samples must be independent; BatchNorm1d (at '1') is in training mode and"
        " mixes them. Call model.eval() first, or replace it by GroupNorm.",
    ),
    "batch norm without statistics": (
        lambda ask: ask(
            nn.Sequential(nn.BatchNorm1d(4, track_running_stats=False)).eval(), X
        ),
        SampleDependenceError,
        "samples must be independent; BatchNorm1d (at '0') has no running statistics"
        " and mixes them in eval mode too. Build it with track_running_stats=True.",
    ),
    "samples on another axis": (
        lambda ask: ask(TimeFirst(), X[:, None].expand(5, 3, 4)),
        SampleDependenceError,
        "samples must be independent; the output of sample 0 depends on another"
        " sample of the batch. Its samples may stand on another axis (an RNN or"
        " attention built without batch_first=True), or the model may normalise,"
        " roll or attend over the batch. Move the samples first, or pass"
        " batched=False to gk.jacobian for the derivative of every output by every"
        " input",
    ),
    "an unknown method": (
        lambda ask: ask(NET, X, method="vjp"),
        InputError,
        "method must be a gk.Method or one of 'auto', 'loop', 'onehot', 'vmap',"
        " 'jacrev', 'jacfwd', 'rows', 'rules'; got 'vjp'",
    ),
    "a seed that is no number": (
        lambda ask: ask(NET, X, seed="now"),
        InputError,
        "seed must be a whole number; got str",
    ),
    "a memory that is no size": (
        lambda ask: ask(NET, X, max_memory="2 apples"),
        InputError,
        "max_memory must be a positive number of bytes or a text such as '2GB' or"
        " '512MiB'; got '2 apples'",
    ),
    "a negative memory": (
        lambda ask: ask(NET, X, max_memory=-5),
        InputError,
        "max_memory must be a positive number of bytes or a text such as '2GB' or"
        " '512MiB'; got -5",
    ),
    "of: an unknown name": (
        lambda ask: ask(NET, X, of="fc"),
        InputError,
        "of='fc' names no submodule and no entry of the outputs (Tensor: no entries;"
        " submodules known: '0', '1', '2')",
    ),
    "of: an unknown key": (
        lambda ask: ask(Named(), X, of="logit"),
        InputError,
        "of='logit' names no submodule and no entry of the outputs (dict: 'logits',"
        " 'hidden'; submodules known: 'layer')",
    ),
    "of: a position too far": (
        lambda ask: ask(Pair(), X, of=2),
        InputError,
        "of=2 names no submodule and no entry of the outputs (tuple: 0, 1;"
        " submodules known: 'layer')",
    ),
    "of: a tensor": (
        lambda ask: ask(NET, X, of=X),
        InputError,
        "of takes a submodule, a key or attribute of the outputs, or a function of"
        " the outputs; got Tensor",
    ),
    "of: called twice": (
        lambda ask: ask(Odd(), X, of="twice"),
        InputError,
        "of='twice' must be called exactly once in the model's forward; it was"
        " called 2 times. Name a submodule that is called once, or a function of the"
        " outputs",
    ),
    "of: never called": (
        lambda ask: ask(Odd(), X, of="never"),
        InputError,
        "of='never' must be called exactly once in the model's forward; it was"
        " called 0 times. Name a submodule that is called once, or a function of the"
        " outputs",
    ),
    "of: no samples first": (
        lambda ask: ask(Odd(), X, of="total"),
        InputError,
        "outputs must have the 5 samples first; got shape (4,). If the inputs are"
        " one sample without a batch axis, pass x[None]; if the output has no sample"
        " axis, choose another with of=",
    ),
    "a lazy layer": (
        lambda ask: ask(nn.Sequential(nn.LazyLinear(3)), X),
        UnsupportedModelError,
        "LazyLinear (at '0') is lazy and has no parameters yet; run the model once"
        " on a batch first",
    ),
}


@pytest.mark.parametrize("function", ASK)
@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_all_four(name, function):
    call, kind, text = REFUSED[name]
    assert refusal(kind, call, ASK[function]) == f"{function}: {text}"
