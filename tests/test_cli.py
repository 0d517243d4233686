"""The command ``gradkit``: its help, its version and what it does not know."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gradkit import cli
from gradkit.cli import COMMANDS, main
from mnist_run import (
    check_refused,
)


@pytest.mark.parametrize("arguments", [[], ["-h"], ["--help"], ["help"], ["help"] * 2])
def test_help_lists_the_commands(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 0
    captured = capsys.readouterr()
    for command in COMMANDS:
        assert f"  {command.name} " in captured.out
        assert command.summary in captured.out
    assert captured.err == ""


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    text = (Path(__file__).parents[1] / "pyproject.toml").read_text()
    version = text.partition('version = "')[2].partition('"')[0]
    assert capsys.readouterr().out == f"gradkit {version}\n"


def test_commands_are_an_immutable_list() -> None:
    assert isinstance(COMMANDS, tuple)
    names = [command.name for command in COMMANDS]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_explains_itself(
    command: cli.Command, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command.name, "--help"]) == 0
    captured = capsys.readouterr()
    assert main(["help", command.name]) == 0
    assert capsys.readouterr() == captured
    assert captured.out.startswith(f"usage: gradkit {command.name} ")
    assert f"example:\n  gradkit {command.name}" in captured.out
    assert captured.err == ""


def test_the_module_runs_and_a_closed_pipe_is_quiet() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "gradkit", "--help"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    error = process.stderr.read()
    process.stderr.close()
    assert (process.wait(), error) == (141, b"")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mnits"], "no command 'mnits' (did you mean mnist?); commands are {all}"),
        (["plough"], "no command 'plough'; commands are {all}"),
        (
            ["help", "mnits"],
            "no command 'mnits' (did you mean mnist?); commands are {all}",
        ),
        (
            ["--vers"],
            "no option '--vers' (did you mean --version?); commands are {all}",
        ),
        (["--plough"], "no option '--plough'; commands are {all}"),
    ],
)
def test_an_unknown_command(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ", ".join(command.name for command in COMMANDS)
    check_refused(arguments, f"gradkit: {message.format(all=names)}", capsys)
