"""Architectures of the ``transformers`` library, built small from their configs.

Nothing is fetched: weights are drawn at random. Sizes differ from axis to axis, and
every dropout is 0 unless a case says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers as hf
from torch import Tensor, nn

from case import DEVICE
from probes import fork_random_state, is_floating
from sample_loop import TOLERANCE

N, T, V = 3, 5, 53
#: Length of what a decoder is given beside an encoder's ``T``.
T_OUT = 6

# What every config takes; not all declare it.
LABELLED: Any = {"num_labels": 11}
EAGER: Any = {"attn_implementation": "eager"}
SDPA: Any = {"attn_implementation": "sdpa"}
EAGER_EXPERTS: Any = {"experts_implementation": "eager"}

Inputs = dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class Specimen:
    """An architecture, inputs for it, and what of its outputs is differentiated.

    Attributes:
        name: Its id.
        build: Makes the model.
        draw: Draws ``N`` samples, by the name of the argument.
        of: The output, as gradkit's argument of that name takes it.
        mixes: The layer that makes it refused in training mode.
        tolerance: Of the largest entry; larger where it computes in float32 inside.
    """

    name: str
    build: Callable[[], nn.Module]
    draw: Callable[[], Inputs]
    of: str | Callable[[Any], Tensor] = "logits"
    mixes: str = ""
    tolerance: float = TOLERANCE

    def make(self, training: bool = False) -> nn.Module:
        """Return a fresh model in float64, equal at every call."""
        with fork_random_state():
            torch.manual_seed(3)
            model = self.build()
            _randomise(model)
            return model.to(DEVICE, torch.float64).train(training)

    def inputs(self) -> Inputs:
        """Return fresh inputs, equal at every call."""
        with fork_random_state():
            torch.manual_seed(8)
            drawn = self.draw()
        return {
            name: value.to(DEVICE, torch.float64) if is_floating(value)
            else value.to(DEVICE) for name, value in drawn.items()
        }  # fmt: skip

    def read(self, outputs: Any) -> Tensor:
        """Return the output that is differentiated."""
        return self.of(outputs) if callable(self.of) else getattr(outputs, self.of)


def _randomise(model: nn.Module) -> None:
    """Draw every parameter: under their first values many wrong rows are right."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(0, 0.3)
            if parameter.ndim == 1 and name.endswith("weight"):
                parameter.add_(1)
        for name, buffer in model.named_buffers():
            if name.endswith("running_mean"):
                buffer.normal_(0, 0.2)
            elif name.endswith("running_var"):
                buffer.uniform_(0.5, 1.5)


def some(inputs: Inputs, samples: slice) -> Inputs:
    """Return some of the samples."""
    return {name: value[samples] for name, value in inputs.items()}


# --- inputs -----------------------------------------------------------------------


def ids(length: int) -> Tensor:
    # 0 pads in some of these.
    return torch.randint(1, V, (N, length))


def tokens() -> Inputs:
    return {"input_ids": ids(T)}


def padded_tokens() -> Inputs:
    mask = torch.ones(N, T, dtype=torch.long)
    mask[1, -2:] = 0
    return {"input_ids": ids(T), "attention_mask": mask}


def tokens_to_tokens() -> Inputs:
    return {"input_ids": ids(T), "decoder_input_ids": ids(T_OUT)}


def sound_to_tokens() -> Inputs:
    return {"input_features": torch.randn(N, 10, 14), "decoder_input_ids": ids(T_OUT)}


def images(height: int, width: int) -> Callable[[], Inputs]:
    return lambda: {"pixel_values": torch.randn(N, 2, height, width)}


# --- models -----------------------------------------------------------------------


def bert(dropout: float = 0.0) -> nn.Module:
    return hf.BertForMaskedLM(
        hf.BertConfig(
            vocab_size=V, hidden_size=24, num_hidden_layers=2, num_attention_heads=4,
            intermediate_size=36, max_position_embeddings=12,
            hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout,
            **EAGER,
        )
    )  # fmt: skip


def gpt2() -> nn.Module:
    return hf.GPT2LMHeadModel(
        hf.GPT2Config(
            vocab_size=V, n_embd=24, n_layer=2, n_head=4, n_inner=36, n_positions=12,
            resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, bos_token_id=1, eos_token_id=2,
            use_cache=False, **EAGER,
        )
    )  # fmt: skip


def llama() -> nn.Module:
    return hf.LlamaForCausalLM(
        hf.LlamaConfig(
            vocab_size=V, hidden_size=24, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, intermediate_size=36, max_position_embeddings=12,
            use_cache=False, **SDPA,
        )
    )  # fmt: skip


