"""Values that hide whose they are, and tokens of all samples handled together."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from case import Net, ids, normal, weight
from silent_case import Parts, SilentCase, fc, silent, summed, w

ONE, STEPS = normal((4,)), normal((5, 4))


def whose() -> list[SilentCase]:
    """Return cases whose values hide which sample they belong to."""

    def small(m: Net, x: Tensor) -> Tensor:
        turned = (1e-6 * x).transpose(0, 1)
        return torch.tanh(m.fc(turned)).sum(0)

    def small_weights(m: Net, x: Tensor) -> Tensor:
        turned = x.transpose(0, 1)
        return (1e-6 * torch.tanh(m.fc(turned)) @ m.p).sum(0)

    def zero_projection(m: Net, x: Tensor) -> Tensor:
        turned = torch.tanh(m.first(x)).transpose(0, 1)
        branch = m.last(torch.tanh(m.fc(turned)))
        return (turned[..., :3] + branch).transpose(0, 1)[:, 1:3]

    def zeroed(model: Net) -> None:
        for part in model.last.parameters():
            part.data.zero_()

    def with_projection() -> Parts:
        widths = {"first": (4, 5), "fc": (5, 6), "last": (6, 3)}
        return {name: nn.Linear(*width) for name, width in widths.items()}

    def zero_sample(n: int) -> Tensor:
        return STEPS(n) * torch.tensor([1.0, 0.0, 1.0])[:n, None, None]

    def time_first(m: Net, x: Tensor) -> Tensor:
        return torch.relu(m.fc(x.transpose(0, 1))).sum(0)

    def penalty(model: Net, outputs: Tensor) -> Tensor:
        return (outputs * model.fc.weight.square().sum()).flatten(1).sum(1)

    def mixed(m: Net, x: Tensor) -> Tensor:
        y = torch.tanh(m.fc(x))
        return y + y.roll(1, 0).detach() * 0

    def vanishing(m: Net, x: Tensor) -> Tensor:
        return 1e-60 * (m.q * torch.tanh(m.fc(x) * 1e-60))

    def alike(n: int) -> Tensor:
        return STEPS(1).expand(n, -1, -1).clone()

    behind = ("fc.weight", "fc.bias")
    return [
        silent("tiny_activations_time_first", small, fc(), STEPS),
        silent("tiny_cotangents_time_first", small_weights, fc(p=(3, 2)), STEPS),
        silent("zero_projection_time_first", zero_projection, with_projection, STEPS,
               after=zeroed, unused=behind),
        silent("one_sample_of_zeros", time_first, fc(), zero_sample),
        silent("as_many_steps_as_samples", time_first, fc(), normal((3, 4))),
        silent("a_single_sample", time_first, fc(), STEPS, samples=1),
        silent("samples_alike", time_first, fc(), alike),
        silent("vanishing", vanishing, fc(q=(3,)), ONE),
        silent("neighbours_without_weight", mixed, fc(), ONE, may_refuse=True),
        silent("objective_with_a_parameter", lambda m, x: m.fc(x), fc(), ONE,
               penalty=penalty, may_refuse=True),
        silent("objective_with_a_parameter_of_nothing_else", lambda m, x: m.fc(x),
               fc(p=(3,)), ONE, may_refuse=True,
               penalty=lambda model, y: (y * model.p).sum(1)),
        silent("ids_alone", lambda m, t: m.table[t].prod(1), lambda: {
            "table": weight(6, 2)}, lambda n: ids(n, 3, below=6)),
    ]  # fmt: skip


def divided() -> list[SilentCase]:
    """Return cases of a batch that is cut, doubled or turned before it meets a use."""

    def one_at_a_time(m: Net, x: Tensor) -> Tensor:
        return torch.stack([torch.tanh(m.fc(row)) for row in x])

    def cut(m: Net, x: Tensor) -> Tensor:
        return torch.cat([torch.tanh(m.fc(part)) for part in x.split(2)])

    def turned_round(m: Net, x: Tensor) -> Tensor:
        return torch.tanh(m.fc(x.flip(0))).flip(0)

    def doubled(m: Net, x: Tensor) -> Tensor:
        plus, minus = torch.tanh(m.fc(torch.cat([x, 1 - x]))).chunk(2)
        return plus * minus

    def interleaved(m: Net, x: Tensor) -> Tensor:
        several = torch.tanh(m.fc(x.repeat_interleave(2, 0) * m.p.repeat(len(x), 1)))
        return several.unflatten(0, (-1, 2)).prod(1)

    def as_groups(m: Net, x: Tensor) -> Tensor:
        kernels = m.kernel.repeat(len(x), 1, 1)
        rows = F.conv1d(x.reshape(1, -1, 5), kernels, groups=len(x))
        return rows.unflatten(1, (len(x), 3))[0].square().sum(2)

    def stacked_parameter(m: Net, x: Tensor) -> Tensor:
        return torch.tanh(x * torch.stack([m.w for _ in x]))

    def on_a_graph(m: Net, x: Tensor, adjacency: Tensor) -> Tensor:
        return summed(torch.tanh(adjacency @ x @ (m.w * adjacency[:4, :4])))

    def with_graph(n: int) -> Parts:
        links = torch.tensor([[1, 2, 0, 3, 1]] * 5, dtype=torch.float64).tril()
        return {"x": STEPS(n), "adjacency": links}

    return [
        silent("one_sample_at_a_time", one_at_a_time, fc(), ONE),
        silent("cut_in_parts", cut, fc(), ONE, samples=5),
        silent("turned_round", turned_round, fc(), ONE),
        silent("doubled_batch", doubled, fc(), ONE),
        silent("interleaved_batch", interleaved, fc(p=(2, 1)), ONE),
        silent("samples_as_groups", as_groups, lambda: {"kernel": weight(3, 2, 3)},
               normal((2, 5))),
        silent("parameter_stacked_for_each_sample", stacked_parameter, w(4), ONE),
        silent("shared_matrix", on_a_graph, w(4, 4), with_graph, shared=("adjacency",)),
    ]  # fmt: skip


def regrouped() -> list[SilentCase]:
    """Return cases in which tokens of all samples are handled together."""

    def by_index_select(m: Net, x: Tensor) -> Tensor:
        rows = x.flatten(0, 1)
        chosen = m.gate(rows).argmax(1)
        outputs = torch.zeros(len(rows), 3, dtype=x.dtype, device=x.device)
        for number, expert in enumerate(m.experts):
            (places,) = torch.where(chosen == number)
            part = expert(rows.index_select(0, places))
            outputs = outputs.index_add(0, places, part)
        return summed(outputs.unflatten(0, x.shape[:2]))

    def by_mask(m: Net, x: Tensor) -> Tensor:
        outputs = torch.zeros_like(x)
        for number in range(3):
            here = (x[..., 0] * 7).long() % 3 == number
            outputs[here] = torch.tanh(x[here] @ m.bank[number])
        return summed(outputs)

    def sorted_tokens(m: Net, x: Tensor) -> Tensor:
        rows = x.flatten(0, 1)
        order = rows[:, 0].argsort()
        outputs = torch.tanh(rows[order] @ m.w)
        return summed(outputs[order.argsort()].unflatten(0, x.shape[:2]))

    def only_some(m: Net, x: Tensor) -> Tensor:
        outputs = x.clone()
        some = x[:, 0, 0] > 0
        outputs[some] = torch.tanh(x[some] @ m.w)
        return summed(outputs)

    def by_sign(m: Net, x: Tensor) -> Tensor:
        return torch.where(x[:, :1, :1] > 0, x @ m.w, x.square() @ m.v).sum(1)

    def time_first(m: Net, x: Tensor) -> Tensor:
        rows = x.transpose(0, 1).flatten(0, 1)
        outputs = torch.tanh(F.linear(rows, m.w, m.b))
        return summed(outputs.unflatten(0, (5, len(x))).transpose(0, 1))

    def channels_first(m: Net, x: Tensor) -> Tensor:
        return summed(torch.tanh(m.fc(x.permute(2, 0, 1)[..., :2])).permute(1, 2, 0))

    def without_padding(m: Net, words: Tensor) -> Tensor:
        rows = m.embedding(words[words > 0])
        outputs = torch.zeros(*words.shape, 3, dtype=rows.dtype, device=words.device)
        return summed(outputs.masked_scatter((words > 0)[..., None], rows.tanh()))

    def bank(*names: str) -> Any:
        return lambda: {name: weight(4, 4) for name in names}

    return [
        silent("experts_by_index", by_index_select, lambda: {
            "gate": nn.Linear(4, 2).requires_grad_(False),
            "experts": nn.ModuleList([nn.Linear(4, 3), nn.Linear(4, 3)])}, STEPS),
        silent("experts_by_mask", by_mask, lambda: {"bank": weight(3, 4, 4)}, STEPS),
        silent("sorted_tokens", sorted_tokens, bank("w"), STEPS),
        silent("used_for_some_samples", only_some, bank("w"), STEPS, samples=4),
        silent("one_or_the_other", by_sign, bank("w", "v"), STEPS, samples=4),
        silent("flattened_time_first", time_first, lambda: {
            "w": weight(3, 4), "b": weight(3)}, STEPS),
        silent("samples_in_the_middle", channels_first, lambda: {
            "fc": nn.Linear(2, 3)}, STEPS),
        silent("tokens_without_padding", without_padding, lambda: {
            "embedding": nn.Embedding(6, 3)}, lambda n: ids(n, 5, below=6),
            samples=4),
    ]  # fmt: skip


OWNERS: tuple[SilentCase, ...] = (*whose(), *divided(), *regrouped())
