"""Layers in the settings that are easy to get wrong, and functions they are made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from case import Net, ids, normal, weight
from silent_case import SilentCase, silent

ONE = normal((4,))
LINE, PLANE, SPACE = normal((4, 6)), normal((4, 5, 6)), normal((2, 3, 4, 5))


def layer(
    name: str,
    build: Callable[[], nn.Module],
    inputs: Callable[[int], Any],
    read: Callable[[Tensor], Tensor] = torch.tanh,
    **options: Any,
) -> SilentCase:
    """Return the case of one layer and something bent after it."""
    return silent(name, lambda m, *x: read(m.layer(*x)), lambda: {"layer": build()},
                  inputs, **options)  # fmt: skip


def pooled(y: Tensor) -> Tensor:
    """Return each channel's sum of squares: small, and no sum of the outputs."""
    return y.flatten(2).square().sum(2)


def convolutions() -> list[SilentCase]:
    """Return cases of convolutions with each of their settings."""

    def padded(mode: Any) -> SilentCase:
        def build() -> nn.Module:
            return nn.Conv2d(4, 3, (3, 2), padding=(2, 1), padding_mode=mode)

        return layer(f"conv_padded_{mode}", build, PLANE, pooled)

    def channels_last() -> nn.Module:
        conv = nn.Conv2d(4, 3, 2)
        conv.weight.data = conv.weight.data.to(memory_format=torch.channels_last)
        return conv

    def functional(m: Net, x: Tensor) -> Tensor:
        return pooled(F.conv1d(weight=m.w, input=x, bias=m.b, stride=2, groups=2))

    def shifted(m: Net, x: Tensor) -> Tensor:
        # Unfolded by hand, as a matrix product does it.
        return torch.tanh(F.unfold(x, (2, 3)).mT @ m.w).sum(1)

    return [
        layer("conv_grouped", lambda: nn.Conv2d(4, 6, (2, 3), groups=2), PLANE, pooled),
        layer("conv_depthwise", lambda: nn.Conv2d(4, 8, 2, groups=4), PLANE, pooled),
        layer("conv_strided", lambda: nn.Conv2d(4, 3, 2, stride=(2, 3)), PLANE, pooled),
        layer("conv_dilated", lambda: nn.Conv2d(4, 3, 2, dilation=(2, 3)), PLANE,
              pooled),
        layer("conv_same", lambda: nn.Conv2d(4, 3, (1, 3), padding="same"), PLANE,
              pooled),
        layer("conv_same_dilated", lambda: nn.Conv1d(
            4, 3, 4, padding="same", dilation=2, bias=False), LINE, pooled),
        layer("conv_line", lambda: nn.Conv1d(4, 3, 2, padding=1), LINE, pooled),
        layer("conv_line_circular", lambda: nn.Conv1d(
            4, 3, 3, padding=2, padding_mode="circular", stride=2), LINE, pooled),
        layer("conv_space", lambda: nn.Conv3d(2, 3, (2, 1, 3), padding=(1, 0, 2)),
              SPACE, pooled),
        layer("conv_same_with_reflection", lambda: nn.Conv2d(
            4, 3, 3, padding="same", padding_mode="reflect"), PLANE, pooled),
        *[padded(mode) for mode in ("zeros", "reflect", "replicate", "circular")],
        layer("transposed_conv", lambda: nn.ConvTranspose2d(
            4, 3, (2, 3), stride=2, padding=1, output_padding=(1, 0)), PLANE, pooled),
        layer("transposed_conv_grouped", lambda: nn.ConvTranspose1d(
            4, 6, 3, groups=2, dilation=2, bias=False), LINE, pooled),
        layer("transposed_conv_space", lambda: nn.ConvTranspose3d(2, 3, (1, 2, 2)),
              SPACE, pooled),
        layer("conv_channels_last", channels_last, lambda n: PLANE(n).to(
            memory_format=torch.channels_last), pooled),
        silent("conv_functional", functional, lambda: {
            "w": weight(6, 2, 3), "b": weight(6)}, LINE),
        silent("conv_by_unfolding", shifted, lambda: {"w": weight(24, 3)}, PLANE),
    ]  # fmt: skip


