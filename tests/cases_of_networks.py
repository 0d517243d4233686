"""Layers and small networks of the usual kinds."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations

from case import Case, Net, normal


def network_cases() -> list[Case]:
    """Layers and small networks of the usual kinds."""

    def mlp() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 7))

    def recurrent(kind: Callable[..., nn.Module]) -> nn.Module:
        return Net(lambda m, x: m.rnn(x)[0][:, -1], rnn=kind(3, 2, batch_first=True))

    return [
        Case("mlp", mlp, normal((4,))),
        Case("mlp_float32", mlp, normal((4,)), dtype=torch.float32),
        Case(
            "relu_first_in_place",
            lambda: nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 2)),
            normal((4,)),
        ),
        Case(
            "convolution",
            lambda: nn.Sequential(
                nn.Conv2d(2, 3, (2, 3), stride=(1, 2), padding=(0, 1)), nn.ELU()
            ),
            normal((2, 3, 4)),
        ),
        Case(
            "reflect_padding",
            lambda: nn.Sequential(
                nn.Conv1d(2, 3, 3, padding=2, padding_mode="reflect"), nn.Tanh()
            ),
            normal((2, 4)),
        ),
        Case(
            "grouped_transposed_convolution",
            lambda: nn.ConvTranspose1d(2, 4, 3, stride=2, groups=2),
            normal((2, 3)),
        ),
        Case(
            "pooling",
            lambda: nn.Sequential(
                nn.Conv2d(1, 2, 2), nn.MaxPool2d((2, 1)), nn.Flatten(), nn.Linear(8, 3)
            ),
            normal((1, 5, 3)),
        ),
        Case(
            "normalisations",
            lambda: nn.Sequential(
                nn.Conv1d(2, 4, 2),
                nn.GroupNorm(2, 4),
                nn.Tanh(),
                nn.InstanceNorm1d(4),
                nn.Tanh(),
                nn.LayerNorm(3),
            ),
            normal((2, 4)),
        ),
        Case(
            "batch_norm_in_eval",
            lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh()).eval(),
            normal((3,)),
        ),
        Case(
            "dropout",
            lambda: nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.4), nn.Linear(6, 2)),
            normal((4,)),
            seed=11,
        ),
        Case(
            "random_scale",
            lambda: Net(lambda m, x: m.fc(x * torch.rand_like(x)), fc=nn.Linear(4, 2)),
            normal((4,)),
            seed=12,
        ),
        Case("rnn", lambda: recurrent(nn.RNN), normal((4, 3))),
        Case("gru", lambda: recurrent(nn.GRU), normal((4, 3))),
        Case("lstm", lambda: recurrent(nn.LSTM), normal((4, 3))),
        Case(
            "lstm_float32",
            lambda: recurrent(nn.LSTM),
            normal((4, 3)),
            dtype=torch.float32,
        ),
        Case(
            "lstm_with_dropout",
            lambda: Net(
                lambda m, x: m.rnn(x)[0][:, -1],
                rnn=nn.LSTM(3, 2, 2, batch_first=True, dropout=0.3),
            ),
            normal((4, 3)),
            seed=13,
        ),
        Case(
            "attention",
            lambda: Net(
                lambda m, x: m.mha(x, x, x)[0],
                mha=nn.MultiheadAttention(4, 2, batch_first=True),
            ),
            normal((2, 4)),
        ),
        Case(
            "causal_mask_shared",
            lambda: Net(
                lambda m, x, mask: m.mha(x, x, x, attn_mask=mask, need_weights=False)[
                    0
                ],
                mha=nn.MultiheadAttention(4, 2, batch_first=True),
            ),
            lambda n: (
                torch.randn(n, 3, 4, dtype=torch.float64),
                torch.ones(3, 3, dtype=torch.bool).triu(1),
            ),
            samples=2,
            wrt=0,
            shared=(1,),
        ),
        Case(
            "transformer_layer_in_eval",
            lambda: nn.TransformerEncoderLayer(4, 2, 5, batch_first=True).eval(),
            normal((3, 4)),
            samples=2,
        ),
        Case(
            "fused_attention",
            lambda: F.scaled_dot_product_attention,
            normal((2, 3), (4, 3), (4, 5)),
        ),
        Case(
            "weight_norm",
            lambda: parametrizations.weight_norm(nn.Linear(4, 2)),
            normal((4,)),
        ),
        Case("bilinear", lambda: nn.Bilinear(3, 4, 2), normal((3,), (4,))),
        Case(
            "prelu", lambda: nn.Sequential(nn.Linear(3, 4), nn.PReLU(4)), normal((3,))
        ),
    ]
