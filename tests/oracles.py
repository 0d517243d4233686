"""Independent truth: derivatives by definition, from torch alone, in float64.

Two ways that share nothing give the *full* derivative of every entry of every output
with respect to every entry of every tensor: one ordinary backward per output entry,
and central differences per input entry. What belongs to a sample is the diagonal
block of the full derivative, and the rest of it must be zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from probes import Path, Probe

Blocks = dict[Path, dict[Path, Tensor]]  # output, then leaf


def one_backward_per_entry(probe: Probe) -> Blocks:
    """Return ``(*y, *x)`` per output and leaf: the loop everyone can check by eye."""
    leaves = list(probe.leaves.values())
    result: Blocks = {}
    for path, y in probe.run().items():
        y = y + 0 * sum(leaf.sum() for leaf in leaves)  # what y does not use has zeros
        rows = [torch.autograd.grad(e, leaves, retain_graph=True) for e in y.flatten()]
        blocks = [torch.stack(block).reshape(*y.shape, *block[0].shape)
                  for block in zip(*rows, strict=True)]  # fmt: skip
        result[path] = dict(zip(probe.leaves, blocks, strict=True))
    return result


def values_of(probe: Probe) -> dict[Path, Tensor]:
    # Cloned: an output may be a view of a leaf that is about to move.
    return {path: y.detach().clone() for path, y in probe.run().items()}


def central_differences(probe: Probe) -> Blocks:
    """Return ``(*y, *x)`` per output and leaf, without using any derivative.

    The error is ``step**2 * f''' / 6`` of truncation and ``eps * |f| / step`` of
    rounding; the cube root of eps balances them near 1e-10.
    """
    result: Blocks = {}
    for name, leaf in probe.leaves.items():
        columns: dict[Path, list[Tensor]] = {}
        entries = leaf.detach().view(-1)
        for d in range(len(entries)):
            centre = entries[d].item()
            step = torch.finfo(torch.float64).eps ** (1 / 3) * max(1.0, abs(centre))
            entries[d] = centre + step
            above = values_of(probe)
            entries[d] = centre - step
            below = values_of(probe)
            entries[d] = centre
            width = (centre + step) - (centre - step)  # as represented, not as meant
            for path, y in above.items():
                difference = (y - below[path]) / width
                columns.setdefault(path, []).append(difference)
        for path, parts in columns.items():
            full = torch.stack(parts, -1).reshape(*parts[0].shape, *leaf.shape)
            result.setdefault(path, {})[name] = full
    return result


def own_blocks(full: Blocks, outputs: Mapping[Path, Tensor]) -> Blocks:
    """Return ``(N, *out, *in)``: each sample's own block of ``(N, *out, N, *in)``.

    Raises:
        AssertionError: A derivative of one sample's output with respect to another
            sample's input is not exactly zero, so "its own" would mean nothing.
    """
    result: Blocks = {}
    for path, blocks in full.items():
        axis = outputs[path].ndim
        for name, block in blocks.items():
            own = torch.diagonal(block, 0, 0, axis).movedim(-1, 0)
            across = block.abs().sum() - own.abs().sum()
            assert across <= 1e-12 * block.abs().sum(), f"{path} mixes samples: {name}"
            result.setdefault(path, {})[name] = own
    return result


def derivative(probe: Probe, full: Callable[[Probe], Blocks], batched: bool) -> Blocks:
    """Return what gradkit owes: own blocks, or all where no sample axis is assumed."""
    blocks = full(probe)
    if batched and probe.per_sample:
        return own_blocks(blocks, probe.run())
    return blocks


def contract(cotangent: Tensor, jacobian: Tensor, samples: bool) -> Tensor:
    """Return ``sum_k c[n, k] J[n, k, d]``; over all of ``c`` where not ``samples``."""
    lead = cotangent.shape[:1] if samples else ()
    rows = math.prod(cotangent.shape[len(lead) :])
    rest = jacobian.shape[cotangent.ndim :]
    c = cotangent.reshape(*lead, rows, 1)
    return (
        (c * jacobian.reshape(*lead, rows, math.prod(rest)))
        .sum(-2)
        .reshape(*lead, *rest)
    )
