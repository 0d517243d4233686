"""The networks and batches that are measured: seeded, in float32.

Everything is written so that every peer accepts it where that is possible: no
buffers, no dropout, no parameter outside a module that holds it alone.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CLASSES = 10


@dataclass(frozen=True)
class Problem:
    """A network, a batch, and room for its per-sample gradients.

    Args:
        model: Maps ``inputs`` to ``(N, 10)``.
        inputs: ``(N, *in)``.
        targets: ``(N,)``, the classes.
        buffers: ``{name: (N, *p)}``; never touched by those that do not write rows.
    """

    model: nn.Module
    inputs: Tensor
    targets: Tensor
    buffers: dict[str, Tensor]

    def copy(self) -> Problem:
        """Return the same problem with a model that nobody has seen before."""
        return replace(self, model=copy.deepcopy(self.model))

    def loss(self, outputs: Tensor) -> Tensor:
        """Return the sum of the samples' losses: its rows are not scaled by 1/N."""
        return F.cross_entropy(outputs, self.targets, reduction="sum")


def mlp(*widths: int) -> Callable[[], nn.Module]:
    """Return what makes linear layers of these widths with ReLUs between them."""

    def make() -> nn.Module:
        layers: list[nn.Module] = []
        for wide, narrow in itertools.pairwise(widths):
            layers += [nn.Linear(wide, narrow), nn.ReLU()]
        return nn.Sequential(*layers[:-1])

    return make


def cnn() -> nn.Module:
    """Return two convolutions with pooling and two linear layers."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64 * 7 * 7, 62), nn.ReLU(), nn.Linear(62, CLASSES),
    )  # fmt: skip


class Block(nn.Module):
    """An encoder layer like ``nn.TransformerEncoderLayer``'s, normalised first.

    Its projections are linear layers of their own: hooks on modules cannot see the
    packed weight that ``nn.MultiheadAttention`` hands to a function.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries, self.keys = nn.Linear(width, width), nn.Linear(width, width)
        self.values, self.mix = nn.Linear(width, width), nn.Linear(width, width)
        self.widen, self.narrow = (
            nn.Linear(width, 4 * width),
            nn.Linear(4 * width, width),
        )

    def forward(self, hidden: Tensor) -> Tensor:
        """Map ``(N, T, width)`` to the same shape."""
        hidden = hidden + self.attention(self.norm1(hidden))
        return hidden + self.narrow(F.gelu(self.widen(self.norm2(hidden))))

    def attention(self, hidden: Tensor) -> Tensor:
        """Return ``(N, T, width)``: what each token reads from all tokens."""
        q, k, v = (
            project(hidden).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for project in (self.queries, self.keys, self.values)
        )
        # Written out: torch's fused attention has no batching rule, which would
        # have `vmap` loop over the samples.
        weights = torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, dim=-1)
        return self.mix((weights @ v).transpose(1, 2).flatten(2))


class Transformer(nn.Module):
    """Embedding, positions, encoder layers, and a classifier of the mean token."""

    def __init__(self, words: int, tokens: int, width: int, depth: int) -> None:
        super().__init__()
        self.words, self.places = (
            nn.Embedding(words, width),
            nn.Embedding(tokens, width),
        )
        self.blocks = nn.Sequential(*(Block(width, heads=4) for _ in range(depth)))
        self.norm, self.classify = nn.LayerNorm(width), nn.Linear(width, CLASSES)

    def forward(self, words: Tensor) -> Tensor:
        """Map ``(N, T)`` word numbers to ``(N, 10)``."""
        # A table of all samples' own places: hooks read samples from the first axis.
        places = torch.arange(words.shape[1], device=words.device).repeat(len(words), 1)
        hidden = self.blocks(self.words(words) + self.places(places))
        return self.classify(self.norm(hidden).mean(dim=1))


WORDS, TOKENS = 1000, 64


def transformer() -> nn.Module:
    """Return four layers of width 128."""
    return Transformer(WORDS, TOKENS, width=128, depth=4)


def problem(
    make: Callable[[], nn.Module], samples: int, device: torch.device
) -> Problem:
    """Return a network with its default initialisation and a random batch."""
    torch.manual_seed(0)
    model = make()
    inputs = _inputs(model, samples)
    classes = model(inputs[:1]).shape[-1]
    targets = torch.randint(classes, (samples,))
    buffers = {
        name: torch.empty(samples, *parameter.shape, device=device)
        for name, parameter in model.named_parameters()
    }
    return Problem(model.to(device), inputs.to(device), targets.to(device), buffers)


def step(problem: Problem) -> object:
    """Return the gradients of the summed loss: the work of one training step."""
    loss = problem.loss(problem.model(problem.inputs))
    return torch.autograd.grad(loss, list(problem.model.parameters()))


def _inputs(model: nn.Module, samples: int) -> Tensor:
    if isinstance(model, Transformer):
        return torch.randint(WORDS, (samples, TOKENS))
    first = next(iter(model.children()))
    if isinstance(first, nn.Linear):
        return torch.rand(samples, first.in_features)
    return torch.rand(samples, 1, 28, 28)
