"""What a subcommand is, and how it says that it was called wrongly."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

FINE = 0
FINDING = 1
USAGE = 2
INTERRUPTED = 130
PIPE_CLOSED = 141

#: What a target looks like, for ``--help``.
A_FILE = """\
{file}, whole:
  import gradkit as gk, torch
  def {name}(width=8):
      torch.manual_seed(0)
      model, x = torch.nn.Linear(width, 3), torch.randn(5, width)
      return gk.Subject(model, {given})"""


class UsageError(Exception):
    """What the caller asked for cannot be done; its text is one line."""

    def __str__(self) -> str:
        # Texts of other libraries may have several lines.
        return " ".join(super().__str__().split())


@dataclasses.dataclass(frozen=True)
class Command:
    """A subcommand, without its code.

    Attributes:
        name: What is typed after ``gradkit``.
        summary: One line for ``gradkit --help``.
        module: In ``gradkit.cli``; its ``run(arguments)`` returns the exit code.
    """

    name: str
    summary: str
    module: str


class Parser(argparse.ArgumentParser):
    """An argument parser that says what is wrong in one line.

    Args:
        name: The subcommand's.
        description: What it does, for ``--help``.
        example: A whole command line and a remark, for ``--help``.
    """

    def __init__(self, name: str, description: str, example: str) -> None:
        super().__init__(
            prog=f"gradkit {name}",
            description=description,
            epilog=example,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def options(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Return the options that ``arguments`` hold; name the one that is none."""
        options, unknown = self.parse_known_args(arguments)
        if unknown:
            what = "option" if unknown[0].startswith("-") else "argument"
            raise UsageError(
                unknown_name(what, unknown[0], self._option_string_actions)
            )
        return options

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Name the nearest choice too, as for a command or an option."""
        if action.choices is not None and value not in action.choices:
            what = unknown_name("choice", str(value), action.choices)
            raise argparse.ArgumentError(
                action, f"{what}; there are {', '.join(map(str, action.choices))}"
            )

    def error(self, message: str) -> NoReturn:
        """Raise what ``main`` prints, where argparse would print its usage."""
        raise UsageError(message)


def unknown_name(what: str, name: str, known: Iterable[str]) -> str:
    """Return what to say of a name that there is not, with the nearest that there is.

    Example:
        >>> unknown_name("option", "--dta", ["--data", "--seed"])
        "no option '--dta' (did you mean --data?)"
        >>> unknown_name("command", "plough", ["mnist"])
        "no command 'plough'"
    """
    hint = did_you_mean(name, known)
    return f"no {what} {name!r}" + (f" ({hint})" if hint else "")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a question for the nearest of some names; empty where none is near."""
    # Without dashes, in which all options are alike.
    bare = {text.lstrip("-"): text for text in known}
    near = difflib.get_close_matches(name.partition("=")[0].lstrip("-"), bare, n=1)
    return f"did you mean {bare[near[0]]}?" if near else ""


def whole_number(least: int, most: int | None = None) -> Callable[[str], int]:
    """Return the ``type=`` of an option that takes a whole number.

    Args:
        least: The smallest number that will do.
        most: The largest, if there is one.

    Returns:
        A function of the option's text.

    Example:
        >>> whole_number(0)("12")
        12
        >>> whole_number(1)("0")
        Traceback (most recent call last):
        argparse.ArgumentTypeError: must be a whole number of at least 1; got 0
    """
    span = f"of at least {least}" if most is None else f"from {least} to {most}"

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if number < least or (most is not None and number > most):
            raise argparse.ArgumentTypeError(
                f"must be a whole number {span}; got {text}"
            )
        return number

    return read
