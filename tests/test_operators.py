"""The Jacobian of every differentiable operator that PyTorch's own tests know.

For the figures of one method, ``auto`` unless named::

    python tests/test_operators.py jacrev
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable

import pytest
import torch
from torch import Tensor

import _operators as operators
import gradkit
from _operators import Function, Jacobian, Outcome, Sample
from gradkit.errors import GradkitError

# Sample -> part of the reason for which it is refused.
REFUSED: dict[str, str] = {}


def by_method(method: str) -> Jacobian:
    """Return ``gradkit.jacobian`` by one method, as the judge calls it."""

    def jacobian(function: Function, inputs: Tensor, seed: int | None) -> Tensor:
        return gradkit.jacobian(
            function, inputs, batched=False, seed=seed, method=method
        )

    return jacobian


def judged(method: str, samples: Iterable[Sample]) -> list[Outcome]:
    """Judge samples of the database by one method."""
    return [operators.judge(s, by_method(method), (GradkitError,)) for s in samples]


@pytest.fixture(scope="module")
def samples(device: torch.device) -> list[Sample]:
    return list(operators.samples(device, torch.float64))


@pytest.fixture(scope="module")
def outcomes(samples: list[Sample]) -> list[Outcome]:
    return judged("auto", samples)


def entry(name: str) -> str:
    """Return the entry of the database that a sample is of."""
    return name.rpartition("-")[0]


def having(outcomes: list[Outcome], verdict: str) -> dict[str, str]:
    return {o.name: o.reason for o in outcomes if o.verdict == verdict}


# --- what gradkit owes ----------------------------------------------------------


def test_the_database_is_there(outcomes: list[Outcome]) -> None:
    assert len({entry(outcome.name) for outcome in outcomes}) >= 430
    assert len(outcomes) == len({outcome.name for outcome in outcomes})


def test_none_is_wrong(outcomes: list[Outcome]) -> None:
    assert having(outcomes, "wrong") == {}


def test_none_ends_in_an_error_that_is_not_ours(outcomes: list[Outcome]) -> None:
    assert having(outcomes, "crashed") == {}


def test_98_percent_are_right(outcomes: list[Outcome]) -> None:
    assert len(having(outcomes, "right")) >= 0.98 * len(outcomes)


def test_refusals_are_the_known_ones(outcomes: list[Outcome]) -> None:
    found = having(outcomes, "refused")
    # Other releases of torch have other entries.
    known = {o.name: REFUSED[o.name] for o in outcomes if o.name in REFUSED}
    assert found.keys() == known.keys(), found
    for name, reason in known.items():
        assert reason in found[name]


@pytest.mark.parametrize(
    "method", [name for name, method in gradkit.METHODS.items() if method.inputs]
)
def test_no_method_is_wrong(method: str, samples: list[Sample]) -> None:
    one_of_each = {entry(sample.name): sample for sample in samples}
    found = judged(method, one_of_each.values())
    assert having(found, "wrong") == {}
    assert having(found, "crashed") == {}
    # Most of the evidence must not be refusals.
    assert len(having(found, "right")) >= 0.85 * len(found)


# --- that the judge can find fault ----------------------------------------------


def torch_jacrev(function: Function, inputs: Tensor, seed: int | None) -> Tensor:
    assert seed is None
    return torch.func.jacrev(function)(inputs)


def one_entry(name: str, device: torch.device) -> list[Sample]:
    found = list(operators.samples(device, torch.float64, only=name))
    assert found, name
    return found


def test_the_trap_is_set(device: torch.device) -> None:
    # torch.func.jacrev gives a wrong Jacobian for cdist and says nothing.
    verdicts = [
        operators.judge(sample, torch_jacrev).verdict
        for sample in one_entry("cdist", device)
    ]
    assert "wrong" in verdicts


def times(factor: float) -> Jacobian:
    return lambda function, inputs, seed: (
        factor * operators.row_loop(function, inputs, seed)
    )


def transposed(function: Function, inputs: Tensor, seed: int | None) -> Tensor:
    right = operators.row_loop(function, inputs, seed)
    return right.reshape(-1, inputs.numel()).T.reshape(right.shape)


def flat(function: Function, inputs: Tensor, seed: int | None) -> Tensor:
    return operators.row_loop(function, inputs, seed).flatten()


def single(function: Function, inputs: Tensor, seed: int | None) -> Tensor:
    return operators.row_loop(function, inputs, seed).float()


def undefined(function: Function, inputs: Tensor, seed: int | None) -> Tensor:
    return operators.row_loop(function, inputs, seed) * torch.nan


def refusing(function: Function, inputs: Tensor, seed: int | None) -> Tensor:
    raise GradkitError("refused on purpose")


def crashing(function: Function, inputs: Tensor, seed: int | None) -> Tensor:
    raise RuntimeError("crashed on purpose")


@pytest.mark.parametrize(
    ("jacobian", "verdict"),
    [
        pytest.param(times(1.0), "right", id="the-loop-itself"),
        pytest.param(times(1 + 1e-8), "wrong", id="slightly-off"),
        pytest.param(times(0.0), "wrong", id="zeros"),
        (transposed, "wrong"),
        (flat, "wrong"),
        (single, "wrong"),
        (undefined, "wrong"),
        (refusing, "refused"),
        (crashing, "crashed"),
    ],
)
def test_the_judge(jacobian: Jacobian, verdict: str, device: torch.device) -> None:
    inputs = torch.randn(2, 3, dtype=torch.float64, device=device)
    sample = Sample("planted", lambda x: torch.sin(x @ x.mT).sum(0), inputs, None)
    assert operators.judge(sample, jacobian, (GradkitError,)).verdict == verdict


def test_random_operators_draw_anew(device: torch.device) -> None:
    # The database seeds each call; unseeded, two seeds must give two masks.
    drawing = [s for s in one_entry("nn.functional.dropout", device) if s.seed]
    first, second = (
        [operators.row_loop(s.function, s.inputs, seed) for s in drawing]
        for seed in (1, 2)
    )
    assert any(not torch.equal(a, b) for a, b in zip(first, second, strict=True))


if __name__ == "__main__":
    every = operators.samples(torch.device("cpu"), torch.float64)
    found = judged(sys.argv[1] if len(sys.argv) > 1 else "auto", every)
    lines = [f"{o.name}: {o.verdict}: {o.reason}" for o in found if o.reason]
    counts = Counter(outcome.verdict for outcome in found)
    sys.stdout.write("\n".join([*lines, f"{len(found)} samples: {dict(counts)}", ""]))
