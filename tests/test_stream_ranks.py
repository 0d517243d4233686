"""``stream`` and ``reduce`` on several processes, as ``torchrun`` starts them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import gradkit as gk
import stream_ranks as jobs
from gradkit.errors import InputError
from stream_kills import contents

pytest.importorskip("zarr")

TESTS = Path(__file__).parent


def ran(count: int, folder: Path, *names: str) -> dict[str, list[Any]]:
    """Return what each process found at each job."""
    command = [
        *(sys.executable, "-m", "torch.distributed.run"),
        *("--nproc-per-node", str(count), "--rdzv-backend", "c10d"),
        *("--rdzv-endpoint", "localhost:0", str(TESTS / "stream_ranks.py")),
        *(str(folder), *names),
    ]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return {
        name: [
            json.loads((folder / f"{name}-{rank}.json").read_text())
            for rank in range(count)
        ]
        for name in names
    }


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """As many threads as each of several processes has; stores depend on it."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def near(found: Any, expected: Any) -> None:
    """Compare nested results to rounding."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            near(found[name], value)
    elif isinstance(expected, list) and any(isinstance(v, list) for v in expected):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            near(one, other)
    elif isinstance(expected, (list, float)):
        assert found == pytest.approx(expected, rel=1e-6)
    else:
        assert found == expected


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_three_processes_find_what_one_finds(tmp_path: Path) -> None:
    names = (
        "reduced", "reduced_generator", "reduced_gradients", "streamed",
        "streamed_generator", "streamed_in_ddp", "failing", "unlike", "sharded",
        "too_few", "checkpointed",
    )  # fmt: skip
    found = ran(3, tmp_path, *names)
    lone = tmp_path / "lone"
    for name in ("reduced", "reduced_generator", "reduced_gradients"):
        expected = json.loads(json.dumps(jobs.JOBS[name](lone)))
        for each in found[name]:
            near(each["result"], expected)
    for name in ("streamed", "streamed_generator"):
        expected = jobs.JOBS[name](lone)
        assert found[name] == [{"result": expected}] * 3
    assert contents(tmp_path / "store") == contents(lone / "store")
    assert contents(tmp_path / "generated") == contents(lone / "generated")
    # DDP is unwrapped: its rows are the model's own, and its store is gone on with.
    assert found["streamed_in_ddp"] == found["streamed"]
    whose = [each["error"] for each in found["failing"]]
    assert whose[1] == "ValueError: a bad batch"
    for other in (whose[0], whose[2]):
        assert "stream: rank 1 of 3 failed" in other
        assert other.endswith("ValueError: a bad batch")
    for each in found["unlike"]:
        assert "all processes must do the same; on rank 1" in each["error"]
        assert "parameter 0.bias" in each["error"]
    for each in found["sharded"]:
        assert "FSDPSequential" in each["error"]
        assert "is sharded over processes; gather it" in each["error"]
    for each in found["too_few"]:
        assert "batches must fill at least 8 groups" in each["error"]
    (first, _, last) = found["checkpointed"]
    assert last["error"] == "ValueError: the third batch"
    assert "rank 2 of 3 failed" in first["error"]
    # Other processes go on with what these have kept.
    again = ran(2, tmp_path, "checkpointed")["checkpointed"]
    expected = json.loads(json.dumps(jobs.reduced(lone)))
    for each in again:
        near(each["result"]["found"], expected)
    assert sum(each["result"]["calls"] for each in again) < 26 - 3


def test_processes_that_have_not_met_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    for call in (jobs.streamed, jobs.reduced):
        with pytest.raises(InputError, match="init_process_group"):
            call(tmp_path)
    assert not list(tmp_path.iterdir())
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert len(gk.stream(jobs.norms(), jobs.loader(), tmp_path, progress=False)) == 101
