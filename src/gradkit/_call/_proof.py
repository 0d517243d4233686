"""Proof that samples are independent, by pull-backs and by values."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge, saved_tensors_hooks

from gradkit._guards._graph import Graph
from gradkit._guards._independence import random_cotangent, refuse_coupling
from gradkit._guards._walk import nodes_below
from gradkit._memory_use import ran_out
from gradkit._methods._task import Task
from gradkit.errors import SampleDependenceError, UnsupportedModelError

__all__ = ["describe", "moved_by_shape", "prove", "refuse_lost_gradient"]

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
    points = _points(task, graph, due=due)
    if not due:
        return bool(points)
    if not points:
        _refuse_values_from_others(task)
        return False
    try:
        _refuse_coupled(task, graph, points)
    except _Overwritten:
        # What the model writes to in place is only wanted for its inputs' sake.
        with saved_tensors_hooks(Tensor.clone, lambda saved: saved):
            graph = task.forwards.graph(slice(None))
        _refuse_coupled(task, graph, _points(task, graph, due=due), again=True)
    _refuse_values_from_others(task)
    return True


class _Overwritten(UnsupportedModelError):
    """Parameters have a derivative; at the inputs none can be read."""


def _points(task: Task, graph: Graph, *, due: bool) -> tuple[Tensor, ...]:
    if task.kind != "parameters":
        return graph.points
    return graph.points + (_sample_look_ups(task, graph) if due else graph.look_ups)


def _refuse_coupled(
    task: Task, graph: Graph, points: tuple[Tensor, ...], *, again: bool = False
) -> None:
    # Of every output, also where an objective looks at some: the next may not.
    like = torch.empty((), dtype=graph.dtype, device=graph.device)
    cotangent = random_cotangent((task.samples, task.outputs), like)

    def pull(weighted: Tensor) -> tuple[Tensor, ...]:
        try:
            return tuple(g.detach() for g in graph.pull_to(points, weighted))
        except RuntimeError as error:
            if ran_out(error):
                raise
            inside = task.kind == "parameters" and "inplace operation" in str(error)
            refused = _Overwritten if inside and not again else UnsupportedModelError
            raise refused(
                f"the model has no reverse derivative here ({describe(error)})"
            ) from error

    refuse_coupling(pull, cotangent, "the output", _ADVICE)


def refuse_lost_gradient(task: Task, *, due: bool) -> None:
    """Refuse outputs that depend on the inputs but carry no gradient.

    A constant has derivative zero. What a ``torch.no_grad`` block computes has not,
    although autograd knows as little of it. Where other outputs do carry one, or they
    carry one to parameters alone, it is looked for when the proof is due; an objective
    may leave such an output alone.
    """
    lost = [not t.requires_grad for t in task.graph.outputs.tensors]
    if due and task.kind == "inputs" and not any(lost):
        lost = _unreached(task)
    if not task.samples or not any(lost):
        return
    if not all(lost) and (not due or task.cotangent is not None):
        return
    index = None
    if task.batched and task.kind == "parameters":
        index = torch.arange(task.samples, device="cpu").roll(1)
    try:
        other = task.forwards.graph(index, nudge=2**-4).values()
    except torch.OutOfMemoryError:
        raise
    except Exception:
        return  # the model refuses such inputs; nothing can be told
    base = task.graph.values()
    same = (base == other) | (base.isnan() & other.isnan())
    widths = task.graph.outputs.widths
    for is_lost, part in zip(lost, same.split(widths, 1), strict=True):
        if is_lost and not bool(part.all()):
            raise UnsupportedModelError(
                "an output depends on the inputs but carries no gradient, so its"
                " derivative would be zero everywhere: the model computes it under"
                " torch.no_grad or inference_mode, or through detach, numpy, argmax or"
                " torch.tensor. Take that away, or choose another output with of="
            )


def _unreached(task: Task) -> list[bool]:
    """Return, per output, whether no differentiated input stands below it.

    Of a submodule nothing is said: outputs may well leave what it gives unused, and
    change with the inputs.
    """
    graph = task.graph
    outputs = graph.outputs.tensors
    if any(entry.module is not None for entry in task.forwards.entries):
        return [False] * len(outputs)
    sources = {get_gradient_edge(s).node for s in graph.sources if s.requires_grad}
    return [
        sources.isdisjoint(nodes_below([get_gradient_edge(t).node])) for t in outputs
    ]


def _refuse_values_from_others(task: Task) -> None:
    """Refuse a model in which one sample's value changes another's output.

    A derivative does not see what integers or detached tensors carry. So one half of
    the samples is overwritten by copies of the other, from the same state and draws:
    the other half's outputs must stay as they are, and the other way round.
    """
    if not task.samples * task.outputs:
        return
    base = task.graph.values()
    generator = torch.Generator(device="cpu")
    generator.seed()
    # Alone, a sample also fills a cache that the model keeps outside itself with sound
    # values, before a transform could leave its wrappers in it.
    alone = torch.randint(task.samples, (1,), generator=generator, device="cpu")
    found = None
    if not task.forwards.guard.drew:
        found = _moved(task, base, alone, alone, _OTHER_SHAPE)
        fewer = torch.arange(task.samples - 1, device="cpu")
        if found is None and len(fewer) > 1:
            found = _moved(task, base, fewer, fewer, _OTHER_SHAPE)
    if found is None:
        found = _moved_by_others(task, base, generator)
    if found is not None:
        raise SampleDependenceError(
            f"samples must be independent; the output of sample {found} changes when"
            f" the others do. {_ADVICE}",
            sample=found,
        )


def _moved_by_others(
    task: Task, base: Tensor, generator: torch.Generator
) -> int | None:
    """Return a sample whose output moves when others' values do."""
    samples = task.samples
    if samples < 2:
        return None
    order = torch.randperm(samples, generator=generator, device="cpu")
    first, second = order[: samples // 2], order[samples // 2 :]
    found = None
    # Slightly and grossly other values, since a branch may not tell slight ones apart.
    for kept, changed, nudge in (
        (first, second, 2**-4),
        (second, first, -2.0),
        (order[:1], order[1:], 4.0),
        (order[:1], order[1:], -2.0),
    ):
        drawn = torch.randint(
            len(kept), (len(changed),), generator=generator, device="cpu"
        )
        index = torch.arange(samples, device="cpu")
        index[changed] = kept[drawn]
        # Nudged, since equal samples could tie where different ones do not.
        found = _moved(task, base, index, kept, _SAME_SHAPE, (changed, nudge))
        if found is not None:
            break
    if found is None:
        return None
    again = torch.arange(samples, device="cpu")
    # If the batch itself does not come out alike, values tell nothing.
    reproducible = _moved(task, base, again, again, _SAME_SHAPE) is None
    return found if reproducible else None


#: What outputs may move by, in units of roundoff: a model may sort samples by length,
#: and other rows meet other kernels. A batch of one meets others in any case, and a
#: deep model amplifies it; there only what is gross counts.
_SAME_SHAPE = 256.0
_OTHER_SHAPE = 1e5


def _moved(
    task: Task,
    base: Tensor,
    index: Tensor,
    kept: Tensor,
    units: float,
    changed: tuple[Tensor, float] | None = None,
) -> int | None:
    """Return which of the ``kept`` samples moves in the batch ``index``, if any."""
    other = _values(task, index, changed)
    if other is None:
        return None
    places = kept.to(base.device)
    # A batch of the kept samples alone holds them in order.
    after = other if len(other) == len(places) else other[places]
    moved = _differs(base[places], after, units)
    return int(kept[moved.nonzero()[0, 0]]) if bool(moved.any()) else None


def _values(
    task: Task, index: Tensor, changed: tuple[Tensor, float] | None = None
) -> Tensor | None:
    """Return the outputs ``(N, K)`` of other samples in the places of these."""
    try:
        rows, nudge = (None, 0.0) if changed is None else changed
        return task.forwards.graph(index, nudge=nudge, rows=rows).values()
    except torch.OutOfMemoryError:
        raise
    except Exception:
        # A model may refuse a batch that nobody passed; it tells nothing then.
        return None


def _differs(before: Tensor, after: Tensor, units: float) -> Tensor:
    """Return, per sample, whether its outputs moved by more than rounding."""
    same = (before == after) | (before.isnan() & after.isnan())
    size = before.abs().nan_to_num(posinf=0.0).amax(1, keepdim=True)
    gap = torch.where(same, 0.0, (before - after).abs())
    eps = torch.finfo(before.dtype).eps
    most = 0.03 if units == _SAME_SHAPE else 0.3  # of so few digits
    return (~(gap <= min(units * eps, most) * size)).any(1)


def moved_by_shape(alone: Tensor, among: Tensor) -> bool:
    """Whether outputs ``(N, K)`` are others in a larger batch, beyond rounding."""
    return bool(_differs(alone, among, _OTHER_SHAPE).any())


def _sample_look_ups(task: Task, graph: Graph) -> tuple[Tensor, ...]:
    """Return the look-ups whose first axis follows the number of samples."""
    look_ups, samples = graph.look_ups, task.samples
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
