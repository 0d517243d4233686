"""What figures are given, read as arrays to draw: pictures, maps, numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradkit.errors import InputError

__all__ = [
    "PERCENTILE",
    "at_most",
    "dense",
    "doubles",
    "limit",
    "numbers",
    "read_entries",
    "read_images",
    "read_maps",
]

# A few extreme pixels must not turn all others white.
PERCENTILE = 0.998
# More rows could not be read on a page.
_SAMPLES = 12
_KINDS = "(N, D) with D a square number, (N, H, W) or (N, C, H, W)"


def dense(value: Any, place: str) -> Tensor:
    """Return a dense real tensor as it came, or refuse what is none."""
    if not isinstance(value, Tensor):
        raise InputError(
            f"{place} must be a tensor; got {type(value).__name__};"
            " pass torch.as_tensor(x)",
            argument=_argument(place),
        )
    if value.is_complex() or value.layout != torch.strided:
        what = value.dtype if value.is_complex() else value.layout
        raise InputError(
            f"{place} must be a dense tensor of real numbers; got"
            f" {str(what).removeprefix('torch.')}; pass x.abs() or x.to_dense()",
            argument=_argument(place),
        )
    return value


def doubles(value: Any, place: str) -> Tensor:
    """Return a dense real tensor on the CPU, in float64."""
    # In two steps: some accelerators have no float64.
    return dense(value, place).detach().cpu().double().resolve_neg()


def numbers(value: Any, place: str) -> Tensor:
    """Return a dense real tensor on the CPU, in float64, whose values are finite."""
    values = doubles(value, place)
    wrong = ~values.isfinite().reshape(len(values), -1).all(1)
    if wrong.any():
        raise InputError(
            f"{place} must be finite; got NaN or infinity at index"
            f" {int(wrong.nonzero()[0])}; leave such samples out",
            argument=_argument(place),
        )
    return values


def read_images(
    images: Any, argument: str = "images", count: int = _SAMPLES
) -> np.ndarray:
    """Return pictures of one channel ``(N, H, W)``, or in colour ``(N, H, W, 3)``."""
    batch = _channels(images, argument, count)
    if batch.shape[1] == 1:
        return batch[:, 0].numpy()
    if batch.shape[1] != 3:
        raise InputError(
            f"{argument} must have 1 or 3 channels; got {batch.shape[1]}; pass the"
            " mean over channels, x.mean(1)",
            argument=argument,
        )
    least, most = float(batch.min()), float(batch.max())
    if images.dtype == torch.uint8:
        least, most = 0.0, 255.0
    elif least >= 0 and most <= 1:
        least, most = 0.0, 1.0
    colours = (batch - least) / ((most - least) or 1.0)
    return colours.movedim(1, -1).numpy()


def read_maps(maps: Any, place: str) -> np.ndarray:
    """Return maps ``(N, H, W)``, the sums over their channels."""
    return _channels(maps, place).sum(1).numpy()


def _channels(value: Any, place: str, most: int | None = None) -> Tensor:
    batch = dense(value, place)
    if batch.dim() == 2 and math.isqrt(batch.shape[1]) ** 2 == batch.shape[1]:
        side = math.isqrt(batch.shape[1])
        batch = batch.reshape(len(batch), 1, side, side)
    elif batch.dim() == 3:
        batch = batch.unsqueeze(1)
    if batch.dim() != 4 or not batch.numel():
        raise InputError(
            f"{place} must be pictures {_KINDS}, and not empty; got"
            f" {tuple(value.shape)}; reshape it",
            argument=_argument(place),
            shape=tuple(value.shape),
        )
    if most is not None:
        advice = f"slice {place}[:{most}], and all else alike"
        at_most(len(batch), most, place, "samples", advice)
    return numbers(batch, place)


def read_entries(values: Any, argument: str, samples: int) -> list[Any]:
    """Return one number per sample, of a tensor or a sequence."""
    try:
        # On no device that a default could name.
        entries = torch.as_tensor(values, device="cpu")
    except (TypeError, ValueError, RuntimeError):
        entries = None
    if entries is None or entries.shape != (samples,):
        got = type(values).__name__ if entries is None else tuple(entries.shape)
        raise InputError(
            f"{argument} must be one number per sample, ({samples},); got {got}; pass"
            " those of the samples that are drawn",
            argument=argument,
        )
    return entries.tolist()


def at_most(count: int, most: int, argument: str, what: str, advice: str) -> None:
    """Refuse nothing to draw, and more than can be read."""
    if not 1 <= count <= most:
        raise InputError(
            f"{argument} must hold 1 to {most} {what} to be readable; got {count};"
            f" {advice}",
            argument=argument,
        )


def limit(values: np.ndarray) -> float:
    """Return the magnitude at which colours saturate.

    Where hardly any entry differs from 0 the percentile is 0, and the largest says
    more. All zeros have no scale.
    """
    magnitudes = np.abs(values)
    found = float(np.quantile(magnitudes, PERCENTILE))
    return found or float(magnitudes.max()) or 1.0


def _argument(place: str) -> str:
    return place.partition("[")[0]
