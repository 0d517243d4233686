"""Peers of the input Jacobian, as ``benchmarks.input_jacobian`` writes them."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from benchmarks import input_jacobian
from benchmarks.entries._entry import Entry, Work
from benchmarks.problems import Problem


def _entry(
    name: str, peer: Callable[[nn.Module, Tensor], Tensor], every: int = 1
) -> Entry:
    def build(problem: Problem) -> Work:
        return Work(lambda: peer(problem.model, problem.inputs))

    return Entry(name, build, every=every)


JACOBIANS = (
    *(_entry(name, peer) for name, peer in input_jacobian.PEERS.items()),
    _entry(
        "`torch.autograd.functional.jacobian`",
        input_jacobian.functional_jacobian,
        every=20,
    ),
)
