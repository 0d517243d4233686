"""Plain functions and single layers, most with a derivative in closed form."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from case import Case, Net, normal, weight


def function_cases() -> list[Case]:
    """Plain functions and single layers, most of them with a closed form."""

    def quadratic_form(model: Net, x: Tensor) -> Tensor:
        return torch.einsum("kij,nj->nki", model.a + model.a.mT, x)

    def softmax_form(_: Any, x: Tensor) -> Tensor:
        p = torch.softmax(x, 1)
        return torch.diag_embed(p) - p[:, :, None] * p[:, None, :]

    def linear_form(model: nn.Linear, x: Tensor) -> Tensor:
        return model.weight.expand(len(x), -1, -1)

    def linear_parameters(model: nn.Linear, x: Tensor) -> dict[str, Tensor]:
        own = torch.eye(model.out_features, dtype=x.dtype, device=x.device)
        return {
            "weight": torch.einsum("kj,ni->nkji", own, x),
            "bias": own.expand(len(x), -1, -1),
        }

    linear = {"jacobian": linear_form, "parameter_jacobian": linear_parameters}
    return [
        Case("linear", lambda: nn.Linear(4, 2), normal((4,)), **linear),
        Case("one_sample", lambda: nn.Linear(4, 2), normal((4,)), samples=1, **linear),
        Case("one_output", lambda: nn.Linear(4, 1), normal((4,)), **linear),
        Case(
            "non_contiguous",
            lambda: nn.Linear(4, 2),
            lambda n: torch.randn(4, n, dtype=torch.float64).T,
            **linear,
        ),
        Case(
            "quadratic",
            lambda: Net(
                lambda m, x: torch.einsum("kij,ni,nj->nk", m.a, x, x), a=weight(2, 4, 4)
            ),
            normal((4,)),
            jacobian=quadratic_form,
        ),
        Case(
            "one_number",
            lambda: Net(lambda m, x: torch.sin(x @ m.w), w=weight(4)),
            normal((4,)),
            jacobian=lambda m, x: torch.cos(x @ m.w)[:, None] * m.w,
            parameter_jacobian=lambda m, x: {"w": torch.cos(x @ m.w)[:, None] * x},
        ),
        Case(
            "softmax",
            lambda: lambda x: torch.softmax(x, 1),
            normal((4,)),
            jacobian=softmax_form,
        ),
        Case(
            "identity",
            lambda: lambda x: x,
            normal((4,)),
            jacobian=lambda _, x: torch.eye(4, dtype=x.dtype, device=x.device).expand(
                len(x), 4, 4
            ),
        ),
        Case("view_of_input", lambda: lambda x: x[:, 1:].mT, normal((3, 2))),
        Case(
            "constant_output",
            lambda: lambda x: x.new_ones(len(x), 2),
            normal((4,)),
            jacobian=lambda _, x: x.new_zeros(len(x), 2, 4),
        ),
        Case("logsumexp", lambda: lambda x: x.logsumexp(2), normal((2, 4))),
        Case("sort", lambda: lambda x: x.sort(1).values[:, :3], normal((4,))),
        Case("cumulative_product", lambda: lambda x: x.cumprod(1), normal((4,))),
        Case("fourier", lambda: lambda x: torch.fft.rfft(x).abs(), normal((5,))),
        Case("norm", lambda: lambda x: x.norm(dim=(1, 2)), normal((3, 2))),
        Case(
            "distances",
            lambda: Net(lambda m, x: torch.cdist(x, m.centres), centres=weight(4, 2)),
            normal((3, 2)),
        ),
        Case(
            "kinks",
            lambda: lambda x: torch.cat([x.abs(), x.relu(), x.clamp(-1, 1)], 1),
            normal((3,)),
        ),
        Case(
            "linear_map_without_batch",
            lambda: lambda x: torch.stack([x[0] * x[1], x.sin().sum()]),
            lambda n: torch.randn(n, dtype=torch.float64),
            batched=False,
        ),
        Case(
            "matrix_without_batch",
            lambda: Net(lambda m, x: torch.tanh(x @ m.w).mean(0), w=weight(4, 2)),
            normal((4,)),
            batched=False,
        ),
        Case(
            "number_without_batch",
            lambda: lambda x: (x.sin() * x.roll(1, 0)).sum(),
            normal((4,)),
            batched=False,
        ),
    ]
