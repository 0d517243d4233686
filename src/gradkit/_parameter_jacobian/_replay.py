"""Rows that did not fit the memory budget, computed again on private copies.

What is asked later must be true for the moment of the call. So everything the
forward read is copied when the call is made: parameters, buffers, inputs, the
objective's cotangent; and what cannot be copied is recorded and put back for the
time of the computation: training flags, attributes, random state, autocast.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from gradkit._call._open import Call, open_call
from gradkit._call._request import Given, Request, named
from gradkit._call._solve import check_rows, refusal, serve
from gradkit._dtypes import default_dtype
from gradkit._guards._autocast import Autocast
from gradkit._guards._modules import ModuleState
from gradkit._methods._method import Method
from gradkit._parameter_jacobian._entries import Block, Entry
from gradkit._problem._inputs import Shared
from gradkit._problem._result import joined
from gradkit._problem._tree import map_leaves
from gradkit.errors import InputError, StaleError

__all__ = ["Recipe", "Replayed"]


@dataclass(frozen=True, eq=False)
class Recipe:
    """A call that can be made again: its arguments, and the state it was made in."""

    request: Request
    method: Method
    state: ModuleState
    given: Given
    outputs: tuple[Tensor, ...]
    autocast: Autocast
    default_dtype: torch.dtype
    #: Where the blocks begin whose rows have passed their check.
    checked: set[int] = field(default_factory=set)

    @staticmethod
    def of(call: Call, method: Method) -> Recipe:
        """Record ``call``, which ``method`` is known to serve."""
        copies = call.guard.copies()
        inputs = map_leaves(_cloned, call.request.inputs)
        cotangent = call.task.cotangent
        given = Given(
            mapping=copies,
            parameters=call.parameters,
            cotangent=None if cotangent is None else cotangent.detach().clone(),
            start=call.guard.start,
            planner=call.planner,
        )
        return Recipe(
            request=replace(call.request, inputs=inputs, method=method),
            method=method,
            state=call.guard.state,
            given=given,
            outputs=tuple(t.detach().clone() for t in call.task.graph.outputs.tensors),
            autocast=call.guard.autocast,
            default_dtype=torch.get_default_dtype(),
        )

    @property
    def nbytes(self) -> int:
        """The bytes of the private copies."""
        tensors = [*self.given.mapping.values(), *self.outputs]
        return sum(t.numel() * t.element_size() for t in tensors)

    @contextmanager
    def reopened(self) -> Iterator[Call]:
        """Make the call again, in the state it was made in."""
        with ExitStack() as stack:
            now = ModuleState()
            for module in self.state.modules():
                now.adopt(module)
            stack.callback(now.restore)
            self.state.restore()
            stack.enter_context(default_dtype(self.default_dtype))
            stack.enter_context(self.autocast.on())
            call = stack.enter_context(open_call(self.request, given=self.given))
            self._compare(call)
            yield call

    def check(self, call: Call, samples: slice, values: Sequence[Tensor]) -> None:
        """Check rows against the ordinary graph, the first time they are computed."""
        if samples.start in self.checked:
            return
        reason = check_rows(call, self.method, values, start=samples.start)
        if reason is not None:
            raise refusal({self.method.name: reason})
        self.checked.add(samples.start)

    def _compare(self, call: Call) -> None:
        for then, now in zip(
            self.outputs, call.task.graph.outputs.tensors, strict=True
        ):
            scale = then.abs().nan_to_num().amax() if then.numel() else 0.0
            gap = (then - now.detach()).abs().nan_to_num()
            if bool((gap > 64 * torch.finfo(then.dtype).eps * scale).any()):
                raise StaleError(
                    "the model gives other outputs than at the call, although its"
                    " parameters, buffers, flags and random state were put back: it"
                    " reads something else that has changed. Take what is needed"
                    " right after the call, or raise max_memory so that the rows"
                    " are held"
                )


def _cloned(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, Shared):
        return Shared(value.tensor.detach().clone())
    return value


class Replayed(Entry):
    """Rows computed again whenever something is asked of them.

    Args:
        recipe: The call.
        entry: Shapes, ``N`` and ``R`` are those of this one.
        likes: An empty tensor per parameter.
        index: The samples of the call that this entry is about, in order.
    """

    def __init__(
        self,
        recipe: Recipe,
        shapes: dict[str, Any],
        rows: int,
        likes: dict[str, Tensor],
        index: Tensor,
    ) -> None:
        super().__init__(shapes, len(index), rows)
        self._recipe, self._likes, self._index = recipe, likes, index

    def like(self, name: str) -> Tensor:
        """Return an empty tensor of the parameter's dtype and device."""
        return self._likes[name]

    @property
    def nbytes(self) -> int:
        """The bytes of the private copies."""
        return self._recipe.nbytes

    def select(self, names: Sequence[str]) -> Replayed:
        """Return an entry for some of the parameters."""
        shapes = {n: self.shapes[n] for n in names}
        return Replayed(self._recipe, shapes, self.rows, self._likes, self._index)

    def take(self, index: Tensor) -> Replayed:
        """Return an entry for some of the samples."""
        chosen = self._index[index.cpu()]
        return Replayed(self._recipe, self.shapes, self.rows, self._likes, chosen)

    def blocks(self) -> Iterator[Block]:
        """Yield the rows as they come, one sample's tiles joined."""
        with named(self._recipe.request.function), self._recipe.reopened() as call:
            order = {name: i for i, name in enumerate(call.parameter_names)}
            method = self._recipe.method
            for samples, values in _whole_samples(call, method):
                self._recipe.check(call, samples, values)
                inside = (self._index >= samples.start) & (self._index < samples.stop)
                # Chosen samples may repeat and stand in any order.
                for band in _runs(inside.nonzero().flatten().tolist()):
                    chosen = self._index[band] - samples.start
                    yield (
                        band,
                        {n: _take(values[order[n]], chosen) for n in self.shapes},
                    )
                if not len(self._index) or samples.stop > int(self._index.max()):
                    return


