"""Images may lie with the channels last, and batches be cut, where no model minds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import gradkit as gk
from footprint import bits
from gradkit import _layouts
from gradkit._quick import _Quick
from gradkit.saliency import _passes, _runs

N, STEPS = 5, 6
LAST = torch.channels_last


class Images(nn.Module):
    """Two convolutions with pooling; what lies between them is ``between``."""

    def __init__(self, channels: int = 1) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, 4, 3, padding=1)
        self.second = nn.Conv2d(4, 6, 3)
        self.out = nn.Linear(6 * 8, 3)

    def between(self, h: Tensor) -> Tensor:
        return h

    def forward(self, x: Tensor) -> Tensor:
        h = self.between(F.max_pool2d(self.first(x).tanh(), 2))
        return self.out(self.second(h).tanh().flatten(1))


def viewed(h: Tensor) -> Tensor:
    return h.view(len(h), -1).reshape(h.shape)


def strided(h: Tensor) -> Tensor:
    _, c, height, width = h.shape
    strides = (c * height * width, height * width, width, 1)
    return h.as_strided(h.shape, strides).sin()


def asked(h: Tensor) -> Tensor:
    return h if h.is_contiguous() else -h


class Viewed(Images):
    """Views the channels and pixels of a sample as one axis."""

    def between(self, h: Tensor) -> Tensor:
        return viewed(h)


class Strided(Images):
    """Reads the memory of its images by strides of its own."""

    def between(self, h: Tensor) -> Tensor:
        return strided(h)


class Resized(Images):
    """Takes the memory of its images for other images of the same size."""

    def between(self, h: Tensor) -> Tensor:
        other = h.detach().clone(memory_format=torch.preserve_format)
        return h + other.resize_(h.shape[0], 4 * 6, 4).view(h.shape)


class Asked(Images):
    """Does one thing or another by how its images lie."""

    def between(self, h: Tensor) -> Tensor:
        return asked(h)


class Later(Images):
    """Reads the memory of its images where they are dark alone."""

    def between(self, h: Tensor) -> Tensor:
        return strided(h) if h.abs().max() < 0.45 else h.sin()


class Between(Images):
    """Views its images by strides of its own on the middle of the way alone."""

    def between(self, h: Tensor) -> Tensor:
        dark = 0.3 < h.abs().max() < 0.45
        return viewed(h) * 2 if dark else h.sin()


class AskedLater(Images):
    """Does one thing or another by how its images lie, where they are dark alone."""

    def between(self, h: Tensor) -> Tensor:
        return asked(h) if h.abs().max() < 0.45 else h.sin()


class Shifted(Images):
    """Its outputs are others by how its images lie, and their slopes are not."""

    def forward(self, x: Tensor) -> Tensor:
        shift = 0.0 if self.first(x).is_contiguous() else 3.0
        return super().forward(x) + torch.tensor([shift, 0, 0])


class _Backward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor) -> Tensor:
        return h.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        _, c, height, width = g.shape
        return g.as_strided(g.shape, (c * height * width, height * width, width, 1))


class Pulled(Images):
    """Its backward reads the memory of a gradient."""

    def between(self, h: Tensor) -> Tensor:
        return _Backward.apply(h)


MODELS = (
    Images, Viewed, Strided, Resized, Asked, Later, Between, AskedLater, Shifted,
    Pulled,
)  # fmt: skip


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small images are large enough, and steps are not stacked."""
    # A branch for a whole batch would meet other steps there.
    monkeypatch.setattr(_passes, "_CACHED", 1)
    for module in (_layouts, _runs):
        monkeypatch.setattr(module, "LARGE", 1)


def made(kind: type[nn.Module], channels: int = 1) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(2)
    model, x = kind(channels), torch.rand(N, channels, 13, 8) + 0.2
    return model, x, torch.tensor([2, 0, 1, 1, 0])


def integrated(model: Any, x: Tensor, y: Tensor) -> Tensor:
    """Return integrated gradients by a plain loop over steps."""
    total = torch.zeros_like(x, dtype=torch.float64)
    nodes, weights = np.polynomial.legendre.leggauss(STEPS)
    for node, weight in zip(nodes.tolist(), weights.tolist(), strict=True):
        point = (x * (node + 1) / 2).requires_grad_()
        score = model(point).log_softmax(1).gather(1, y[:, None]).sum()
        total += torch.autograd.grad(score, point)[0].double() * (weight / 2)
    return total * x


def assert_right(model: nn.Module, x: Tensor, y: Tensor) -> None:
    def objective(outputs: Tensor) -> Tensor:
        return outputs.log_softmax(1).gather(1, y[:, None])[:, 0]

    for _ in range(3):  # proofs are renewed, or not
        found = gk.saliency.integrated_gradients(model, x, objective, steps=STEPS)
        wanted = integrated(model, x, y)
        error = (found - wanted).abs().max() / wanted.abs().max()
        assert error < 1e-5


class Layouts:
    """Records how the results of convolutions lie, on a model's forwards."""

    def __init__(self, model: nn.Module) -> None:
        self.last: list[bool] = []
        model.first.register_forward_hook(self._look)  # type: ignore[union-attr]

    def _look(self, module: nn.Module, args: Any, output: Tensor) -> None:
        lies_last = output.is_contiguous(memory_format=LAST)
        self.last.append(lies_last and not output.is_contiguous())


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("kind", MODELS)
def test_maps_are_right_however_images_lie(kind, channels, small):
    assert_right(*made(kind, channels))


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="no oneDNN")
@pytest.mark.parametrize("channels", [1, 3])
def test_images_lie_with_the_channels_last(channels, small):
    model, x, y = made(Images, channels)
    seen = Layouts(model)
    gk.saliency.smoothgrad(model, x, y, draws=4)
    assert seen.last[-4:] == [True] * 4
    with gk.batch_invariant():
        seen.last.clear()
        gk.saliency.smoothgrad(model, x, y, draws=4)
    assert not any(seen.last)


