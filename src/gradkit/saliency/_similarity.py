"""How alike two maps are, whatever their units: by ranks, and as pictures."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from gradkit.saliency._arguments import per_sample

__all__ = ["rank_correlation", "structural_similarity"]

_SIDE = 11
_WIDTH = 1.5


def rank_correlation(first: Tensor, second: Tensor) -> Tensor:
    """Return Spearman's correlation of the entries of each sample, ``(N,)``.

    Equal entries share the mean of their ranks. A map whose entries are all equal
    correlates with nothing: 0.

    Source:
        Spearman, "The proof and measurement of association between two things" (1904).
    """
    a, b = (_centred_ranks(maps.reshape(len(maps), -1)) for maps in (first, second))
    norms = a.norm(dim=1) * b.norm(dim=1)
    return torch.where(norms > 0, (a * b).sum(1) / norms, 0.0)


def _centred_ranks(rows: Tensor) -> Tensor:
    return torch.stack([_mean_ranks(row) for row in rows]) - (rows.shape[1] - 1) / 2


def _mean_ranks(row: Tensor) -> Tensor:
    _, place, counts = row.unique(return_inverse=True, return_counts=True)
    ends = counts.cumsum(0).double()
    return (ends - (counts + 1) / 2)[place]


def structural_similarity(first: Tensor, second: Tensor) -> Tensor:
    """Return the structural similarity of each sample's maps as pictures, ``(N,)``.

    Each map is divided by its own largest magnitude. Maps ``(N, *, H, W)`` are pictures
    along their last two axes, whose similarities are averaged; ``(N, D)`` are square
    ones where ``D`` is a square number. What is no picture has NaN.

    Source:
        Wang, Bovik, Sheikh and Simoncelli, "Image quality assessment: from error
        visibility to structural similarity" (2004), sec. 3, with its window and
        constants, for a range of 2.
    """
    a, b = _pictures(first), _pictures(second)
    if a is None or b is None or min(a.shape[-2:]) < 2:
        return torch.full((len(first),), math.nan, dtype=torch.float64)
    window = _window(a)
    mean_a, mean_b = F.conv2d(a, window), F.conv2d(b, window)
    var_a = F.conv2d(a * a, window) - mean_a**2
    var_b = F.conv2d(b * b, window) - mean_b**2
    both = F.conv2d(a * b, window) - mean_a * mean_b
    luminance, contrast = (0.01 * 2) ** 2, (0.03 * 2) ** 2
    found = (2 * mean_a * mean_b + luminance) * (2 * both + contrast)
    found /= (mean_a**2 + mean_b**2 + luminance) * (var_a + var_b + contrast)
    return found.mean((1, 2, 3)).reshape(len(first), -1).mean(1)


def _pictures(maps: Tensor) -> Tensor | None:
    """Return every picture by itself, ``(M, 1, H, W)``, scaled by its sample's."""
    maps = maps.double()
    if maps.ndim == 2:
        side = math.isqrt(maps.shape[1])
        if side**2 != maps.shape[1]:
            return None
        maps = maps.reshape(len(maps), side, side)
    if maps.ndim < 3 or not maps.numel():
        return None
    largest = per_sample(maps.abs().flatten(1).amax(1), maps)
    scaled = maps / torch.where(largest > 0, largest, 1.0)
    return scaled.reshape(-1, 1, *maps.shape[-2:])


def _window(pictures: Tensor) -> Tensor:
    """Return a Gaussian window, smaller where the pictures are."""
    side = min(_SIDE, *pictures.shape[-2:])
    side -= 1 - side % 2  # odd, so that it has a middle
    places = torch.arange(side, dtype=torch.float64, device=pictures.device)
    line = torch.exp(-(((places - side // 2) / _WIDTH) ** 2) / 2)
    line /= line.sum()
    return (line[:, None] * line)[None, None]
