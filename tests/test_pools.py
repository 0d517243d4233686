"""Max pooling laid out anew gives the same numbers and places, bit for bit."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from footprint import bits
from gradkit import _pools
from gradkit._quick import _Quick, quick_forward

SETTINGS = [
    {"kernel_size": k, "stride": s, "padding": p, "dilation": d, "ceil_mode": c}
    for k, s, p, d, c in itertools.product(
        [2, (3, 2)], [1, (2, 3)], [0, 1], [1, 2], [False, True]
    )
]


class Seen(TorchDispatchMode):
    """Counts how often images are pooled with the channels last."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.max_pool2d_with_indices.default:
            last = args[0].is_contiguous(memory_format=torch.channels_last)
            self.count += last
        return func(*args, **(kwargs or {}))


def images(dtype: torch.dtype) -> Tensor:
    """Return images with ties, NaN, infinities and signed zeros."""
    generator = torch.Generator(device="cpu").manual_seed(3)
    x = torch.randint(-2, 3, (3, 5, 11, 13), generator=generator, device="cpu").to(
        dtype
    )
    x[0, :, ::4] *= -0.0
    x[1, 2, 3:6, 4:7] = torch.nan
    x[2, 1] = -torch.inf
    x[2, 3, 5] = torch.inf
    return x


def pooled(x: Tensor, setting: dict, cotangent: Tensor | None) -> list[Tensor]:
    x = x.detach().requires_grad_()
    maxima, places = F.max_pool2d(x, **setting, return_indices=True)
    cotangent = torch.ones_like(maxima) if cotangent is None else cotangent
    (gradient,) = torch.autograd.grad(maxima, x, cotangent)
    return [maxima.detach(), places, gradient]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("setting", SETTINGS)
def test_bits_are_the_same(setting, dtype, monkeypatch):
    monkeypatch.setattr(_pools, "_LARGE", 1)
    x = images(dtype)
    plain = pooled(x, setting, None)
    cotangent = torch.randn(plain[0].shape, device="cpu").to(dtype)
    plain = pooled(x, setting, cotangent)
    with Seen() as seen, _Quick():
        quick = pooled(x, setting, cotangent)
    assert seen.count == 1
    for ours, theirs in zip(quick, plain, strict=True):
        assert ours.dtype == theirs.dtype
        assert ours.is_contiguous()
        assert bits(ours) == bits(theirs)


def test_other_layouts_and_small_images_are_left_alone(monkeypatch):
    with Seen() as seen, _Quick():
        F.max_pool2d(torch.rand(2, 3, 4, 5, device="cpu"), 2)
        assert seen.count == 0
        monkeypatch.setattr(_pools, "_LARGE", 1)
        F.max_pool2d(torch.rand(2, 3, 4, 5, device="cpu"), 2)
        assert seen.count == 1
        F.max_pool2d(torch.rand(3, 4, 5, device="cpu"), 2)
        F.max_pool2d(torch.rand(2, 3, 5, 4, device="cpu").transpose(2, 3), 2)
        assert seen.count == 1


def test_it_gives_way_to_others_that_look_on():
    with quick_forward(True) as first, quick_forward(True) as second:
        assert first is not None
        assert second is None
    with quick_forward(False) as none:
        assert none is None
