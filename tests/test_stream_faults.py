"""Stores after deaths, damage and full disks: mended or refused, never wrong."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import gradkit as gk
from gradkit.errors import InputError
from stream_kills import contents

pytest.importorskip("zarr")

TESTS = Path(__file__).parent
SAMPLES = 403


def x() -> Tensor:
    return torch.arange(float(2 * SAMPLES)).reshape(SAMPLES, 2).sqrt()


def compute(batch: Tensor) -> dict[str, Tensor]:
    return {"sum": batch.sum(1), "double": 2 * batch}


def stored(store: Path, function: Callable[[Tensor], Any] = compute) -> Any:
    identity = {"about": "roots", "compute": "any"}
    return gk.stream(function, x().split(3), store, identity=identity, progress=False)


def dying(after: int) -> Callable[[Tensor], Any]:
    """Return ``compute``, that raises when it has been called so often."""
    calls = iter(range(after))

    def function(batch: Tensor) -> dict[str, Tensor]:
        if next(calls, None) is None:
            raise KeyboardInterrupt
        return compute(batch)

    return function


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """A store that nothing has happened to; chunks hold four batches of three."""
    stored(tmp_path / "whole")
    return tmp_path / "whole"


# -- deaths -------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")
@pytest.mark.slow
def test_runs_that_are_killed_end_as_those_that_are_not() -> None:
    """50 kills of a lone process, and of one of two and of three."""
    ran = subprocess.run(
        [sys.executable, str(TESTS / "stream_kills.py"), "--kills", "50"],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.count("'wrong': []") == 3


@pytest.mark.parametrize("after", [0, 1, 2, 5, 6, 133, 134])
def test_a_run_that_stops_anywhere_is_gone_on_with(
    tmp_path: Path, whole: Path, after: int
) -> None:
    with pytest.raises(KeyboardInterrupt):
        stored(tmp_path / "s", dying(after))
    stored(tmp_path / "s")
    assert contents(tmp_path / "s") == contents(whole)


def test_a_run_may_stop_at_every_batch(tmp_path: Path, whole: Path) -> None:
    calls = 0

    def function(batch: Tensor) -> dict[str, Tensor]:
        nonlocal calls
        calls += 1
        if calls % 2:
            raise KeyboardInterrupt
        return compute(batch)

    for _ in range(2 * SAMPLES):
        try:
            stored(tmp_path / "s", function)
            break
        except KeyboardInterrupt:
            pass
    assert contents(tmp_path / "s") == contents(whole)
    assert calls == 2 * 135  # batches, each of which failed once


# -- damage -------------------------------------------------------------------------


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def remove(path: Path) -> None:
    path.unlink()


def swap(path: Path) -> None:
    """Put another chunk's whole file in its place; its own checksum is right."""
    parts = list(path.parts)
    at = parts.index("c") + 1
    parts[at] = str((int(parts[at]) + 1) % 34)
    shutil.copy(Path(*parts), path)


@pytest.mark.parametrize("damage", [flip, truncate, empty, remove, swap])
@pytest.mark.parametrize("name", ["sum/c/5", "double/c/33/0", "_chunks/c/0/0"])
def test_a_damaged_chunk_is_found_and_computed_again(
    whole: Path, damage: Callable[[Path], None], name: str
) -> None:
    expected = contents(whole)
    damage(whole / name)
    assert contents(whole) != expected
    with pytest.raises(InputError, match="lacks the rows of samples"):
        gk.open_rows(whole).check()
    field = name.split("/")[0].replace("_chunks", "sum")
    with pytest.raises(InputError, match="lacks the rows of samples"):
        gk.open_rows(whole)[field][:]
    calls = []

    def counted(batch: Tensor) -> dict[str, Tensor]:
        calls.append(len(batch))
        return compute(batch)

    stored(whole, counted)
    assert contents(whole) == expected
    assert len(calls) == (3 if name == "double/c/33/0" else 4)


@pytest.mark.parametrize("damage", [flip, truncate, empty, remove])
@pytest.mark.parametrize(
    "names",
    [
        ["zarr.json"],
        ["sum/zarr.json"],
        ["zarr.json", "_chunks/zarr.json", "double/zarr.json"],
    ],
    ids=["group", "array", "all but one"],
)
def test_a_damaged_manifest_is_mended(
    whole: Path, damage: Callable[[Path], None], names: list[str]
) -> None:
    expected = contents(whole)
    for name in names:
        damage(whole / name)
    assert torch.equal(gk.open_rows(whole)["sum"][:], x().sum(1))
    stored(whole)
    assert contents(whole) == expected


def test_a_store_without_any_manifest_is_refused(whole: Path) -> None:
    for path in whole.rglob("zarr.json"):
        truncate(path)
    before = contents(whole)
    for call in (lambda: stored(whole), lambda: gk.open_rows(whole)):
        with pytest.raises(InputError, match="no manifest that can be read"):
            call()
    assert contents(whole) == before


def test_a_manifest_that_was_edited_is_not_believed(whole: Path) -> None:
    for path in whole.rglob("zarr.json"):
        document = json.loads(path.read_text())
        document["attributes"]["gradkit"]["manifest"]["batch"] = 6
        path.write_text(json.dumps(document))
    with pytest.raises(InputError, match="no manifest that can be read"):
        gk.open_rows(whole)


