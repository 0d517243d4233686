"""The gradients' norms of all digits, stored, and those with the largest."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from gradkit import mnist, plots, quantities
from gradkit.cli._command import UsageError
from gradkit.cli._files import Writer
from gradkit.cli._saliency_figures import figure_files
from gradkit.cli._stream_summary import top
from gradkit.errors import InputError
from gradkit.streaming._stream import stream

__all__ = ["NEEDED", "STREAM_FIGURE", "stream_digits"]

#: What storing needs beside the rest.
NEEDED = ["zarr"]
STREAM_FIGURE = "largest_gradients"
_BATCH = 100
_SHOWN = 20


def stream_digits(
    network: nn.Module, data: mnist.Digits, store: str, folder: Path
) -> tuple[str, dict[Path, Writer]]:
    """Store the norms of all digits, those to train on first.

    Returns:
        What to say of them, and what writes the figure.

    Raises:
        UsageError: The store cannot be written, or is another network's.
    """
    images = torch.cat([data.train_images, data.test_images]).cpu()
    labels = torch.cat([data.train_labels, data.test_labels]).cpu()
    loader = DataLoader(TensorDataset(images, labels), batch_size=_BATCH)
    try:
        rows = stream(quantities.gradient_norm(network), loader, store)
    except (InputError, OSError) as error:
        raise UsageError(f"argument --stream: {error}") from error
    norms = rows["gradient_norm"]
    values, samples = top(norms, min(_SHOWN, len(norms)))
    shown = images[samples]
    with torch.no_grad():
        device = next(network.parameters()).device
        guesses = network(shown.to(device)).argmax(1).cpu()
    figure = plots.ranked_samples(
        shown,
        values,
        samples=samples,
        name="norm",
        title="The digits that the network learns most from: norms of their gradients",
        labels=labels[samples],
        predictions=guesses,
    )
    everything = norms[:].double()
    share = float(values.double().square().sum() / everything.square().sum())
    text = (
        f"Stored the gradients' norms of {len(rows):,} digits in {rows.address}:"
        f" median {everything.median():.3g}, largest {everything.max():.3g}. The"
        f" {len(values)} largest make {share:.0%} of the sum of squares."
    )
    return text, figure_files(folder, STREAM_FIGURE, figure)