def test_what_was_asked_where_another_mode_looked_on_is_not_remembered(small):
    model, x, y = made(Asked)
    with gk.batch_invariant():
        for _ in range(2):
            gk.saliency.integrated_gradients(model, x, y, steps=STEPS)
    assert_right(model, x, y)


@pytest.mark.parametrize("kind", [Viewed, Strided, Asked, Pulled])
def test_a_model_that_minds_is_found_out(kind, small):
    model, x, y = made(kind)
    seen = Layouts(model)
    gk.saliency.smoothgrad(model, x, y, draws=4)
    assert seen.last[-4:] == [False] * 4


def test_small_images_and_other_precisions_are_left_alone(monkeypatch):
    model, x, y = made(Images)
    seen = Layouts(model)
    gk.saliency.smoothgrad(model, x, y, draws=3)
    for module in (_layouts, _runs):
        monkeypatch.setattr(module, "LARGE", 1)
    gk.saliency.smoothgrad(model.double(), x.double(), y, draws=3)
    assert not any(seen.last)


def test_a_convolution_in_the_mode_gives_its_own_numbers():
    layer = nn.Conv2d(3, 5, 3, stride=2, padding=1, groups=1)
    x = torch.rand(2, 3, 9, 8)
    with _Quick(laid_from=0):
        found = layer(x)
    torch.testing.assert_close(found, layer(x))
    with _Quick(laid_from=10**6):
        assert layer(x).is_contiguous()


def test_operations_that_see_a_layout_are_refused_in_the_mode():
    x = torch.rand(2, 3, 9, 8).contiguous(memory_format=LAST)
    with _Quick(laid_from=0), pytest.raises(_layouts.LayoutError, match="as_strided"):
        x.as_strided((2, 3), (3, 1))
    with _Quick(laid_from=0):
        x.contiguous().as_strided((2, 3), (3, 1))
    with _Quick():
        x.as_strided((2, 3), (3, 1))


class Seen(TorchDispatchMode):
    """Records whether gradients that are pulled through a pooling lie so, too."""

    def __init__(self) -> None:
        super().__init__()
        self.last: list[bool] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.max_pool2d_with_indices_backward.default:
            self.last.append(args[0].is_contiguous(memory_format=LAST))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("ceil", [False, True])
def test_pooling_back_has_the_same_bits(ceil):
    x = torch.randint(-2, 3, (3, 5, 11, 13)).float().contiguous(memory_format=LAST)
    x.requires_grad_()
    pooled = F.max_pool2d(x, 3, stride=2, ceil_mode=ceil)
    cotangent = torch.randn(pooled.shape)
    (plain,) = torch.autograd.grad(pooled, x, cotangent, retain_graph=True)
    with Seen() as seen, _Quick():
        (quick,) = torch.autograd.grad(pooled, x, cotangent)
    assert seen.last == [True]
    assert bits(quick.contiguous()) == bits(plain.contiguous())


# -- batches in pieces --------------------------------------------------------------


@pytest.fixture
def pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of five are run in pieces of two."""
    monkeypatch.setattr(_passes, "_CACHED", 1)
    model, x, y = made(Images)
    sizes: list[int] = []
    model.register_forward_pre_hook(lambda _, args: sizes.append(len(args[0])))
    for exponent in range(24, 8, -1):
        monkeypatch.setattr(_passes, "_PIECE", 2**exponent)
        gk.saliency.smoothgrad(model, x, y, draws=2)
        if sizes[-3:] == [2, 2, 1]:
            return
    raise AssertionError("no size of the pieces cuts the batch in three")


class OneSize(Images):
    """Made for batches of five, and otherwise another function."""

    def between(self, h: Tensor) -> Tensor:
        return h if len(h) in (1, N, N - 1) else -h


def sizes_of(kind: type[nn.Module], **settings: Any) -> tuple[list[int], list[int]]:
    """Return the sizes of batches of the model's last steps, and of the objective's."""
    model, x, y = made(kind)
    batches: list[int] = []
    scores: list[int] = []
    model.register_forward_pre_hook(lambda _, args: batches.append(len(args[0])))

    def objective(outputs: Tensor) -> Tensor:
        scores.append(len(outputs))
        return outputs.gather(1, y[:, None])[:, 0]

    gk.saliency.smoothgrad(model, x, objective, draws=4, **settings)
    return batches, scores


def test_pieces_are_each_run_once_and_the_objective_once_a_step(pieces):
    batches, scores = sizes_of(Images)
    # The last whole batch is a proof's.
    last = len(batches) - batches[::-1].index(N)
    assert batches[last:] == [2, 2, 1] * 4
    assert scores[-4:] == [N] * 4


@pytest.mark.parametrize("kind", [Images, OneSize, Later])
def test_maps_are_right_in_pieces(kind, pieces):
    assert_right(*made(kind))


def test_a_model_made_for_one_size_is_run_whole(pieces):
    assert sizes_of(OneSize)[0][-4:] == [N] * 4


def test_batches_are_not_cut_where_bits_may_not_depend_on_it(pieces):
    with gk.batch_invariant():
        assert sizes_of(Images)[0][-4:] == [N] * 4