@pytest.mark.parametrize("damage", [flip, truncate, empty, remove])
def test_a_damaged_journal_is_computed_again(
    tmp_path: Path, whole: Path, damage: Callable[[Path], None]
) -> None:
    with pytest.raises(KeyboardInterrupt):
        stored(tmp_path / "s", dying(5))
    (noted,) = (p for p in (tmp_path / "s" / "_journal").iterdir() if p.name == "1")
    damage(noted)
    stored(tmp_path / "s")
    assert contents(tmp_path / "s") == contents(whole)


def test_chunks_of_another_run_are_not_taken_for_this_ones(
    tmp_path: Path, whole: Path
) -> None:
    other = tmp_path / "other"
    gk.stream(compute, (x() + 1).split(3), other, identity={}, progress=False)
    for name in ("sum/c/7", "double/c/7/0", "_chunks/c/7/0"):
        shutil.copy(other / name, whole / name)
    with pytest.raises(InputError, match="samples 84 to 95"):
        gk.open_rows(whole)["sum"][:]
    stored(whole)
    assert torch.equal(gk.open_rows(whole)["double"][:], 2 * x())


# -- disks and writers --------------------------------------------------------------


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EIO])
@pytest.mark.parametrize("writes", [0, 1, 4, 40, 200])
def test_a_disk_that_refuses_loses_nothing(
    tmp_path: Path, whole: Path, monkeypatch: Any, code: int, writes: int
) -> None:
    left = iter(range(writes))
    write = os.write

    def failing(descriptor: int, data: Any) -> int:
        if next(left, None) is None:
            # A disk fills up in the middle of a file.
            write(descriptor, data[: len(data) // 2])
            raise OSError(code, os.strerror(code))
        return write(descriptor, data)

    with monkeypatch.context() as patch:
        patch.setattr("gradkit.streaming._folder.os.write", failing)
        with pytest.raises(OSError, match="the store cannot be written") as caught:
            stored(tmp_path / "s")
    assert caught.value.errno == code
    assert "What was written is kept" in str(caught.value)
    assert not list((tmp_path / "s").rglob("*.partial"))
    stored(tmp_path / "s")
    assert contents(tmp_path / "s") == contents(whole)


def test_a_folder_that_may_not_be_written_to_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir(mode=0o555)
    script = (
        "import os, sys, tempfile; sys.path.insert(0, sys.argv[2])\n"
        "import test_stream_faults as t\n"
        "from pathlib import Path\n"
        "t.stored(Path(tempfile.mkdtemp()))\n"  # imports what others may not read
        "t.stored(Path(sys.argv[3])); Path(sys.argv[3]).chmod(0o555)\n"
        "os.getuid() or os.seteuid(65534)\n"
        "for name in (sys.argv[1], sys.argv[1] + '/new'):\n"
        "    try: t.stored(Path(name))\n"
        "    except PermissionError as error: print(error)\n"
        "print(t.stored(Path(sys.argv[3])))\n"  # it has all rows already
    )
    tmp_path.chmod(0o755)
    for parent in tmp_path.parents[:2]:
        parent.chmod(0o755)
    ran = subprocess.run(
        [sys.executable, "-c", script, str(folder), str(TESTS), str(tmp_path / "s")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.count("cannot be written (Permission denied)") == 2
    assert ran.stdout.count("Name a folder that may be written to") == 2
    assert "Rows(403 samples" in ran.stdout


def test_two_writers_on_one_store_are_refused(tmp_path: Path, whole: Path) -> None:
    store, tried = tmp_path / "s", []

    def second(batch: Tensor) -> dict[str, Tensor]:
        if not tried:
            tried.append(batch)
            with pytest.raises(InputError, match="is being written by another run"):
                stored(store)
        return compute(batch)

    stored(store, second)
    assert contents(store) == contents(whole)


def test_a_store_that_becomes_another_runs_is_left(tmp_path: Path) -> None:
    """As at an address, where there are no locks."""
    address = f"memory://gradkit-writers/{random.getrandbits(60)}"
    calls = 0

    def first(batch: Tensor) -> dict[str, Tensor]:
        nonlocal calls
        calls += 1
        if calls == 2:
            folder = gk.streaming._folder.open_folder(address)  # pyright: ignore
            for name in ("zarr.json", "sum", "double", "_chunks"):
                folder.remove(name)
            other = (x() + 1).split(3)
            gk.stream(compute, other, address, identity={}, progress=False)
        return compute(batch)

    with pytest.raises(InputError, match="has become another run's meanwhile"):
        gk.stream(first, x().split(3), address, progress=False)
    assert torch.equal(gk.open_rows(address)["double"][:], 2 * (x() + 1))


def test_a_changed_model_is_refused_and_nothing_is_changed(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 3)

    def outputs(batch: Tensor) -> Tensor:
        return model(batch).detach()

    def run() -> Any:
        return gk.stream(
            outputs, x().split(3), tmp_path, identity={"m": model}, progress=False
        )

    run()
    before = contents(tmp_path)
    with torch.no_grad():
        model.bias[1] += 1e-6
    with pytest.raises(InputError, match="identity, m, parameter bias: was float32"):
        run()
    assert contents(tmp_path) == before
