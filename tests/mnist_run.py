"""What the tests of ``gradkit mnist`` share: small digits, its call, its refusals."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradkit.cli import main

TRAIN_COUNT, TEST_COUNT, SAMPLES = 60, 13, 11
FIGURES = ["saliency", "deletion", "randomization"]
FILES = sorted(
    ["arrays.npz", "mnist.png", "model.pt", "report.json"]
    + [f"{name}.{kind}" for name in FIGURES for kind in ("png", "svg")]
)


def write_digits(folder: Path) -> Path:
    """Write IDX files into ``folder``: a bright bar whose height is the class."""
    generator = np.random.default_rng(5)
    for part, count in (("train", TRAIN_COUNT), ("t10k", TEST_COUNT)):
        labels = (np.arange(count) % 10).astype(np.uint8)
        images = generator.integers(0, 60, (count, 28, 28), dtype=np.uint8)
        for image, label in zip(images, labels, strict=True):
            image[4 + 2 * label, 5:20] = 255
        header = struct.pack(">4I", 2051, count, 28, 28)
        file = folder / f"{part}-images-idx3-ubyte.gz"
        file.write_bytes(gzip.compress(header + images.tobytes()))
        header = struct.pack(">2I", 2049, count)
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(header + labels.tobytes())
    return folder


def command(folder: Path, out: Path, *more: str) -> list[str]:
    """Return the arguments of a short run."""
    numbers = ["--epochs", "3", "--samples", str(SAMPLES), "--seed", "4"]
    return ["mnist", "--data", str(folder), "--out", str(out), *numbers, *more]


def check_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Raise unless the command ends with 2 and this line alone."""
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"{message}\n"


def raising(error: BaseException) -> Callable[..., Any]:
    """Return a function that raises."""

    def refuse(*_: Any, **__: Any) -> None:
        raise error

    return refuse
