"""Rows inside ``batch_invariant`` are equal bit for bit, and outside they are not."""

from __future__ import annotations

import copy
import os
import random
import warnings
from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gradkit as gk
from batch_rows import (
    DTYPES,
    LAYERS,
    LAYOUTS,
    WORK,
    Function,
    by_inputs,
    differs,
    forward,
    threads,
)
from gradkit.numerics._invariant import batch_invariant
from gradkit.numerics._invariant_products import products

# vmap says where it has no rule of its own and loops over the samples.
pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")
TRIALS = int(os.environ.get("GRADKIT_TRIALS", "60"))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", LAYERS)
def test_rows_are_those_of_any_batch(name: str, dtype: torch.dtype) -> None:
    draw = random.Random(name)
    for work in WORK:
        for samples in (1, 2, 5, 19):
            with batch_invariant():
                assert not differs(name, dtype, samples, work, draw), (work, samples)


def count_differing(trials: int, *, inside: bool) -> list[tuple[object, ...]]:
    draw = random.Random(0)
    found = []
    for number in range(trials):
        torch.manual_seed(number)
        name, dtype = draw.choice(list(LAYERS)), draw.choice(DTYPES)
        samples, work = draw.randint(2, 40), draw.choice(WORK)
        with batch_invariant() if inside else nullcontext():
            if differs(name, dtype, samples, work, draw):
                found.append((number, name, dtype, samples, work.__name__))
    return found


def test_no_random_trial_differs() -> None:
    assert count_differing(TRIALS, inside=True) == []


def test_trials_differ_without() -> None:
    assert len(count_differing(60, inside=False)) > 20


@pytest.mark.parametrize("count", [70_001, 2 * 32_768 + 16])
@pytest.mark.parametrize(
    "function",
    [torch.sigmoid, torch.cos, F.gelu, torch.exp, lambda x: x.sum(-1),
     lambda x: x.softmax(-1), lambda x: x.var(-1), lambda x: x.norm(dim=-1),
     lambda x: x.view(len(x), -1, 1).softmax(1), lambda x: x.cumsum(-1)],
)  # fmt: skip
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_large_rows_on_two_threads(
    function: Callable[[Tensor], Tensor], count: int, dtype: torch.dtype
) -> None:
    inputs = torch.randn(3, count).to(dtype)
    with batch_invariant():
        with threads(1):
            whole = function(inputs)
        with threads(2):
            assert torch.equal(function(inputs), whole)
            for layout in LAYOUTS:
                assert torch.equal(function(layout(inputs[1:2])), whole[1:2])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_entries_of_products_depend_on_their_row_and_column(dtype: torch.dtype) -> None:
    draw = random.Random(0)
    for _ in range(40):
        rows, columns = draw.choices((1, 2, 3, 16, 17, 50, 100), k=2)
        inner, batch = draw.choice((1, 3, 16, 100, 193, 401, 784)), draw.choice((1, 3))
        left = torch.randn(batch, rows, inner).to(dtype)
        right = torch.randn(batch, inner, columns).to(dtype)
        whole = products(left, right)
        b, i, j = draw.randrange(batch), draw.randrange(rows), draw.randrange(columns)
        one = products(left[b : b + 1, i : i + 1], right[b : b + 1, :, j : j + 1])
        assert torch.equal(one[0, 0, 0], whole[b, i, j])
        assert torch.equal(products(right.mT, left.mT).mT, whole)
        exact = left.double() @ right.double()
        scale = left.double().abs() @ right.double().abs() + 1e-300
        assert ((whole - exact).abs() / scale).max() < inner * torch.finfo(dtype).eps


METHODS = [
    (question, method)
    for question, methods in {
        "jacobian": ("auto", "loop", "onehot", "vmap", "jacrev", "jacfwd"),
        "input_gradients": ("auto", "loop", "onehot", "vmap"),
        "per_sample_gradients": ("auto", "loop", "vmap", "rows", "rules"),
        "parameter_jacobian": ("auto", "loop", "vmap", "jacrev", "rows", "rules"),
    }.items()
    for method in methods
]


