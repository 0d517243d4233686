"""Parameters used in every way, and models that keep state or hooks."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from case import Case, Net, ids, normal, weight


class Cube(torch.autograd.Function):
    """A custom function of the old form, which ``torch.func`` cannot take."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # pyright: ignore
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Tensor:  # pyright: ignore
        (x,) = ctx.saved_tensors
        return 3 * x**2 * cotangent


def use_cases() -> list[Case]:
    def functional() -> Net:
        def forward(model: Net, x: Tensor) -> Tensor:
            hidden = F.linear(x, model.w, bias=model.b)
            return torch.sin(hidden) * (1 + model.scale) @ model.v

        return Net(
            forward, w=weight(5, 4), b=weight(5), scale=weight(5), v=weight(5, 2)
        )

    def with_class_token() -> Net:
        def forward(model: Net, x: Tensor) -> Tensor:
            token = model.token.expand(len(x), -1, -1)
            rows = torch.cat([token, x], 1) + model.table
            return torch.tanh(rows).mean(1) @ model.head

        return Net(
            forward, token=weight(1, 1, 4), table=weight(3, 4), head=weight(4, 2)
        )

    def frozen() -> nn.Module:
        model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))
        model[0].requires_grad_(False)
        return model

    def all_frozen() -> nn.Module:
        return nn.Linear(4, 2).requires_grad_(False)

    def tied() -> Net:
        def forward(model: Net, tokens: Tensor) -> Tensor:
            return model.head(torch.tanh(model.embedding(tokens).sum(1)))

        model = Net(forward, embedding=nn.Embedding(7, 3), head=nn.Linear(3, 7))
        model.head.weight = model.embedding.weight
        return model

    def used_twice() -> Net:
        def forward(model: Net, x: Tensor) -> Tensor:
            return model.fc(torch.tanh(model.fc(x)))[:, :2]

        return Net(forward, fc=nn.Linear(4, 4))

    def under_two_names() -> nn.Module:
        layer = nn.Linear(4, 4)
        return nn.Sequential(layer, nn.Tanh(), layer, nn.Linear(4, 2))

    def with_unused() -> Net:
        return Net(lambda m, x: m.fc(x), fc=nn.Linear(4, 2), spare=nn.Linear(3, 5))

    def listed() -> Net:
        def forward(model: Net, x: Tensor) -> Tensor:
            for matrix in model.matrices:
                x = torch.tanh(x @ matrix)
            return x + model.by_name["shift"]

        shapes = ((4, 3), (3, 2))
        return Net(
            forward,
            matrices=nn.ParameterList(weight(*shape) for shape in shapes),
            by_name=nn.ParameterDict({"shift": weight(2)}),
        )

    def written_into() -> Net:
        def forward(model: Net, x: Tensor) -> Tensor:
            hidden = torch.tanh(model.fc(x))
            z = hidden.clone()
            z[:, 0] = model.p * hidden[:, 1]
            return z

        return Net(forward, fc=nn.Linear(4, 3), p=weight(1))

    def in_plain_list() -> Net:
        w = weight(4, 3)
        return Net(lambda m, x: torch.tanh(x @ m.kept[0]), w=w, kept=[w])

    def bags() -> nn.Module:
        return nn.Sequential(nn.EmbeddingBag(7, 3, mode="mean"), nn.Linear(3, 2))

    one = normal((4,))
    return [
        Case("functional_parameters", functional, one),
        Case("class_token", with_class_token, normal((2, 4))),
        Case("frozen_part", frozen, one),
        Case("all_frozen", all_frozen, one),
        Case("tied", tied, lambda n: ids(n, 2)),
        Case("layer_used_twice", used_twice, one),
        Case("under_two_names", under_two_names, one),
        Case("unused_parameter", with_unused, one),
        Case("parameter_list", listed, one),
        Case("parameter_written_into", written_into, one),
        Case("parameter_in_a_plain_list", in_plain_list, one),
        Case(
            "output_is_a_parameter",
            lambda: Net(lambda m, x: m.b.expand(len(x), 2), b=weight(2)),
            one,
        ),
        Case("embedding_bag", bags, lambda n: ids(n, 3)),
    ]


def state_cases() -> list[Case]:
    def counter() -> Net:
        def forward(model: Net, x: Tensor) -> Tensor:
            model.calls += 1
            return model.fc(x) * model.calls

        model = Net(forward, fc=nn.Linear(4, 2))
        model.register_buffer("calls", torch.zeros(()))
        return model

    def remembering() -> Net:
        def forward(model: Net, x: Tensor) -> Tensor:
            model.last = torch.tanh(model.fc(x))
            return model.last.cumsum(1)

        return Net(forward, fc=nn.Linear(4, 2))

    def doubled(_module: nn.Module, _inputs: Any, output: Any) -> Any:
        return 2 * output

    def caching() -> Net:
        def forward(model: Net, x: Tensor) -> Tensor:
            if model.table is None:
                model.table = torch.linspace(1, 2, 4).to(x) * model.scale
            return model.fc(torch.tanh(x * model.table))

        return Net(forward, fc=nn.Linear(4, 2), scale=weight(1), table=None)

    def writing() -> Net:
        def forward(model: Net, x: Tensor) -> Tensor:
            x[:, 0] = 0
            return model.fc(x).mul_(x[:, 1:2])

        return Net(forward, fc=nn.Linear(4, 2))

    def deriving() -> Net:
        def forward(model: Net, x: Tensor) -> Tensor:
            x = x if x.requires_grad else x.requires_grad_()
            energy = torch.tanh(model.fc(x)).sum()
            return torch.autograd.grad(energy, x, create_graph=True)[0]

        return Net(forward, fc=nn.Linear(4, 3))

    def hooked() -> nn.Module:
        model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))
        model[2].register_full_backward_hook(lambda *_: None)
        model[1].register_forward_hook(doubled)
        return model

    def checkpointed() -> Net:
        def forward(model: Net, x: Tensor) -> Tensor:
            inner = nn.Sequential(model.fc, nn.Tanh())
            return model.head(checkpoint(inner, x, use_reentrant=False))

        return Net(forward, fc=nn.Linear(4, 5), head=nn.Linear(5, 2))

    def cubed() -> Net:
        return Net(lambda m, x: Cube.apply(m.fc(x)), fc=nn.Linear(4, 2))

    def encoder() -> Any:
        class Autoencoder(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = nn.Linear(4, 2)

            def encode(self, x: Tensor) -> Tensor:
                return torch.tanh(self.inner(x))

        return Autoencoder().encode

    one = normal((4,))
    return [
        Case("counting_buffer", counter, one),
        Case("keeps_an_attribute", remembering, one),
        Case("caches_a_table", caching, one),
        Case("writes_into_its_input", writing, one),
        Case("derivative_in_forward", deriving, one),
        Case("hooks", hooked, one),
        Case("checkpoint", checkpointed, one),
        Case("custom_function", cubed, one),
        Case("bound_method", encoder, one),
    ]


def parameter_cases() -> list[Case]:
    return [*use_cases(), *state_cases()]
