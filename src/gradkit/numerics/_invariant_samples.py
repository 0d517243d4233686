"""Convolutions, sample by sample or group by group, at once where that is the same.

The defining result is that of one sample (in a pair, since torch picks other kernels
for a batch of one) or one group, contiguous, on one thread. Larger calls are used for
a shape once they have reproduced it, bit for bit, in every place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
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


def _fresh(tensor: Tensor) -> Tensor:
    """Return a contiguous tensor that begins at a whole cache line."""
    tensor = tensor.contiguous()
    return tensor.clone() if tensor.data_ptr() % 64 else tensor


def convolution(
    inputs: Tensor, weight: Tensor, bias: Tensor | None, *settings: Any
) -> Tensor:
    """Return ``aten::convolution`` whose samples do not see their batch."""

    def run(weights: list[Tensor], samples: Tensor) -> Tensor:
        both = weights if bias is not None else (*weights, None)
        return _CONVOLUTION(samples, *both, *settings).contiguous()

    weights = [_fresh(weight)] if bias is None else [_fresh(weight), _fresh(bias)]
    with _with_onednn():
        return _by_samples(run, weights, (inputs,), ("forward", repr(settings)))


def convolution_gradients(
    cotangent: Tensor, inputs: Tensor, weight: Tensor, *settings: Any
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return ``aten::convolution_backward``, its samples and its groups apart."""
    sizes, *options, groups, mask = settings
    weight = _fresh(weight)
    by_inputs = by_weight = by_bias = None

    def run(weights: list[Tensor], cotangents: Tensor, samples: Tensor) -> Tensor:
        wanted = [True, False, False]
        three = cotangents, samples, *weights
        return _BACKWARD(*three, sizes, *options, groups, wanted)[0].contiguous()

    kind = "inputs", repr((*options, groups))
    with _with_onednn():
        if mask[0]:
            by_inputs = _by_samples(run, [weight], (cotangent, inputs), kind)
        if mask[1]:
            three = tuple(map(_fresh, (cotangent, inputs, weight)))
            by_weight = _by_groups(three, (sizes, *options), groups)
    if mask[2]:
        with on_one_thread():
            # Samples first: zeros of others then change nothing.
            places = cotangent.contiguous().flatten(2).sum(2)
            by_bias = places.t().contiguous().sum(1)
    return by_inputs, by_weight, by_bias


def _by_samples(
    run: Callable[..., Tensor],
    weights: list[Tensor],
    tensors: tuple[Tensor, ...],
    kind: tuple[Any, ...],
) -> Tensor:
    """Return ``run`` of samples in the largest calls that keep them apart."""
    count, first = len(tensors[0]), tensors[0]
    if not count:
        return run(weights, *tensors)
    shapes = tuple(t.shape[1:] for t in tensors)
    kind = (*kind, first.dtype, shapes, tuple(w.shape for w in weights))
    tensors = tuple(map(_fresh, tensors))
    call = partial(run, weights)
    for size in dict.fromkeys((max(count, 2), 16, 2)):
        fits = size <= max(count, 2)
        if fits and _keeps_apart(run, weights, tensors, size, kind):
            return _in_calls(call, tensors, size)
    with on_one_thread():
        return _in_calls(call, tensors, 2, alone=True)


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


def _like(tensor: Tensor, *shape: int) -> Tensor:
    """Return known numbers: those at hand may be zeros, which any order sums alike."""
    source = torch.Generator().manual_seed(0)
    numbers = torch.randn(shape or tensor.shape, generator=source, device="cpu")
    return numbers.to(tensor.dtype)


def _keeps_apart(
    run: Callable[..., Tensor],
    weights: list[Tensor],
    tensors: tuple[Tensor, ...],
    size: int,
    kind: tuple[Any, ...],
) -> bool:
    """Whether a call of so many samples gives each what it gets by itself."""
    key = (*kind, size, torch.get_num_threads())
    if key not in _tried:
        call = partial(run, [_like(w) for w in weights])
        samples = [_like(t, 2, *t.shape[1:]) for t in tensors]
        with on_one_thread():
            alone = [
                _in_calls(call, tuple(s[i : i + 1] for s in samples), 2) for i in (0, 1)
            ]
        order = torch.arange(size) % 2
        together = call(*(s[order] for s in samples))
        _tried[key] = torch.equal(together, torch.cat(alone)[order])
    return _tried[key]


def _by_groups(
    three: tuple[Tensor, ...], options: tuple[Any, ...], groups: int
) -> Tensor:
    """Return the gradient of the weight; under ``vmap`` groups carry the samples."""
    shapes = tuple(t.shape for t in three)
    threads = torch.get_num_threads()
    key = ("weight", three[0].dtype, shapes, repr(options[1:]), groups, threads)
    if key not in _tried:
        known = tuple(map(_like, three))
        together = _weight_gradient(known, options, groups)
        _tried[key] = torch.equal(together, _group_by_group(known, options, groups))
    if _tried[key]:
        return _weight_gradient(three, options, groups)
    return _group_by_group(three, options, groups)


def _weight_gradient(
    three: tuple[Tensor, ...], options: tuple[Any, ...], groups: int
) -> Tensor:
    wanted = [False, True, False]
    return _BACKWARD(*three, *options, groups, wanted)[1].contiguous()


def _group_by_group(
    three: tuple[Tensor, ...], options: tuple[Any, ...], groups: int
) -> Tensor:
    parts = [
        map(_fresh, tensor.chunk(groups, axis))
        for tensor, axis in zip(three, (1, 1, 0), strict=True)
    ]
    with on_one_thread():
        found = [
            _weight_gradient(part, options, 1) for part in zip(*parts, strict=True)
        ]
    return torch.cat(found)