@pytest.mark.parametrize(("question", "method"), METHODS)
def test_every_method(question: str, method: str) -> None:
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Linear(40, 12), nn.GELU(), nn.Linear(12, 5)]
    shape: tuple[int, ...] = (40,)
    if method != "rows":  # whose rows are sums over the batch
        layers = [nn.Conv2d(1, 4, 3), nn.SiLU(), nn.Flatten(), nn.Linear(64, 5)]
        shape = (1, 6, 6)
    model, inputs, labels = (
        nn.Sequential(*layers),
        torch.randn(7, *shape),
        torch.arange(7) % 5,
    )

    def answer(part: slice) -> list[Tensor]:
        settings = []
        if not question.endswith("jacobian"):
            loss = gk.objectives.sample_loss(F.cross_entropy, labels[part])
            settings = [loss]
        found = getattr(gk, question)(model, inputs[part], *settings, method=method)
        return [found] if isinstance(found, Tensor) else list(found.values())

    with batch_invariant():
        whole, part = answer(slice(None)), answer(slice(3, 5))
    for a, b in zip(whole, part, strict=True):
        assert torch.equal(a[3:5], b)


def test_batched_cotangents() -> None:
    model, inputs = (
        nn.Sequential(nn.Linear(9, 30), nn.Mish(), nn.Linear(30, 4)),
        torch.randn(6, 9),
    )

    def jacobian(x: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        cotangents = torch.eye(4)[:, None].expand(4, len(x), 4)
        return torch.autograd.grad(model(x), x, cotangents, is_grads_batched=True)[0]

    with batch_invariant():
        assert torch.equal(jacobian(inputs)[:, 2:3], jacobian(inputs[2:3]))


def test_zeros_prove_nothing() -> None:
    # A first call with zero weights must not decide how later ones are computed.
    layer, inputs = nn.Conv2d(3, 16, 3), torch.randn(9, 3, 13, 13)
    learnt = copy.deepcopy(layer)
    for parameter in layer.parameters():
        parameter.detach().zero_()
    with batch_invariant():
        for model in (layer, learnt):
            for work in WORK:
                whole, part = work(model, inputs), work(model, inputs[4:5])
                for a, b in zip(whole, part, strict=True):
                    assert torch.equal(a[4:5], b)


def test_recurrent_layers_are_opened() -> None:
    for layer in (nn.LSTM(5, 7, batch_first=True), nn.GRU(5, 7, batch_first=True)):
        inputs = torch.randn(6, 4, 5)
        with batch_invariant():
            assert torch.equal(layer(inputs)[0][2:3], layer(inputs[2:3])[0])


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (lambda x: torch.cdist(x, x), (30, 7)),
        (lambda x: torch.fft.irfft(x + 0j), (17,)),
        (lambda x: torch.einsum("nij,jk,nkl->nil", x, x[0] * 0 + 0.37, x), (6, 6)),
        (lambda x: F.lp_pool2d(x.abs(), 3, 2), (2, 6, 6)),
        (lambda x: F.cosine_similarity(x, x.flip(-1)), (33,)),
        (lambda x: F.interpolate(x, scale_factor=1.7, mode="bilinear"), (3, 50, 50)),
    ],
)
def test_functions_of_whole_samples(
    function: Callable[[Tensor], Tensor], shape: tuple[int, ...]
) -> None:
    draw = random.Random(0)
    for dtype in (torch.float32, torch.float64):
        inputs = torch.randn(7, *shape, dtype=dtype)
        for work in (forward, by_inputs):
            for start in range(7):
                with batch_invariant():
                    with threads(draw.choice((1, 2))):
                        (whole,) = work(Function(function), inputs)
                    with threads(draw.choice((1, 2))):
                        part = draw.choice(LAYOUTS)(inputs[start : start + 1])
                        assert torch.equal(
                            work(Function(function), part)[0], whole[start : start + 1]
                        )


