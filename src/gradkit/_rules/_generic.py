"""The generic rule: the vmapped pullback of one operation, for those without a rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gradkit._rules._arguments import Path, changed
from gradkit._rules._factor import Factor, Owned
from gradkit._rules._layout import Layout
from gradkit._rules._recorded import Recorded

__all__ = ["Recomputed", "generic", "generic_reason"]


def generic_reason(recorded: Recorded, layout: Layout, samples: int) -> str | None:
    """Return why one sample's part of an operation cannot be computed alone."""
    name = recorded.name
    if layout.before * layout.after != 1:
        return f"{name} takes it where samples share an axis with other things"
    if name.endswith("_") or name.startswith("__i"):
        return f"{name} takes it in place, and has no rule"
    for path, tensor in recorded.tensors():
        if path not in recorded.sampled:
            continue
        # One without the samples' axis would be taken for one that they share.
        if _axis(tensor, layout, samples) is None:
            return f"{name} takes it beside a tensor without a samples axis"
    return None


def _axis(tensor: Tensor, layout: Layout, samples: int) -> int | None:
    """Return where a tensor has the samples: as the output, or first."""
    for axis in (layout.axis, 0):
        if tensor.ndim > axis and tensor.shape[axis] == samples:
            return axis
    return None


class Recomputed(Factor):
    """Rows by the pullback of one operation, vmapped over samples.

    Args:
        function: From one sample's tensors and the parameter to its output; its
            samples axis is kept, of size one.
        value: The parameter's value.
        others: The samples' tensors, samples first.
        cotangent: ``(N, R, ..)``.
    """

    def __init__(
        self,
        function: Callable[[Tensor, tuple[Tensor, ...]], Tensor],
        value: Tensor,
        others: tuple[Tensor, ...],
        cotangent: Tensor,
    ) -> None:
        super().__init__(value.shape, cotangent.shape[0], cotangent.shape[1])
        self.function, self.value = function, value
        self.others, self.cotangent = others, cotangent

    def dense(self, part: slice) -> Tensor:
        """Return the rows ``(n, R, p)`` of some samples."""
        cotangent = self.cotangent[part]
        if not cotangent.shape[0]:
            return cotangent.new_zeros(0, self.rows, self.shape.numel())

        def one(rows: Tensor, *others: Tensor) -> Tensor:
            output, pullback = torch.func.vjp(
                lambda value: self.function(value, others), self.value
            )[:2]
            rows = rows.to(output.dtype).reshape(self.rows, *output.shape)
            return torch.func.vmap(pullback)(rows)[0]

        with torch.no_grad():
            found = torch.func.vmap(one)(cotangent, *(o[part] for o in self.others))
        return found.reshape(*cotangent.shape[:2], self.shape.numel())

    def take(self, index: Tensor) -> Recomputed:
        """Return the factor of some samples."""
        index = index.to(self.cotangent.device)
        others = tuple(o[index] for o in self.others)
        return Recomputed(self.function, self.value, others, self.cotangent[index])

    def held(self) -> list[Tensor]:
        """Return the parameter's value, the samples' tensors and the cotangent."""
        return [self.value, *self.others, self.cotangent]

    def own(self, owned: Owned) -> None:
        """Clone what is not our own."""
        self.value, self.cotangent = owned(self.value), owned(self.cotangent)
        self.others = tuple(map(owned, self.others))


def generic(
    recorded: Recorded,
    path: Path,
    cotangent: Tensor,
    layout: Layout,
    samples: int,
    owned: Owned,
) -> Factor:
    """Return the rows of the argument at ``path`` of an operation without a rule."""
    axes: dict[Path, int] = {}
    others: list[Tensor] = []
    fixed: dict[Path, Any] = {}
    value: Tensor | None = None
    for where, tensor in recorded.tensors():
        if where == path:
            value = owned(tensor)
            continue
        axis = None
        if where in recorded.sampled:
            axis = _axis(tensor, layout, samples)
        if axis is None:
            fixed[where] = tensor.detach().clone()  # anybody's, such as a cache's
        else:
            axes[where] = axis
            others.append(tensor.detach().movedim(axis, 0))
    assert value is not None, "the parameter stands where the tape saw it"
    function = recorded.function
    # Without tensors, which would keep the graph alive.
    args, kwargs = changed(recorded.args, recorded.kwargs, lambda _, v: _bare(v))

    def of(given: Tensor, rest: tuple[Tensor, ...]) -> Tensor:
        filled = dict(fixed)
        filled[path] = given
        for (where, axis), tensor in zip(axes.items(), rest, strict=True):
            filled[where] = tensor.unsqueeze(axis)
        given_args, given_kwargs = changed(args, kwargs, filled.get)
        return function(*given_args, **given_kwargs)

    return Recomputed(of, value, tuple(others), cotangent)


def _bare(value: Any) -> Any:
    """Return an argument without tensors, however deep in lists."""
    if type(value) in (list, tuple):
        return type(value)(map(_bare, value))
    return None if isinstance(value, Tensor) else value
