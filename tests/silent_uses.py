"""Parameters used as plain tensors: viewed, joined, in any place of a product."""

from __future__ import annotations

import functools
import operator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from case import Net, ids, normal, weight
from silent_case import Parts, SilentCase, parts, silent, w

ONE = normal((4,))
TWO = normal((4,), (5,))
STEPS = normal((2, 4))
WORDS = functools.partial(ids, below=6)


def views() -> list[SilentCase]:
    """Return cases of a parameter that is used through a view or a copy of it."""

    def written_copy(m: Net, x: Tensor) -> Tensor:
        copy = m.w.clone()
        copy[0] = 0
        copy[1:].mul_(2)
        return torch.tanh(x @ copy)

    def both_halves(m: Net, x: Tensor) -> Tensor:
        left, right = m.w.chunk(2, 1)
        return torch.sigmoid(x @ left) * (x @ right)

    def rows_apart(m: Net, x: Tensor) -> Tensor:
        first, second, _ = m.w.unbind()
        return torch.tanh(x * first) + x.roll(1, 1) * second

    return [
        silent("transposed", lambda m, x: torch.tanh(x @ m.w.t()), w(5, 4), ONE),
        silent("by_mT", lambda m, x: torch.tanh(x @ m.w.mT), w(5, 4), ONE),
        silent("one_row", lambda m, x: torch.tanh(x * m.w[0]), w(3, 4), ONE),
        silent("expanded", lambda m, x: x.tanh() * m.w.expand(len(x), -1), w(1, 4),
               ONE),
        silent("expanded_as", lambda m, x: x.tanh() * m.w.expand_as(x), w(4), ONE),
        silent("repeated", lambda m, x: x.tanh() * m.w.repeat(len(x), 2), w(1, 2), ONE),
        silent("reshaped", lambda m, x: torch.tanh(x @ m.w.reshape(4, 3)), w(12), ONE),
        silent("flattened", lambda m, x: F.linear(x, m.w.flatten(1)), w(5, 2, 2), ONE),
        silent("sliced", lambda m, x: torch.tanh(x @ m.w[:, 1:]), w(4, 3), ONE),
        silent("strided", lambda m, x: torch.tanh(x @ m.w[::2]), w(8, 3), ONE),
        silent("lower_triangle", lambda m, x: x @ m.w.tril(), w(4, 4), ONE),
        silent("rolled", lambda m, x: x @ m.w.roll(1, 0), w(4, 3), ONE),
        silent("permuted", lambda m, x: x @ m.w.permute(1, 2, 0)[0], w(3, 2, 4), ONE),
        silent("diagonal", lambda m, x: x * m.w.diagonal(), w(4, 4), ONE),
        silent("as_strided", lambda m, x: x @ m.w.as_strided((4, 2), (1, 3)), w(7),
               ONE),
        silent("halves", both_halves, w(4, 6), ONE),
        silent("rows_apart", rows_apart, w(3, 4), ONE),
        silent("copy_written_into", written_copy, w(4, 3), ONE),
        silent("chosen_rows", lambda m, t: m.w[t].sum(1).tanh(), w(6, 3),
               lambda n: WORDS(n, 2)),
        silent("gathered", lambda m, t: m.w.expand(len(t), -1).gather(1, t), w(6),
               lambda n: WORDS(n, 2)),
        silent("taken", lambda m, t: m.w.take(t), w(6), lambda n: WORDS(n, 2)),
        silent("selected_rows",
               lambda m, t: m.w.index_select(0, t.flatten()).view(len(t), -1), w(6, 3),
               lambda n: WORDS(n, 2)),
    ]  # fmt: skip


