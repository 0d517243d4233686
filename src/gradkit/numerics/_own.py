"""In which precision each operation of a computation is carried out, as it stands."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from gradkit._dtypes import coarsest
from gradkit.numerics._operations import is_exact, name_of, rounds

__all__ = ["Own", "Precisions", "Step", "with_casts"]


class Step(NamedTuple):
    """One operation that rounds.

    Attributes:
        name: The operation.
        dtype: The coarsest dtype that its result is rounded to, there or by a cast
            of it.
        casts: For each of its tensors, the dtype that a value was cast down to which
            no operation had made, such as an input; else ``None``.
    """

    name: str
    dtype: torch.dtype
    casts: tuple[torch.dtype | None, ...] = ()


def with_casts(
    given: Any, step: Step, change: Callable[[Tensor, torch.dtype], Tensor]
) -> Any:
    """Return arguments with what was cast down on its way changed; none is written to.

    Args:
        given: Positional and keyword arguments.
        step: The operation that takes them.
        change: From a tensor, and the dtype that it was cast to, to another.
    """
    casts = iter(step.casts)

    def changed(value: Any) -> Any:
        dtype = next(casts, None) if isinstance(value, Tensor) else None
        return value if dtype is None or not rounds(value) else change(value, dtype)

    return tree_map(changed, given)


class Own(TorchDispatchMode):
    """Notes in which dtype each operation rounds, in the precision it is run in.

    Attributes:
        steps: What rounds, in order.
        infinite: Whether a result was, or was no number.
    """

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[Step] = []
        self.infinite = False
        # By the memory that a result lies in: the step that made it, or the dtype it
        # was cast down to. Weak, so that no address is met again while it is known.
        self._made: dict[int, tuple[StorageWeakRef, int | torch.dtype]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = name_of(func)
        given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        known = [self._known(t) for t in given]
        result = func(*args, **kwargs)
        made = [t for t in tree_leaves(result) if rounds(t)]
        if func.is_view:
            return result
        if not is_exact(func, args):
            casts = [k if isinstance(k, torch.dtype) else None for k in known]
            dtype = coarsest([t.dtype for t in made] or [torch.float64])
            self.steps.append(Step(name, dtype, (*casts,)))
            self._note(made, len(self.steps) - 1)
            self.infinite |= not all(bool(t.isfinite().all()) for t in made)
        elif name in ("_to_copy", "copy_") and made:
            self._cast(given[-1], made, known[-1])
        else:
            found = [k for k in known if k is not None]
            if found:
                self._note(made, found[0])
        return result

    def _cast(
        self, source: Tensor, made: Sequence[Tensor], known: int | torch.dtype | None
    ) -> None:
        """Note a cast: what is cast down is rounded once more."""
        lower = coarsest([source.dtype, made[0].dtype]) if rounds(source) else None
        if lower is None or lower == source.dtype:
            if known is not None:
                self._note(made, known)
        elif isinstance(known, int):
            step = self.steps[known]
            self.steps[known] = step._replace(dtype=coarsest([step.dtype, lower]))
            self._note(made, known)
        else:
            self._note(made, lower if known is None else coarsest([known, lower]))

    def _known(self, value: Tensor) -> int | torch.dtype | None:
        if value.layout != torch.strided:
            return None
        found = self._made.get(value.untyped_storage()._cdata)
        return None if found is None or found[0].expired() else found[1]

    def _note(self, made: Sequence[Tensor], what: int | torch.dtype) -> None:
        for value in made:
            if value.layout == torch.strided:
                storage = value.untyped_storage()
                self._made[storage._cdata] = StorageWeakRef(storage), what


class Precisions:
    """Tells, operation by operation, which precision a computation has there.

    The other run computes the same in float64. As long as it meets the same operations
    in the same order, each has the precision of its own; from where they part, that of
    the coarsest of its name.

    Args:
        own: The model's own precision, and that of operations that were not met.
        steps: What was noted.
    """

    def __init__(self, own: torch.dtype, steps: Sequence[Step] = ()) -> None:
        self.own, self._steps = own, steps
        by_name: dict[str, list[torch.dtype]] = {}
        for step in steps:
            by_name.setdefault(step.name, []).append(step.dtype)
        self._by_name = {n: coarsest(found) for n, found in by_name.items()}

    def followed(self) -> Callable[[str], Step]:
        """Return a function that is to be called with each operation of one run."""
        steps: Iterator[Step] = iter(self._steps)
        apart = False

        def following(name: str) -> Step:
            nonlocal apart
            step = None if apart else next(steps, None)
            if step is not None and step.name == name:
                return step
            apart = True
            return Step(name, self._by_name.get(name, self.own))

        return following
