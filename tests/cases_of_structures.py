"""Inputs and outputs of every structure, and parts of them."""

from __future__ import annotations

from collections import namedtuple
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from case import Case, Net, ids, normal

Pair = namedtuple("Pair", ["logits", "values"])


def two_headed(pack: Any) -> Any:
    """Return a maker of a network whose two outputs are packed by ``pack``."""

    def forward(model: Net, x: Tensor) -> Any:
        hidden = torch.tanh(model.first(x))
        return pack(model.head(hidden), model.tail(hidden).reshape(len(x), 2, 1))

    return lambda: Net(
        forward, first=nn.Linear(4, 5), head=nn.Linear(5, 3), tail=nn.Linear(5, 2)
    )


def input_cases() -> list[Case]:
    def scaled() -> Net:
        def forward(model: Net, x: Tensor, t: Tensor, power: float = 1.0) -> Tensor:
            return torch.tanh(model.fc(x)) * t.reshape(-1, 1) ** power

        return Net(forward, fc=nn.Linear(4, 2))

    def words() -> Net:
        def forward(model: Net, tokens: Tensor) -> Tensor:
            return model.head(torch.tanh(model.embedding(tokens)).flatten(1))

        return Net(forward, embedding=nn.Embedding(7, 3), head=nn.Linear(6, 2))

    def words_and_features() -> Net:
        def forward(model: Net, tokens: Tensor, x: Tensor) -> Tensor:
            return (
                torch.tanh(model.embedding(tokens).mean(1) * x) @ model.head.weight.mT
            )

        return Net(forward, embedding=nn.Embedding(7, 3), head=nn.Linear(3, 2))

    def nested() -> Net:
        def forward(model: Net, x: Tensor, more: Any) -> Tensor:
            first, inner = more
            return model.fc(x) * first + inner["y"].sum(1) * inner["scale"]

        return Net(forward, fc=nn.Linear(4, 2))

    def draw_nested(n: int) -> Any:
        x, first, y = normal((4,), (2,), (3, 2))(n)
        return {"x": x, "more": (first, {"y": y, "scale": 1.5, "count": ids(n)})}

    def draw_two_precisions(n: int) -> Any:
        return torch.randn(n, 3, dtype=torch.float64), torch.randn(n, 4)

    def draw_requiring_grad(n: int) -> Any:
        return torch.randn(n, 4, dtype=torch.float64).requires_grad_()

    return [
        Case("token_ids", words, lambda n: ids(n, 2)),
        Case("at_the_embedding", words, lambda n: ids(n, 2), wrt="embedding"),
        Case(
            "ids_and_floats",
            words_and_features,
            lambda n: (ids(n, 2), torch.randn(n, 3, dtype=torch.float64)),
        ),
        Case("list_of_one", lambda: nn.Linear(4, 2), lambda n: [normal((4,))(n)]),
        Case("one_number_per_sample", scaled, normal((4,), ())),
        Case("second_input_alone", scaled, normal((4,), ()), wrt=1),
        Case(
            "passes_other_things_through",
            scaled,
            lambda n: (*normal((4,), (1,))(n), 2.0),
        ),
        Case(
            "number_for_all_samples",
            lambda: Net(lambda m, x, t: torch.tanh(m.fc(x) / t), fc=nn.Linear(4, 2)),
            lambda n: (normal((4,))(n), torch.tensor(1.7, dtype=torch.float64)),
            wrt=0,
        ),
        Case(
            "keywords",
            scaled,
            lambda n: dict(zip(("x", "t"), normal((4,), ())(n), strict=True)),
        ),
        Case("nested_inputs", nested, draw_nested),
        Case("entry_of_nested_inputs", nested, draw_nested, wrt="more"),
        Case(
            "two_of_three_inputs",
            lambda: lambda a, b, c: a[:, :2] * b[:, :2] * c.sum(1, keepdim=True),
            lambda n: dict(zip("abc", normal((3,), (2,), (4,))(n), strict=True)),
            wrt=["c", "a"],
        ),
        Case(
            "positions_in_another_order",
            lambda: lambda x, y: x[:, :2] * y.sin(),
            normal((3,), (2,)),
            wrt=[1, 0],
        ),
        Case(
            "unused_input",
            lambda: Net(lambda m, x, y: torch.tanh(m.fc(x)), fc=nn.Linear(4, 2)),
            normal((4,), (3,)),
        ),
        Case(
            "two_precisions",
            lambda: lambda x, y: torch.sin(x) * y.double().sum(1, keepdim=True),
            draw_two_precisions,
        ),
        Case("requires_grad", lambda: nn.Linear(4, 2), draw_requiring_grad),
        Case(
            "expanded",
            lambda: nn.Linear(4, 2),
            lambda n: torch.randn(1, 4, dtype=torch.float64).expand(n, -1),
        ),
    ]


def output_cases() -> list[Case]:
    one = normal((4,))
    as_tuple, as_pair = two_headed(lambda a, b: (a, b)), two_headed(Pair)
    as_mapping = two_headed(lambda a, b: {"logits": a, "values": b})
    as_object = two_headed(lambda a, b: SimpleNamespace(logits=a, values=b))
    as_labels = two_headed(lambda a, b: {"y": a, "label": a.argmax(1), "loss": None})
    as_nested = two_headed(lambda a, b: {"u": [a, {"sum": a.sum(1)}], "v": b})
    return [
        Case("tuple_outputs", as_tuple, one, several_outputs=True),
        Case("mapping_outputs", as_mapping, one, several_outputs=True),
        Case("other_things_among_outputs", as_labels, one, several_outputs=True),
        Case("nested_outputs", as_nested, one, several_outputs=True),
        Case(
            "mapping_to_mapping",
            lambda: lambda x, y: {"u": x.sin() * y.sum(1, True), "v": y.cos().sum(1)},
            lambda n: dict(zip("xy", normal((2,), (3,))(n), strict=True)),
            several_outputs=True,
        ),
        Case("of_position", as_tuple, one, of=1),
        Case("of_key", as_mapping, one, of="values"),
        Case("of_attribute", as_object, one, of="logits"),
        Case("of_field", as_pair, one, of="values"),
        Case("of_callable", as_tuple, one, of=lambda outputs: outputs[0][:, 1:]),
        Case("of_submodule", as_tuple, one, of="first"),
    ]


def submodule_cases() -> list[Case]:
    """Derivatives with respect to a submodule's output, and of one."""

    def network() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3), nn.ELU())

    def branches() -> Net:
        def forward(model: Net, x: Tensor) -> Tensor:
            return torch.tanh(model.left(x)) * model.right(x)

        return Net(forward, left=nn.Linear(4, 2), right=nn.Linear(4, 2))

    one = normal((4,))
    return [
        Case("wrt_submodule", network, one, wrt="0"),
        Case("wrt_submodule_and_the_next", network, one, wrt=["0", "1"]),
        Case("wrt_two_submodules", branches, one, wrt=["right", "left"]),
        Case("wrt_and_of_submodules", network, one, wrt="0", of="2"),
        Case(
            "changed_in_place_after",
            lambda: nn.Sequential(
                nn.Linear(4, 3), nn.ReLU(inplace=True), nn.Linear(3, 2)
            ),
            one,
            of="0",
        ),
        Case(
            "wrt_what_changes_in_place",
            lambda: nn.Sequential(
                nn.Linear(4, 3), nn.ELU(inplace=True), nn.Linear(3, 2)
            ),
            one,
            wrt="0",
        ),
    ]


def structure_cases() -> list[Case]:
    return [*input_cases(), *output_cases(), *submodule_cases()]
