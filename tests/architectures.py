"""Honest networks, whose samples never meet: none of them may be refused.

All are small and built from ``torch.nn``. Sizes are those of nothing in particular
and differ on every axis.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from case import Net, ids, weight

SAMPLES = (2, 3, 5, 1, 4, 9)


@dataclass(frozen=True, eq=False)
class Architecture:
    """A network, what one sample of its input is like, and how it is called.

    Attributes:
        name: Its id.
        model: Makes the network.
        shape: Of one sample's input.
        tokens: How many token ids there are; 0 for normal floating inputs.
        seed: Given where the forward draws random numbers.
    """

    name: str
    model: Callable[[], nn.Module]
    shape: tuple[int, ...]
    tokens: int = 0
    seed: int | None = None

    def draw(self, index: int, dtype: torch.dtype) -> tuple[nn.Module, Tensor]:
        """Return a fresh network and inputs, in a precision."""
        torch.manual_seed(index)
        samples = SAMPLES[index % len(SAMPLES)]
        model = self.model().to(dtype)
        if self.tokens:
            return model, ids(samples, *self.shape, below=self.tokens)
        return model, torch.randn(samples, *self.shape, dtype=dtype)


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 5, 2),
        nn.BatchNorm2d(5), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(10, 3),
    ).eval()  # fmt: skip


def residual() -> nn.Module:
    def forward(model: Net, x: Tensor) -> Tensor:
        hidden = model.stem(x)
        hidden = F.relu(hidden + model.block(hidden))
        return model.head(hidden.mean((2, 3)))

    block = nn.Sequential(
        nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.GroupNorm(2, 4), nn.ReLU(),
        nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.GroupNorm(2, 4),
    )  # fmt: skip
    stem = nn.Conv2d(2, 4, 3, stride=2)
    return Net(forward, stem=stem, block=block, head=nn.Linear(4, 3))


def depthwise() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 6, 1), nn.Hardswish(), nn.Conv2d(6, 6, 3, padding=1, groups=6),
        nn.ReLU6(), nn.Conv2d(6, 4, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    )  # fmt: skip


def squeeze_and_excite() -> nn.Module:
    def forward(model: Net, x: Tensor) -> Tensor:
        hidden = torch.relu(model.conv(x))
        gate = torch.sigmoid(model.gate(hidden.mean((2, 3))))
        return (hidden * gate[:, :, None, None]).amax((2, 3))

    return Net(forward, conv=nn.Conv2d(2, 5, 2), gate=nn.Linear(5, 5))


def u_net() -> nn.Module:
    def forward(model: Net, x: Tensor) -> Tensor:
        fine = F.silu(model.down(x))
        coarse = F.silu(model.middle(F.avg_pool2d(fine, 2)))
        up = F.interpolate(coarse, scale_factor=2, mode="bilinear")
        return model.out(torch.cat([fine, up], 1)).flatten(1)[:, :7]

    return Net(
        forward,
        down=nn.Conv2d(1, 3, 3, padding=1),
        middle=nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect"),
        out=nn.ConvTranspose2d(7, 1, 2),
    )


def dilated() -> nn.Module:
    return nn.Sequential(
        nn.Conv1d(2, 4, 2, dilation=1), nn.GELU(), nn.Conv1d(4, 3, 2, dilation=2),
        nn.GELU(), nn.AdaptiveMaxPool1d(2), nn.Flatten(),
    )  # fmt: skip


def recurrent(kind: Callable[..., nn.Module]) -> Callable[[], nn.Module]:
    def forward(model: Net, x: Tensor) -> Tensor:
        return model.head(model.rnn(x)[0][:, -1])

    return lambda: Net(
        forward, rnn=kind(3, 4, 2, batch_first=True), head=nn.Linear(4, 2)
    )


def transformer() -> nn.Module:
    layer = nn.TransformerEncoderLayer(6, 2, 7, batch_first=True)
    return nn.Sequential(
        nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(6, 2)
    ).eval()


def transformer_with_dropout() -> nn.Module:
    return nn.TransformerEncoderLayer(6, 2, 7, dropout=0.2, batch_first=True)


def vision_transformer() -> nn.Module:
    def forward(model: Net, x: Tensor) -> Tensor:
        patches = model.patch(x).flatten(2).mT
        token = model.token.expand(len(x), -1, -1)
        rows = torch.cat([token, patches], 1) + model.table
        return model.head(model.norm(rows + model.mha(rows, rows, rows)[0])[:, 0])

    return Net(
        forward,
        patch=nn.Conv2d(1, 6, 3, stride=3),
        token=weight(1, 1, 6),
        table=weight(5, 6),
        mha=nn.MultiheadAttention(6, 3, batch_first=True),
        norm=nn.LayerNorm(6),
        head=nn.Linear(6, 4),
    )


def mixer() -> nn.Module:
    def forward(model: Net, x: Tensor) -> Tensor:
        x = x + model.tokens(model.first(x).mT).mT
        return model.head((x + model.channels(model.second(x))).mean(1))

    return Net(
        forward,
        first=nn.LayerNorm(5),
        tokens=nn.Sequential(nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 4)),
        second=nn.LayerNorm(5),
        channels=nn.Sequential(nn.Linear(5, 7), nn.GELU(), nn.Linear(7, 5)),
        head=nn.Linear(5, 3),
    )


def autoencoder() -> nn.Module:
    return nn.Sequential(
        nn.Linear(7, 4), nn.Softplus(), nn.Linear(4, 2), nn.Tanh(),
        nn.Linear(2, 4), nn.Softplus(), nn.Linear(4, 7), nn.Sigmoid(),
    )  # fmt: skip


def gated() -> nn.Module:
    def forward(model: Net, x: Tensor) -> Tensor:
        hidden = F.silu(model.gate(x)) * model.up(x)
        return model.down(hidden) * torch.rsqrt(x.square().mean(1, keepdim=True) + 1e-6)

    return Net(forward, gate=nn.Linear(4, 6), up=nn.Linear(4, 6), down=nn.Linear(6, 3))


def deep_sets() -> nn.Module:
    def forward(model: Net, x: Tensor) -> Tensor:
        return model.rho(model.phi(x).sum(1))

    phi = nn.Sequential(nn.Linear(3, 5), nn.ELU())
    return Net(forward, phi=phi, rho=nn.Sequential(nn.Linear(5, 4), nn.ELU()))


def attention_pooling() -> nn.Module:
    def forward(model: Net, x: Tensor) -> Tensor:
        weights = (model.key(x) @ model.query).softmax(1)
        return model.head(torch.einsum("nt,ntd->nd", weights, x))

    return Net(forward, key=nn.Linear(4, 3), query=weight(3), head=nn.Linear(4, 2))


def sinusoidal() -> nn.Module:
    def forward(model: Net, x: Tensor) -> Tensor:
        return model.last(torch.sin(30 * model.second(torch.sin(30 * model.first(x)))))

    return Net(
        forward, first=nn.Linear(2, 6), second=nn.Linear(6, 5), last=nn.Linear(5, 3)
    )


def spectral() -> nn.Module:
    return nn.Sequential(
        parametrizations.spectral_norm(nn.Linear(4, 5)), nn.LeakyReLU(), nn.Linear(5, 2)
    ).eval()


def experts() -> nn.Module:
    def forward(model: Net, x: Tensor) -> Tensor:
        gate = model.gate(x).softmax(1)
        outputs = torch.stack([expert(x) for expert in model.experts], 1)
        return torch.einsum("ne,nek->nk", gate, outputs)

    return Net(
        forward,
        gate=nn.Linear(4, 3),
        experts=nn.ModuleList(nn.Sequential(nn.Linear(4, 2), nn.Tanh()) for _ in "abc"),
    )


def language_model() -> nn.Module:
    def forward(model: Net, tokens: Tensor) -> Tensor:
        hidden = model.embedding(tokens) + model.positions
        mask = nn.Transformer.generate_square_subsequent_mask(
            tokens.shape[1], dtype=hidden.dtype, device=hidden.device
        )
        hidden = hidden + model.mha(hidden, hidden, hidden, attn_mask=mask)[0]
        return model.head(model.norm(hidden))

    model = Net(
        forward,
        embedding=nn.Embedding(11, 6),
        positions=weight(4, 6),
        mha=nn.MultiheadAttention(6, 2, batch_first=True),
        norm=nn.LayerNorm(6),
        head=nn.Linear(6, 11, bias=False),
    )
    model.head.weight = model.embedding.weight
    return model


def bag_of_words() -> nn.Module:
    return nn.Sequential(nn.EmbeddingBag(9, 5), nn.Tanh(), nn.Linear(5, 3))


def words_through_gru() -> nn.Module:
    def forward(model: Net, tokens: Tensor) -> Tensor:
        return model.gru(model.embedding(tokens))[0].mean(1)

    return Net(
        forward, embedding=nn.Embedding(9, 4), gru=nn.GRU(4, 3, batch_first=True)
    )


def differential_equation() -> nn.Module:
    def forward(model: Net, x: Tensor) -> Tensor:
        for _ in range(6):
            x = x + 0.2 * model.field(x)
        return x

    field = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 3))
    return Net(forward, field=field)


def hypernetwork() -> nn.Module:
    def forward(model: Net, x: Tensor) -> Tensor:
        own = model.weights(x[:, :3]).reshape(-1, 2, 4)
        return torch.tanh(torch.bmm(own, x[:, 3:, None])).squeeze(2)

    return Net(forward, weights=nn.Linear(3, 8))


def fixed_point() -> nn.Module:
    def forward(model: Net, x: Tensor) -> Tensor:
        z = torch.zeros_like(x)
        for _ in range(8):
            z = torch.tanh(model.inner(z) * 0.5 + x)
        return z

    return Net(forward, inner=nn.Linear(4, 4))


def chain(scale: float) -> Callable[[], nn.Module]:
    """Return a maker of a network whose gradients are about ``scale`` in size.

    In float32 nothing under 1e-45 exists, and little under 1e-38 is exact.
    """

    def forward(model: Net, x: Tensor) -> Tensor:
        return model.last(torch.tanh(model.first(x)) * scale**0.5) * scale**0.5

    return lambda: Net(forward, first=nn.Linear(4, 6), last=nn.Linear(6, 3))


def saturated() -> nn.Module:
    """Return a network most of whose derivatives are tiny or exactly zero."""
    return nn.Sequential(
        nn.Linear(4, 6), nn.Hardtanh(), nn.Linear(6, 5), nn.Softmax(1),
        nn.Threshold(0.2, 0.0), nn.Linear(5, 3),
        Net(lambda _, x: torch.sigmoid(60 * x)),
    )  # fmt: skip


ARCHITECTURES: tuple[Architecture, ...] = (
    Architecture("convolutional", convolutional, (1, 9, 7)),
    Architecture("residual", residual, (2, 9, 7)),
    Architecture("depthwise", depthwise, (3, 5, 4)),
    Architecture("squeeze_and_excite", squeeze_and_excite, (2, 5, 4)),
    Architecture("u_net", u_net, (1, 6, 4)),
    Architecture("dilated", dilated, (2, 9)),
    Architecture("rnn", recurrent(nn.RNN), (5, 3)),
    Architecture("gru", recurrent(nn.GRU), (5, 3)),
    Architecture("lstm", recurrent(nn.LSTM), (5, 3)),
    Architecture("transformer", transformer, (4, 6)),
    Architecture("transformer_with_dropout", transformer_with_dropout, (4, 6), seed=5),
    Architecture("vision_transformer", vision_transformer, (1, 6, 6)),
    Architecture("mixer", mixer, (4, 5)),
    Architecture("autoencoder", autoencoder, (7,)),
    Architecture("gated", gated, (4,)),
    Architecture("deep_sets", deep_sets, (4, 3)),
    Architecture("attention_pooling", attention_pooling, (5, 4)),
    Architecture("sinusoidal", sinusoidal, (2,)),
    Architecture("spectral_norm", spectral, (4,)),
    Architecture("mixture_of_experts", experts, (4,)),
    Architecture("language_model", language_model, (4,), tokens=11),
    Architecture("bag_of_words", bag_of_words, (4,), tokens=9),
    Architecture("words_through_gru", words_through_gru, (4,), tokens=9),
    Architecture("differential_equation", differential_equation, (3,)),
    Architecture("hypernetwork", hypernetwork, (7,)),
    Architecture("fixed_point", fixed_point, (4,)),
    Architecture("dropout", lambda: nn.Sequential(
        nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3), nn.AlphaDropout(0.2)),
        (4,), seed=3),
    Architecture("vanishing", chain(1e-38), (4,)),
    Architecture("below_the_normal_numbers", chain(1e-43), (4,)),
    Architecture("exploding", chain(1e35), (4,)),
    Architecture("saturated", saturated, (4,)),
)  # fmt: skip


def called(architecture: Architecture, by_parameter: bool) -> dict[str, Any]:
    """Return the options of a call: a seed where one is needed, and ``wrt``."""
    options: dict[str, Any] = {"seed": architecture.seed}
    if architecture.tokens and not by_parameter:
        first = "0" if architecture.name == "bag_of_words" else "embedding"
        options["wrt"] = first
    return options
