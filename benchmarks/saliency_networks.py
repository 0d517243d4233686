"""The networks whose maps are measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

import gradkit as gk
from benchmarks import problems


@dataclass(frozen=True)
class Network:
    """A network, and how much slower than the fastest it is.

    Args:
        make: Returns it.
        slower: Rounds are divided by this.
    """

    make: Callable[[], nn.Module]
    slower: int = 1

    def rounds(self, rounds: int) -> int:
        """Return in how many rounds it is measured."""
        return max(rounds // self.slower, 3)


NETWORKS = {
    "MLP 784-500-10": Network(gk.mnist.network),
    "small CNN": Network(problems.cnn, slower=4),
}
