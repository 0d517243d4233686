"""How calls arrive at their rules, and what is particular to some rules."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from case import DEVICE
from gradkit._rules import (
    _activation,
    _bilinear,
    _broadcast,
    _embedding,
    _expand,
    _joining,
    _normalisation,
)
from gradkit._rules._layout import Layout
from gradkit._rules._opened import opened
from gradkit._rules._rule import Operation, Rule

# -- how calls arrive ------------------------------------------------------------------


class Arrivals(TorchFunctionMode):
    """Notes the functions that are handed a parameter, as the tape sees them."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Callable[..., Any]] = []

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        body = opened(func)
        if body is not None:
            with self:
                return body(*args, **kwargs)
        given = [part for a in args for part in (a if isinstance(a, list) else [a])]
        if any(isinstance(a, nn.Parameter) for a in (*given, *kwargs.values())):
            self.seen.append(func)
        return func(*args, **kwargs)


def calls() -> dict[str, tuple[Rule, Callable[[Tensor, Tensor], Any]]]:
    """Return ways to write an operation on samples ``(3, 5, 4)`` and a vector."""
    b, e, j, n = _broadcast, _embedding, _joining, _normalisation
    table = nn.Parameter(torch.ones(7, 2, device=DEVICE))
    square = nn.Parameter(torch.ones(2, 4, 4, device=DEVICE))
    index = torch.tensor([3, 0, 3], device=DEVICE)
    mean = torch.ones(4, device=DEVICE)
    return {
        "x + p": (b.ADD, operator.add),
        "p + x": (b.ADD, lambda x, p: p + x),
        "x += p": (b.ADD, lambda x, p: operator.iadd(x.clone(), p)),
        "x - p": (b.SUBTRACT, operator.sub),
        "p - x": (b.SUBTRACT, lambda x, p: p - x),
        "x -= p": (b.SUBTRACT, lambda x, p: operator.isub(x.clone(), p)),
        "rsub": (b.REVERSED_SUBTRACT, torch.rsub),
        "x * p": (b.MULTIPLY, operator.mul),
        "p * x": (b.MULTIPLY, lambda x, p: p * x),
        "x *= p": (b.MULTIPLY, lambda x, p: operator.imul(x.clone(), p)),
        "x / p": (b.DIVIDE, operator.truediv),
        "p / x": (b.DIVIDE, lambda x, p: p / x),
        "x /= p": (b.DIVIDE, lambda x, p: operator.itruediv(x.clone(), p)),
        "where": (j.WHERE, lambda x, p: torch.where(x > 0, x, p)),
        "Tensor.where": (j.WHERE_OF_INPUT, lambda x, p: x.where(x > 0, p)),
        "stack": (j.STACK, lambda x, p: torch.stack([x[0, 0], p])),
        "cat": (j.CAT, lambda x, p: torch.cat([x[0, 0], p])),
        "repeat": (j.REPEAT, lambda x, p: p.repeat(len(x), 1)),
        "expand": (_expand.EXPAND, lambda x, p: p.expand(len(x), -1)),
        "embedding": (e.EMBEDDING, lambda x, p: F.embedding(index, table, -1)),
        "bags": (e.EMBEDDING_BAG, lambda x, p: F.embedding_bag(index[None], table)),
        "table[index]": (e.LOOK_UP, lambda x, p: table[index]),
        "index_select": (e.INDEX_SELECT, lambda x, p: table.index_select(0, index)),
        "layer_norm": (n.LAYER_NORM, lambda x, p: F.layer_norm(x, (4,), p)),
        "rms_norm": (n.RMS_NORM, lambda x, p: F.rms_norm(x, (4,), p)),
        "group_norm": (n.GROUP_NORM, lambda x, p: F.group_norm(x[:, 0], 2, p)),
        "instance_norm": (
            n.INSTANCE_NORM,
            lambda x, p: F.instance_norm(x.transpose(1, 2), weight=p),
        ),
        "batch_norm": (
            n.BATCH_NORM,
            lambda x, p: F.batch_norm(x[:, 0], mean, mean, weight=p),
        ),
        "prelu": (_activation.PRELU, lambda x, p: F.prelu(x.transpose(1, 2), p)),
        "bilinear": (_bilinear.BILINEAR, lambda x, p: F.bilinear(x, x, square)),
    }


@pytest.mark.parametrize("call", calls())
def test_calls_arrive_at_their_rule(call: str) -> None:
    rule, function = calls()[call]
    samples = torch.ones(3, 5, 4, device=DEVICE)
    parameter = nn.Parameter(torch.ones(4, device=DEVICE))
    with Arrivals() as arrivals:
        function(samples, parameter)
    found = [f for f in arrivals.seen if f in rule.functions]
    assert len(found) == 1, arrivals.seen


