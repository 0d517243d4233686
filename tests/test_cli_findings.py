"""Results of ``gradkit mnist`` that are planted wrong are findings."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import gradkit
from gradkit.cli import main
from mnist_run import (
    FILES,
    command,
    write_digits,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of IDX files."""
    return write_digits(tmp_path_factory.mktemp("digits"))


def planted(name: str, change: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of gradkit whose results ``change`` makes wrong."""
    original = getattr(gradkit, name)
    return lambda *args, **kwargs: change(original(*args, **kwargs), *args, **kwargs)


def scaled_float32_onehot(J: torch.Tensor, *_: Any, method: str = "", **__: Any) -> Any:
    wrong = method == "onehot" and J.dtype == torch.float32
    return J * 1.001 if wrong else J


def scaled_float64_onehot(J: torch.Tensor, *_: Any, method: str = "", **__: Any) -> Any:
    wrong = method == "onehot" and J.dtype == torch.float64
    return J * (1 + 1e-9) if wrong else J


@pytest.mark.parametrize(
    ("name", "change", "finding"),
    [
        ("jacobian", scaled_float32_onehot, "jacobian by onehot"),
        ("jacobian", scaled_float64_onehot, "jacobian by onehot"),
        ("input_gradients", lambda g, *_, of=None: g if of is None else -g, "fc1"),
    ],
)
def test_results_that_differ_are_a_finding(
    name: str,
    change: Callable[..., Any],
    finding: str,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(gradkit, name, planted(name, change))
    assert main(command(folder, tmp_path)) == 1
    text = capsys.readouterr().out
    assert (
        f"FINDING: these differ by more than 1e-04 in float32 and 1e-10 in float64:"
        f" {finding}.\n" in text
    )
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["findings"] == [finding]
    assert sorted(file.name for file in tmp_path.iterdir()) == FILES