def test_transformer_layers_are_opened() -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    inputs = torch.randn(6, 5, 16)
    for context in (torch.no_grad, torch.enable_grad, torch.inference_mode):
        with batch_invariant(), context():
            assert torch.equal(layer(inputs)[2:3], layer(inputs[2:3]))


def test_complex_products_are_named() -> None:
    values = torch.randn(3, 3, dtype=torch.complex64)
    with batch_invariant(), pytest.warns(UserWarning, match="mm may .* complex"):
        torch.mm(values, values)


def test_training_steps_autocast_and_inference() -> None:
    model, inputs = (
        nn.Sequential(nn.Linear(9, 8), nn.Sigmoid(), nn.Linear(8, 2)),
        torch.randn(6, 9),
    )
    optimiser = torch.optim.Adam(model.parameters())
    with batch_invariant():
        model(inputs).square().mean().backward()
        optimiser.step()
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(model(inputs)[4:], model(inputs[4:]))
        with torch.inference_mode():
            assert torch.equal(model(inputs)[4:], model(inputs[4:]))


def test_writing_in_place_and_out() -> None:
    inputs = torch.randn(5, 7)
    with batch_invariant():
        wanted = inputs.sigmoid()
        target = torch.empty(5, 7)
        assert torch.sigmoid(inputs, out=target) is target
        assert torch.equal(target, wanted)
        assert torch.equal(inputs.clone().sigmoid_(), wanted)
        view = inputs.t().clone()
        assert view.t().sigmoid_().shape == (5, 7)
        assert torch.equal(view.t(), wanted)


def test_nests_and_leaves_nothing_behind() -> None:
    before = torch.backends.mkldnn.enabled, torch.get_num_threads()
    with pytest.raises(RuntimeError), batch_invariant(), batch_invariant():
        torch.randn(3, 3).matmul(torch.randn(4, 4))
    assert (torch.backends.mkldnn.enabled, torch.get_num_threads()) == before
    assert torch._C._len_torch_dispatch_stack() == 0


@pytest.mark.parametrize("name", LAYERS)
def test_numbers_agree_with_torch(name: str) -> None:
    make, shape = LAYERS[name]
    model, inputs = make().double(), torch.randn(4, *shape, dtype=torch.float64)
    for work in WORK:
        plain = work(model, inputs)
        for layout in LAYOUTS:
            with batch_invariant():
                inside = work(model, layout(inputs))
            for a, b in zip(plain, inside, strict=True):
                torch.testing.assert_close(a, b)


@pytest.mark.filterwarnings("ignore:batch_invariant")
def test_factored_matrices_keep_their_layout() -> None:
    # A backward asks how the matrix lay to know what was factored.
    matrices = torch.randn(3, 6, 6, dtype=torch.float64)
    for layout in (*LAYOUTS, lambda x: x.mT.contiguous().mT):
        for function in (torch.linalg.det, lambda x: torch.linalg.solve(x, x * 2 + 1)):
            (plain,) = by_inputs(Function(function), matrices)
            inputs = layout(matrices).requires_grad_()
            with batch_invariant():
                outputs = function(inputs)
                weights = torch.linspace(-1, 1, outputs[0].numel()).double()
                weights = weights.view(outputs[0].shape).expand_as(outputs)
                (inside,) = torch.autograd.grad(outputs, inputs, weights)
            torch.testing.assert_close(plain, inside)


def test_what_cannot_be_opened_is_named_once() -> None:
    layer, inputs = nn.Bilinear(3, 4, 5), (torch.randn(2, 3), torch.randn(2, 4))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with batch_invariant():
            layer(*inputs)
            layer(*inputs)
    assert [str(w.message) for w in seen if "_trilinear" in str(w.message)] == [
        "batch_invariant: rows of torch's _trilinear may depend on their batch:"
        " it is one kernel"
    ]
