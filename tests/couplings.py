"""Models that couple samples, each in its own way; every draw is fresh.

A coupling is refused by what it is, whatever the numbers are: sizes, weights and data
change from draw to draw, with two samples and with many.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from case import Net, ids

#: Two and three are where distinct weights are easiest to get wrong; the last are
#: more than the exponents of a float16 and of a float32 would tell apart one by one.
SAMPLES = (2, 3, 4, 5, 7, 2, 3, 6, 64, 130)

#: Sequence lengths; now and then equal to the number of samples.
LENGTHS = (2, 5, 3, 4)


@dataclass(frozen=True, eq=False)
class Coupling:
    """A model that couples samples, and inputs of ``N`` samples that show it.

    Attributes:
        name: Its id.
        model: Makes a model, which maps ``(N, T, 4)`` to ``(N, ...)``.
        named: Words that the error must hold, where the cause is known by name.
        tokens: Whether the inputs are token ids ``(N, T)``.
    """

    name: str
    model: Callable[[], nn.Module]
    named: str = ""
    tokens: bool = False

    def draw(self, index: int, dtype: torch.dtype) -> tuple[nn.Module, Tensor]:
        """Return a fresh model and inputs, in a precision."""
        torch.manual_seed(index)
        samples = SAMPLES[index % len(SAMPLES)]
        length = LENGTHS[index % len(LENGTHS)]
        model = self.model().to(dtype)
        if self.tokens:
            return model, ids(samples, length, below=9)
        return model, torch.randn(samples, length, 4, dtype=dtype)


def mixing(mix: Callable[[Tensor], Tensor]) -> Callable[[], nn.Module]:
    """Return a maker of two layers with ``mix`` between them, on ``(N, 12)``."""

    def forward(model: Net, x: Tensor) -> Tensor:
        return model.last(mix(torch.tanh(model.first(x).sum(1))))

    return lambda: Net(forward, first=nn.Linear(4, 12), last=nn.Linear(12, 3))


def tiny(scale: float) -> Callable[[], nn.Module]:
    """Return a maker of a coupled network whose gradients are about ``scale``."""

    def forward(model: Net, x: Tensor) -> Tensor:
        hidden = torch.tanh(model.first(x).sum(1)) * scale**0.5
        return model.last(hidden - 2 * hidden.mean(0)) * scale**0.5

    return lambda: Net(forward, first=nn.Linear(4, 12), last=nn.Linear(12, 3))


def recurrent(kind: Callable[..., nn.Module]) -> Callable[[], nn.Module]:
    # Without batch_first the first axis is taken for time.
    return lambda: Net(lambda model, x: model.rnn(x)[0], rnn=kind(4, 3))


def words_through(kind: Callable[..., nn.Module]) -> Callable[[], nn.Module]:
    def forward(model: Net, tokens: Tensor) -> Tensor:
        return model.rnn(model.embedding(tokens))[0]

    return lambda: Net(forward, embedding=nn.Embedding(9, 4), rnn=kind(4, 3))


def attention() -> nn.Module:
    return Net(lambda model, x: model.mha(x, x, x)[0], mha=nn.MultiheadAttention(4, 2))


def causal_attention() -> nn.Module:
    def forward(model: Net, x: Tensor) -> Tensor:
        q, k, v = model.qkv(x.sum(1)).chunk(3, 1)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    return Net(forward, qkv=nn.Linear(4, 9))


def normalised(layer: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    def forward(model: Net, x: Tensor) -> Tensor:
        return model.last(model.norm(torch.tanh(model.first(x).sum(1))))

    return lambda: Net(
        forward, first=nn.Linear(4, 12), norm=layer(), last=nn.Linear(12, 3)
    )


def one_column(x: Tensor) -> Tensor:
    own = torch.ones_like(x)
    own[:, 0] = 0
    return x * own + x.mean(0) * (1 - own)


def column_coupled() -> nn.Module:
    def forward(model: Net, x: Tensor) -> Tensor:
        y = model.fc(x.sum(1))
        return torch.cat([y[:, :2], y[:, 2:] * y[:, 2:].sin().mean()], 1)

    return Net(forward, fc=nn.Linear(4, 3))


def first_into_last(x: Tensor) -> Tensor:
    return torch.cat([x[:-1], x[-1:] + x[:1]])


def pairs(x: Tensor) -> Tensor:
    half = len(x) // 2
    first, second, rest = x[:half], x[half : 2 * half], x[2 * half :]
    return torch.cat([first * second, first + second, rest])


def reshaped_wrongly(x: Tensor) -> Tensor:
    return x.reshape(x.shape[1], x.shape[0]).mT


COUPLINGS: tuple[Coupling, ...] = (
    Coupling("time_first_rnn", recurrent(nn.RNN)),
    Coupling("time_first_gru", recurrent(nn.GRU)),
    Coupling("time_first_lstm", recurrent(nn.LSTM)),
    Coupling("words_through_time_first_gru", words_through(nn.GRU), tokens=True),
    Coupling("words_through_time_first_lstm", words_through(nn.LSTM), tokens=True),
    Coupling("attention_over_the_batch", attention),
    Coupling("causal_attention_along_the_batch", causal_attention),
    Coupling("scaled_by_the_largest", mixing(lambda x: x / x.abs().max())),
    Coupling("centred_over_the_batch", mixing(lambda x: x - x.mean(0))),
    Coupling("softmax_over_the_batch", mixing(lambda x: x.softmax(0))),
    Coupling("rolled_by_half", mixing(lambda x: x.roll(len(x) // 2, 0))),
    Coupling("rolled_by_one", mixing(lambda x: x.roll(1, 0))),
    Coupling("flipped", mixing(lambda x: x.flip(0))),
    Coupling("in_pairs", mixing(pairs)),
    Coupling("running_maximum", mixing(lambda x: x.cummax(0).values)),
    Coupling("running_sum", mixing(lambda x: x.cumsum(0))),
    Coupling("sorted_over_the_batch", mixing(lambda x: x.sort(0).values)),
    Coupling("similarities", mixing(lambda x: torch.tanh(x @ x.mT) @ x)),
    Coupling("first_into_last", mixing(first_into_last)),
    Coupling("reshaped_wrongly", mixing(reshaped_wrongly)),
    Coupling("one_hidden_column", mixing(one_column)),
    Coupling("one_output_column", column_coupled),
    Coupling("a_thousandth_of_the_mean", mixing(lambda x: x + 1e-3 * x.mean(0))),
    Coupling("vanishing", tiny(1e-36)),
    Coupling("below_the_normal_numbers", tiny(1e-41)),
    Coupling("functional_batch_norm",
             mixing(lambda x: F.batch_norm(x, None, None, training=True))),
    Coupling("batch_norm_in_training", normalised(lambda: nn.BatchNorm1d(12)),
             named="BatchNorm1d"),
    Coupling("batch_norm_without_statistics", normalised(
        lambda: nn.BatchNorm1d(12, track_running_stats=False).eval()),
        named="BatchNorm1d"),
)  # fmt: skip


def coupled_objectives() -> dict[str, Callable[[Tensor], Any]]:
    """Return objectives of ``(N, K)`` outputs that couple samples."""
    return {
        "softmax_over_the_batch": lambda y: y.softmax(0).square().sum(1),
        "reversed": lambda y: y.sum(1).flip(0),
        "rolled": lambda y: y.sum(1).roll(1, 0),
        "minus_the_mean": lambda y: (y - y.mean(0)).sum(1),
        "contrast": lambda y: (y @ y.mT).logsumexp(1),
        "divided_by_the_largest": lambda y: y.sum(1) / y.abs().max(),
    }
