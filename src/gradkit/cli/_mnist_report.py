"""What ``gradkit mnist`` prints, and the same as values for programs."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from gradkit import mnist
from gradkit._tables import table
from gradkit._version import version
from gradkit.cli._json import finite
from gradkit.cli._mnist_measures import REFERENCE, TOLERANCES, Difference, Measures
from gradkit.cli._units import counted, megabytes, milliseconds, relative

_HARDEST = 10


@dataclasses.dataclass(frozen=True)
class Training:
    """How the network came about.

    Attributes:
        source: Where the digits are from.
        train_count: The digits it learned from.
        test_count: The digits that ``accuracy`` is about.
        device: That computed.
        seed: Of all that is drawn.
        history: One entry for each epoch.
        accuracy: On the test digits.
    """

    source: str
    train_count: int
    test_count: int
    device: torch.device
    seed: int
    history: mnist.History
    accuracy: float


def training_text(training: Training) -> str:
    """Return the table of the epochs, and the accuracy on the test digits."""
    history = training.history
    columns = zip(history.losses, history.accuracies, history.seconds, strict=True)
    rows = [
        [str(epoch), f"{loss:.4f}", f"{right:.2%}", milliseconds(seconds)]
        for epoch, (loss, right, seconds) in enumerate(columns, 1)
    ]
    return "\n".join(
        [
            "The network 784-500-10, trained on"
            f" {counted(training.train_count, 'digit')} of {training.source}"
            f" ({training.device}, seed {training.seed})",
            table(["epoch", "loss", "accuracy", "time"], rows),
            f"  test accuracy {training.accuracy:.2%}, of"
            f" {counted(training.test_count, 'digit')}",
        ]
    )


def measures_text(measures: Measures) -> str:
    """Return the tables of the derivatives, and whether all is as it must be."""
    texts = (_gradients_text, _methods_text, _hardest_text, _verdict_text)
    return "\n" + "\n\n".join(text(measures) for text in texts)


def report(training: Training, measures: Measures) -> dict[str, Any]:
    """Return all that was measured in the types that JSON has.

    Args:
        training: How the network came about.
        measures: Of the ``N`` test digits.

    Returns:
        Numbers that are not finite are ``None``. Times are in seconds, memory is
        in bytes, differences are fractions of the largest magnitude.
    """
    value = {
        "gradkit": version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        **dataclasses.asdict(training),
        "device": str(training.device),
        "samples": len(measures.labels),
        "reference": f"{REFERENCE} in float64",
        "tolerances": TOLERANCES,
        "findings": measures.findings,
        "undecided_in_float32": measures.undecided.nonzero().flatten().tolist(),
        "gradients": {
            name: {
                "call": quantity.call,
                "shape": list(quantity.values.shape),
                "largest": float(quantity.values.abs().max()),
                "must_equal": quantity.equals,
                "difference": dataclasses.asdict(quantity.difference),
            }
            for name, quantity in measures.quantities.items()
        },
        "alone_against_batch": _alone_against_batch(measures),
        "jacobian": {
            "shape": list(measures.jacobian.shape),
            "auto": measures.auto,
            "methods": [dataclasses.asdict(run) for run in measures.methods],
        },
        "hardest": _hardest(measures),
    }
    return finite(value, lambda _: None)


def _gradients_text(measures: Measures) -> str:
    rows = [
        [
            quantity.title,
            quantity.equals,
            "x".join(map(str, quantity.values.shape)),
            f"{float(quantity.values.abs().max()):.4g}",
            *_differences(quantity.difference),
        ]
        for quantity in measures.quantities.values()
    ]
    alone = _alone_against_batch(measures)
    where = f"{alone['entries']} of {measures.images.shape[1]} entries"
    how = (
        f"differs in {where}, by at most {relative(alone['difference'])} of the largest"
        if alone["entries"]
        else "is the same bit for bit"
    )
    return "\n".join(
        [
            f"Gradients of {counted(len(measures.labels), 'test digit')}, and how far"
            " they are"
            " from what they must equal",
            table(["gradient of", "must equal", "shape", "largest", *_HEADS], rows, 2),
            f"  Alone and in the batch, the loss gradient of digit 0 {how}.",
        ]
    )


def _methods_text(measures: Measures) -> str:
    served = [run for run in measures.methods if run.difference]
    rows = [
        [
            run.name,
            milliseconds(run.seconds),
            megabytes(run.peak_bytes),
            *_differences(run.difference),
        ]
        for run in served
        if run.difference
    ]
    shape = "x".join(map(str, measures.jacobian.shape))
    lines = [
        f"The Jacobian J of all scores, {shape}, by every method, and how far it is"
        f" from {REFERENCE} in float64",
        table(["method", "time", "peak memory", *_HEADS], rows),
    ]
    lines += [f"  {run.name}: {run.reason}" for run in measures.methods if run.reason]
    lines.append(
        f"  auto takes {measures.auto}. Peak memory is of the tensors alive at once,"
        f" the {megabytes(measures.jacobian.nbytes)} of J among them."
    )
    return "\n".join(lines)


def _hardest_text(measures: Measures) -> str:
    norms = measures.quantities["parameter_norms"].values
    hardest = _hardest(measures)
    rows = [
        [
            str(entry["digit"]),
            str(entry["class"]),
            str(entry["predicted"]),
            f"{entry['probability']:.2%}",
            f"{entry['loss']:.3f}",
            f"{entry['norm']:.3f}",
        ]
        for entry in hardest
    ]
    share = sum(entry["norm"] for entry in hardest) / (float(norms.sum()) or 1.0)
    heads = ["digit", "class", "predicted", "p(class)", "loss", "gradient norm"]
    return "\n".join(
        [
            "The digits that the network learns most from: the largest parameter"
            " gradients",
            table(heads, rows, 0),
            f"  {len(hardest)} of {counted(len(norms), 'digit')}"
            f" {'holds' if len(hardest) == 1 else 'hold'} {share:.0%} of the sum of the"
            f" norms; the median norm is {float(norms.median()):.3g}.",
        ]
    )


def _verdict_text(measures: Measures) -> str:
    lines = []
    if measures.undecided.any():
        count = int(measures.undecided.sum())
        have, are = ("has", "it is") if count == 1 else ("have", "they are")
        lines.append(
            f"{counted(count, 'digit')} {have} a ReLU so near 0 that float32 may round"
            f" it to either side; {are} judged in float64 alone."
        )
    limits = " and ".join(
        f"{limit:.0e} in {name}" for name, limit in TOLERANCES.items()
    )
    findings = measures.findings
    lines.append(
        f"FINDING: these differ by more than {limits}: {', '.join(findings)}."
        if findings
        else f"All agree within {limits}, of the largest entry."
    )
    return "\n".join(lines)


_HEADS = ("float32", "float64")


def _differences(difference: Difference) -> tuple[str, str]:
    return relative(difference.float32), relative(difference.float64)


def _alone_against_batch(measures: Measures) -> dict[str, Any]:
    batch = measures.quantities["loss"].values[:1]
    alone = measures.quantities["single_sample"].values
    largest = float(batch.abs().max()) or 1.0
    return {
        "entries": int((batch != alone).sum()),
        "difference": float((batch - alone).abs().max()) / largest,
    }


def _hardest(measures: Measures) -> list[dict[str, Any]]:
    norms = measures.quantities["parameter_norms"].values
    probabilities = (-measures.losses).exp()
    predicted = measures.outputs.argmax(1)
    return [
        {
            "digit": n,
            "class": int(measures.labels[n]),
            "predicted": int(predicted[n]),
            "probability": float(probabilities[n]),
            "loss": float(measures.losses[n]),
            "norm": float(norms[n]),
        }
        for n in norms.argsort(descending=True)[:_HARDEST].tolist()
    ]
