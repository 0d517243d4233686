"""The files of ``gradkit mnist`` are whole or absent, whatever happens."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from gradkit import mnist
from gradkit.cli import main
from mnist_run import (
    FILES,
    command,
    raising,
    write_digits,
)

NO_SPACE = OSError(28, "No space left on device")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of IDX files."""
    return write_digits(tmp_path_factory.mktemp("digits"))


def _half_written(error: BaseException) -> Callable[..., Any]:
    def write(_: Any, stream: Any) -> None:
        stream.write(b"the first half")
        raise error

    return write


@pytest.fixture(params=["empty", "earlier"])
def out(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """Yield a folder, with an earlier run's files or none, that stays as it is."""
    if request.param == "earlier":
        for name in FILES:
            (tmp_path / name).write_text(f"earlier {name}")
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    yield tmp_path
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_a_full_disk_leaves_no_file(
    folder: Path,
    out: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(torch, "save", _half_written(NO_SPACE))
    assert main(command(folder, out, "--samples", "2")) == 2
    assert capsys.readouterr().err == (
        f"gradkit mnist: cannot write {out / 'model.pt'}: No space left on device\n"
    )


def test_a_name_that_cannot_be_taken_leaves_no_file(
    folder: Path,
    out: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(Path, "replace", raising(NO_SPACE))
    assert main(command(folder, out, "--samples", "2")) == 2
    assert capsys.readouterr().err == (
        f"gradkit mnist: cannot write {out / 'mnist.png'}: No space left on device\n"
    )


def test_interrupted_while_writing(
    folder: Path,
    out: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(torch, "save", _half_written(KeyboardInterrupt()))
    assert main(command(folder, out, "--samples", "2")) == 130
    assert capsys.readouterr().err == "gradkit mnist: interrupted\n"


def test_interrupted_while_training(
    folder: Path,
    out: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(mnist, "train", raising(KeyboardInterrupt()))
    assert main(command(folder, out)) == 130
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "gradkit mnist: interrupted\n")


@pytest.mark.parametrize("where", ["save", "train"])
def test_what_fails_leaves_no_folder(
    where: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = _half_written(NO_SPACE) if where == "save" else raising(KeyboardInterrupt())
    monkeypatch.setattr(torch if where == "save" else mnist, where, error)
    out = command(folder, tmp_path / "new" / "out", "--samples", "2")
    code = main([*out, "--json", str(tmp_path / "other" / "deep" / "r.json")])
    assert code == (2 if where == "save" else 130)
    assert list(tmp_path.iterdir()) == []


def test_a_linked_file_stays_a_link(folder: Path, tmp_path: Path) -> None:
    target, link = tmp_path / "target.json", tmp_path / "link.json"
    target.write_text("earlier")
    link.symlink_to(target)
    with contextlib.redirect_stdout(io.StringIO()):
        arguments = ["--samples", "1", "--epochs", "0", "--json", str(link)]
        assert main(command(folder, tmp_path / "out", *arguments)) == 0
    assert link.is_symlink()
    assert json.loads(target.read_text())["samples"] == 1
