"""``gradkit saliency``: maps of one's own model, as figures and arrays."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradkit import plots, saliency
from gradkit._subject import Subject
from gradkit.cli._command import (
    A_FILE,
    FINDING,
    FINE,
    Parser,
    UsageError,
    unknown_name,
    whole_number,
)
from gradkit.cli._files import Writer, check_writable, write_whole
from gradkit.cli._json import document
from gradkit.cli._saliency_checks import (
    Asked,
    checked,
    checks_text,
    maps_of,
    title,
)
from gradkit.cli._saliency_figures import (
    CHECK_FIGURES,
    check_files,
    figure_files,
    is_picture,
)
from gradkit.cli._saliency_options import asked_of, baseline, outputs_of, scores_of
from gradkit.cli._target import HELP, load
from gradkit.errors import GradkitError

__all__ = ["run"]

_DEFAULT = "gradient,gradient_times_input,integrated_gradients,smoothgrad"

_DESCRIPTION = """\
Make saliency maps of a model by several methods: a figure of samples and maps, and
all maps as arrays. With --checks also what the honesty checks say: whether maps add
up, depend on what the model has learned, find what matters, and stand small noise."""

_FILE = A_FILE.format(file="mine.py", name="trained", given="inputs=x")
_EXAMPLE = f"""\
{_FILE}

example:
  gradkit saliency mine.py:trained --methods gradient,smoothgrad --checks --out maps
    writes maps.png, maps.svg and maps.npz into maps/, and the checks' figures