def joined() -> list[SilentCase]:
    """Return cases of several parameters in one, and of one in several places."""

    def mixed(m: Net, x: Tensor) -> Tensor:
        return torch.einsum("e,eio,ni->no", m.mix.softmax(0), m.bank, x)

    def read_out(m: Net, words: Tensor) -> Tensor:
        return m.head(torch.tanh(m.embedding(words).sum(1)))

    def tied() -> Parts:
        embedding, head = nn.Embedding(6, 3), nn.Linear(3, 6)
        head.weight = embedding.weight
        return {"embedding": embedding, "head": head}

    def as_linear(m: Net, x: Tensor) -> Tensor:
        hidden = torch.tanh(m.conv(x)).flatten(1)
        return F.linear(hidden[:, :6], m.conv.weight.flatten(1))

    def by_name(m: Net, x: Tensor) -> Tensor:
        for matrix in m.listed:
            x = torch.tanh(x @ matrix)
        return x + m.named["shift"]

    def ensemble(m: Net, x: Tensor) -> Tensor:
        each = torch.vmap(lambda weight, bias: torch.tanh(x @ weight + bias))
        return each(m.w, m.b).mean(0)

    def functional_call(m: Net, x: Tensor) -> Tensor:
        own = {"weight": m.w * 2, "bias": m.b}
        return torch.func.functional_call(m.inner, own, (x,)).tanh()

    def with_inner() -> Parts:
        inner = nn.Linear(4, 3).requires_grad_(False)
        return {"w": weight(3, 4), "b": weight(3), "inner": inner}

    return [
        silent("stacked",
               lambda m, x: torch.einsum("ni,sio->nso", x, torch.stack([m.a, m.b])),
               parts(a=(4, 2), b=(4, 2)), ONE),
        silent("concatenated",
               lambda m, x: torch.tanh(x @ torch.cat([m.a, m.b], 1)),
               parts(a=(4, 2), b=(4, 3)), ONE),
        silent("mixture_of_weights", mixed, parts(mix=(3,), bank=(3, 4, 2)), ONE),
        silent("partial", lambda m, x: functools.partial(F.linear, weight=m.w)(x),
               w(5, 4), ONE),
        silent("in_containers", by_name, lambda: {
            "listed": nn.ParameterList([weight(4, 3), weight(3, 2)]),
            "named": nn.ParameterDict({"shift": weight(2)})}, ONE),
        silent("tied_read_out", read_out, tied, lambda n: WORDS(n, 2)),
        silent("kernel_as_a_matrix", as_linear,
               lambda: {"conv": nn.Conv1d(2, 3, 3)}, normal((2, 5))),
        silent("twice_in_two_layouts", lambda m, x: torch.tanh(x @ m.w) @ m.w.T,
               w(4, 3), ONE),
        silent("twice_the_same", lambda m, x: torch.tanh(torch.tanh(x @ m.w) @ m.w),
               w(4, 4), ONE),
        silent("matrix_and_its_square", lambda m, x: x @ (m.w @ m.w), w(4, 4), ONE),
        silent("with_and_without_its_gradient",
               lambda m, x: torch.tanh(x @ m.w) @ m.w.detach().T, w(4, 3), ONE),
        silent("ensemble_by_vmap", ensemble, parts(w=(2, 4, 3), b=(2, 3)), ONE),
        silent("functional_call", functional_call, with_inner, ONE),
        silent("one_of_two_unused", lambda m, x: (x @ m.w).tanh(),
               parts(w=(4, 3), spare=(2, 5)), ONE, unused=("spare",)),
        silent("in_another_order_of_memory", lambda m, x: torch.tanh(x @ m.w),
               lambda: {"w": nn.Parameter(torch.randn(3, 4).t())}, ONE),
        silent("through_a_frozen_layer",
               lambda m, x: m.frozen(torch.tanh(x @ m.w)), lambda: {
                   "w": weight(4, 3), "frozen": nn.Linear(3, 2).requires_grad_(False)},
               ONE),
        silent("none_uses_the_inputs", lambda m, x: m.w.expand(len(x), 3), w(3), ONE),
    ]  # fmt: skip


