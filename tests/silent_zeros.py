"""Kinds of silent zeros, each as a small module: ``CASES``.

Here are uses of a parameter that a recorder of calls can miss; the other files hold
values that hide whose they are, and what a rule can get wrong.
"""

from __future__ import annotations

import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import (
    checkpoint,
    checkpoint_sequential,
    set_checkpoint_early_stop,
)

from case import Net, normal, weight
from silent_case import Parts, SilentCase, fc, silent
from silent_derived import DERIVED
from silent_layers import LAYERS
from silent_owners import OWNERS
from silent_sequences import SEQUENCES
from silent_uses import USES

ONE, STEPS = normal((4,)), normal((5, 4))


def in_place() -> list[SilentCase]:
    """Return cases of parameters and activations that are written in place."""

    def into_a_column(m: Net, x: Tensor) -> Tensor:
        z = torch.sin(m.fc(x))
        z[:, 0] = m.p
        return z.square()

    def into_a_view(m: Net, x: Tensor) -> Tensor:
        z = torch.sin(m.fc(x))
        z[:, 1:].mul_(m.p)
        return z

    def through_a_flat_view(m: Net, x: Tensor) -> Tensor:
        z = torch.sin(m.fc(x))
        z.view(-1)[::3].mul_(m.p)
        return z

    def through_a_view_kept(m: Net, x: Tensor) -> Tensor:
        z = torch.sin(m.fc(x))
        column = z[:, 0]
        column += m.p
        return z * z

    def copied_into(m: Net, x: Tensor) -> Tensor:
        z = x.new_empty(len(x), 3)
        z.copy_(m.p)
        return z + m.fc(x).tanh()

    def filled_by_index(m: Net, x: Tensor) -> Tensor:
        z = torch.sin(m.fc(x))
        columns = torch.tensor([2, 0], device=x.device)
        return z.index_copy(1, columns, m.p.expand(len(x), 2)).index_add(
            1, columns, m.q.expand(len(x), 2), alpha=2
        )

    def residual(m: Net, x: Tensor) -> Tensor:
        y = m.fc(x)
        y += x
        z = m.fc(y.sin())
        z += y
        return z

    def activation(m: Net, x: Tensor) -> Tensor:
        return F.relu_(m.fc(x)).sum(1)

    def addition(m: Net, x: Tensor) -> Tensor:
        return m.fc(x).add_(m.p, alpha=2).mul_(m.p).relu_().sum(1)

    def input_overwritten(m: Net, x: Tensor) -> Tensor:
        y = m.fc(x.tanh())
        return x.mul_(m.p).sum(1, keepdim=True) * y

    def by_slices(m: Net, x: Tensor) -> Tensor:
        z = torch.zeros_like(x)
        for step in range(x.shape[1]):
            z[:, step] = torch.tanh(m.fc(x[:, step]) + z[:, step - 1])
        return z.sum(1)

    def layers() -> Parts:
        return {"net": nn.Sequential(
            nn.Linear(4, 6), nn.ReLU(inplace=True), nn.Linear(6, 3),
            nn.LeakyReLU(0.1, inplace=True))}  # fmt: skip

    return [
        silent("written_into_a_column", into_a_column, fc(p=()), ONE),
        silent("view_multiplied", into_a_view, fc(p=(2,)), ONE),
        silent("flat_view_multiplied", through_a_flat_view, fc(p=()), ONE),
        silent("view_added_to", through_a_view_kept, fc(p=(1,)), ONE),
        silent("copied_into_a_constant", copied_into, fc(p=(3,)), ONE),
        silent("filled_by_index", filled_by_index, fc(p=(2,), q=(1,)), ONE),
        silent("residual_in_place", residual, fc(4, 4), ONE),
        silent("linear_then_relu_in_place", activation, fc(), STEPS),
        silent("additions_in_place", addition, fc(p=(3,)), STEPS),
        silent("input_overwritten", input_overwritten, fc(p=(4,)), ONE),
        silent("step_by_step", by_slices, fc(4, 4), STEPS),
        silent("layers_in_place", lambda m, x: m.net(x).sum(1), layers, STEPS),
    ]  # fmt: skip


class Cubed(torch.autograd.Function):
    """A custom function of the old form, which ``torch.func`` cannot take."""

    @staticmethod
    def forward(ctx: Any, p: Tensor) -> Tensor:  # pyright: ignore
        ctx.save_for_backward(p)
        return p**3

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Tensor:  # pyright: ignore
        (p,) = ctx.saved_tensors
        return 3 * p**2 * cotangent


