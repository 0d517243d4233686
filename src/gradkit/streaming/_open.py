"""``open_rows``: the rows of a store, read when they are asked for."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor

from gradkit._call._public import public_pass
from gradkit.errors import InputError
from gradkit.streaming._folder import Folder, open_folder
from gradkit.streaming._manifest import Field, Manifest
from gradkit.streaming._store import Store, find_manifest
from gradkit.streaming._unread import Unread

__all__ = ["Column", "Rows", "open_rows"]


@public_pass
def open_rows(store: Any) -> Rows:
    """Open the rows that ``gk.stream`` wrote; nothing is read but their description.

    Args:
        store: The folder or address that ``gk.stream`` was given.

    Returns:
        ``rows["name"]`` is one array, ``(N, *row)``; ``rows[10:20]`` is what
        ``compute`` returned for these samples.

    Raises:
        InputError: There is no such store, or its description is damaged. Rows that
            are missing or damaged are refused when they are asked for.

    Cost:
        A file; then a file per chunk and array that an index touches.

    Example:
        >>> import tempfile, torch
        >>> import gradkit as gk
        >>> data = torch.arange(6.0).reshape(6, 1).split(4)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = gk.stream(lambda x: {"double": 2 * x}, data, folder, progress=False)
        ...     rows = gk.open_rows(folder)
        ...     print(len(rows), rows.names, rows["double"][[5, 0]])
        6 ('double',) tensor([[10.],
                [ 0.]])
    """
    folder = open_folder(store)
    manifest = find_manifest(folder)
    if manifest is None:
        raise InputError(f"store {folder.address} holds nothing", argument="store")
    return Rows(folder, manifest)


class Rows:
    """The rows of a store, one array per tensor that ``compute`` returned.

    ``rows["name"]`` is an array that is read when it is indexed. ``rows[index]`` is
    what ``compute`` returned for these samples: a mapping of tensors, or one tensor
    where it returned one. ``len(rows)`` counts samples, so that ``rows`` is a data
    set for a ``DataLoader`` too. ``gk.open_rows`` makes it.

    Attributes:
        names: Of the arrays.
        address: The folder.
        about: What the rows depend on, as digests and plain values.

    Raises:
        InputError: There is no array of that name; or rows asked for are missing or
            damaged; or the store is not complete and nobody knows its ``len``.
        IndexError: A sample is out of range, or an index is of another kind.

    Cost:
        An index reads the chunks that it touches, each whole. Of every array taken by
        name the chunk read last is kept.

    Example:
        >>> import tempfile, torch
        >>> import gradkit as gk
        >>> data = torch.arange(10.0).reshape(5, 2).split(3)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     rows = gk.stream(
        ...         lambda x: {"sum": x.sum(1)}, data, folder, progress=False
        ...     )
        ...     print(len(rows), rows["sum"][3:], rows[0])
        5 tensor([13., 17.]) {'sum': tensor(1.)}
    """

    def __init__(self, folder: Folder, manifest: Manifest) -> None:
        self._store = Store(folder, manifest)
        self.address = folder.address
        self.names = tuple(manifest.fields)
        self.about = manifest.about
        self._single = manifest.single

    def __len__(self) -> int:
        samples = self._store.manifest.samples
        if samples is None:
            raise InputError(
                f"store {self.address} is not complete, and its loader did not say how"
                " many samples there are; call gk.stream again to go on",
                argument="store",
            )
        return samples

    @overload
    def __getitem__(self, index: str) -> Column: ...
    @overload
    def __getitem__(self, index: Any) -> Any: ...
    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, str):
            return self._column(index)
        found = {name: self._column(name)[index] for name in self.names}
        return next(iter(found.values())) if self._single else found

    def _column(self, name: str) -> Column:
        fields = self._store.manifest.fields
        if name not in fields:
            raise InputError(
                f"store {self.address} has no {name!r}; it has {', '.join(self.names)}",
                argument="name",
            )
        return Column(self._store, name, fields[name], len(self))

    @property
    def missing(self) -> list[range]:
        """The samples that are not there yet, as ranges, one for each chunk.

        What is there and damaged is not among them; ``check`` finds it.

        Raises:
            InputError: The number of samples is not known.

        Cost:
            Lists the names of a folder's files; none is read.
        """
        manifest = self._store.manifest
        there = set(self._store.recorded())
        starts = range(0, len(self), manifest.chunk)
        return [
            range(start, min(start + manifest.chunk, len(self)))
            for chunk, start in enumerate(starts)
            if chunk not in there
        ]

    def check(self) -> None:
        """Read everything, and raise if anything is missing or damaged.

        Raises:
            InputError: With the first samples concerned; ``gk.stream`` with the same
                arguments mends it.

        Cost:
            Reads every file once, and digests it.
        """
        size = self._store.manifest.chunk
        for chunk, start in enumerate(range(0, len(self), size)):
            if not self._store.is_whole(chunk):
                raise _damaged(self.address, start, min(start + size, len(self)))

    def __repr__(self) -> str:
        samples = self._store.manifest.samples
        fields = self._store.manifest.fields
        arrays = (f"{name} {f.dtype} {f.shape} a sample" for name, f in fields.items())
        count = "?"
        if samples is not None:
            lacking = sum(map(len, self.missing))
            count = f"{samples - lacking} of {samples}" if lacking else f"{samples}"
        return f"Rows({count} samples; {', '.join(arrays)})"


class Column(Unread):
    """One array of a store, ``(N, *row)``, read when it is indexed.

    The first index is a number, a slice, a mask of all samples or a sequence of
    numbers; further ones go to the rows that were read. ``numpy.asarray`` reads all.
    ``rows["name"]`` makes it.

    Attributes:
        shape: ``(N, *row)``, a ``torch.Size``.

    Raises:
        InputError: Rows asked for are missing or damaged.
        IndexError: A sample is out of range, or an index is of another kind.

    Cost:
        An index reads the chunks that it touches, each whole; the last one is kept.

    Example:
        >>> import tempfile, torch
        >>> import gradkit as gk
        >>> data = torch.arange(10.0).reshape(5, 2).split(3)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     rows = gk.stream(
        ...         lambda x: {"twice": 2 * x}, data, folder, progress=False
        ...     )
        ...     column = rows["twice"]
        ...     print(column.shape, column.dtype, column[-1], column[[4, 1], 0])
        torch.Size([5, 2]) torch.float32 tensor([16., 18.]) tensor([16.,  4.])
    """

    def __init__(self, store: Store, name: str, field: Field, samples: int) -> None:
        self._store = store
        self._name = name
        self._field = field
        self.shape = torch.Size((samples, *field.shape))
        self._last: tuple[int, np.ndarray[Any, Any]] | None = None

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the tensors that are read."""
        return getattr(torch, self._field.dtype)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> Tensor:
        index = index if isinstance(index, tuple) else (index,)
        places = [i for i, part in enumerate(index) if part is Ellipsis]
        if places:
            (at,) = places
            whole = (slice(None),) * (len(self.shape) - len(index) + 1)
            index = (*index[:at], *whole, *index[at + 1 :])
        first, *rest = index or (slice(None),)
        numbers, alone = self._numbers(first)
        rows = torch.from_numpy(self._read(numbers))
        rows = rows[0] if alone else rows
        return rows[(*(() if alone else (slice(None),)), *rest)] if rest else rows

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray[Any, Any]:
        return np.asarray(self[:].numpy(), dtype=dtype)

    def __iter__(self) -> Iterator[Tensor]:
        return (self[place] for place in range(len(self)))

    def chunks(self) -> Iterator[Tensor]:
        """Yield all rows in order, a chunk at a time.

        Yields:
            ``(n, *row)``, in the array's dtype: as many rows as a chunk of the store
            has; the last may have fewer.

        Cost:
            Reads each file of the array once, and holds one chunk at a time.
        """
        size = self._store.manifest.chunk
        for start in range(0, len(self), size):
            yield self[start : start + size]

    def _numbers(self, index: Any) -> tuple[np.ndarray[Any, Any], bool]:
        """Return the samples that an index means, and whether it is one number."""
        every = range(len(self))
        if isinstance(index, slice):
            return np.arange(len(self))[index], False
        try:
            if not isinstance(index, (bool, np.bool_)):
                return np.array([every[operator.index(index)]]), True
        except TypeError:
            pass
        except IndexError:
            raise IndexError(
                f"sample {index} is out of range: there are {len(self)}"
            ) from None
        numbers = np.asarray(index)
        if numbers.dtype == bool and numbers.shape == (len(self),):
            return numbers.nonzero()[0], False
        if numbers.ndim != 1 or (numbers.size and numbers.dtype.kind not in "iu"):
            raise IndexError(
                "samples are indexed by a number, a slice, a mask of all of them or"
                f" numbers in one row; got {type(index).__name__} of shape"
                f" {numbers.shape}"
            )
        numbers = numbers.astype(np.int64)
        outside = (numbers < -len(self)) | (numbers >= len(self))
        if outside.any():
            raise IndexError(
                f"sample {numbers[outside][0]} is out of range: there are {len(self)}"
            )
        return np.where(numbers < 0, numbers + len(self), numbers), False

    def _read(self, numbers: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        size = self._store.manifest.chunk
        found = np.empty((len(numbers), *self._field.shape), self._field.dtype)
        chunks = numbers // size
        for chunk in np.unique(chunks):
            at = chunks == chunk
            found[at] = self._chunk(int(chunk))[numbers[at] - chunk * size]
        return found

    def _chunk(self, chunk: int) -> np.ndarray[Any, Any]:
        if self._last is None or self._last[0] != chunk:
            data = self._store.rows(chunk, self._name)
            if data is None:
                start = chunk * self._store.manifest.chunk
                end = min(start + self._store.manifest.chunk, len(self))
                raise _damaged(self._store.folder.address, start, end)
            little = np.dtype(self._field.dtype).newbyteorder("<")
            rows = np.frombuffer(data, little).reshape(-1, *self._field.shape)
            self._last = chunk, rows
        return self._last[1]


def _damaged(address: str, start: int, end: int) -> InputError:
    return InputError(
        f"store {address} lacks the rows of samples {start} to {end - 1}, or they are"
        " damaged; call gk.stream as before to compute them (again)",
        argument="store",
        samples=range(start, end),
    )
