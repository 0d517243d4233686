"""Convolutions, sample by sample or group by group, at once where that is the same.

The defining result is that of one sample (in a pair, since torch picks other kernels
for a batch of one) or one group, contiguous, on one thread. Larger calls are used for
a shape once they have reproduced it, bit for bit, in every place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

__all__ = ["convolution", "convolution_gradients", "on_one_thread"]

_CONVOLUTION = torch.ops.aten.convolution.default
_BACKWARD = torch.ops.aten.convolution_backward.default
#: Sizes of calls that were tried for a kind of convolution, and how that went.
_tried: dict[Any, bool] = {}


@contextmanager
def on_one_thread() -> Iterator[None]:
    """Compute on the calling thread alone: torch divides sums among threads."""
    threads = torch.get_num_threads()
    if threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def _with_onednn() -> Iterator[None]:
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(True)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)


def convolution(inputs: Tensor, weight: Tensor, *settings: Any) -> Tensor:
    """Return ``aten::convolution`` whose samples do not see their batch."""
    weight = weight.contiguous()

    def run(samples: Tensor) -> Tensor:
        return _CONVOLUTION(samples, weight, *settings).contiguous()

    kind = "forward", weight.shape, settings[0] is None, repr(settings[1:])
    with _with_onednn():
        return _by_samples(run, (inputs,), kind)


def convolution_gradients(
    cotangent: Tensor, inputs: Tensor, weight: Tensor, *settings: Any
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return ``aten::convolution_backward``, its samples and its groups apart."""
    *options, groups, mask = settings
    weight = weight.contiguous()
    by_inputs = by_weight = by_bias = None

    def run(cotangents: Tensor, samples: Tensor) -> Tensor:
        wanted = [True, False, False]
        found = _BACKWARD(cotangents, samples, weight, *options, groups, wanted)
        return found[0].contiguous()

    kind = "inputs", weight.shape, repr((*options[1:], groups))
    with _with_onednn():
        if mask[0]:
            by_inputs = _by_samples(run, (cotangent, inputs), kind)
        if mask[1]:
            by_weight = _by_groups(cotangent, inputs, weight, options, groups)
    if mask[2]:
        with on_one_thread():
            # Samples first: zeros of others then change nothing.
            places = cotangent.contiguous().flatten(2).sum(2)
            by_bias = places.t().contiguous().sum(1)
    return by_inputs, by_weight, by_bias


def _by_samples(
    run: Callable[..., Tensor], tensors: tuple[Tensor, ...], kind: tuple[Any, ...]
) -> Tensor:
    """Return ``run`` of samples in the largest calls that keep them apart."""
    count, first = len(tensors[0]), tensors[0]
    if not count:
        return run(*tensors)
    shapes = tuple(t.shape[1:] for t in tensors)
    kind = (*kind, first.dtype, shapes)
    tensors = tuple(t.contiguous() for t in tensors)
    for size in dict.fromkeys((max(count, 2), 16, 2)):
        if size <= max(count, 2) and _keeps_apart(run, tensors, size, kind):
            return _in_calls(run, tensors, size)
    with on_one_thread():
        return _in_calls(run, tensors, 2, alone=True)


def _in_calls(
    run: Callable[..., Tensor],
    tensors: tuple[Tensor, ...],
    size: int,
    *,
    alone: bool = False,
) -> Tensor:
    """Return ``run`` of ``size`` samples at a time, or of each beside itself."""
    count, step = len(tensors[0]), 1 if alone else size
    if count == step:
        return run(*tensors)
    parts = []
    for start in range(0, count, step):
        part = [t[start : start + step] for t in tensors]
        kept, missing = len(part[0]), size - len(part[0])
        if missing:
            part = [torch.cat((p, p[:1].expand(missing, *p.shape[1:]))) for p in part]
        # Fresh memory begins where kernels like it, at any place in the batch.
        parts.append(run(*(p.clone() for p in part))[:kept])
    return torch.cat(parts)


def _keeps_apart(
    run: Callable[..., Tensor],
    tensors: tuple[Tensor, ...],
    size: int,
    kind: tuple[Any, ...],
) -> bool:
    """Whether a call of so many samples gives each what it gets by itself."""
    key = (*kind, size, torch.get_num_threads())
    if key not in _tried:
        source = torch.Generator().manual_seed(0)
        samples = [
            torch.randn(2, *t.shape[1:], generator=source, device="cpu").to(t.dtype)
            for t in tensors
        ]
        with on_one_thread():
            alone = torch.cat([_in_calls(run, _pick(samples, i), 2) for i in (0, 1)])
        order = torch.arange(size) % 2
        together = run(*(s[order] for s in samples))
        _tried[key] = torch.equal(together, alone[order])
    return _tried[key]


def _pick(samples: list[Tensor], place: int) -> tuple[Tensor, ...]:
    return tuple(s[place : place + 1] for s in samples)


def _by_groups(
    cotangent: Tensor,
    inputs: Tensor,
    weight: Tensor,
    options: list[Any],
    groups: int,
) -> Tensor:
    """Return the gradient of the weight; under ``vmap`` groups carry the samples."""
    wanted = [False, True, False]

    def run(*three: Tensor) -> Tensor:
        return _BACKWARD(*three, *options, count, wanted)[1].contiguous()

    parts = [
        [p.contiguous() for p in t.chunk(groups, axis)]
        for t, axis in ((cotangent, 1), (inputs, 1), (weight, 0))
    ]
    key = ("weight", cotangent.dtype, cotangent.shape, inputs.shape, weight.shape)
    key = (*key, repr(options[1:]), groups, torch.get_num_threads())
    count = groups
    whole = None
    if _tried.get(key, True):
        whole = run(cotangent.contiguous(), inputs.contiguous(), weight)
        if key in _tried:
            return whole
    count = 1
    with on_one_thread():
        apart = torch.cat([run(*three) for three in zip(*parts, strict=True)])
    _tried[key] = whole is not None and torch.equal(whole, apart)
    return apart
