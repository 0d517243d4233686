"""Ways to ask for parameter rows, and the rows by one backward per entry."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import gradkit as gk


class Tokens(nn.Module):
    """An embedding tied to the head: ``(N, 2)`` token ids to ``(N, 2, 7)`` scores."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 5)
        self.head = nn.Linear(5, 7)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        return self.head(torch.tanh(self.embedding(tokens)))


def loop_rows(outputs: Tensor, parameters: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return ``{name: (*outputs, *p)}``, one ordinary backward for each entry."""
    rows = [
        torch.autograd.grad(entry, list(parameters.values()), retain_graph=True)
        for entry in outputs.reshape(-1)
    ]
    columns = zip(*rows, strict=True)
    return {
        name: torch.stack(column).reshape(*outputs.shape, *parameter.shape)
        for (name, parameter), column in zip(parameters.items(), columns, strict=True)
    }


@dataclass
class Problem:
    """A way to ask, and the rows that are right."""

    name: str
    ask: Callable[..., gk.ParameterJacobian]
    model: nn.Module
    inputs: Tensor
    values: Callable[[Tensor], Tensor]

    def rows(self, inputs: Tensor | None = None) -> dict[str, Tensor]:
        chosen = self.inputs if inputs is None else inputs
        values = self.values(self.model(chosen))
        return loop_rows(values, dict(self.model.named_parameters()))

    def flat_rows(self, inputs: Tensor | None = None) -> Tensor:
        parts = self.rows(inputs)
        sizes = {name: p.shape for name, p in self.model.named_parameters()}
        return torch.cat(
            [part.reshape(*_lead(part, sizes[k]), -1) for k, part in parts.items()], -1
        )


def _lead(rows: Tensor, shape: torch.Size) -> torch.Size:
    return rows.shape[: rows.dim() - len(shape)]


def every_output() -> Problem:
    """Rows ``(N, 2, 7)``: three samples, two steps, seven scores, one tied weight."""
    model = Tokens().double()
    tokens = torch.tensor([[1, 4], [6, 6], [0, 4]])

    def ask(inputs=tokens, **options):
        return gk.parameter_jacobian(model, inputs, **options)

    return Problem("every output", ask, model, tokens, lambda outputs: outputs)


def one_objective() -> Problem:
    """Rows ``(N,)``: five samples, a loss each."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2, bias=False))
    inputs = torch.randn(5, 3, dtype=torch.float64)

    def energy(outputs):
        return (outputs[:, 0] * outputs[:, 1]).exp()

    def ask(inputs=inputs, **options):
        return gk.per_sample_gradients(model, inputs, energy, **options)

    return Problem("one objective", ask, model.double(), inputs, energy)


def row_bytes(problem: Problem) -> int:
    return 8 * sum(parameter.numel() for parameter in problem.model.parameters())


def assert_same(found, expected):
    """Raise unless tensors, or dicts of tensors with the same keys, agree."""
    if isinstance(expected, dict):
        assert list(found) == list(expected)
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value)
    else:
        torch.testing.assert_close(found, expected)
