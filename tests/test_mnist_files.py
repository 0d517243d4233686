"""The digits: what the files hold, and what is said of damaged ones."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from gradkit import mnist
from gradkit.errors import InputError

TRAIN_COUNT, TEST_COUNT = 13, 7
IMAGES, LABELS = 0x0803, 0x0801
NAMES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


def idx(values: np.ndarray, magic: int) -> bytes:
    """Return an IDX file of bytes, written from its published layout."""
    return struct.pack(f">{1 + values.ndim}I", magic, *values.shape) + values.tobytes()


def contents(seed: int) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    return {
        NAMES[0]: generator.integers(0, 256, (TRAIN_COUNT, 28, 28), dtype=np.uint8),
        NAMES[1]: generator.integers(0, 10, TRAIN_COUNT, dtype=np.uint8),
        NAMES[2]: generator.integers(0, 256, (TEST_COUNT, 28, 28), dtype=np.uint8),
        NAMES[3]: generator.integers(0, 10, TEST_COUNT, dtype=np.uint8),
    }


@pytest.fixture
def arrays(seed: int) -> dict[str, np.ndarray]:
    """Return what the four files hold."""
    return contents(seed)


@pytest.fixture
def folder(tmp_path: Path, arrays: dict[str, np.ndarray]) -> Path:
    """Return a folder with the four files, uncompressed."""
    for name, values in arrays.items():
        magic = IMAGES if values.ndim == 3 else LABELS
        (tmp_path / name).write_bytes(idx(values, magic))
    return tmp_path


def compress(file: Path) -> Path:
    """Replace a file by its gzip form."""
    data = gzip.compress(file.read_bytes())
    file.unlink()
    compressed = file.with_name(f"{file.name}.gz")
    compressed.write_bytes(data)
    return compressed


def check_digits(data: mnist.Digits, arrays: dict[str, np.ndarray]) -> None:
    """Raise unless the digits are the files' values, exactly."""
    for tensor, values in zip(data, arrays.values(), strict=True):
        if values.ndim == 3:
            flat = torch.from_numpy(values.reshape(len(values), 784))
            assert torch.equal(tensor, flat.float() / 255)
        else:
            assert torch.equal(tensor, torch.from_numpy(values).long())


def test_plain_files(folder: Path, arrays: dict[str, np.ndarray]) -> None:
    check_digits(mnist.digits(folder), arrays)
    check_digits(mnist.digits(str(folder)), arrays)


def test_compressed_files(folder: Path, arrays: dict[str, np.ndarray]) -> None:
    for name in NAMES[1:]:
        compress(folder / name)
    check_digits(mnist.digits(folder), arrays)


def test_names_with_a_dot(folder: Path, arrays: dict[str, np.ndarray]) -> None:
    for name in NAMES:
        (folder / name).rename(folder / name.replace("-idx", ".idx"))
    compress(folder / "train-images.idx3-ubyte")
    check_digits(mnist.digits(folder), arrays)


def test_a_plain_file_comes_before_a_compressed_one(
    folder: Path, arrays: dict[str, np.ndarray]
) -> None:
    (folder / f"{NAMES[0]}.gz").write_bytes(b"not read")
    check_digits(mnist.digits(folder), arrays)


def cut(count: int) -> Callable[[bytes], bytes]:
    return lambda data: data[:count]


def header(place: int, number: int) -> Callable[[bytes], bytes]:
    """Return a damage: another number at one place of the header."""
    return lambda data: (
        data[: 4 * place] + struct.pack(">I", number) + data[4 * place + 4 :]
    )


DAMAGES = [
    (0, cut(0), "ends after 0 of its 16 header bytes"),
    (1, cut(7), "ends after 7 of its 8 header bytes"),
    (
        0,
        header(0, LABELS),
        "begins with the magic number 2049, but IDX images begin with 2051",
    ),
    (
        3,
        header(0, 0x1F8B0808),
        "begins with the magic number 529205256, but IDX labels begin with 2049",
    ),
    (2, header(3, 32), "holds items of 28x32 pixels, not 28x28"),
    (0, header(1, 0), "holds no images"),
    (0, cut(16 + 784), "promises 13 images in 10,192 bytes, but 784 follow"),
    (
        1,
        header(1, 4_294_967_295),
        "promises 4,294,967,295 labels in 4,294,967,295 bytes, but 13 follow",
    ),
    (2, lambda data: data + b"\0", "promises 7 images in 5,488 bytes, but more follow"),
    (3, lambda data: data[:-1] + b"\x0a", "holds the label 10, not a digit"),
    (
        3,
        lambda data: header(1, TEST_COUNT - 1)(data)[:-1],
        "holds 6 labels, but t10k-images-idx3-ubyte holds 7 images",
    ),
]


@pytest.mark.parametrize(("which", "damage", "problem"), DAMAGES)
def test_a_damaged_file_is_named(
    folder: Path, which: int, damage: Callable[[bytes], bytes], problem: str
) -> None:
    file = folder / NAMES[which]
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(InputError) as caught:
        mnist.digits(folder)
    assert str(caught.value) == f"mnist.digits: {file} {problem}"
    assert caught.value.file == file
    assert caught.value.problem == problem


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (cut(200), "ends in the middle of its gzip data"),
        (
            lambda data: b"PK" + data[2:],
            "is not sound gzip data (Not a gzipped file (b'PK'))",
        ),
        (
            lambda data: data[:-8] + bytes(8),
            # The checksum in these bytes depends on the digits.
            "is not sound gzip data (CRC check failed",
        ),
        (
            lambda data: data[:10] + b"\xff" * 20 + data[30:],
            "is not sound gzip data (Error -3 while decompressing data",
        ),
    ],
    ids=["truncated", "another format", "checksum", "bits"],
)
def test_a_damaged_compressed_file_is_named(
    folder: Path, damage: Callable[[bytes], bytes], problem: str
) -> None:
    file = compress(folder / NAMES[0])
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(InputError) as caught:
        mnist.digits(folder)
    assert str(caught.value).startswith(f"mnist.digits: {file} {problem}")


@pytest.mark.parametrize("missing", [NAMES[2:3], NAMES[1:], NAMES])
def test_every_missing_file_is_named(folder: Path, missing: tuple[str, ...]) -> None:
    for name in missing:
        (folder / name).unlink()
    with pytest.raises(InputError) as caught:
        mnist.digits(folder)
    assert str(caught.value) == (
        f"mnist.digits: {folder} must hold the four original IDX files, each plain or"
        f" as .gz; it lacks {', '.join(missing)}"
    )
    assert caught.value.file == folder


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        mnist.digits(tmp_path / "none")
    assert str(caught.value) == f"mnist.digits: {tmp_path / 'none'} does not exist"
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(InputError) as caught:
        mnist.digits(file)
    assert str(caught.value) == f"mnist.digits: {file} is not a folder"


def test_a_file_that_cannot_be_read_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(InputError) as caught:
        mnist.digits(folder)
    monkeypatch.undo()
    assert str(caught.value) == (
        f"mnist.digits: {folder / NAMES[0]} cannot be read (Permission denied)"
    )
