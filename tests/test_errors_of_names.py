"""``wrt``, ``out`` and methods refused: call, exception, full text."""

from typing import Any

import pytest
import torch
from torch import nn

import gradkit as gk
from gradkit.errors import InputError, UnsupportedModelError
from refused import IDS, NET, Hidden, Odd, Pair, TokenNet, X, inference_layer, refusal

SCORE = gk.objectives.class_score(0)
# Untyped, for calls that a type checker would refuse as well.
JACOBIAN: Any = gk.jacobian
SHARED: Any = gk.shared
OUT, MEMORY = torch.zeros(5, 3, 4), torch.zeros(100)

WITH_RESPECT_TO = {
    "an unknown name": (
        lambda: gk.jacobian(NET, X, wrt="1x"),
        InputError,
        "jacobian: wrt='1x' names neither an entry of inputs (there: 0) nor"
        " a submodule (nearest: '1')",
    ),
    "a position too far": (
        lambda: gk.jacobian(NET, X, wrt=1),
        InputError,
        "jacobian: wrt=1 names neither an entry of inputs (there: 0) nor a submodule"
        " (nearest: '1')",
    ),
    "a tensor": (
        lambda: gk.jacobian(NET, X, wrt=X),
        InputError,
        "jacobian: wrt takes a position, a key or a submodule; got a tensor",
    ),
    "nothing": (
        lambda: gk.jacobian(NET, X, wrt=[]),
        InputError,
        "jacobian: wrt must name something; got nothing",
    ),
    "one thing twice": (
        lambda: gk.jacobian(NET, X, wrt=[0, 0]),
        InputError,
        "jacobian: wrt names an entry twice: [0, 0]",
    ),
    "integers": (
        lambda: gk.jacobian(TokenNet(), {"ids": IDS}, wrt="ids"),
        InputError,
        "jacobian: wrt='ids' must be a floating tensor with the samples first; got"
        " torch.int64 of shape (3, 2). Integers have no derivative: name the embedding"
        " that takes them, wrt='tokens'",
    ),
    "a shared input": (
        lambda: gk.jacobian(torch.mul, (X, gk.shared(torch.ones(4))), wrt=1),
        InputError,
        "jacobian: wrt=1 is shared by all samples, so no sample has a derivative of"
        " its own with respect to it; expand it to one copy per sample, t.expand(N,"
        " *t.shape), and pass that unmarked",
    ),
    "a key that is a submodule too": (
        lambda: gk.jacobian(Hidden(), {"hidden": X}, wrt="hidden"),
        InputError,
        "jacobian: wrt='hidden' is ambiguous: it is a key of inputs and a submodule;"
        " pass the module itself for its output, wrt=model.hidden, or rename the"
        " input",
    ),
    "called twice": (
        lambda: gk.jacobian(Odd(), X, wrt="twice"),
        InputError,
        "jacobian: wrt='twice' must be called exactly once in the model's forward;"
        " it was called 2 times. Name a submodule that is called once, or a function"
        " of the outputs",
    ),
    "never called": (
        lambda: gk.input_gradients(Odd(), X, SCORE, wrt="never"),
        InputError,
        "input_gradients: wrt='never' must be called exactly once in the model's"
        " forward; it was called 0 times. Name a submodule that is called once, or a"
        " function of the outputs",
    ),
    "no samples first": (
        lambda: gk.jacobian(Odd(), X, wrt="total"),
        InputError,
        "jacobian: wrt='total' must return the 5 samples first; it returned shape (4,)",
    ),
    "a module of another model": (
        lambda: gk.jacobian(NET, X, wrt=nn.Linear(4, 3)),
        InputError,
        "jacobian: the Linear is not a submodule of the model (known: '0', '1', '2')",
    ),
}


