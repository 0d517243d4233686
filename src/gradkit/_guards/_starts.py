"""What a forward starts from: samples picked, values nudged, parameters made live."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from gradkit._guards._private import like_original
from gradkit._guards._trace import Untouched
from gradkit._problem._names import Entry
from gradkit._problem._parameters import Parameter
from gradkit.errors import UnsupportedModelError

__all__ = [
    "how_many",
    "kernels",
    "live_tensor",
    "nudged",
    "order_of",
    "refuse_views",
    "some",
]


def how_many(samples: slice | Tensor | None, every: int) -> int:
    """Return how many of ``every`` sample are picked; ``None`` picks all."""
    if samples is None:
        return every
    if isinstance(samples, Tensor):
        return len(samples)
    return len(range(*samples.indices(every)))


def order_of(entries: Sequence[Entry]) -> list[int]:
    """Return where each source stands when inputs come first, by position."""
    positions = [i for e in entries for i in e.positions]
    ranks = {i: rank for rank, i in enumerate(sorted(positions))}
    places, module = [], len(positions)
    for entry in entries:
        if entry.module is None:
            places += [ranks[i] for i in entry.positions]
        else:
            places.append(module)
            module += 1
    return places


def some(tensor: Tensor, samples: slice | Tensor) -> Tensor:
    if isinstance(samples, Tensor):
        samples = samples.to(tensor.device)
    return tensor[samples]


def kernels(*, twice: bool) -> AbstractContextManager[Any]:
    """Return where fused attention is opened, which has no second derivative."""
    return sdpa_kernel(SDPBackend.MATH) if twice else nullcontext()


def live_tensor(parameter: Parameter) -> Tensor:
    """Return the tensor to differentiate with respect to in the ordinary graph.

    The parameter itself, so that a use of it from wherever is seen; a private one
    where it is frozen, or has hooks that a backward would call.
    """
    tensor = parameter.tensor
    if tensor.requires_grad and not tensor._backward_hooks:
        return tensor
    if not parameter.slots:
        return tensor
    return like_original(tensor, tensor.detach(), requires_grad=True)


def refuse_views(guard: Untouched, parameter: Parameter) -> None:
    """Refuse a parameter with a private copy of which the model holds a view."""
    if guard.state.views_of(parameter.tensor):
        raise UnsupportedModelError(
            f"parameter {parameter.name!r} is frozen or has hooks, and the model also"
            " holds a view of it, which its private copy would not reach; let it"
            " require grad, or make the view in forward",
            parameter=parameter.name,
        )


def nudged(tensor: Tensor, amount: float, rows: Tensor | None) -> Tensor:
    """Return floating values moved by ``amount`` of their size, in some rows or all."""
    if rows is None:
        return tensor.detach() * (1 + amount) + amount
    changed, rows = tensor.detach().clone(), rows.to(tensor.device)
    changed[rows] = changed[rows] * (1 + amount) + amount
    return changed
