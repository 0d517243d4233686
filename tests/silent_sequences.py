"""Attention and recurrent networks, in each layout of their axes."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import rnn

from case import Net, normal, weight
from silent_case import Parts, SilentCase, silent, summed

#: Samples of ``T`` steps; other lengths where a second sequence is given.
STEPS = normal((5, 4))
BOTH = normal((5, 4), (2, 6))


def attention() -> list[SilentCase]:
    """Return cases of attention to oneself and to others, masked and not."""

    def one(**options: Any) -> Any:
        return lambda: {"mha": nn.MultiheadAttention(4, 2, **options)}

    def to_itself(m: Net, x: Tensor) -> Tensor:
        return summed(m.mha(x, x, x)[0])

    def without_weights(m: Net, x: Tensor) -> Tensor:
        return summed(m.mha(x, x, x, need_weights=False)[0])

    def time_first(m: Net, x: Tensor) -> Tensor:
        turned = x.transpose(0, 1)
        return summed(m.mha(turned, turned, turned)[0].transpose(0, 1))

    def to_another(m: Net, x: Tensor, y: Tensor) -> Tensor:
        return summed(m.mha(x, y, y)[0])

    def to_another_turned(m: Net, x: Tensor, y: Tensor) -> Tensor:
        other = y.transpose(0, 1)
        return summed(m.mha(x.transpose(0, 1), other, other)[0].transpose(0, 1))

    def padded(m: Net, x: Tensor, lengths: Tensor) -> Tensor:
        padding = torch.arange(x.shape[1], device=x.device) >= lengths[:, None]
        return summed(m.mha(x, x, x, key_padding_mask=padding)[0])

    def masked(m: Net, x: Tensor, mask: Tensor) -> Tensor:
        return summed(m.mha(x, x, x, attn_mask=mask)[0])

    def attention_weights(m: Net, x: Tensor) -> Tensor:
        return m.mha(x, x, x, average_attn_weights=False)[1].square().sum((1, 2))

    def packed(m: Net, x: Tensor) -> Tensor:
        q, k, v = F.linear(x, m.w, m.b).chunk(3, -1)
        return summed(F.scaled_dot_product_attention(q, k, v))

    def grouped(m: Net, x: Tensor) -> Tensor:
        q = m.q(x).unflatten(2, (2, 3)).transpose(1, 2)
        k, v = (part[:, None].expand(-1, 2, -1, -1) for part in m.kv(x).chunk(2, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return summed(y.transpose(1, 2).flatten(2))

    def with_lengths(n: int) -> Any:
        return STEPS(n), torch.tensor([5, 2, 3])[:n]

    def with_mask(n: int) -> Any:
        return {"x": STEPS(n), "mask": torch.ones(5, 5).triu(1).bool()}

    others = {"kdim": 6, "vdim": 6}
    return [
        silent("attention", to_itself, one(batch_first=True), STEPS),
        silent("attention_without_weights", without_weights, one(batch_first=True),
               STEPS),
        silent("attention_time_first", time_first, one(), STEPS),
        silent("attention_to_another", to_another, one(batch_first=True, **others),
               BOTH),
        silent("attention_to_another_time_first", to_another_turned, one(**others),
               BOTH),
        silent("attention_padded", padded, one(batch_first=True), with_lengths),
        silent("attention_masked", masked, one(batch_first=True), with_mask,
               shared=("mask",)),
        silent("attention_with_learned_keys", to_itself,
               one(batch_first=True, add_bias_kv=True, add_zero_attn=True), STEPS),
        silent("attention_without_bias", to_itself, one(batch_first=True, bias=False),
               STEPS),
        silent("attention_weights", attention_weights, one(batch_first=True), STEPS,
               unused=("mha.out_proj.weight", "mha.out_proj.bias")),
        silent("packed_projection", packed, lambda: {
            "w": weight(9, 4), "b": weight(9)}, STEPS),
        silent("grouped_queries", grouped, lambda: {
            "q": nn.Linear(4, 6), "kv": nn.Linear(4, 6, bias=False)}, STEPS),
    ]  # fmt: skip


def transformers() -> list[SilentCase]:
    """Return cases of whole layers of a transformer."""

    def encoder(**options: Any) -> Any:
        return lambda: {"layer": nn.TransformerEncoderLayer(
            4, 2, 6, dropout=0, **options)}  # fmt: skip

    def decoder() -> Parts:
        return {"layer": nn.TransformerDecoderLayer(4, 2, 6, 0, batch_first=True)}

    def evaluated(model: nn.Module) -> None:
        model.eval()

    def forward(m: Net, x: Tensor) -> Tensor:
        return summed(m.layer(x))

    def time_first(m: Net, x: Tensor) -> Tensor:
        return summed(m.layer(x.transpose(0, 1)).transpose(0, 1))

    def decoded(m: Net, x: Tensor, y: Tensor) -> Tensor:
        return summed(m.layer(x, y[..., :4]))

    return [
        silent("encoder_layer", forward, encoder(batch_first=True), STEPS),
        silent("encoder_layer_in_eval", forward, encoder(batch_first=True), STEPS,
               after=evaluated),
        silent("encoder_layer_norm_first", forward, encoder(
            batch_first=True, norm_first=True, activation="gelu"), STEPS),
        silent("encoder_layer_time_first", time_first, encoder(), STEPS),
        silent("decoder_layer", decoded, decoder, BOTH),
    ]  # fmt: skip


def recurrent() -> list[SilentCase]:
    """Return cases of recurrent networks."""

    def of(kind: Any, **options: Any) -> Any:
        return lambda: {"rnn": kind(4, 3, **options)}

    def batch_first(m: Net, x: Tensor) -> Tensor:
        return summed(m.rnn(x)[0])

    def time_first(m: Net, x: Tensor) -> Tensor:
        return summed(m.rnn(x.transpose(0, 1))[0].transpose(0, 1))

    def last_state(m: Net, x: Tensor) -> Tensor:
        return m.rnn(x)[1][-1].tanh()

    def started(m: Net, x: Tensor) -> Tensor:
        start = m.start.expand(-1, len(x), -1).contiguous()
        return summed(m.rnn(x, start)[0])

    def packed(m: Net, x: Tensor, lengths: Tensor) -> Tensor:
        sequences = rnn.pack_padded_sequence(
            x, lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        return m.rnn(sequences)[1][-1].tanh()

    def cells(m: Net, x: Tensor) -> Tensor:
        state = torch.zeros(len(x), 3, dtype=x.dtype, device=x.device)
        for step in x.unbind(1):
            state = m.cell(step, state)
        return state

    def with_lengths(n: int) -> Any:
        return STEPS(n), torch.tensor([2, 5, 3])[:n]

    both_ways = {"batch_first": True, "bidirectional": True}
    return [
        silent("gru", batch_first, of(nn.GRU, batch_first=True), STEPS),
        silent("lstm", batch_first, of(nn.LSTM, batch_first=True), STEPS),
        silent("rnn_of_two_layers", batch_first, of(
            nn.RNN, num_layers=2, nonlinearity="relu", batch_first=True), STEPS),
        silent("lstm_both_ways", batch_first, of(nn.LSTM, **both_ways), STEPS),
        silent("lstm_projected", batch_first, of(
            nn.LSTM, batch_first=True, proj_size=2), STEPS),
        silent("gru_time_first", time_first, of(nn.GRU), STEPS),
        silent("lstm_time_first", time_first, of(nn.LSTM, num_layers=2), STEPS),
        silent("last_state", last_state, of(nn.GRU, batch_first=True), STEPS),
        silent("learned_start", started, lambda: {
            "rnn": nn.GRU(4, 3, batch_first=True), "start": weight(1, 1, 3)}, STEPS),
        silent("packed_gru", packed, of(nn.GRU, batch_first=True), with_lengths),
        silent("gru_cells", cells, lambda: {"cell": nn.GRUCell(4, 3)}, STEPS),
    ]  # fmt: skip


SEQUENCES: tuple[SilentCase, ...] = (
    *attention(), *transformers(), *recurrent(),
)  # fmt: skip
