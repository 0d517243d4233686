"""A loader's batches by number, in one order whatever the rank or the resume point."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    SequentialSampler,
)

from gradkit._guards._random import RandomState
from gradkit.errors import InputError
from gradkit.streaming._rows import count_samples
from gradkit.streaming._samplers import (
    count_of,
    generators_of,
    order_of,
    others_of,
    outermost,
    refuse_unseeded,
)

__all__ = ["Batches", "Numbered", "read_loader"]


_NONE = object()
#: Of a loader's workers, where they are to draw other numbers than otherwise.
_OTHER_SEED = 0x6B2F


class Numbered(NamedTuple):
    """A batch, its number, and whether it is the last; ``None`` if nobody knows yet."""

    number: int
    batch: Any
    last: bool | None


class Batches:
    """The batches of a loader.

    ``total`` counts them, ``samples`` the samples in them, each ``None`` where the
    loader does not say; ``indexed`` is whether a batch can be had without those
    before it; ``order`` tells this order from others.
    """

    total: int | None = None
    samples: int | None = None
    indexed = False
    order: dict[str, Any]

    def take(self, wanted: Iterable[int], *, apart: bool = False) -> Iterator[Numbered]:
        """Yield the batches of these numbers, which increase.

        ``apart`` gives a loader's workers another seed, so that what they draw differs
        from what they draw otherwise.
        """
        raise NotImplementedError

    def count(self, batch: int) -> int | None:
        """Return the samples, where all batches but the last have so many."""
        return self.samples

    def first(self) -> Numbered | None:
        """Return batch 0, if there is one."""
        return next(self.take([0], apart=True), None)


class _Listed(Batches):
    """A sequence of batches."""

    indexed = True

    def __init__(self, loader: Sequence[Any]) -> None:
        self._loader = loader
        self.total = len(loader)
        self.order = {"kind": "a sequence of batches", "batches": self.total}

    def count(self, batch: int) -> int | None:
        rest = count_samples(self._loader[-1])
        return None if rest is None else (len(self._loader) - 1) * batch + rest

    def take(self, wanted: Iterable[int], *, apart: bool = False) -> Iterator[Numbered]:
        for number in wanted:
            if number >= len(self._loader):
                return
            last = number == len(self._loader) - 1
            try:
                batch = self._loader[number]
            except IndexError as error:
                raise InputError(
                    f"loader has a length of {len(self._loader)}, and no batch"
                    f" {number}",
                    argument="loader",
                ) from error
            yield Numbered(number, batch, last)


class _Streamed(Batches):
    """An iterable that is gone through from its start, whatever is wanted of it."""

    def __init__(self, loader: Iterable[Any]) -> None:
        self._loader = loader
        self._begun: tuple[Any, Iterator[Any]] | None = None
        self.order = {"kind": "an iterable"}
        own = isinstance(loader, DataLoader)
        self._generators = generators_of(loader) if own else []

    def first(self) -> Numbered | None:
        """Return batch 0; the pass that begins with it is gone on with by ``take``."""
        before = RandomState((), self._generators)
        batches = iter(self._loader)
        first = next(batches, _NONE)
        before.restore_own()
        self._begun = first, batches
        return None if first is _NONE else Numbered(0, first, None)

    def take(self, wanted: Iterable[int], *, apart: bool = False) -> Iterator[Numbered]:
        """Yield all batches: those before a wanted one too, which are read anyway."""
        if self._begun is None:
            self.first()
        assert self._begun is not None, "a pass has begun"
        (batch, batches), self._begun = self._begun, None
        before = RandomState((), self._generators)
        try:
            # None is read ahead: a loader may fill one batch object again and again.
            for number in itertools.count():
                if batch is _NONE:
                    return
                yield Numbered(number, batch, None)
                batch = next(batches, _NONE)
        finally:
            before.restore_own()


class _Loaded(Batches):
    """A ``DataLoader`` over a data set that can be indexed."""

    indexed = True

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._loader = loader
        self._sampler: Any = outermost(loader)
        self.total = len(loader)
        self.samples = count_of(self._sampler)
        self._start = RandomState((), generators_of(loader))
        # Samplers of others may count their own epochs.
        self._attributes = [(s, dict(vars(s))) for s in others_of(loader)]
        self.order = order_of(loader)

    def take(self, wanted: Iterable[int], *, apart: bool = False) -> Iterator[Numbered]:
        # Workers run ahead of what is asked for, so numbers wait in a queue.
        taken: deque[int] = deque()
        chosen = _Chosen(self._sampler, wanted, self.total or 0, taken)
        before = RandomState((), generators_of(self._loader))
        attributes = [(s, dict(vars(s))) for s in others_of(self._loader)]
        try:
            # Every pass starts from one state, so that it has one order.
            self._start.restore()
            for sampler, values in self._attributes:
                vars(sampler).update(values)
            for batch in _again(self._loader, chosen, apart=apart):
                number = taken.popleft()
                yield Numbered(number, batch, number == (self.total or 0) - 1)
        finally:
            before.restore()
            for sampler, values in attributes:
                vars(sampler).update(values)


class _Chosen:
    """A sampler that yields those batches of another whose numbers are wanted."""

    def __init__(
        self, sampler: Any, wanted: Iterable[int], total: int, taken: deque[int]
    ) -> None:
        self._sampler = sampler
        self._wanted = wanted
        self._total = total
        self._taken = taken

    def __iter__(self) -> Iterator[Any]:
        for number, indices in self._indices():
            self._taken.append(number)
            yield indices

    def _indices(self) -> Iterator[tuple[int, Any]]:
        plain = type(self._sampler) is BatchSampler
        if plain and type(self._sampler.sampler) is SequentialSampler:
            # Nothing is walked through: a billion samples start at once.
            size, count = self._sampler.batch_size, len(self._sampler.sampler)
            for number in self._wanted:
                if number >= self._total:
                    return
                yield (
                    number,
                    list(range(number * size, min((number + 1) * size, count))),
                )
            return
        every = enumerate(iter(self._sampler))
        number = -1
        for number in self._wanted:
            found = next((e for e in every if e[0] == number), None)
            if found is None:
                return
            yield found
        if number == self._total - 1 and next(every, None) is not None:
            raise InputError(
                f"loader gives more batches than the {self._total} of its length",
                argument="loader",
            )


def _again(loader: DataLoader[Any], chosen: Any, *, apart: bool) -> DataLoader[Any]:
    """Return a loader like ``loader`` that asks ``chosen`` for its indices."""
    other = None
    if apart:
        other = torch.Generator().manual_seed(_OTHER_SEED)
        # The workers' seed is drawn before an order is, maybe from one generator.
        torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
    whole = loader.batch_sampler is None
    given: dict[str, Any] = {
        "collate_fn": loader.collate_fn,
        "pin_memory": loader.pin_memory,
        "generator": loader.generator if other is None else other,
        **({"batch_size": None, "sampler": chosen} if whole else {}),
        **({} if whole else {"batch_sampler": chosen}),
    }
    if loader.num_workers:
        given |= {
            "num_workers": loader.num_workers,
            "timeout": loader.timeout,
            "worker_init_fn": loader.worker_init_fn,
            "multiprocessing_context": loader.multiprocessing_context,
            "prefetch_factor": loader.prefetch_factor,
        }
    return DataLoader(loader.dataset, **given)


def read_loader(loader: Any) -> Batches:
    """Return a loader's batches.

    Raises:
        InputError: It gives no batches, or its order cannot be had again.
    """
    if isinstance(loader, DataLoader):
        if not _is_indexed(loader):
            return _Streamed(loader)
        refuse_unseeded(loader)
        return _Loaded(loader)
    if isinstance(loader, (str, bytes, Mapping, Tensor)) or not (
        hasattr(loader, "__iter__") or hasattr(loader, "__getitem__")
    ):
        raise InputError(
            "loader must give batches: a DataLoader, a sequence of batches or another"
            f" iterable of them; got {type(loader).__name__}. Of a tensor x,"
            " x.split(100) is such a sequence",
            argument="loader",
        )
    if isinstance(loader, Dataset):
        raise InputError(
            "loader must give batches; a data set gives single samples. Pass"
            " DataLoader(dataset, batch_size=…), or, if its items are batches,"
            " DataLoader(dataset, batch_size=None)",
            argument="loader",
        )
    if isinstance(loader, tuple) and _is_one_batch(loader):
        raise InputError(
            "loader must give batches; these tensors are parts of one. Pass"
            " DataLoader(TensorDataset(x, y), batch_size=…), or a list of batches,"
            " [(x1, y1), (x2, y2), …]",
            argument="loader",
        )
    if isinstance(loader, Sequence):
        return _Listed(loader)
    return _Streamed(loader)


def _is_one_batch(values: tuple[Any, ...]) -> bool:
    """Whether these are inputs and targets, and not one kind of tensor cut in parts."""
    if not all(isinstance(value, Tensor) for value in values):
        return False
    return len({(value.dtype, value.shape[1:]) for value in values}) > 1


def _is_indexed(loader: DataLoader[Any]) -> bool:
    """Whether a batch can be had by the indices that a sampler gives."""
    if isinstance(loader.dataset, IterableDataset):
        return False
    if type(loader).__iter__ is not DataLoader.__iter__:
        return False  # a subclass that does more with its batches
    return hasattr(outermost(loader), "__len__")
