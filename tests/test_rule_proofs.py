"""What rules must prove before they serve a parameter, and what each proof is for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gradkit as gk
from gradkit._parameter_jacobian import _by_rules
from gradkit._rules import _engine, _service
from gradkit._rules._layout import Layout

D = torch.float64
N, T, INPUTS, OUTPUTS = 4, 3, 5, 2


class Net(nn.Module):
    """A forward and what it uses."""

    def __init__(self, forward: Callable[..., Tensor], **parts: Any) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self._forward = forward
        self.to(D)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def forward(self, *inputs: Tensor) -> Tensor:
        return self._forward(self, *inputs)


def weight(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(*shape, dtype=D))


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=D)


def squared(outputs: Tensor) -> Tensor:
    return outputs.flatten(1).square().sum(1)


def truth(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """Return the rows by one backward per sample."""
    rows = []
    for one in x.split(1):
        loss = squared(model(one)).sum()
        rows.append(torch.autograd.grad(loss, list(model.parameters())))
    names = [name for name, _ in model.named_parameters()]
    return {n: torch.stack(c) for n, c in zip(names, zip(*rows, strict=True),
                                              strict=True)}  # fmt: skip


def is_right(model: nn.Module, x: Tensor, **how: Any) -> bool:
    """Whether rows and norms are right; refusals pass on."""
    found = gk.per_sample_gradients(model, x, squared, **how)
    wanted = truth(model, x)
    scale = max(float(v.abs().max()) for v in wanted.values())
    return all(
        float((found[n] - v).abs().max()) <= 1e-10 * scale for n, v in wanted.items()
    )


def plan(model: nn.Module, x: Tensor) -> dict[str, str]:
    found = gk.explain(gk.per_sample_gradients, model, x, squared)
    return {name: path.method for name, path in found.paths.items()}


# -- uses that a tape of torch calls does not see --------------------------


def writes_into_zeros(m: Net, x: Tensor) -> Tensor:
    z = x.new_zeros(len(x), 2, OUTPUTS)
    z[:, 0] = m.p
    z[:, 1] = m.fc(x)
    return z.cumsum(1)


class Times(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, p: Tensor) -> Tensor:
        ctx.save_for_backward(x, p)
        return x * p

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        x, p = ctx.saved_tensors
        return grads[0] * p, (grads[0] * x).sum(0)


def by_custom_function(m: Net, x: Tensor) -> Tensor:
    y = m.fc(x)
    return Times.apply(y, m.p) * m.p  # pyright: ignore[reportOperatorIssue]


def differentiates(m: Net, x: Tensor) -> Tensor:
    x = x if x.requires_grad else x.detach().requires_grad_()
    energy = (m.fc(x).square() * m.p).sum()
    (g,) = torch.autograd.grad(energy, x, create_graph=True)
    return g + (m.fc(x) * m.p).sum(1, keepdim=True)


UNSEEN = {
    "a write into zeros": writes_into_zeros,
    "a custom Function": by_custom_function,
    "a derivative in forward": differentiates,
}


def unseen(name: str) -> Net:
    torch.manual_seed(1)
    return Net(UNSEEN[name], fc=nn.Linear(INPUTS, OUTPUTS), p=weight(OUTPUTS))


@pytest.mark.parametrize("name", UNSEEN)
def test_a_use_past_the_tape_is_served_by_others(name: str) -> None:
    model, x = unseen(name), drawn(N, INPUTS)
    assert is_right(model, x)
    assert plan(model, x)["p"] != "rules"


# -- samples that stand elsewhere ------------------------------------------


def time_first(m: Net, x: Tensor) -> Tensor:
    y = m.fc(torch.tanh(x).transpose(0, 1))
    return torch.tanh(m.out(y)).transpose(0, 1)


def tokens(m: Net, x: Tensor) -> Tensor:
    y = m.fc(x.transpose(0, 1).reshape(-1, INPUTS))  # (T * N, OUTPUTS)
    return m.out(y).view(x.shape[1], x.shape[0], -1).transpose(0, 1)


ELSEWHERE = {"time first": time_first, "tokens": tokens}


def elsewhere(name: str, *, zero: bool = False) -> Net:
    torch.manual_seed(2)
    model = Net(
        ELSEWHERE[name], fc=nn.Linear(INPUTS, OUTPUTS), out=nn.Linear(OUTPUTS, 3)
    )
    if zero:
        nn.init.zeros_(model.out.weight)
    return model


@pytest.mark.parametrize("steps", [T, N])
@pytest.mark.parametrize("name", ELSEWHERE)
def test_samples_that_stand_elsewhere_are_found(name: str, steps: int) -> None:
    model, x = elsewhere(name), drawn(N, steps, INPUTS)
    assert is_right(model, x)
    assert set(plan(model, x).values()) == {"rules"}


@pytest.mark.parametrize("size", [1.0, 1e-6])
@pytest.mark.parametrize("name", ELSEWHERE)
def test_no_zero_decides_where_samples_stand(name: str, size: float) -> None:
    """With a zero projection every place fits, and training soon makes it non-zero."""
    model, x = elsewhere(name, zero=True), size * drawn(N, N, INPUTS)
    for _ in range(6):  # calls with and without a proof
        assert is_right(model, x)
        with torch.no_grad():
            model.out.weight += 0.1 * torch.randn_like(model.out.weight)


def test_samples_on_the_diagonal_alone_do_not_decide_either() -> None:
    def last(m: Net, x: Tensor, lengths: Tensor) -> Tensor:
        y = m.fc(x.transpose(0, 1))  # (T, N, OUTPUTS), T = N
        return y[lengths, torch.arange(len(lengths), device=lengths.device)]

    torch.manual_seed(3)
    model, x = Net(last, fc=nn.Linear(INPUTS, OUTPUTS)), drawn(N, N, INPUTS)
    for lengths in (torch.arange(N), torch.tensor([2, 0, 3, 3]), torch.zeros(N).long()):
        found = gk.per_sample_gradients(model, (x, lengths), squared)["fc.weight"]
        chosen = x[torch.arange(N), lengths]
        wanted = 2 * model.fc(chosen)[:, :, None] * chosen[:, None]
        torch.testing.assert_close(found, wanted.detach())


# -- every proof is needed -------------------------------------------------


@contextmanager
def without(*parts: str) -> Iterator[None]:
    """Take proofs away."""
    with pytest.MonkeyPatch.context() as patch:
        if "sum" in parts:
            patch.setattr(_by_rules, "_wrong", lambda *_: [])
        if "completeness" in parts:
            patch.setattr(
                _service,
                "unseen_uses",
                lambda _outputs, recorded, _parameters: (
                    set(),
                    set(range(len(recorded))),
                ),
            )
        if "ownership" in parts:
            patch.setattr(
                _engine,
                "find_layouts",
                lambda _pull, _c, base, _: [Layout(0) for _ in base],
            )
        yield


# What a custom Function does with gradients off is seen, and noted, besides.
@pytest.mark.parametrize("name", [n for n in UNSEEN if "custom" not in n])
def test_without_completeness_rows_would_be_wrong(name: str) -> None:
    model, x = unseen(name), drawn(N, INPUTS)
    with without("completeness", "sum"):
        assert not is_right(model, x)
    with without("sum"):
        assert is_right(unseen(name), x)


def test_without_ownership_rows_would_be_wrong() -> None:
    x = drawn(N, N, INPUTS)
    with without("ownership", "sum"):
        assert not is_right(elsewhere("time first"), x)
    with without("sum"):
        assert is_right(elsewhere("time first"), x)


def test_the_sum_of_rows_is_a_net_below_both() -> None:
    x = drawn(N, INPUTS)
    for name in UNSEEN:
        with without("completeness"):
            assert is_right(unseen(name), x)
    with without("ownership"):
        assert is_right(elsewhere("time first"), drawn(N, N, INPUTS))


# -- what is refused by name -----------------------------------------------


def test_a_hook_on_a_tensor_changes_what_arrives() -> None:
    def forward(m: Net, x: Tensor) -> Tensor:
        y = m.fc(x)
        if y.requires_grad:
            y.register_hook(lambda g: 10 * g)
        return torch.tanh(y)

    model = Net(forward, fc=nn.Linear(INPUTS, OUTPUTS))
    assert is_right(model, drawn(N, INPUTS))
    assert set(plan(model, drawn(N, INPUTS)).values()) != {"rules"}


def test_what_is_drawn_at_random_is_not_computed_again() -> None:
    def forward(m: Net, x: Tensor) -> Tensor:
        return F.linear(x, F.dropout(m.fc.weight, 0.5), m.fc.bias)

    torch.manual_seed(4)
    model, x = Net(forward, fc=nn.Linear(INPUTS, OUTPUTS)), drawn(N, INPUTS)
    found = gk.per_sample_gradients(model, x, squared, seed=5)
    torch.manual_seed(5)
    gradients = torch.autograd.grad(squared(model(x)).sum(), list(model.parameters()))
    for total, gradient in zip(found.sum().values(), gradients, strict=True):
        torch.testing.assert_close(total, gradient)


def test_a_checkpoint_that_hides_parameters_is_refused() -> None:
    from torch.utils.checkpoint import checkpoint

    def forward(m: Net, x: Tensor) -> Tensor:
        return m.out(checkpoint(m.fc, x, use_reentrant=True))  # pyright: ignore

    model = Net(forward, fc=nn.Linear(INPUTS, OUTPUTS), out=nn.Linear(OUTPUTS, 3))
    with pytest.raises(gk.errors.UnsupportedModelError, match="use_reentrant"):
        gk.per_sample_gradients(model, drawn(N, INPUTS), squared)


def test_a_look_at_a_parameter_without_gradients_is_no_use() -> None:
    def forward(m: Net, x: Tensor) -> Tensor:
        with torch.no_grad():
            size = m.fc.weight.norm()
        return m.fc(x) / size

    model, x = Net(forward, fc=nn.Linear(INPUTS, OUTPUTS)), drawn(N, INPUTS)
    assert is_right(model, x)
    assert set(plan(model, x).values()) == {"rules"}


def test_a_constant_of_anybody_s_is_kept_as_it_was() -> None:
    table = drawn(OUTPUTS)

    def forward(m: Net, x: Tensor) -> Tensor:
        return m.fc(x) * (1 + m.p * table)

    model, x = (
        Net(forward, fc=nn.Linear(INPUTS, OUTPUTS), p=weight(OUTPUTS)),
        drawn(N, INPUTS),
    )
    found = gk.per_sample_gradients(model, x, squared)
    assert found.select("p").nbytes
    wanted = {n: v.clone() for n, v in found.items()}
    table.fill_(7.0)
    for name, rows in wanted.items():
        assert torch.equal(found[name], rows)


def test_a_use_for_some_samples_alone_or_for_none() -> None:
    def forward(m: Net, x: Tensor, chosen: Tensor) -> Tensor:
        y = m.fc(x).clone()
        y[chosen] += m.p
        return torch.tanh(y)

    torch.manual_seed(7)
    model = Net(forward, fc=nn.Linear(INPUTS, OUTPUTS), p=weight(OUTPUTS))
    masks = torch.tensor([[0] * N, [1] * N, [0, 1, 0, 0]]).bool()
    for mask in masks.repeat(2, 1):
        x = drawn(N, INPUTS)
        found = gk.per_sample_gradients(model, (x, mask), squared)["p"]
        y = torch.tanh(model.fc(x) + mask[:, None] * model.p)
        wanted = 2 * y * (1 - y.square()) * mask[:, None]
        torch.testing.assert_close(found, wanted.detach())


def test_what_is_remembered_is_forgotten_with_the_operations() -> None:
    """The second kind of call meets a proof of its own."""

    def forward(m: Net, x: Tensor) -> Tensor:
        if x.shape[1] == T:
            return m.fc(x)
        return m.fc(x.transpose(0, 1)).transpose(0, 1)

    model = Net(forward, fc=nn.Linear(INPUTS, OUTPUTS))
    for steps in (T, N, T, N, N, T, T, N):
        assert is_right(model, drawn(N, steps, INPUTS))
