"""What is measured: one table each, a network and the entries to compare on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from benchmarks import problems
from benchmarks.entries import (
    Entry,
    plain,
    with_backpack,
    with_gradkit,
    with_inputs,
    with_opacus,
    with_torch_func,
)
from benchmarks.problems import Problem


@dataclass(frozen=True)
class Comparison:
    """One table.

    Args:
        title: Above the table.
        make: Makes the network.
        samples: The batch's size.
        reference: What the ratios are to.
        ours: gradkit; peers are compared with the first.
        peers: Other libraries.
        jax: Names of entries in ``benchmarks.entries.with_jax``, which is imported
            in a process of its own.
    """

    title: str
    make: Callable[[], nn.Module]
    samples: int
    reference: Entry
    ours: tuple[Entry, ...]
    peers: tuple[Entry, ...]
    jax: tuple[str, ...]

    @property
    def returns_rows(self) -> bool:
        """Whether the result is one row per sample and parameter."""
        return with_gradkit.ROWS in self.ours

    def problem(self, device: torch.device) -> Problem:
        """Return the network and the batch, the same in every process."""
        return problems.problem(self.make, self.samples, device)


MLP = "MLP 784-500-10", problems.mlp(784, 500, 10)
CNN = "CNN of 2 convolutions", problems.cnn
TRANSFORMER = "4-layer transformer, d = 128, T = 64", problems.transformer


def _gradients(
    network: tuple[str, Callable[[], nn.Module]], samples: int, reference: Entry
) -> Comparison:
    name, make = network
    return Comparison(
        f"Per-sample gradients, {name}", make, samples, reference,
        ours=(with_gradkit.ROWS, with_gradkit.FRESH_ROWS),
        peers=(with_torch_func.ROWS, with_opacus.ROWS, with_backpack.ROWS),
        jax=("ROWS", "DONATED_ROWS"),
    )  # fmt: skip


def _norms(network: tuple[str, Callable[[], nn.Module]], samples: int) -> Comparison:
    name, make = network
    return Comparison(
        f"Per-sample gradient norms, {name}", make, samples, plain.STEP,
        ours=(with_gradkit.NORMS,),
        peers=(with_torch_func.NORMS, with_opacus.NORMS, with_backpack.NORMS),
        jax=("NORMS",),
    )  # fmt: skip


COMPARISONS = {
    "gradients-mlp": _gradients(MLP, 100, plain.WRITE),
    "gradients-cnn": _gradients(CNN, 100, plain.STEP),
    "gradients-transformer": _gradients(TRANSFORMER, 16, plain.STEP),
    "norms-mlp": _norms(MLP, 100),
    "norms-cnn": _norms(CNN, 100),
    "norms-transformer": _norms(TRANSFORMER, 16),
    "ntk": Comparison(
        "Empirical NTK, MLP 784-500-10", MLP[1], 64, plain.STEP,
        ours=(with_gradkit.KERNEL,), peers=(with_torch_func.KERNEL,), jax=("KERNEL",),
    ),
    "input-jacobian": Comparison(
        "Input Jacobian, MLP 784-500-10", MLP[1], 100, plain.PRODUCT,
        ours=(with_gradkit.JACOBIAN,), peers=with_inputs.JACOBIANS, jax=("JACOBIAN",),
    ),
}  # fmt: skip
