"""The command as it is first called: near misses, the example file, interruption."""

from __future__ import annotations

import contextlib
import io
import re
import textwrap
from pathlib import Path

import pytest

import gradkit.cli._stream as command
from gradkit.cli import COMMANDS, main
from gradkit.cli._command import UsageError
from gradkit.cli._device import device_of

SQUARE = """\
import os
from collections import OrderedDict
import torch
import gradkit as gk

class Sq(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0]

def subject():
    return gk.Subject(lambda x: Sq.apply(x).sum(1, keepdim=True), torch.ones(4, 3))
"""


def said(*arguments: str) -> tuple[int, str]:
    """Return the exit code of a command, and what it says of what is wrong."""
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors):
        code = main(arguments)
    return code, errors.getvalue()


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "mine.py"
    path.write_text(SQUARE)
    return str(path)


def help_of(name: str) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main([name, "--help"]) == 0
    return out.getvalue()


def test_a_wrong_custom_function_is_not_called_checked(
    file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", f"{file}:subject"]) == 0
    printed = capsys.readouterr().out
    assert "custom Function Sq: every method uses its backward, so a wrong" in printed
    assert "gk.testing.check_gradients compares it with differences" in printed
    one_line = " ".join(help_of("check").split())
    assert "every method, and the referee, uses its backward" in one_line


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["check", "x", "--function", "jacobain"],
         "argument --function: no choice 'jacobain' (did you mean jacobian?); there"),
        (["stream", "x", "--store", "s", "--quantity", "gradnorm"],
         "argument --quantity: no choice 'gradnorm' (did you mean gradient_norm?); th"),
        (["saliency", "x", "--methods", "gradcam"],
         "argument --methods: no method 'gradcam' (did you mean grad_cam?); there are"),
        (["stream", "x", "--store", "s", "--quantity", "loss", "size=64"],
         "no argument 'size=64'; an argument of the quantity is --option size=64, one"),
    ],
)  # fmt: skip
def test_near_misses(arguments: list[str], text: str) -> None:
    code, line = said(*arguments)
    assert code == 2
    assert text in line
    assert line.count("\n") == 1


def test_gpu_is_cuda() -> None:
    with pytest.raises(UsageError, match=r"on 'gpu' \(did you mean cuda\?\): "):
        device_of("gpu")


def test_what_a_file_defines_comes_first(file: str) -> None:
    for name, hint in (("nothing", ""), ("sbject", "did you mean subject? ")):
        code, line = said("check", f"{file}:{name}")
        assert code == 2
        assert f"({hint}it has Sq, subject, os, OrderedDict, torch, gk)" in line


def test_interrupted_the_same_command_goes_on(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "stream", interrupted)
    Path(file).write_text(file_of("stream"))
    code, line = said("stream", f"{file}:trained", "--quantity", "loss",
                      "--store", str(tmp_path / "store"))  # fmt: skip
    assert code == 130
    assert line == (
        "gradkit stream: interrupted: the same command goes on where this one was\n"
    )


def test_every_help_lists_130() -> None:
    for each in COMMANDS:
        codes = help_of(each.name).rpartition("exit codes:")[2]
        assert "130 interrupted" in " ".join(codes.split())
    assert "gradkit check experiment.py:subject" in help_of("check")


def file_of(name: str) -> str:
    """Return the file that a command's help shows."""
    found = re.search(r"\.py, whole:\n(.*?)\n\n", help_of(name), re.DOTALL)
    assert found is not None
    return textwrap.dedent(found[1])


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("check", ["--set", "width=4"]),
        ("saliency", ["--methods", "gradient", "--out", "{}/maps"]),
        ("stream", ["--quantity", "gradient_norm", "--store", "{}/norms"]),
    ],
)
def test_the_file_of_the_help_runs(name: str, more: list[str], tmp_path: Path) -> None:
    if name == "stream":
        pytest.importorskip("zarr", reason="Python 3.10 has no zarr 3")
    path = tmp_path / "shown.py"
    path.write_text(file_of(name))
    target = "subject" if name == "check" else "trained"
    given = [part.format(tmp_path) for part in more]
    # A store that is whole is read again.
    for _ in range(2):
        assert main([name, f"{path}:{target}", *given]) == 0