def _runs(places: list[int]) -> Iterator[slice]:
    """Yield the runs of consecutive numbers among ``places``."""
    start = 0
    for i in range(1, len(places) + 1):
        if i == len(places) or places[i] != places[i - 1] + 1:
            yield slice(places[start], places[i - 1] + 1)
            start = i


def _take(rows: Tensor, chosen: Tensor) -> Tensor:
    """Return the chosen samples' rows; all of them in order as they are."""
    if torch.equal(chosen, torch.arange(len(rows), device="cpu")):
        return rows
    return rows[chosen.to(rows.device)]


def _whole_samples(call: Call, method: Method) -> Iterator[tuple[slice, list[Tensor]]]:
    """Yield the rows in order, all of some samples at a time."""
    waiting: list[tuple[Tensor, ...]] = []
    done, row, band = 0, 0, slice(0, 0)
    for block in method.run(call.task):
        band = block.samples if not waiting else band
        if (block.samples, block.samples.start, block.rows.start) != (band, done, row):
            raise _out_of_order(method, block, done, row)
        waiting.append(block.values)
        row = block.rows.stop
        if row < call.task.rows:
            continue
        done, row = band.stop, 0
        values = [joined(parts, 1).detach() for parts in zip(*waiting, strict=True)]
        waiting = []
        yield block.samples, values
    if done < call.task.samples:
        raise InputError(
            f"method {method.name!r} must yield every row; those of samples {done} to"
            f" {call.task.samples - 1} never came",
            argument="method",
        )


def _out_of_order(method: Method, block: Any, done: int, row: int) -> InputError:
    return InputError(
        f"method {method.name!r} must yield rows in order, some samples at a time;"
        f" row {row} of sample {done} was next, and samples {block.samples}, rows"
        f" {block.rows} came",
        argument="method",
    )


def first_that_serves(call: Call) -> Method:
    """Return the first method whose first block passes its check."""

    def attempt(method: Method) -> tuple[None, str | None]:
        samples, values = next(_whole_samples(call, method))
        return None, check_rows(call, method, values, start=samples.start)

    return serve(call, attempt)[1]