exit codes: 0 fine, 1 a map does not depend on the model (--checks), 2 usage or
unusable data, 130 interrupted"""


def run(arguments: Sequence[str]) -> int:
    """Run the subcommand.

    Args:
        arguments: What follows ``gradkit saliency``.

    Returns:
        The exit code.

    Raises:
        UsageError: An option, the target or a folder is unusable.
    """
    options = _parser().options(arguments)
    methods = _methods(options.methods)
    quiet = options.json == "-"
    figures = ["maps", *(CHECK_FIGURES if options.checks else ())]
    names = ["maps.npz", *(f"{name}.png" for name in figures)]
    report = Path(options.json) if options.json is not None and not quiet else None
    for file in [options.out / n for n in names] + ([report] if report else []):
        check_writable(file)
    # With JSON on stdout, what people read goes to stderr.
    with contextlib.redirect_stdout(sys.stderr if quiet else sys.stdout):
        code, files, text = _reported(methods, options)
        if report:
            files[report] = lambda stream: stream.write(text.encode())
        write_whole(files)
        print(f"Wrote {', '.join(map(str, files))}.")
    if quiet:
        print(text, end="")
    return code


def _reported(
    methods: list[str], options: argparse.Namespace
) -> tuple[int, dict[Path, Writer], str]:
    """Return the exit code, what writes each file, and the report as JSON."""
    subject = load(options.target, options.set, ["inputs"])
    try:
        outputs = outputs_of(subject, options)
        asked = asked_of(subject, outputs, methods, options)
        scores = scores_of(asked, options)
        maps = maps_of(asked, methods)
        checks = checked(asked, maps) if options.checks else None
    except GradkitError as error:
        raise UsageError(str(error)) from error
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(f"the model raised {type(error).__name__}: {error}") from error
    files = _array_files(options.out, asked, subject, maps)
    files |= _map_files(subject, outputs, scores, maps, options)
    values: dict[str, Any] = {"methods": methods, "samples": len(outputs)}
    if checks is not None:
        print(checks_text(checks, methods))
        files |= check_files(options.out, asked.inputs, checks)
        values |= {"checks": checks.to_dict(), "findings": checks.findings}
    code = FINDING if checks is not None and checks.findings else FINE
    return code, files, document(values)


def _methods(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in saliency.METHODS]
    if unknown or not names:
        what = f"got {text!r}"
        if unknown:
            what = unknown_name("method", unknown[0], saliency.METHODS)
        raise UsageError(
            f"argument --methods: {what}; there are {', '.join(saliency.METHODS)},"
            " separated by commas"
        )
    return list(dict.fromkeys(names))


def _array_files(
    folder: Path, asked: Asked, subject: Subject, maps: dict[str, Any]
) -> dict[Path, Writer]:
    arrays: dict[str, Any] = {}
    for name, value in {"inputs": asked.inputs, **maps}.items():
        arrays |= _flat(name, value)
    if isinstance(subject.targets, Tensor):
        arrays |= _flat("targets", subject.targets)
    return {folder / "maps.npz": lambda stream: np.savez(stream, **arrays)}


def _flat(name: str, value: Any) -> dict[str, np.ndarray]:
    """Return the tensors of a structure by dotted names."""
    if isinstance(value, Tensor):
        value = value.detach().cpu()
        wide = value.float() if value.dtype == torch.bfloat16 else value
        return {name: wide.numpy()}
    if hasattr(value, "items"):
        parts = list(value.items())
    elif isinstance(value, (list, tuple)):
        parts = list(enumerate(value))
    else:
        return {}
    found: dict[str, np.ndarray] = {}
    for key, part in parts:
        found |= _flat(f"{name}.{key}", part)
    return found


def _map_files(
    subject: Subject,
    outputs: Tensor,
    scores: Tensor,
    maps: dict[str, Any],
    options: argparse.Namespace,
) -> dict[Path, Writer]:
    """Return what draws the maps, where samples and maps are pictures."""
    if not is_picture(subject.inputs):
        print("No figure of the maps: the inputs are not pictures; maps.npz has all")
        return {}
    shown = slice(0, options.samples)
    labels = subject.targets if _are_labels(subject.targets, len(outputs)) else None
    predictions = outputs.argmax(1) if outputs.ndim == 2 else None
    try:
        figure = plots.saliency_grid(
            subject.inputs[shown],
            {title(name): value[shown] for name, value in maps.items()},
            labels=None if labels is None else labels[shown],
            predictions=None if predictions is None else predictions[shown],
            scores=scores[shown],
        )
    except (GradkitError, TypeError, KeyError) as error:
        reason = getattr(error, "message", None) or "a map is not one tensor"
        print(f"No figure of the maps: {reason}; maps.npz has all")
        return {}
    return figure_files(options.out, "maps", figure)


def _are_labels(targets: Any, count: int) -> bool:
    return (
        isinstance(targets, Tensor)
        and targets.shape == (count,)
        and not targets.is_floating_point()
    )


def _parser() -> Parser:
    parser = Parser("saliency", _DESCRIPTION, _EXAMPLE)
    add = parser.add_argument
    add("target", metavar="TARGET", help=HELP)
    add(
        "--methods", default=_DEFAULT, metavar="NAMES",
        help=f"separated by commas, of {', '.join(saliency.METHODS)}"
        " (default: %(default)s)",
    )  # fmt: skip
    add(
        "--out", type=Path, metavar="DIR", default=Path("gradkit-saliency"),
        help="where figures (PNG, SVG) and arrays (.npz) go (default: %(default)s)",
    )  # fmt: skip
    add("--checks", action="store_true", help="make the honesty checks too")
    add(
        "--class", dest="index", type=whole_number(0), metavar="K",
        help="the class whose score is explained (default: the target's objective, its"
        " targets as labels, or else the class with the highest score)",
    )  # fmt: skip
    add("--wrt", help="an input's key or a submodule, such as an embedding")
    add("--of", help="an output's key or a submodule, as of= takes it")
    add("--layer", metavar="NAME", help="the submodule that grad_cam weights")
    add("--window", metavar="H,W", help="what occlusion covers, one size per axis")
    add(
        "--baseline", type=baseline, default=0.0, metavar="B",
        help="a number that fills what the map is over (default: 0); or by the inputs'"
        " places, as token ids need it: 3, for the pad id 3 of the one input, 3,none"
        " beside a mask, ids=3 by a key",
    )  # fmt: skip
    add("--steps", type=whole_number(1), default=50, help="(default: 50)")
    add("--draws", type=whole_number(1), default=50, help="(default: 50)")
    add("--seed", type=whole_number(0), default=0, help="(default: 0)")
    add("--max-memory", help='bytes, or "2GB"')
    add(
        "--samples", type=whole_number(1, 12), default=8,
        help="how many are drawn; maps are made of all (default: 8)",
    )  # fmt: skip
    add(
        "--set", action="append", default=[], metavar="KEY=VALUE",
        help="an argument of the function that TARGET names; may be repeated",
    )  # fmt: skip
    add("--json", metavar="FILE", help="write what the checks say; - prints it")
    return parser