def gemma() -> nn.Module:
    return hf.GemmaForCausalLM(
        hf.GemmaConfig(
            vocab_size=V, hidden_size=24, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=1, head_dim=10, intermediate_size=36,
            max_position_embeddings=12, use_cache=False, **EAGER,
        )
    )  # fmt: skip


class NormInDouble(nn.Module):
    """Gemma's norm without its casts, which round a float64 model to float32."""

    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.weight, self.eps = norm.weight, norm.eps

    def forward(self, x: Tensor) -> Tensor:
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        return x * scale * (1.0 + self.weight)


def gemma_in_double() -> nn.Module:
    model = gemma()
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child).__name__ == "GemmaRMSNorm":
                setattr(module, name, NormInDouble(child))
    return model


def mixtral() -> nn.Module:
    return hf.MixtralForCausalLM(
        hf.MixtralConfig(
            vocab_size=V, hidden_size=24, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, intermediate_size=20, num_local_experts=7,
            num_experts_per_tok=2, max_position_embeddings=12, use_cache=False,
            **EAGER, **EAGER_EXPERTS,
        )
    )  # fmt: skip


def t5() -> nn.Module:
    return hf.T5ForConditionalGeneration(
        hf.T5Config(
            vocab_size=V, d_model=24, d_kv=7, d_ff=36, num_layers=2, num_heads=4,
            num_decoder_layers=2, dropout_rate=0, use_cache=False,
            **EAGER,
        )
    )  # fmt: skip


def opt() -> nn.Module:
    return hf.OPTForCausalLM(
        hf.OPTConfig(
            vocab_size=V, hidden_size=24, num_hidden_layers=2, num_attention_heads=4,
            ffn_dim=36, word_embed_proj_dim=18, max_position_embeddings=12, dropout=0,
            attention_dropout=0, layerdrop=0, use_cache=False,
            **EAGER,
        )
    )  # fmt: skip


def vit() -> nn.Module:
    return hf.ViTForImageClassification(
        hf.ViTConfig(
            image_size=(8, 12), patch_size=4, num_channels=2, hidden_size=24,
            num_hidden_layers=2, num_attention_heads=4, intermediate_size=36,
            hidden_dropout_prob=0, attention_probs_dropout_prob=0, **LABELLED,
            **SDPA,
        )
    )  # fmt: skip


def resnet() -> nn.Module:
    return hf.ResNetForImageClassification(
        hf.ResNetConfig(
            num_channels=2, embedding_size=10, hidden_sizes=[12, 16], depths=[1, 2],
            **LABELLED,
        )
    )  # fmt: skip


def regnet() -> nn.Module:
    return hf.RegNetForImageClassification(
        hf.RegNetConfig(
            num_channels=2, embedding_size=8, hidden_sizes=[12, 18], depths=[1, 2],
            groups_width=6, **LABELLED,
        )
    )  # fmt: skip


def clip_vision() -> nn.Module:
    return hf.CLIPVisionModel(
        hf.CLIPVisionConfig(
            image_size=8, patch_size=4, num_channels=2, hidden_size=24,
            num_hidden_layers=2, num_attention_heads=4, intermediate_size=36,
            attention_dropout=0, **EAGER,
        )
    )  # fmt: skip


def rows_and_pooled(outputs: Any) -> Tensor:
    return torch.cat([outputs.last_hidden_state, outputs.pooler_output[:, None]], 1)


def whisper() -> nn.Module:
    return hf.WhisperForConditionalGeneration(
        hf.WhisperConfig(
            vocab_size=V, num_mel_bins=10, d_model=24, encoder_layers=2,
            decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=2,
            encoder_ffn_dim=36, decoder_ffn_dim=28, max_source_positions=7,
            max_target_positions=9, pad_token_id=0, bos_token_id=1, eos_token_id=2,
            decoder_start_token_id=1, dropout=0, attention_dropout=0,
            activation_dropout=0, encoder_layerdrop=0, decoder_layerdrop=0,
            use_cache=False, **EAGER,
        )
    )  # fmt: skip


ZOO: tuple[Specimen, ...] = (
    Specimen("bert", bert, padded_tokens),
    Specimen("gpt2", gpt2, tokens),
    Specimen("llama", llama, padded_tokens),
    Specimen("gemma", gemma_in_double, tokens),
    Specimen("gemma_as_it_is", gemma, tokens, tolerance=1e-5),
    Specimen("mixtral", mixtral, tokens),
    Specimen("t5", t5, tokens_to_tokens),
    Specimen("opt", opt, tokens),
    Specimen("vit", vit, images(8, 12)),
    Specimen("resnet", resnet, images(20, 16), mixes="BatchNorm2d"),
    Specimen("regnet", regnet, images(20, 16), mixes="BatchNorm2d"),
    Specimen("clip_vision", clip_vision, images(8, 8), of=rows_and_pooled),
    Specimen("whisper", whisper, sound_to_tokens),
)