# -- precision, and what is not finite -------------------------------------------------


def operation(rule: Rule, *args: Any, compute: Any = None, **options: Any) -> Operation:
    """Return a call on a batch whose samples are first."""
    output = rule.functions[0](*args, **options)
    bound = rule.bind(args, options)
    shapes = {name: bound[name].shape for name in rule.rows if name in bound}
    return Operation(
        rule.functions[0], bound, shapes, output.shape, output.dtype, len(output),
        Layout(0), compute,
    )  # fmt: skip


HALF = {
    "layer_norm": (_normalisation.LAYER_NORM, ((12,),), 12),
    "rms_norm": (_normalisation.RMS_NORM, ((12,),), 12),
    "group_norm": (_normalisation.GROUP_NORM, (2,), 6),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", HALF)
def test_half_precision_is_normalised_in_single(name: str, dtype: torch.dtype) -> None:
    rule, setting, size = HALF[name]
    draw = torch.Generator().manual_seed(5)
    # Of a mean far from zero, whose differences half precision would not resolve.
    inputs = 3 + 0.1 * torch.randn(3, 6, 12, generator=draw)
    inputs = inputs.to(DEVICE, dtype)
    weight = torch.ones(size, dtype=dtype, device=DEVICE)
    given = operation(rule, inputs, *setting, weight, compute=torch.float32)
    cotangent = torch.randn(3, 2, 6, 12, generator=draw).to(DEVICE)
    found = rule.rows["weight"](given, cotangent)
    exact = operation(rule, inputs.double(), *setting, weight.double())
    expected = rule.rows["weight"](exact, cotangent.double())
    assert isinstance(found, Tensor)
    assert isinstance(expected, Tensor)
    assert found.dtype == torch.float32
    assert ((found - expected).abs().max() / expected.abs().max()).item() < 2e-5


def rows_beside_infinity(rule: Rule, *args: Any, place: int, **options: Any) -> Tensor:
    """Return the rows of one sample, whose cotangent is infinite at one position."""
    given = operation(rule, *args, **options)
    cotangent = torch.ones(1, 1, *given.shape[1:], dtype=torch.float64, device=DEVICE)
    cotangent[:, :, place] = torch.inf
    (name,) = (name for name in ("weight", "other") if name in given.parameters)
    found = rule.rows[name](given, cotangent)
    return found if isinstance(found, Tensor) else found.dense(slice(None))


def test_what_is_not_counted_may_be_infinite() -> None:
    table = torch.ones(4, 2, dtype=torch.float64, device=DEVICE)
    ids = torch.tensor([[2, 1, 3]], device=DEVICE)
    padded = rows_beside_infinity(_embedding.EMBEDDING, table, ids, 1, place=1)
    chosen = ids.double() == 1
    vector = torch.ones(1, dtype=torch.float64, device=DEVICE)
    where = rows_beside_infinity(_joining.WHERE, chosen, ids.double(), vector, place=1)
    assert padded.reshape(4, 2).tolist() == [[0, 0], [0, 0], [1, 1], [1, 1]]
    assert where.tolist() == [[[2]]]


def test_one_sample_may_be_joined_along_the_axis_of_its_entries() -> None:
    token = torch.ones(2, 4, dtype=torch.float64, device=DEVICE)
    sequence = torch.ones(5, 4, dtype=torch.float64, device=DEVICE)
    given = Operation(
        torch.cat, {"tensors": [token, sequence]}, {"tensors": token.shape},
        torch.Size([7, 4]), token.dtype, 1, Layout(0, after=7), place=0,
    )  # fmt: skip
    assert _joining.CAT.unsupported(given) is None
    cotangent = torch.arange(28.0, dtype=token.dtype, device=DEVICE).view(1, 1, 7, 4)
    found = _joining.CAT.rows["tensors"](given, cotangent)
    assert isinstance(found, Tensor)
    assert torch.equal(found, cotangent[:, :, :2])


def test_a_factor_that_is_written_to_is_refused() -> None:
    inputs = torch.ones(3, 4, dtype=torch.float64, device=DEVICE)
    scale = inputs[0]
    given = Operation(
        Tensor.addcmul_,
        {"input": inputs, "tensor1": inputs, "tensor2": scale},
        {"tensor2": scale.shape}, inputs.shape, inputs.dtype, 3, Layout(0),
    )  # fmt: skip
    reason = _broadcast.ADDCMUL.unsupported
    assert reason(given) == "it overwrites what its derivative needs"
    assert reason(replace(given, function=torch.addcmul)) is None
