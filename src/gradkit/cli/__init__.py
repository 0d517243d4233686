"""The command ``gradkit``: worked examples and checks without writing a program.

Exit codes are the same for every subcommand: 0 fine, 1 a finding, 2 usage or
unusable data (one line on stderr, no traceback), 130 interrupted.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

from gradkit._version import version
from gradkit.cli._command import (
    FINE,
    INTERRUPTED,
    PIPE_CLOSED,
    USAGE,
    Command,
    UsageError,
    unknown_name,
)

__all__ = ["COMMANDS", "Command", "UsageError", "main"]

# A subcommand is one module and one line here. Only the one asked for is imported.
COMMANDS: tuple[Command, ...] = (
    Command("check", "compare methods, and a batch with its parts", "_check"),
    Command("mnist", "train on real digits and take every gradient", "_mnist"),
    Command("saliency", "maps of a model, and what checks say of them", "_saliency"),
    Command("stream", "a quantity of every sample of a data set, stored", "_stream"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``gradkit`` and return its exit code.

    Args:
        arguments: What follows ``gradkit`` on the command line; by default what
            this process was started with.

    Returns:
        0 fine, 1 a finding, 2 usage or unusable data, 130 interrupted.

    Example:
        >>> from gradkit.cli import main
        >>> main(["--help"])
        usage: gradkit [-h] [--version] COMMAND ...
        <BLANKLINE>
        Gradients and Jacobians of PyTorch models: right, or refused.
        <BLANKLINE>
        commands:
          check       compare methods, and a batch with its parts
          mnist       train on real digits and take every gradient
          saliency    maps of a model, and what checks say of them
          stream      a quantity of every sample of a data set, stored
        <BLANKLINE>
        example:
          gradkit check experiment.py:subject
            where subject() returns gk.Subject(model, inputs)
        <BLANKLINE>
        gradkit COMMAND --help says what a command takes.
        0
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    first, *rest = _without_help(given) or ["-h"]
    name = "gradkit"
    try:
        if first not in _ABOUT:
            command = _chosen(first)
            name = f"gradkit {command.name}"
            code = _run(command, rest)
        else:
            print(_ABOUT[first]())
            code = FINE
        sys.stdout.flush()
    except UsageError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt as stop:
        print(": ".join([name, "interrupted", *map(str, stop.args)]), file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # As in `gradkit … | head`. Python would complain again when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    return code


def _without_help(given: Sequence[str]) -> Sequence[str]:
    """Return the arguments with ``help COMMAND`` as ``COMMAND --help``."""
    return [given[1], "--help"] if given[1:] and given[0] == "help" else given


def _run(command: Command, arguments: Sequence[str]) -> int:
    module = importlib.import_module(f"gradkit.cli.{command.module}")
    try:
        return module.run(arguments)
    except SystemExit:  # argparse, when it has printed a command's --help
        return FINE


def _chosen(name: str) -> Command:
    commands = {command.name: command for command in COMMANDS}
    if name in commands:
        return commands[name]
    what = "option" if name.startswith("-") else "command"
    unknown = unknown_name(what, name, [*commands, *_ABOUT])
    raise UsageError(f"{unknown}; commands are {', '.join(commands)}")


def _help() -> str:
    width = max(len(command.name) for command in COMMANDS)
    return "\n".join(
        [
            "usage: gradkit [-h] [--version] COMMAND ...",
            "",
            "Gradients and Jacobians of PyTorch models: right, or refused.",
            "",
            "commands:",
            *(f"  {c.name:{width}}    {c.summary}" for c in COMMANDS),
            "",
            "example:",
            "  gradkit check experiment.py:subject",
            "    where subject() returns gk.Subject(model, inputs)",
            "",
            "gradkit COMMAND --help says what a command takes.",
        ]
    )


def _version() -> str:
    return f"gradkit {version()}"


_ABOUT = {"-h": _help, "--help": _help, "help": _help, "--version": _version}
