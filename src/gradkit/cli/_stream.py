"""``gradkit stream``: a quantity of every sample of a data set, in a store."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from gradkit import quantities
from gradkit._subject import Subject
from gradkit.cli._command import A_FILE, FINE, Parser, UsageError, unknown_name
from gradkit.cli._device import device_of
from gradkit.cli._files import check_writable, write_whole
from gradkit.cli._json import document
from gradkit.cli._stream_summary import summary, summary_text
from gradkit.cli._target import HELP, load, read_settings
from gradkit.errors import GradkitError
from gradkit.streaming._open import Rows
from gradkit.streaming._stream import stream

__all__ = ["run"]

#: The makers of ``gk.quantities`` whose rows can be stored.
_QUANTITIES = tuple(
    name
    for name in quantities.__all__
    if name not in ("Quantity", "gradients", "noise_scale")
)
_WITHOUT_CRITERION = ("el2n", "jacobian_norm", "spectral_norm")

_DESCRIPTION = """\
Compute a quantity of every sample of a data set, and keep it in a Zarr store. What is
interrupted goes on at the next call. Under torchrun the processes share the work."""

_FILE = A_FILE.format(
    file="mine.py", name="trained", given="loader=[(x, x.argmax(1) % 3)]"
)
_EXAMPLE = f"""\
{_FILE}

example:
  gradkit stream mine.py:trained --quantity gradient_norm --store norms
  torchrun --nproc-per-node 4 -m gradkit stream mine.py:trained \\
      --quantity projected_gradients --option size=512 --store gradients

exit codes: 0 fine, 2 usage or unusable data, 130 interrupted: the same
command goes on"""


def run(arguments: Sequence[str]) -> int:
    """Run the subcommand.

    Args:
        arguments: What follows ``gradkit stream``.

    Returns:
        The exit code.

    Raises:
        UsageError: An option, the target or the store is unusable.
    """
    options = _options(arguments)
    quiet = options.json == "-"
    file = Path(options.json) if options.json is not None and not quiet else None
    if file is not None:
        check_writable(file, folders=False)
    # With JSON on stdout, what the target itself prints goes to stderr.
    with contextlib.redirect_stdout(sys.stderr if quiet else sys.stdout):
        with _several() as rank:
            rows, seconds = _streamed(options)
        if rank:
            return FINE
        values = summary(rows, seconds, options.quantity)
        print(summary_text(values))
    text = document(values)
    if quiet:
        print(text, end="")
    elif file is not None:
        write_whole({file: lambda stream: stream.write(text.encode())})
    return FINE


def _streamed(options: argparse.Namespace) -> tuple[Rows, float]:
    subject = load(options.target, options.set, ["loader"])
    if isinstance(subject.model, nn.Module) and options.device is not None:
        subject.model.to(_own_device(options.device))
    begin = time.monotonic()
    try:
        quantity = _quantity(subject, options)
        rows = stream(quantity, subject.loader, options.store)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("the same command goes on where this one was") from None
    except GradkitError as error:
        # The command has the function's name already.
        own = error.function == "stream"
        raise UsageError(error.message if own else str(error)) from error
    except OSError as error:
        raise UsageError(str(error)) from error
    except (UsageError, BrokenPipeError):
        raise
    except Exception as error:
        raise UsageError(f"the model raised {type(error).__name__}: {error}") from error
    return rows, time.monotonic() - begin


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    try:
        return _parser().options(arguments)
    except UsageError as error:
        settings = [a for a in arguments if _is_setting(a) and f"{a!r}" in str(error)]
        if settings:
            raise UsageError(
                f"{error}; an argument of the quantity is --option {settings[0]}, one"
                f" of the function that TARGET names --set {settings[0]}"
            ) from None
        raise


def _is_setting(argument: str) -> bool:
    key, equals, _ = argument.partition("=")
    return bool(equals) and key.lstrip("-").isidentifier()


def _quantity(subject: Subject, options: argparse.Namespace) -> Any:
    given = read_settings(options.option, "--option")
    if options.quantity in _WITHOUT_CRITERION:
        if options.criterion is not None:
            raise UsageError(f"--criterion: {options.quantity} has none")
    elif subject.objective is not None:
        given.setdefault("objective", subject.objective)
    if options.criterion is not None:
        given.setdefault("criterion", _criterion(options.criterion))
    maker: Callable[..., Any] = getattr(quantities, options.quantity)
    try:
        return maker(subject.model, **given)
    except TypeError as error:
        raise UsageError(
            f"{error}; give its arguments by --option KEY=VALUE"
        ) from error


def _criterion(name: str) -> Callable[..., Any]:
    losses = [n for n in dir(F) if n.endswith(("_loss", "cross_entropy"))]
    losses += ["binary_cross_entropy_with_logits", "kl_div"]
    if name not in losses:
        raise UsageError(f"--criterion: {unknown_name('loss', name, losses)}")
    return getattr(F, name)


def _own_device(name: str) -> torch.device:
    """Return a device; of several processes on one host each gets its own."""
    if name == "cuda" and "LOCAL_RANK" in os.environ:
        name = f"cuda:{os.environ['LOCAL_RANK']}"
    return device_of(name)


@contextlib.contextmanager
def _several() -> Iterator[int]:
    """Connect the processes that ``torchrun`` has started; give this one's rank."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield 0
        return
    torch.distributed.init_process_group("gloo")
    try:
        yield torch.distributed.get_rank()
    finally:
        torch.distributed.destroy_process_group()


def _parser() -> Parser:
    parser = Parser("stream", _DESCRIPTION, _EXAMPLE)
    parser.add_argument("target", metavar="TARGET", help=f"{HELP}; its loader is used")
    parser.add_argument(
        "--quantity", required=True, choices=_QUANTITIES, metavar="NAME",
        help=f"one of {', '.join(_QUANTITIES)}",
    )  # fmt: skip
    parser.add_argument(
        "--store", required=True, metavar="DIR",
        help="a folder, or an address that fsspec knows, such as s3://bucket/rows",
    )  # fmt: skip
    parser.add_argument(
        "--option", action="append", default=[], metavar="KEY=VALUE",
        help="an argument of the quantity, as in gk.quantities, such as size=512; may"
        " be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--criterion", metavar="NAME",
        help="a loss of torch.nn.functional (default: cross_entropy)",
    )  # fmt: skip
    parser.add_argument(
        "--device", metavar="NAME",
        help="moves the model there; cuda is each process's own",
    )  # fmt: skip
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE",
        help="an argument of the function that TARGET names; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--json", metavar="FILE",
        help="write the summary as JSON; - prints it, and nothing else",
    )  # fmt: skip
    return parser
