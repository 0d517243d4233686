"""What rules remember between calls, and what they keep of one, misleads nobody."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gradkit as gk
from test_rule_proofs import Net, drawn, squared, truth, weight

N, I1, O1 = 4, 5, 3
SWITCH: dict[str, Any] = {}
#: At calls 3, 5, 6 and 7 nothing is proved anew.
CALLS = 8


@pytest.fixture(autouse=True)
def off():
    SWITCH.clear()
    yield
    SWITCH.clear()


def assert_right(model: nn.Module, x: Tensor, **how: Any) -> None:
    found = gk.per_sample_gradients(model, x, squared, **how)
    wanted = truth(model, x)
    scale = max(float(v.abs().max()) for v in wanted.values())
    for name in found:
        gap = float((found[name] - wanted[name]).abs().max())
        assert gap <= 1e-10 * scale, name


def one_of_two(m: Net, x: Tensor) -> Tensor:
    return [m.a(x), m.b(x)][SWITCH.get("on", 0)]


def one_of_two_values(m: Net, x: Tensor) -> Tensor:
    return x * (1 + (m.v, m.w)[SWITCH.get("on", 0)])


def permuted(m: Net, x: Tensor) -> Tensor:
    order = (1, 0, 2) if SWITCH.get("on") else (0, 1, 2)
    return torch.tanh(x.permute(*order) * m.v + m.w).permute(*order)


def rolled(m: Net, x: Tensor) -> Tensor:
    shift = SWITCH.get("on", 0)
    return m.a(x.roll(shift, 0)).tanh().roll(-shift, 0)


def halved(m: Net, x: Tensor) -> Tensor:
    parts = x.chunk(2)
    parts = parts[::-1] if SWITCH.get("on") else parts
    parts = m.a(torch.cat(parts)).tanh().chunk(2)
    return torch.cat(parts[::-1] if SWITCH.get("on") else parts)


def sorted_by_value(m: Net, x: Tensor) -> Tensor:
    order = x.flatten(1)[:, 0].detach().argsort()
    return (torch.tanh(m.a(x[order])) * m.q)[order.argsort()]


def switching(forward: Callable[..., Tensor]) -> Net:
    torch.manual_seed(1)
    return Net(
        forward,
        a=nn.Linear(I1, O1),
        b=nn.Linear(I1, O1),
        p=weight(I1),
        q=weight(O1),
        v=weight(I1),
        w=weight(I1),
    )


USED = {
    one_of_two: ["a", "b"],
    one_of_two_values: ["v", "w"],
    permuted: ["v", "w"],
    rolled: ["a"],
    halved: ["a"],
    sorted_by_value: ["a", "q"],
}


@pytest.mark.parametrize("forward", USED, ids=lambda f: f.__name__)
def test_what_takes_another_way_at_a_remembered_call(
    forward: Callable[..., Tensor],
) -> None:
    model = switching(forward)
    for unused in set(dict(model.named_children())) | {"p", "q", "v", "w"}:
        if unused not in USED[forward]:
            delattr(model, unused)
    for call in range(1, CALLS + 1):
        SWITCH["on"] = int(call in (3, 5, 6, 7))
        x = drawn(N, N, I1) if forward is permuted else drawn(N, I1)
        if forward is sorted_by_value and not SWITCH["on"]:
            x = x[x[:, 0].argsort()]
        found = gk.per_sample_gradients(model, x, squared)
        outputs = squared(model(x))
        for n in range(N):
            rows = torch.autograd.grad(
                outputs[n],
                list(model.parameters()),
                retain_graph=True,
                materialize_grads=True,
            )
            for (name, _), row in zip(model.named_parameters(), rows, strict=True):
                torch.testing.assert_close(found[name][n], row, msg=f"{name}, {call}")


def test_selections_of_parameters_do_not_share_what_is_remembered() -> None:
    def forward(m: Net, x: Tensor) -> Tensor:
        y = torch.tanh(m.a(x)).transpose(0, 1).contiguous()
        return torch.tanh(m.b(y)).transpose(0, 1)

    torch.manual_seed(2)
    model = Net(forward, a=nn.Linear(N, N), b=nn.Linear(N, N))
    for call in range(1, CALLS + 1):
        chosen = ["a"] if call in (1, 2, 4, 8) else ["b"]
        assert_right(model, drawn(N, N, N), parameters=chosen)


@pytest.mark.parametrize("calls", [1, 3])
def test_a_constant_as_long_as_the_batch_has_no_samples(calls: int) -> None:
    c = torch.full((N,), 0.3, dtype=torch.float64)
    model = Net(
        lambda m, x: torch.lerp(m.a(x), m.p, c), a=nn.Linear(I1, N), p=weight(N)
    )
    for _ in range(calls):
        assert_right(model, drawn(N, I1))
    c.copy_(torch.rand(N))
    assert_right(model, drawn(N, I1))


def test_an_activation_that_a_hook_keeps_is_cloned() -> None:
    kept: list[Tensor] = []
    model = nn.Sequential(nn.Linear(I1, 6), nn.Tanh(), nn.Linear(6, O1)).double()
    model[2].register_forward_hook(lambda _m, given, _o: kept.append(given[0]))
    found = gk.per_sample_gradients(model, drawn(N, I1), squared)
    before = found.flat()
    for tensor in kept:
        tensor.detach().zero_()
    assert torch.equal(found.flat(), before)


def test_memory_of_numpy_s_is_cloned() -> None:
    array = np.random.default_rng(0).normal(size=(N, I1))
    model = Net(
        lambda m, x: F.linear(torch.from_numpy(array), m.v) * x, v=weight(2, I1)
    )
    found = gk.per_sample_gradients(model, drawn(N, 2), squared)
    before = found.flat()
    array[:] = 0.0
    assert torch.equal(found.flat(), before)


@pytest.mark.parametrize("gap", [1e-2, 1e-4, 1e-6])
def test_rows_that_nearly_cancel_have_norms(gap: float) -> None:
    torch.manual_seed(3)
    layer = nn.Linear(I1, O1)
    shift = gap * torch.randn(N, I1)
    model = Net(lambda m, x: torch.tanh(m.a(x)) - torch.tanh(m.a(x + shift)), a=layer)
    x = torch.randn(N, I1)
    model.float()
    found = gk.per_sample_gradients(model, x, gk.objectives.output_sum)
    formed = found.flat()
    torch.testing.assert_close(found.norms(), formed.norm(dim=1), rtol=1e-4, atol=0)
    torch.testing.assert_close(
        found.gram().diagonal(), formed.square().sum(1), rtol=1e-4, atol=0
    )


def test_a_function_replaced_in_torch_is_the_one_that_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    layer = nn.MultiheadAttention(4, 2, batch_first=True)
    model = Net(lambda m, x: m.a(x, x, x, need_weights=False)[0], a=layer)
    assert_right(model, drawn(N, 3, 4))
    real = F.scaled_dot_product_attention
    monkeypatch.setattr(
        F,
        "scaled_dot_product_attention",
        lambda q, k, v, *a, **kw: real(2 * q, k, v, *a, **kw),
    )
    assert_right(model, drawn(N, 3, 4))


@pytest.mark.filterwarnings("ignore:Using a non-full backward hook")
def test_a_backward_hook_that_is_not_full_sends_parameters_elsewhere() -> None:
    model = Net(lambda m, x: torch.tanh(m.a(x)), a=nn.Linear(I1, O1))
    model.a.register_backward_hook(lambda _m, given, _o: tuple(
        None if g is None else 3 * g for g in given
    ))  # fmt: skip
    plan = gk.explain(gk.per_sample_gradients, model, drawn(N, I1), squared)
    assert "not a full one" in str(plan.reasons["rules"])


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_empty_axes() -> None:
    x = drawn(N, 0, I1)
    model = Net(lambda m, x: m.a(x).sum(1), a=nn.Linear(I1, O1))
    assert float(gk.per_sample_gradients(model, x, squared).gram().abs().max()) == 0
    none = gk.parameter_jacobian(nn.Linear(I1, 0).double(), drawn(N, I1))
    assert none["weight"].shape == (N, 0, 0, I1)
    assert none.gram().shape == (N, 0, N, 0)


def test_strides_that_cannot_be_viewed_are_written_to() -> None:
    model = nn.Sequential(nn.Conv1d(2, 3, 2), nn.Flatten(), nn.Linear(9, 2)).double()
    found = gk.parameter_jacobian(model, drawn(N, 2, 4))
    out = {
        name: torch.empty(*rows.shape[::-1], dtype=rows.dtype).permute(
            *range(rows.ndim)[::-1]
        )
        for name, rows in found.items()
    }
    found.to_dict(out=out)
    for name, rows in found.items():
        torch.testing.assert_close(out[name], rows)
