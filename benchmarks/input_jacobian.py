"""The input Jacobian of the 784-500-10 network beside its bound and its peers.

Its bound is the one product that no method can do without: ``N * 10`` cotangents of
500 hidden units times the first layer's weight. Run as::

    python -m benchmarks.input_jacobian
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable
from importlib.util import find_spec

import torch
from torch import Tensor, nn

import gradkit as gk
from benchmarks import timing
from benchmarks.timing import Contender

INPUTS, HIDDEN, OUTPUTS = 784, 500, 10


def network(device: torch.device) -> nn.Sequential:
    """Return the network, with the default initialisation."""
    layers = nn.Linear(INPUTS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, OUTPUTS)
    return nn.Sequential(*layers).to(device)


def onehot_loop(model: nn.Module, inputs: Tensor) -> Tensor:
    """Return ``(N, 10, 784)`` as one would write it by hand: a backward per output."""
    inputs = inputs.detach().requires_grad_()
    outputs = model(inputs)
    jacobian = inputs.new_empty(len(inputs), OUTPUTS, INPUTS)
    for k in range(OUTPUTS):
        cotangent = torch.zeros_like(outputs)
        cotangent[:, k] = 1
        (jacobian[:, k],) = torch.autograd.grad(
            outputs, inputs, cotangent, retain_graph=True
        )
    return jacobian


def vmap_jacrev(model: nn.Module, inputs: Tensor) -> Tensor:
    """Return ``(N, 10, 784)`` by ``torch.func``."""
    return torch.func.vmap(torch.func.jacrev(model))(inputs).detach()


def functional_jacobian(model: nn.Module, inputs: Tensor) -> Tensor:
    """Return ``(N, 10, 784)``: the diagonal of the batch's ``(N, 10, N, 784)``."""
    whole = torch.autograd.functional.jacobian(model, inputs)
    assert isinstance(whole, Tensor)
    return whole.diagonal(dim1=0, dim2=2).movedim(-1, 0)


def captum_rows(model: nn.Module, inputs: Tensor) -> Tensor:
    """Return ``(N, 10, 784)`` by captum: the signed saliency of one class at a time."""
    # The extra `bench` brings it.
    from captum.attr import Saliency  # pyright: ignore[reportMissingImports]

    saliency, inputs = Saliency(model), inputs.clone().requires_grad_()
    rows = [saliency.attribute(inputs, target=k, abs=False) for k in range(OUTPUTS)]
    return torch.stack(rows, dim=1)


PEERS: dict[str, Callable[[nn.Module, Tensor], Tensor]] = {
    "`torch.func.vmap(jacrev(model))`": vmap_jacrev,
    "one-hot loop by hand": onehot_loop,
}
if find_spec("captum"):
    PEERS["captum `Saliency`, class by class"] = captum_rows


def contenders(samples: int, device: torch.device) -> list[Contender]:
    """Return the work to compare; the product into a fresh result comes first."""
    model, inputs = network(device), torch.rand(samples, INPUTS, device=device)
    left = torch.randn(samples * OUTPUTS, HIDDEN, device=device)
    right = model.get_parameter("0.weight").detach()
    reused = left.new_empty(samples * OUTPUTS, INPUTS)
    shape = f"{samples * OUTPUTS}×{HIDDEN}×{INPUTS} product"
    return [
        Contender(f"{shape}, fresh result", lambda _: left @ right),
        Contender(f"{shape}, reused", lambda _: torch.mm(left, right, out=reused)),
        Contender("`gk.jacobian`", lambda _: gk.jacobian(model, inputs)),
        Contender(
            "`gk.jacobian`, first call with a model",
            lambda fresh: gk.jacobian(fresh, inputs),
            prepare=lambda: copy.deepcopy(model),
        ),
        *(
            Contender(name, lambda _, peer=peer: peer(model, inputs))
            for name, peer in PEERS.items()
        ),
        Contender(
            "`torch.autograd.functional.jacobian`",
            lambda _: torch.autograd.functional.jacobian(model, inputs),
            every=20,
        ),
    ]


def largest_difference(samples: int, device: torch.device) -> float:
    """Return by how much the peers' Jacobians differ from gradkit's, of its largest."""
    model, inputs = network(device), torch.rand(samples, INPUTS, device=device)
    ours = gk.jacobian(model, inputs)
    theirs = [peer(model, inputs) for peer in (*PEERS.values(), functional_jacobian)]
    scale = ours.abs().max()
    return max(((ours - other).abs().max() / scale).item() for other in theirs)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Time an input Jacobian.")
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"))
    options = parser.parse_args()
    torch.manual_seed(0)
    work = contenders(options.samples, options.device)
    timing.measure(work, rounds=options.rounds, warmup=20, device=options.device)

    bound, slowest = work[0].median, work[-1].median
    header = ("work", "median ms", "× product", "functional ÷ it")
    rows = [
        (
            contender.name,
            f"{contender.median * 1e3:.2f}",
            f"{contender.median / bound:.2f}",
            f"{slowest / contender.median:.0f}",
        )
        for contender in work
    ]
    print(
        f"Input Jacobian of {INPUTS}-{HIDDEN}-{OUTPUTS}, N = {options.samples},"
        f" float32; medians of {options.rounds} interleaved rounds.\n"
        f"{timing.machine(options.device)}\n"
    )
    print(timing.table(header, rows))
    difference = largest_difference(options.samples, options.device)
    print(f"\nLargest difference from the peers: {difference:.1e} of max|J|.")


if __name__ == "__main__":
    main()
