"""Proof that samples are independent, by pull-backs and by values."""

from __future__ import annotations

import torch
from torch import Tensor

from gradkit._guards._independence import random_cotangent, refuse_coupling
from gradkit._methods._task import Task
from gradkit.errors import SampleDependenceError, UnsupportedModelError

__all__ = ["describe", "prove"]

_ADVICE = (
    "Its samples may stand on another axis (an RNN or attention built without"
    " batch_first=True), or the model may normalise, roll or attend over the batch."
    " Move the samples first, or pass batched=False to gk.jacobian for the"
    " derivative of every output by every input"
)


def prove(task: Task, *, due: bool) -> bool:
    """Prove that samples are independent; return whether there was a place to read.

    For inputs it is read at the sources. For parameters it is read at the floating
    inputs and at what integers look up.
    """
    graph = task.graph
    points = graph.points
    if task.kind == "parameters":
        points += _sample_look_ups(task) if due else graph.look_ups
    if not due:
        return bool(points)
    if not points:
        _refuse_values_from_others(task)
        return False
    # Of every output, also where an objective looks at some: the next may not.
    like = torch.empty((), dtype=graph.dtype, device=graph.device)
    cotangent = random_cotangent((task.samples, task.outputs), like)

    def pull(weighted: Tensor) -> tuple[Tensor, ...]:
        try:
            return tuple(g.detach() for g in graph.pull_to(points, weighted))
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise UnsupportedModelError(
                f"the model has no reverse derivative here ({describe(error)})"
            ) from error

    refuse_coupling(pull, cotangent, "the output", _ADVICE)
    _refuse_values_from_others(task)
    return True


def _refuse_values_from_others(task: Task) -> None:
    """Refuse a model in which one sample's value changes another's output.

    A derivative does not see what integers or detached tensors carry. So one half of
    the samples is overwritten by copies of the other, from the same state and draws:
    the other half's outputs must stay as they are, and the other way round.
    """
    samples = task.samples
    # A cache that the model fills outside itself gets sound values here, before a
    # transform could leave its wrappers in it.
    _values(task, torch.zeros(min(samples, 1), dtype=torch.long, device="cpu"))
    if samples < 2:
        return
    base = task.graph.values()
    generator = torch.Generator(device="cpu")
    generator.seed()
    order = torch.randperm(samples, generator=generator, device="cpu")
    halves = order[: samples // 2], order[samples // 2 :]
    for changed, kept in (halves, halves[::-1]):
        donors = torch.randint(
            len(kept), (len(changed),), generator=generator, device="cpu"
        )
        index = torch.arange(samples, device="cpu")
        index[changed] = kept[donors]
        other = _values(task, index)
        found = None if other is None else _first_moved(base, other, kept)
        if found is None:
            continue
        again = _values(task, torch.arange(samples, device="cpu"))
        if again is None or _first_moved(base, again, kept) is not None:
            return  # not reproducible: nothing can be told from values
        raise SampleDependenceError(
            f"samples must be independent; the output of sample {found} changes when"
            f" others are replaced. {_ADVICE}",
            sample=found,
        )


def _values(task: Task, index: Tensor) -> Tensor | None:
    """Return the outputs ``(N, K)`` of other samples in the places of these."""
    try:
        return task.forwards.graph(index).values()
    except torch.OutOfMemoryError:
        raise
    except Exception:
        # A model may refuse a batch that nobody passed; it tells nothing then.
        return None


def _first_moved(base: Tensor, other: Tensor, kept: Tensor) -> int | None:
    """Return the first sample whose outputs moved by more than rounding."""
    kept = kept.to(base.device)
    before, after = base[kept], other[kept]
    same = (before == after) | (before.isnan() & after.isnan())
    if bool(same.all()):
        return None
    # A model may sort samples by length: other rows, other kernels, other rounding.
    size = before.abs().nan_to_num(posinf=0.0).amax(1, keepdim=True)
    gap = torch.where(same, 0.0, (before - after).abs())
    eps = torch.finfo(base.dtype).eps
    moved = ~(gap <= (4 if eps > 1e-4 else 256) * eps * size)
    moved = moved.any(1)
    return int(kept[moved.nonzero()[0, 0]]) if bool(moved.any()) else None


def _sample_look_ups(task: Task) -> tuple[Tensor, ...]:
    """Return the look-ups whose first axis follows the number of samples."""
    look_ups, samples = task.graph.look_ups, task.samples
    if not look_ups or samples < 2:
        return look_ups
    fewer = task.forwards.graph(slice(0, samples - 1)).look_ups
    if len(fewer) != len(look_ups):
        return ()
    return tuple(
        point
        for point, other in zip(look_ups, fewer, strict=True)
        if (point.shape[0], other.shape[0]) == (samples, samples - 1)
    )


def describe(error: Exception) -> str:
    """Return an exception in one line."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else 'no message'}"
