"""``gradkit check``: a plan, the agreement of methods, a batch and its parts."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gradkit as gk
from gradkit.cli._command import A_FILE, FINDING, FINE, Parser, UsageError
from gradkit.cli._files import check_writable, write_whole
from gradkit.cli._json import document
from gradkit.cli._target import HELP, load
from gradkit.errors import GradkitError, SampleDependenceError

_FUNCTIONS = (
    "jacobian",
    "input_gradients",
    "parameter_jacobian",
    "per_sample_gradients",
)

_DESCRIPTION = """\
Say what would serve a call on your model and why, hold every method against a float64
referee, and say whether samples are the same whatever batch they travel in.

Of a custom autograd.Function every method, and the referee, uses its backward, so a
wrong one agrees with itself; gk.testing.check_gradients compares it with
differences."""

_FILE = A_FILE.format(file="experiment.py", name="subject", given="inputs=x")
_EXAMPLE = f"""\
{_FILE}

example:
  gradkit check experiment.py:subject --function per_sample_gradients --set width=64
    prints the three tables for the model and inputs that subject(width=64) returns

exit codes: 0 fine, 1 a method is different or samples are coupled, 2 usage or
unusable data, 130 interrupted"""


def run(arguments: Sequence[str]) -> int:
    """Run the subcommand.

    Args:
        arguments: What follows ``gradkit check``.

    Returns:
        The exit code.

    Raises:
        UsageError: An option or the target is unusable.
    """
    options = _parser().options(arguments)
    quiet = options.json == "-"
    file = Path(options.json) if options.json is not None and not quiet else None
    if file is not None:
        check_writable(file, folders=False)
    # With JSON on stdout, what the target itself prints goes to stderr.
    with contextlib.redirect_stdout(sys.stderr if quiet else sys.stdout):
        subject = load(options.target, options.set, ["inputs"])
        name = options.function or _fitting(subject)
        report = _reported(name, subject, options, _Report(quiet=quiet))
    values = {"function": name, "fine": not report.found, **report.values}
    text = document(values, _text, default=str)
    if quiet:
        print(text, end="")
    elif file is not None:
        write_whole({file: lambda stream: stream.write(text.encode())})
    return FINDING if report.found else FINE


def _reported(name: str, subject: Any, options: Any, report: _Report) -> _Report:
    """Return the report with all its sections, or say in one line why there is none."""
    given = _given(name, options)
    try:
        try:
            _check(name, subject, given, report)
        except SampleDependenceError as error:
            text = str(error)
            report.add("coupled", "samples are coupled", text, {"text": text})
            report.found = True
            _consistency(subject, report)
    except GradkitError as error:
        raise UsageError(str(error)) from error
    except BrokenPipeError:
        raise  # nobody reads on; the model is not to blame
    except Exception as error:
        raise UsageError(f"the model raised {type(error).__name__}: {error}") from error
    return report


def _text(number: float) -> str:
    """Return a text that ``float`` reads back: ``null`` is what was not measured."""
    return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(number, "NaN")


def _parser() -> Parser:
    parser = Parser("check", _DESCRIPTION, _EXAMPLE)
    parser.add_argument("target", metavar="TARGET", help=HELP)
    parser.add_argument(
        "--function", choices=_FUNCTIONS, metavar="NAME",
        help="which of the four; by default jacobian, or input_gradients where the"
        " target has an objective",
    )  # fmt: skip
    parser.add_argument("--wrt", help="an input's key or a submodule, as wrt= takes it")
    parser.add_argument("--of", help="an output's key or a submodule, as of= takes it")
    parser.add_argument("--seed", type=int, help="for a model that draws numbers")
    parser.add_argument("--max-memory", help='bytes, or "2GB"')
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE",
        help="an argument of the function that TARGET names; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--json", metavar="FILE",
        help="write all as JSON, NaN and infinities as texts; - prints it, and nothing"
        " else",
    )  # fmt: skip
    return parser


def _fitting(subject: Any) -> str:
    return "jacobian" if subject.objective is None else "input_gradients"


class _Report:
    """Sections that are printed as they come, and kept for JSON."""

    def __init__(self, *, quiet: bool) -> None:
        self.quiet = quiet
        self.found = False
        self.values: dict[str, Any] = {}

    def add(self, key: str, title: str, text: str, value: Any) -> None:
        """Print one section."""
        self.values[key] = value
        if not self.quiet:
            print(f"{title}\n{'-' * len(title)}\n{text}\n")
            sys.stdout.flush()


def _given(name: str, options: Any) -> dict[str, Any]:
    """Return the keyword arguments that options stand for."""
    if options.wrt is not None and name in ("parameter_jacobian",
                                            "per_sample_gradients"):  # fmt: skip
        raise UsageError(f"--wrt has no meaning for {name}")
    names = ("wrt", "of", "seed", "max_memory")
    chosen = {name: getattr(options, name) for name in names}
    return {key: value for key, value in chosen.items() if value is not None}


def _check(name: str, subject: Any, given: Mapping[str, Any], report: _Report) -> None:
    takes_objective = name in ("input_gradients", "per_sample_gradients")
    args = (subject.objective,) if takes_objective else ()
    plan = gk.explain(name, subject.model, subject.inputs, *args, **given)
    report.add("plan", "plan", str(plan), {"method": plan.method,
                                           "reasons": dict(plan.reasons)})  # fmt: skip
    agreement = gk.compare_methods(name, subject.model, subject.inputs, *args, **given)
    report.add("agreement", "agreement", str(agreement), agreement.to_dict())
    report.found |= not agreement
    if "seed" in given:
        return  # a batch and its parts draw other numbers
    _consistency(subject, report)


def _consistency(subject: Any, report: _Report) -> None:
    try:
        found = gk.batch_consistency(subject.model, subject.inputs)
    except GradkitError as error:
        report.add("batch", "batch consistency", str(error), {"text": str(error)})
        return
    report.add("batch", "batch consistency", str(found), found.to_dict())
    report.found |= not found
