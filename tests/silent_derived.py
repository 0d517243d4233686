"""Values made from parameters alone, and parameters that meet each entry."""

from __future__ import annotations

import warnings

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn import utils
from torch.nn.utils import parametrizations, parametrize, prune

from case import Net, ids, normal
from silent_case import Parts, SilentCase, parts, silent, w

ONE, TWO, STEPS = normal((4,)), normal((4,), (5,)), normal((2, 4))


class Symmetric(nn.Module):
    def forward(self, matrix: Tensor) -> Tensor:
        return matrix.triu() + matrix.triu(1).mT


def derived() -> list[SilentCase]:
    """Return cases of a value made from parameters alone, before a sample meets it."""

    def class_token(m: Net, x: Tensor) -> Tensor:
        rows = torch.cat([m.token.expand(len(x), -1, -1), x], 1) + m.table
        return torch.tanh(rows @ m.w).mean(1)

    def rms_norm(m: Net, x: Tensor) -> Tensor:
        scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
        return x * scale * (1.0 + m.w)

    def lora(m: Net, x: Tensor) -> Tensor:
        return F.linear(x, m.w + 0.5 * m.b @ m.a).tanh()

    def norm_in_single(m: Net, x: Tensor) -> Tensor:
        y = x.float()
        scale = torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-6)
        return (y * scale * (1.0 + m.w.float())).type_as(x)

    def product_in_single(m: Net, x: Tensor) -> Tensor:
        return F.linear(x.float(), m.w.float()).tanh().type_as(x)

    def by_fourier(m: Net, x: Tensor) -> Tensor:
        return torch.fft.ifft(torch.fft.fft(x) * torch.fft.fft(m.w)).real

    def symmetric() -> Parts:
        layer = nn.Linear(4, 4)
        parametrize.register_parametrization(layer, "weight", Symmetric())
        return {"fc": layer}

    def layer(m: Net, x: Tensor) -> Tensor:
        return m.fc(x).tanh()

    def orthogonal() -> Parts:
        return {"fc": parametrizations.orthogonal(nn.Linear(4, 4))}

    def weight_normed() -> Parts:
        return {"fc": parametrizations.weight_norm(nn.Linear(4, 3))}

    def spectral_normed() -> Parts:
        return {"fc": parametrizations.spectral_norm(nn.Linear(4, 3)).eval()}

    def by_hooks() -> Parts:
        layer = nn.Linear(4, 3)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the form before parametrizations
            utils.weight_norm(layer, dim=1)
        return {"fc": layer}

    def spectral_by_hooks() -> Parts:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return {"fc": utils.spectral_norm(nn.Linear(4, 3)).eval()}

    def pruned() -> Parts:
        layer = nn.Linear(4, 3)
        prune.custom_from_mask(layer, "weight", torch.eye(3, 4) + 1)
        return {"fc": layer}

    def evaluated(model: nn.Module) -> None:
        model.eval()

    return [
        silent("class_token", class_token,
               parts(token=(1, 1, 4), table=(1, 3, 4), w=(4, 3)), STEPS),
        silent("position_table", lambda m, x: torch.tanh(x + m.w) @ m.v,
               parts(w=(1, 2, 4), v=(4, 3)), STEPS),
        silent("one_plus_scale", rms_norm, w(4), STEPS),
        silent("lora", lora, parts(w=(5, 4), a=(2, 4), b=(5, 2)), STEPS),
        silent("weight_norm", layer, weight_normed, ONE),
        silent("spectral_norm_in_eval", layer, spectral_normed, ONE, after=evaluated),
        silent("weight_norm_by_hooks", layer, by_hooks, ONE),
        silent("spectral_norm_by_hooks", layer, spectral_by_hooks, ONE,
               after=evaluated),
        silent("pruned", layer, pruned, ONE),
        silent("symmetric", layer, symmetric, ONE),
        silent("orthogonal", layer, orthogonal, ONE),
        silent("normalised", lambda m, x: x @ F.normalize(m.w, dim=0), w(4, 3), ONE),
        silent("softmax_of_weights", lambda m, x: x @ m.w.softmax(0), w(4, 3), ONE),
        silent("running_sum_of_weights", lambda m, x: x @ m.w.cumsum(0), w(4, 3), ONE),
        silent("exponential_scale", lambda m, x: x.tanh() * m.w.exp(), w(1), ONE),
        silent("zero_dimensional", lambda m, x: x.tanh() * m.w, w(), ONE),
        silent("by_the_fourier_transform", by_fourier, w(5), normal((5,))),
        silent("as_complex", lambda m, x: torch.view_as_real(
            torch.view_as_complex(x) * torch.view_as_complex(m.w)), w(3, 2),
            normal((3, 2))),
        silent("norm_in_single", norm_in_single, w(4), STEPS, tolerance=1e-5),
        silent("product_in_single", product_in_single, w(3, 4), STEPS, tolerance=1e-5),
        silent("padded_weight", lambda m, x: x @ F.pad(m.w, (1, 1)), w(4, 2), ONE),
    ]  # fmt: skip


def elementwise() -> list[SilentCase]:
    """Return cases of a parameter that meets samples entry by entry."""

    def threshold(m: Net, x: Tensor) -> Tensor:
        return torch.maximum(x, m.w) + torch.minimum(x, m.v)

    return [
        silent("powers", lambda m, x: x.abs().add(1).pow(m.w), w(4), ONE),
        silent("quotient", lambda m, x: x / (2 + m.w.square()), w(4), ONE),
        silent("quotient_turned", lambda m, x: m.w / (2 + x.square()), w(4), ONE),
        silent("difference", lambda m, x: (m.w - x).tanh(), w(2, 1), STEPS),
        silent("larger_and_smaller", threshold, parts(w=(4,), v=(4,)), ONE),
        silent("lerp", lambda m, x, y: torch.lerp(x, y[:, :4], m.w), w(4), TWO),
        silent("where", lambda m, x: torch.where(x > 0, x, m.w * x), w(4), ONE),
        silent("clamped", lambda m, x: x.clamp(max=m.w), w(4), ONE),
        silent("masked_fill", lambda m, x: x.masked_fill(x > 0, m.w), w(), ONE),
        silent("distances", lambda m, x: torch.cdist(x, m.w), w(3, 4), ONE),
        silent("similarities",
               lambda m, x: F.cosine_similarity(x[:, None], m.w, dim=-1), w(3, 4), ONE),
        silent("rational", lambda m, x: torch.addcdiv(x, m.w, 2 + x.square()), w(4),
               ONE),
        silent("logits_and_temperature", lambda m, x: (x * m.w.exp()).log_softmax(-1),
               w(), ONE),
        silent("along_time", lambda m, x: (x * m.w).sum(1), w(2, 1), STEPS),
        silent("of_each_class", lambda m, t: m.w[t] * 2, w(6),
               lambda n: ids(n, below=6)),
    ]  # fmt: skip


DERIVED: tuple[SilentCase, ...] = (*derived(), *elementwise())
