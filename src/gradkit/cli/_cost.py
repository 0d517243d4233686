"""What a call costs: its time, and the tensors that it holds at once."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from gradkit._memory_use import TensorBytes

_CALLS = 5
_ENOUGH_SECONDS = 1.0


def cost(compute: Callable[[], Tensor]) -> tuple[Tensor, float, int]:
    """Return what ``compute`` returns, its seconds and its peak of tensor bytes.

    Args:
        compute: Called first with its tensors counted, which takes longer, and then
            five times against the clock, or until that took a second.

    Returns:
        The result; the median time of the later calls; the bytes of the tensors
        alive at once, the result among them, beyond those that were there before.

    Example:
        >>> import torch
        >>> ones, seconds, peak = cost(lambda: torch.ones(10).repeat(3))
        >>> ones.shape, peak
        (torch.Size([30]), 160)
    """
    result, peak = _counted(compute)
    times: list[float] = []
    while len(times) < _CALLS and sum(times) < _ENOUGH_SECONDS:
        _wait(result.device)
        start = time.perf_counter()
        compute()
        _wait(result.device)
        times.append(time.perf_counter() - start)
    return result, statistics.median(times), peak


def _counted(compute: Callable[[], Tensor]) -> tuple[Tensor, int]:
    with TensorBytes() as count:
        result = compute()
    if result.device.type != "cuda":
        return result, count.peak
    # The allocator also sees what operations hold within themselves.
    before = torch.cuda.memory_allocated(result.device)
    torch.cuda.reset_peak_memory_stats(result.device)
    compute()
    return result, torch.cuda.max_memory_allocated(result.device) - before


def _wait(device: torch.device) -> None:
    if device.type != "cpu":
        torch.get_device_module(device).synchronize(device)