RESULTS = {
    "shape": (
        lambda: gk.jacobian(NET, X, out=torch.zeros(5, 3, 5)),
        InputError,
        "jacobian: out must have shape (5, 3, 4); got (5, 3, 5)",
    ),
    "dtype": (
        lambda: gk.jacobian(NET, X, out=OUT.double()),
        InputError,
        "jacobian: out must have dtype torch.float32; got torch.float64",
    ),
    "device": (
        lambda: gk.jacobian(NET, X, out=OUT.to("meta")),
        InputError,
        "jacobian: out must have device cpu; got meta",
    ),
    "grad": (
        lambda: gk.jacobian(NET, X, out=OUT.clone().requires_grad_()),
        InputError,
        "jacobian: out must not require grad, since rows are written into it; pass"
        " out.detach()",
    ),
    "overlap with inputs": (
        lambda: gk.jacobian(
            NET, MEMORY[:20].view(5, 4), out=MEMORY[10:70].view(5, 3, 4)
        ),
        InputError,
        "jacobian: out must not share memory with inputs or parameters; pass a"
        " tensor of its own",
    ),
    "overlap with itself": (
        lambda: gk.jacobian(NET, X, out=torch.zeros(1).expand(5, 3, 4)),
        InputError,
        "jacobian: out must not overlap itself; pass out.clone()",
    ),
    "no tensor": (
        lambda: JACOBIAN(NET, X, out="file"),
        InputError,
        "jacobian: out must be a torch.Tensor; got str",
    ),
    "with a graph": (
        lambda: gk.jacobian(NET, X, out=OUT, create_graph=True),
        InputError,
        "jacobian: out cannot be combined with create_graph=True: a result written"
        " in place has no graph",
    ),
    "two outputs": (
        lambda: gk.jacobian(Pair(), X, out=OUT),
        InputError,
        "jacobian: out needs one output and one input; got 2 and 1; choose with of="
        " and wrt=",
    ),
    "batched": (
        lambda: JACOBIAN(NET, X, batched="no"),
        InputError,
        "jacobian: batched must be True, False or None; got 'no'",
    ),
    "vector without sample axis": (
        lambda: gk.input_gradients(torch.square, torch.ones(3), batched=False),
        InputError,
        "input_gradients: with batched=False the function must return one number; got"
        " shape (3,). Take gk.jacobian(f, x, batched=False) for every output",
    ),
    "a method for parameters": (
        lambda: gk.jacobian(NET, X, method="rows"),
        UnsupportedModelError,
        "jacobian: method 'rows' cannot serve this model: it computes no derivatives"
        " with respect to inputs. Use method='auto', which takes one that can",
    ),
    "a method for inputs": (
        lambda: gk.parameter_jacobian(NET, X, method="onehot"),
        UnsupportedModelError,
        "parameter_jacobian: method 'onehot' cannot serve this model: it computes no"
        " derivatives with respect to parameters. Use method='auto', which takes one"
        " that can",
    ),
    "a graph in forward mode": (
        lambda: gk.jacobian(NET, X, method="jacfwd", create_graph=True),
        UnsupportedModelError,
        "jacobian: method 'jacfwd' cannot serve this model: create_graph=True needs"
        " a result that stays in the ordinary graph. Use method='auto', which takes"
        " one that can",
    ),
    "inference parameters": (
        lambda: gk.jacobian(inference_layer(), X),
        UnsupportedModelError,
        "jacobian: parameter 'weight' of Linear (at '0') was made under"
        " torch.inference_mode, so autograd cannot record it; build or load the model"
        " outside inference_mode, or copy.deepcopy(model) there",
    ),
    "shared": (
        lambda: SHARED(3),
        InputError,
        "shared: tensor must be a torch.Tensor; got int",
    ),
}


@pytest.mark.parametrize("name", WITH_RESPECT_TO)
def test_with_respect_to(name):
    call, kind, text = WITH_RESPECT_TO[name]
    assert refusal(kind, call) == text


@pytest.mark.parametrize("name", RESULTS)
def test_results_and_methods(name):
    call, kind, text = RESULTS[name]
    assert refusal(kind, call) == text