class Product(torch.autograd.Function):
    """A custom product of samples and a matrix, of the new form."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, w: Tensor) -> Tensor:  # pyright: ignore
        return x @ w

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:  # pyright: ignore
        x, w = ctx.saved_tensors
        return cotangent @ w.T, x.T @ cotangent


def unseen() -> list[SilentCase]:
    """Return cases of uses that no ordinary torch call of the forward shows."""

    def two_layers() -> Parts:
        return {"first": nn.Linear(4, 5), "last": nn.Linear(5, 3)}

    def scripted() -> nn.Module:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of TorchScript as such
            last = torch.jit.script(nn.Sequential(nn.Tanh(), nn.Linear(5, 3)))
        return Net(lambda m, x: m.last(m.first(x)), first=nn.Linear(4, 5), last=last)

    def compiled(of: Any) -> Any:
        def forward(m: Net, x: Tensor) -> Tensor:
            return m.last(torch.tanh(m.first(x)))

        return lambda: Net(forward, first=nn.Linear(4, 5), last=of(nn.Linear(5, 3)))

    def in_a_thread(m: Net, x: Tensor) -> Tensor:
        with ThreadPoolExecutor(1) as pool:
            y = pool.submit(lambda: torch.tanh(m.first(x))).result()
        return m.last(y)

    def energy(m: Net, x: Tensor) -> Tensor:
        return m.last(torch.tanh(m.first(x))).square().sum(1)

    def force(m: Net, x: Tensor) -> Tensor:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            total = energy(m, x).sum()
            return torch.autograd.grad(total, x, create_graph=True)[0]

    def force_by_func(m: Net, x: Tensor) -> Tensor:
        return torch.func.grad(lambda x: energy(m, x).sum())(x)

    def force_by_vmap(m: Net, x: Tensor) -> Tensor:
        one = torch.func.jacrev(lambda row: torch.tanh(m.first(row[None]))[0, :2])
        return torch.func.vmap(one)(x).flatten(1)

    def tangent(m: Net, x: Tensor) -> Tensor:
        return torch.func.jvp(lambda x: m.last(m.first(x).tanh()), (x,), (x.cos(),))[1]

    def doubled_by_a_hook(m: Net, x: Tensor) -> Tensor:
        y = torch.tanh(m.first(x))
        y.register_hook(lambda cotangent: 2 * cotangent)
        return m.last(y)

    def without_grad(m: Net, x: Tensor) -> Tensor:
        with torch.no_grad():
            y = torch.tanh(m.first(x))
        return m.last(y)

    def aliased() -> Parts:
        matrix = weight(4, 3)
        return {"w": matrix, "kept": [matrix]}

    def as_data(m: Net, x: Tensor) -> Tensor:
        return torch.tanh(x @ m.w) + x @ m.w.data

    def by_its_value(m: Net, x: Tensor) -> Tensor:
        sign = 1 if m.w.sum().item() > 0 else -1
        return sign * torch.tanh(x @ m.w)

    unused = ("first.weight", "first.bias")
    return [
        SilentCase("scripted_part", scripted, ONE, may_refuse=True, twin=lambda: Net(
            lambda m, x: m.last(m.first(x)), first=nn.Linear(4, 5),
            last=nn.Sequential(nn.Tanh(), nn.Linear(5, 3)))),
        SilentCase("compiled_part", compiled(
            lambda part: torch.compile(part, backend="eager")), ONE, may_refuse=True,
            twin=compiled(lambda part: part)),
        silent("in_a_thread", in_a_thread, two_layers, ONE, may_refuse=True),
        silent("force", force, two_layers, ONE, may_refuse=True),
        silent("force_by_func", force_by_func, two_layers, ONE, may_refuse=True),
        silent("force_by_vmap", force_by_vmap, two_layers, ONE, may_refuse=True,
               unused=("last.weight", "last.bias")),
        silent("tangent", tangent, two_layers, ONE, may_refuse=True,
               unused=("last.bias",)),
        silent("custom_function_of_a_parameter",
               lambda m, x: torch.tanh(x @ Cubed.apply(m.w)),
               lambda: {"w": weight(4, 3)}, ONE),
        silent("custom_product", lambda m, x: torch.tanh(Product.apply(x, m.w)),
               lambda: {"w": weight(4, 3)}, ONE),
        silent("aliased_in_a_list", lambda m, x: torch.tanh(x @ m.kept[0]), aliased,
               ONE),
        silent("cotangent_doubled_by_a_hook", doubled_by_a_hook, two_layers, ONE,
               may_refuse=True),
        silent("without_grad", without_grad, two_layers, ONE, unused=unused),
        silent("also_as_data", as_data, lambda: {"w": weight(4, 3)}, ONE),
        silent("branch_on_its_value", by_its_value, lambda: {"w": weight(4, 3)}, ONE),
    ]  # fmt: skip


def checkpointed() -> list[SilentCase]:
    """Return cases of activations that are computed again in the backward."""

    def parts() -> Parts:
        block = nn.Sequential(nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 5), nn.Tanh())
        return {"first": nn.Linear(4, 5), "block": block, "last": nn.Linear(5, 3)}

    def plain(m: Net, x: Tensor) -> Tensor:
        return m.last(m.block(torch.tanh(m.first(x))))

    def by(**options: Any) -> Any:
        def forward(m: Net, x: Tensor) -> Tensor:
            return m.last(checkpoint(m.block, torch.tanh(m.first(x)), **options))

        return forward

    def to_the_end(m: Net, x: Tensor) -> Tensor:
        with set_checkpoint_early_stop(False):
            return by(use_reentrant=False)(m, x)

    def by_segments(m: Net, x: Tensor) -> Tensor:
        y = torch.tanh(m.first(x))
        return m.last(checkpoint_sequential(m.block, 2, y, use_reentrant=False))

    return [
        silent("checkpoint", by(use_reentrant=False), parts, ONE),
        silent("checkpoint_that_stops_late", to_the_end, parts, ONE),
        silent("checkpoint_re_entrant", by(use_reentrant=True), parts, ONE,
               may_refuse=True, twin=lambda: Net(plain, **parts())),
        silent("checkpoint_of_segments", by_segments, parts, ONE),
    ]  # fmt: skip


CASES: tuple[SilentCase, ...] = (
    *in_place(), *unseen(), *checkpointed(), *OWNERS, *USES, *DERIVED, *LAYERS,
    *SEQUENCES,
)  # fmt: skip