def products() -> list[SilentCase]:
    """Return cases of a parameter in each place of a product."""

    def heads(m: Net, x: Tensor) -> Tensor:
        return torch.tanh(x[:, None] @ m.w).sum(1)

    def by_baddbmm(m: Net, x: Tensor) -> Tensor:
        each = x.unflatten(1, (2, 2)).transpose(0, 1)  # heads, samples, features
        return torch.baddbmm(m.b, each, m.w, beta=0.5, alpha=-2).transpose(0, 1)

    def time_first(m: Net, x: Tensor) -> Tensor:
        turned = x.transpose(0, 1).contiguous()
        return torch.einsum("tnd,do->tno", turned, m.w).tanh().transpose(0, 1)

    def samples_last(m: Net, x: Tensor) -> Tensor:
        return torch.einsum("od,dtn->otn", m.w, x.permute(2, 1, 0)).permute(2, 0, 1)

    def samples_as_weights(m: Net, x: Tensor) -> Tensor:
        return F.linear(m.w, x).T.tanh()

    def samples_as_kernels(m: Net, x: Tensor) -> Tensor:
        return F.conv1d(m.w, x).transpose(0, 1).flatten(1)

    return [
        silent("named_arguments", lambda m, x: F.linear(bias=m.b, weight=m.w, input=x),
               parts(w=(5, 4), b=(5,)), ONE),
        silent("einsum_parameter_first",
               lambda m, x: torch.einsum("ok,nk->no", m.w, x), w(5, 4), ONE),
        silent("einsum_parameter_last",
               lambda m, x: torch.einsum("nsk,ko->nso", x, m.w).tanh(), w(4, 3), STEPS),
        silent("einsum_with_dots",
               lambda m, x: torch.einsum("...k,ko->...o", x, m.w), w(4, 3), STEPS),
        silent("einsum_time_first", time_first, w(4, 3), STEPS),
        silent("einsum_samples_last", samples_last, w(3, 4), STEPS),
        silent("einsum_of_three",
               lambda m, x, y: torch.einsum("ni,iok,nk->no", x, m.w, y), w(4, 3, 5),
               TWO),
        silent("einsum_repeated_letter",
               lambda m, x: torch.einsum("nk,kk->nk", x, m.w), w(4, 4), ONE),
        silent("einsum_of_two_parameters",
               lambda m, x: torch.einsum("nk,kr,ro->no", x, m.a, m.b),
               parts(a=(4, 2), b=(2, 3)), ONE),
        silent("addmm", lambda m, x: torch.addmm(m.b, x, m.w, beta=0.5, alpha=2),
               parts(b=(3,), w=(4, 3)), ONE),
        silent("addmm_turned",
               lambda m, x: torch.addmm(m.b, m.w, x.T, beta=-1, alpha=0.5).T,
               parts(b=(3, 1), w=(3, 4)), ONE),
        silent("addmm_named", lambda m, x: torch.addmm(
            mat2=m.w, mat1=x, input=m.b, alpha=3), parts(b=(1, 3), w=(4, 3)), ONE),
        silent("baddbmm", by_baddbmm, parts(b=(2, 1, 3), w=(2, 2, 3)), ONE),
        silent("addbmm", lambda m, x: torch.addbmm(
            m.b, x.unflatten(1, (2, 2)).transpose(0, 1), m.w), parts(
            b=(3,), w=(2, 2, 3)), ONE),
        silent("addmv", lambda m, x: torch.addmv(m.b.expand(len(x)), x, m.w),
               parts(b=(1,), w=(4,)), ONE),
        silent("addcmul", lambda m, x: torch.addcmul(x, m.a, x.cos(), value=2),
               parts(a=(4,)), ONE),
        silent("mv", lambda m, x: torch.mv(x, m.w).tanh(), w(4), ONE),
        silent("matrix_of_each_head", heads, w(5, 4, 3), STEPS),
        silent("matmul_parameter_first", lambda m, x: (m.w @ x.mT).tanh(), w(3, 4),
               STEPS),
        silent("bmm_expanded",
               lambda m, x: torch.bmm(x, m.w.expand(len(x), -1, -1)), w(4, 3), STEPS),
        silent("bmm_parameter_first", lambda m, x: torch.bmm(
            m.w.expand(len(x), -1, -1), x.mT), w(3, 4), STEPS),
        silent("inner", lambda m, x: torch.inner(x, m.w), w(3, 4), ONE),
        silent("tensordot", lambda m, x: torch.tensordot(
            x, m.w, 2), w(2, 4, 3), STEPS),
        silent("outer_per_sample", lambda m, x: x[:, :, None] * m.w, w(3), ONE),
        silent("samples_as_weights", samples_as_weights, w(3, 4), ONE),
        silent("samples_as_kernels", samples_as_kernels, w(1, 2, 5), normal((2, 3))),
        silent("operator_matmul",
               lambda m, x: operator.matmul(x, m.w).tanh(), w(4, 3), ONE),
        silent("right_multiplication", lambda m, x: x.__rmatmul__(m.w[None]).tanh(),
               w(2, 4), normal((4, 3))),
        silent("aten_operator", lambda m, x: torch.ops.aten.mm(x, m.w).tanh(), w(4, 3),
               ONE),
        silent("multi_dot", lambda m, x: torch.linalg.multi_dot([x, m.a, m.b]),
               parts(a=(4, 2), b=(2, 3)), ONE),
    ]  # fmt: skip


USES: tuple[SilentCase, ...] = (
    *views(), *joined(), *products(),
)  # fmt: skip
