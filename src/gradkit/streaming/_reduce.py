"""``reduce``: what ``compute`` says of every sample of a loader, folded into one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, overload

from gradkit._call._public import public_pass
from gradkit._parameter_jacobian._mapping import ParameterJacobian
from gradkit.errors import InputError
from gradkit.streaming._about import about_run, check_compute, refuse_unlike
from gradkit.streaming._bar import Bar
from gradkit.streaming._batches import OneByOne, Sizes, one_by_one
from gradkit.streaming._checkpoint import Checkpoint, Progress
from gradkit.streaming._fold import ALONE, PARAMETERS, Fold
from gradkit.streaming._folder import open_folder
from gradkit.streaming._loader import read_loader
from gradkit.streaming._ranks import Ranks, together
from gradkit.streaming._rows import Alone, read_rows
from gradkit.streaming.reducers._checkpointed import Checkpointed
from gradkit.streaming.reducers._parameters import count_rows
from gradkit.streaming.reducers._reducer import Place, Reducer, read_reducers

__all__ = ["reduce"]


@overload
def reduce(
    compute: Callable[[Any], Any],
    loader: Any,
    reducer: Mapping[str, Reducer],
    *,
    progress: bool = ...,
) -> dict[str, Any]: ...
@overload
def reduce(
    compute: Callable[[Any], Any],
    loader: Any,
    reducer: Reducer | Checkpointed,
    *,
    progress: bool = ...,
) -> Any: ...
@public_pass
def reduce(
    compute: Callable[[Any], Any],
    loader: Any,
    reducer: Reducer | Mapping[str, Reducer] | Checkpointed,
    *,
    progress: bool = True,
) -> Any:
    """Fold what ``compute`` returns for every sample of a data set into one value.

    Nothing is stored, and memory does not depend on the number of samples, but for
    reducers that say so. Under ``torchrun``, with ``torch.distributed`` initialised,
    the processes share the batches, and all get the result.

    Args:
        compute: As in ``gk.stream``. It may also return a ``ParameterJacobian`` with
            one row per sample, such as ``gk.quantities.gradients(model)`` does, whose
            rows some reducers need not form.
        loader: As in ``gk.stream``.
        reducer: One of ``gk.reducers`` or several by name, or a ``Checkpointed``.
        progress: Whether to show a bar, on the first process.

    Returns:
        The reducer's result, such as ``(*row)`` in float64 of ``Mean``; in a mapping
        if ``compute`` returned one; by reducer, if several were given.

    Raises:
        InputError: ``compute``, ``loader`` or ``reducer`` is not what is needed, or
            the checkpoint's folder belongs to another reduction.
        SampleDependenceError: ``compute`` asks gradkit of a batch, whose samples the
            model or the objective couples.
        UnsupportedModelError: ``compute`` asks gradkit of a model that it cannot serve.
        ProcessError: Under ``torchrun``, another process has failed or died.
        OSError: The checkpoint cannot be written; what was written is kept.

    Cost:
        ``compute`` once per batch.

    Example:
        >>> import torch
        >>> import gradkit as gk
        >>> model = torch.nn.Linear(3, 2)
        >>> data = torch.utils.data.TensorDataset(
        ...     torch.randn(25, 3), torch.arange(25) % 2
        ... )
        >>> loader = torch.utils.data.DataLoader(data, batch_size=10)
        >>> norms = gk.quantities.gradient_norm(model)
        >>> hardest = gk.reduce(norms, loader, gk.reducers.TopK(2), progress=False)
        >>> hardest["loss"].samples.shape
        torch.Size([2])
        >>> fisher = gk.reduce(
        ...     gk.quantities.gradients(model),
        ...     loader,
        ...     gk.reducers.SecondMoment(),
        ...     progress=False,
        ... )
        >>> {name: tuple(values.shape) for name, values in fisher.items()}
        {'weight': (2, 3), 'bias': (2,)}
    """
    check_compute(compute)
    kept = reducer if isinstance(reducer, Checkpointed) else None
    fold = Fold(read_reducers(reducer if kept is None else kept.reducer))
    batches = read_loader(loader)
    with together() as ranks:
        with ranks.agreed():
            identity = None if kept is None else kept.identity
            about = about_run(compute, batches, identity)
            about["reducers"] = {n: repr(r) for n, r in fold.reducers.items()}
            if kept is not None and about["identity"] is None:
                raise InputError(
                    "compute does not say what its rows depend on, so that nobody could"
                    " tell whose checkpoint this is. Pass"
                    " Checkpointed(..., identity={'model': model, ...})",
                    argument="reducer",
                )
        with ranks.agreed():
            refuse_unlike(ranks.gather(about))
        with one_by_one(compute, batches, _read, drawn=kept is None) as computing:
            keep = None if kept is None else Checkpoint(open_folder(kept.folder), about)
            every = 0 if kept is None else kept.every
            return _Pass(computing, fold, ranks, keep, every).run(progress)


def _read(returned: Any, count: int | None) -> Any:
    if not isinstance(returned, ParameterJacobian):
        found = read_rows(returned, count)
        lone = isinstance(found, Alone)
        return {ALONE: next(iter(found.values()))} if lone else found
    rows = count_rows(returned)
    if count is not None and rows != count:
        raise InputError(
            f"compute must return one row per sample, {count} for this batch; got"
            f" {rows}",
            argument="compute",
        )
    return {PARAMETERS: returned}


class _Pass:
    """One pass over the batches that are not done yet."""

    def __init__(
        self,
        computing: OneByOne,
        fold: Fold,
        ranks: Ranks,
        checkpoint: Checkpoint | None,
        every: int,
    ) -> None:
        self._computing = computing
        self._fold = fold
        self._ranks = ranks
        self._checkpoint = checkpoint
        self._every = every

    def run(self, shown: bool) -> Any:
        with self._ranks.agreed():
            before = self._earlier() if self._ranks.first else None
        told = None
        if before is not None:
            told = self._run, before.batch, before.done, before.inputs
        self._run, batch, done, inputs = self._ranks.share(told)
        done = Progress(None, done.clone(), inputs.clone())
        # What was done before is the first process's to bring in.
        mine = before or Progress.none(self._fold.start())
        mine.batch = batch
        with self._ranks.agreed():
            self._go(mine, done, Bar(self._ranks, shown=shown))
        return self._together(mine.state)

    # -- what was done before -----------------------------------------------------

    @property
    def _run(self) -> int:
        return 0 if self._checkpoint is None else self._checkpoint.run

    @_run.setter
    def _run(self, number: int) -> None:
        if self._checkpoint is not None:
            self._checkpoint.join(number)

    def _earlier(self) -> Progress:
        """Return what earlier runs did, and begin this one."""
        found = None
        if self._checkpoint is not None:
            found = self._checkpoint.read(self._fold.merge)
        if found is None:
            found = Progress.none(self._fold.start())
        elif self._computing.indexed and found.done.any():
            # Of other loaders all batches will pass by.
            (numbers,) = found.done.nonzero(as_tuple=True)
            ends = dict.fromkeys([int(numbers[0]), int(numbers[-1])])
            for number, inputs in self._computing.inputs_of(ends).items():
                _compare(found, number, inputs)
        found.batch = found.batch or _count(self._computing.first())
        if self._checkpoint is not None:
            self._checkpoint.begin(found)
        return found

    # -- what is left -------------------------------------------------------------

    def _go(self, mine: Progress, before: Progress, bar: Bar) -> None:
        def is_wanted(number: int) -> bool:
            share = number % self._ranks.count == self._ranks.rank
            return share and not before.has(number)

        sizes = Sizes(mine.batch)
        numbers = [n for n in range(self._computing.total or 0) if is_wanted(n)]
        total = None if self._computing.total is None else len(numbers)
        unwritten = 0
        with bar.of("reducing", total, "batches") as shown:
            for step in self._computing.steps(numbers, is_wanted):
                self._ranks.check()
                if step.rows is None:
                    if step.samples is not None:
                        sizes.check(step.number, step.samples, last=step.last)
                    if before.has(step.number):
                        _compare(before, step.number, step.inputs)
                    continue
                sizes.check(step.number, _count(step.rows), last=step.last)
                place = Place(step.number, step.number * mine.batch)
                self._fold.add(mine.state, step.rows, place)
                mine.mark(step.number, step.inputs)
                unwritten += 1
                if unwritten == self._every:
                    unwritten = self._write(mine)
                shown.update()
        if unwritten:
            self._write(mine)

    def _write(self, mine: Progress) -> int:
        """Keep what is done; return how many batches are not kept."""
        if self._checkpoint is not None:
            self._checkpoint.write(mine, self._ranks.rank)
        return 0

    # -- the end ------------------------------------------------------------------

    def _together(self, state: Any) -> Any:
        """Return the result of all processes' states, one after the other."""
        error, result = None, None
        for source in range(1, self._ranks.count):
            other = self._ranks.pass_on(state, source)
            try:
                if self._ranks.first and error is None:
                    state = self._fold.merge(state, other)
            except Exception as caught:  # raised once the others have been heard
                error = caught
        with self._ranks.agreed():
            if error is not None:
                raise error
            if self._ranks.first:
                result = self._fold.result(state)
        return self._ranks.share(result)


def _compare(found: Progress, number: int, inputs: bytes) -> None:
    if inputs != found.told(number):
        raise InputError(
            f"loader's batch {number} is not the one that the checkpoint has: these are"
            " other data, or they come in another order",
            argument="loader",
            batch=number,
        )


def _count(rows: dict[str, Any]) -> int:
    """Return the samples of one batch's rows."""
    value = next(iter(rows.values()))
    return count_rows(value) if isinstance(value, ParameterJacobian) else len(value)