def norms() -> list[SilentCase]:
    """Return cases of what normalises, with a scale of its own."""

    def evaluated(model: nn.Module) -> None:
        model.eval()

    def functional(m: Net, x: Tensor) -> Tensor:
        return F.layer_norm(x, (4,), bias=m.b, weight=1 + m.w)

    def by_batch_norm(m: Net, x: Tensor) -> Tensor:
        mean = torch.full((4,), 0.2, dtype=x.dtype, device=x.device)
        return F.batch_norm(x, mean, mean + 1, m.w, m.b, training=False)

    def as_group_norm(m: Net, x: Tensor) -> Tensor:
        # One sample's instances, as a batch of their own.
        return F.group_norm(x.reshape(-1, 2, 6), 2, m.w).reshape(len(x), -1)

    return [
        layer("layer_norm", lambda: nn.LayerNorm(4), normal((3, 4))),
        layer("layer_norm_of_two_axes", lambda: nn.LayerNorm([3, 4]), normal((3, 4))),
        layer("layer_norm_without_bias", lambda: nn.LayerNorm(4, bias=False), ONE),
        layer("rms_norm", lambda: nn.RMSNorm(4), normal((3, 4))),
        layer("group_norm", lambda: nn.GroupNorm(2, 4), LINE, pooled),
        layer("instance_norm", lambda: nn.InstanceNorm1d(4, affine=True), LINE, pooled),
        layer("instance_norm_with_statistics", lambda: nn.InstanceNorm2d(
            4, affine=True, track_running_stats=True), PLANE, pooled, after=evaluated),
        layer("batch_norm_in_eval", lambda: nn.BatchNorm1d(4), ONE, after=evaluated),
        layer("batch_norm_in_eval_of_planes", lambda: nn.BatchNorm2d(4), PLANE,
              lambda y: pooled(y.sigmoid()), after=evaluated),
        silent("layer_norm_functional", functional, lambda: {
            "w": weight(4), "b": weight(4)}, normal((3, 4))),
        silent("batch_norm_functional", by_batch_norm, lambda: {
            "w": weight(4), "b": weight(4)}, ONE),
        silent("group_norm_of_regrouped_channels", as_group_norm, lambda: {
            "w": weight(2)}, normal((2, 6))),
    ]  # fmt: skip


def activations() -> list[SilentCase]:
    """Return cases of layers with a slope, and of two inputs."""
    two = normal((4,), (5,))
    return [
        layer("prelu", lambda: nn.PReLU(), normal((4, 3))),
        layer("prelu_of_each_channel", lambda: nn.PReLU(4), normal((4, 3)), pooled),
        layer("bilinear", lambda: nn.Bilinear(4, 5, 3), two),
        silent("bilinear_functional",
               lambda m, x, y: F.bilinear(x, y, bias=m.b, weight=m.w), lambda: {
                   "w": weight(3, 4, 5), "b": weight(3)}, two),
        silent("prelu_functional", lambda m, x: F.prelu(x, weight=m.w.abs()), lambda: {
            "w": weight(4)}, normal((4, 2))),
        silent("gated", lambda m, x: F.glu(m.fc(x)), lambda: {"fc": nn.Linear(4, 6)},
               ONE),
    ]  # fmt: skip


