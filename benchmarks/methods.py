"""What each method costs on each of the four questions, beside a plain step.

Whole public calls, results formed. Run as::

    python -m benchmarks.methods
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import gradkit as gk
from benchmarks import problems, timing
from benchmarks.problems import Problem
from benchmarks.timing import Contender

#: Networks, and how many samples they are given.
NETWORKS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "MLP 784-500-10, N = 100": (problems.mlp(784, 500, 10), 100),
    "small CNN, N = 32": (problems.cnn, 32),
}

#: Seconds beyond which a method is measured in two rounds alone.
SLOW = 0.5


def question(name: str, problem: Problem, method: str) -> object:
    """Ask one of the four questions by one method."""
    model, inputs = problem.model, problem.inputs
    loss = gk.objectives.sample_loss(nn.functional.cross_entropy, problem.targets)
    asked: dict[str, Callable[[], Any]] = {
        "input_gradients": lambda: gk.input_gradients(
            model, inputs, loss, method=method
        ),
        "jacobian": lambda: gk.jacobian(model, inputs, method=method),
        "per_sample_gradients": lambda: gk.per_sample_gradients(
            model, inputs, loss, method=method
        ).to_dict(),
        # Formed rows are 10 times as many; their norms ask as much of a method.
        "parameter_jacobian": lambda: gk.parameter_jacobian(
            model, inputs, method=method
        ).norms(),
    }
    return asked[name]()


QUESTIONS = (
    "input_gradients",
    "jacobian",
    "per_sample_gradients",
    "parameter_jacobian",
)


def ratios(network: str, rounds: int) -> list[tuple[str, ...]]:
    """Return a line per question: each method's time as a multiple of a plain step."""
    make, samples = NETWORKS[network]
    device = torch.device("cpu")
    problem = problems.problem(make, samples, device)
    plain = Contender("plain step", lambda _: problems.step(problem))
    asked = {
        (name, method): contender
        for name in QUESTIONS
        for method in ("auto", *gk.METHODS)
        if (contender := _contender(problem, name, method, rounds)) is not None
    }
    timing.measure([plain, *asked.values()], rounds=rounds, warmup=4, device=device)
    lines = []
    for name in QUESTIONS:
        cells = [f"`{name}`"]
        for method in ("auto", *gk.METHODS):
            found = asked.get((name, method))
            cells.append("–" if found is None else _times(found.median / plain.median))
        lines.append(tuple(cells))
    return lines


def _times(ratio: float) -> str:
    return f"{ratio:.1f}" if ratio < 100 else f"{ratio:.0f}"


def _contender(
    problem: Problem, name: str, method: str, rounds: int
) -> Contender | None:
    """Return what asks by a method, or ``None`` where the method does not apply."""
    contender = Contender(
        f"{name} by {method}", lambda _: question(name, problem, method)
    )
    try:
        seconds = timing.timed(contender, torch.device("cpu"))
    except gk.errors.UnsupportedModelError:
        return None
    if seconds > SLOW:
        contender.every = max(rounds // 2, 1)
    return contender


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Time each method on each question.")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(
        "Time of a whole call as a multiple of a plain training step, float32;"
        f" medians of {options.rounds} interleaved rounds.{timing.load()}\n"
        f"{timing.machine(torch.device('cpu'))}"
    )
    for network in NETWORKS:
        print(f"\n### {network}\n")
        header = ("question", "`auto`", *(f"`{m}`" for m in gk.METHODS))
        print(timing.table(header, ratios(network, options.rounds)))


if __name__ == "__main__":
    main()
