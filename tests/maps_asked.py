"""Every saliency function as a question about one convolutional network."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from gradkit import saliency

N, CLASSES, IMAGE = 5, 3, (2, 4, 6)
LABELS = torch.tensor([2, 0, 1, 1, 0])
STEPS = 6


def maps_of(x: Tensor) -> Tensor:
    """Return a map in no order: of one channel, with equal entries."""
    return (x[:, :1].detach() * 3).round()


Ask = Callable[..., Any]
ONCE: dict[str, Ask] = {
    "gradient": saliency.gradient,
    "gradient_times_input": saliency.gradient_times_input,
    "guided_backprop": saliency.guided_backprop,
    "grad_cam": lambda *a, **k: saliency.grad_cam(*a, wrt=a[0][0], **k),
}
STEPWISE: dict[str, Ask] = {
    "integrated_gradients": lambda m, x, o, **k: saliency.integrated_gradients(
        m, x, o, steps=STEPS, baseline=torch.full(IMAGE, 0.5).to(x), **k
    ),
    "expected_gradients": lambda m, x, o, **k: saliency.expected_gradients(
        m, x, o, draws=STEPS, baselines=torch.ones(3, *IMAGE).cumsum(0).to(x), **k
    ),
    "smoothgrad": lambda m, x, o, **k: saliency.smoothgrad(m, x, o, draws=STEPS, **k),
    "smoothgrad's variance": lambda m, x, o, **k: saliency.smoothgrad(
        m, x, o, draws=STEPS, statistic="variance", **k
    ),
    "occlusion": lambda m, x, o, **k: saliency.occlusion(
        m, x, o, window=(2, 3), stride=(2, 2), **k
    ),
    "deletion_curve": lambda m, x, o, **k: saliency.deletion_curve(
        maps_of(x), m, x, o, steps=STEPS - 1, **k
    ),
    "insertion_curve": lambda m, x, o, **k: saliency.insertion_curve(
        maps_of(x), m, x, o, steps=STEPS - 1, **k
    ),
}
OTHERS: dict[str, Ask] = {
    "completeness_gap": lambda m, x, o, **k: saliency.completeness_gap(
        x.detach() * 2, m, x, o, baseline=[0.0, 1.0], **k
    ),
    "integrated_gradients with a gap": lambda m, x, o, **k: (
        saliency.integrated_gradients(m, x, o, steps=8, max_gap=10.0, **k)
    ),
}
ALL = ONCE | STEPWISE | OTHERS


def network() -> nn.Sequential:
    norm = nn.BatchNorm2d(4)
    norm.running_mean, norm.running_var = torch.randn(4), torch.rand(4) + 0.5
    layers = nn.Conv2d(2, 4, (2, 3)), norm, nn.ReLU(), nn.Dropout(0.4)
    tail = nn.Flatten(), nn.Linear(4 * 3 * 4, 7), nn.Tanh(), nn.Linear(7, CLASSES)
    return nn.Sequential(*layers, *tail).double().eval()


def images(n: int = N, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(n, *IMAGE, dtype=torch.float64).to(dtype)


def tensor_of(result: Any) -> Tensor:
    return result.values if isinstance(result, saliency.Curve) else result


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread: for images this small others only wait."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