def embeddings() -> list[SilentCase]:
    """Return cases of tables whose rows are taken, some of them more than once."""

    def repeated(n: int) -> Tensor:
        # Within one sample, and across samples; and what pads.
        return torch.tensor([[1, 1, 0, 2], [2, 0, 0, 2], [4, 1, 3, 4]])[:n]

    def bag(mode: str) -> SilentCase:
        build = lambda: nn.EmbeddingBag(6, 3, mode=mode, padding_idx=2)  # noqa: E731
        return layer(f"bag_by_{mode}", build, lambda n: ids(n, 4, below=6))

    def bag_of_offsets(mode: str) -> SilentCase:
        def forward(m: Net, words: Tensor) -> Tensor:
            starts = torch.arange(len(words), device=words.device) * words.shape[1]
            return m.bag(words.flatten(), starts).tanh()

        return silent(f"bag_of_offsets_by_{mode}", forward, lambda: {
            "bag": nn.EmbeddingBag(6, 3, mode=mode)},
            lambda n: ids(n, 4, below=6))  # fmt: skip

    def weighted_bag(m: Net, words: Tensor, weights: Tensor) -> Tensor:
        return m.bag(words, per_sample_weights=weights).tanh()

    def bag_of_parameters(m: Net, words: Tensor) -> Tensor:
        weights = m.weights.expand(len(words), -1).contiguous()
        return F.embedding_bag(words, m.w, per_sample_weights=weights, mode="sum")

    def time_first(m: Net, words: Tensor) -> Tensor:
        return m.embedding(words.T).cumsum(0).tanh().transpose(0, 1)

    return [
        layer("padded_embedding", lambda: nn.Embedding(6, 3, padding_idx=2), repeated),
        layer("embedding_repeated", lambda: nn.Embedding(6, 2), repeated),
        layer("sparse_embedding", lambda: nn.Embedding(6, 2, sparse=True), repeated),
        silent("embedding_functional",
               lambda m, t: F.embedding(weight=m.w, input=t, padding_idx=-6).tanh(),
               lambda: {"w": weight(6, 2)}, repeated),
        silent("embedding_time_first", time_first, lambda: {
            "embedding": nn.Embedding(6, 2)}, repeated),
        silent("one_hot_product", lambda m, t: F.one_hot(t, 6).to(m.w) @ m.w, lambda: {
            "w": weight(6, 2)}, repeated),
        *[bag(mode) for mode in ("sum", "mean", "max")],
        *[bag_of_offsets(mode) for mode in ("sum", "mean", "max")],
        silent("weighted_bag", weighted_bag, lambda: {
            "bag": nn.EmbeddingBag(6, 3, mode="sum")}, lambda n: (
            ids(n, 4, below=6), torch.randn(n, 4, dtype=torch.float64))),
        silent("bag_weighted_by_a_parameter", bag_of_parameters, lambda: {
            "w": weight(6, 3), "weights": weight(1, 4)}, lambda n: ids(n, 4, below=6)),
    ]  # fmt: skip


def images_of_parameters() -> list[SilentCase]:
    """Return cases of a parameter that is an image, a grid or a sequence itself."""

    def prompts(m: Net, x: Tensor) -> Tensor:
        keys = m.keys.expand(len(x), -1, -1)
        values = m.table.expand(len(x), -1, -1)
        return F.scaled_dot_product_attention(x, keys, values)

    def sampled(m: Net, x: Tensor) -> Tensor:
        image = m.w.expand(len(x), -1, -1, -1)
        return F.grid_sample(image, x.tanh(), align_corners=True).flatten(1)

    def warped(m: Net, x: Tensor) -> Tensor:
        grid = F.affine_grid(m.w.expand(len(x), -1, -1), list(x.shape), True)
        return F.grid_sample(x, grid, align_corners=True).flatten(2).sum(2)

    def enlarged(m: Net, x: Tensor) -> Tensor:
        table = F.interpolate(m.w, size=(2, 3), mode="bilinear")
        return (x + table).sin().flatten(2).sum(2)

    grid = normal((2, 3, 2))
    return [
        silent("learned_keys_and_values", prompts, lambda: {
            "keys": weight(1, 3, 4), "table": weight(1, 3, 4)}, normal((2, 4))),
        silent("image_sampled", sampled, lambda: {"w": weight(1, 1, 4, 5)}, grid),
        silent("affine_grid", warped, lambda: {"w": weight(1, 2, 3)},
               normal((2, 3, 4))),
        silent("table_enlarged", enlarged, lambda: {"w": weight(1, 2, 4, 5)},
               normal((2, 2, 3))),
    ]  # fmt: skip


LAYERS: tuple[SilentCase, ...] = (
    *convolutions(), *norms(), *activations(), *embeddings(), *images_of_parameters(),
)  # fmt: skip
