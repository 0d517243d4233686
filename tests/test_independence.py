"""Models that couple samples are refused, and honest ones never are.

One cotangent per sample says nothing of whose inputs or parameters it reaches when
samples meet inside the model; every number would look plausible and be wrong.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import gradkit as gk
from architectures import ARCHITECTURES, Architecture, called
from case import DEVICE
from couplings import COUPLINGS, Coupling, coupled_objectives
from gradkit._guards import _independence
from gradkit.errors import SampleDependenceError
from probes import by_path

FUNCTIONS = (
    "input_gradients",
    "jacobian",
    "per_sample_gradients",
    "parameter_jacobian",
)
PRECISIONS = (torch.float32, torch.float64)
DRAWS = 50


def ask(function: str, model: Any, inputs: Any, **options: Any) -> Any:
    if function in ("input_gradients", "per_sample_gradients"):
        options.setdefault("objective", gk.objectives.output_sum)
    return getattr(gk, function)(model.to(DEVICE), inputs.to(DEVICE), **options)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("coupling", COUPLINGS)
def test_a_coupling_is_refused_at_every_draw(coupling: Coupling, function: str):
    by_input = function in ("input_gradients", "jacobian")
    options = {"wrt": "embedding"} if coupling.tokens and by_input else {}
    accepted, refusals = [], []
    for index in range(DRAWS):
        model, inputs = coupling.draw(index, PRECISIONS[index % 2])
        try:
            ask(function, model, inputs, **options)
        except SampleDependenceError as error:
            refusals.append(str(error))
        else:
            accepted.append((index, tuple(inputs.shape)))
    assert not accepted, f"{len(accepted)} of {DRAWS} draws were accepted: {accepted}"
    assert all(coupling.named in text for text in refusals)


def test_two_samples_of_many_that_meet_are_seen():
    def first_into_last(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x[:-1], x[-1:] + x[:1]])

    for index in range(200):
        inputs = torch.randn(51 + index, 3, device=DEVICE)
        with pytest.raises(SampleDependenceError):
            gk.jacobian(lambda x: first_into_last(x), inputs)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_an_honest_architecture_is_never_refused(architecture: Architecture):
    for index in range(DRAWS):
        function = FUNCTIONS[index % len(FUNCTIONS)]
        dtype = PRECISIONS[index // len(FUNCTIONS) % 2]
        model, inputs = architecture.draw(index, dtype)
        by_parameter = function in ("per_sample_gradients", "parameter_jacobian")
        answer = ask(function, model, inputs, **called(architecture, by_parameter))
        answer = answer.to_dict() if by_parameter else answer
        for path, value in by_path(answer).items():
            assert len(value) == len(inputs)
            assert value.isfinite().all(), f"draw {index}: {function}, {path}"


@pytest.mark.parametrize("function", ["input_gradients", "per_sample_gradients"])
@pytest.mark.parametrize("name", coupled_objectives())
def test_an_objective_that_couples_samples_is_refused(name: str, function: str):
    objective = coupled_objectives()[name]
    for index in range(DRAWS):
        torch.manual_seed(index)
        dtype = PRECISIONS[index % 2]
        model = torch.nn.Linear(4, 12).to(dtype)
        inputs = torch.randn(2 + index % 5, 4, dtype=dtype)
        with pytest.raises(SampleDependenceError, match="objective"):
            ask(function, model, inputs, objective=objective)


def test_there_are_enough_honest_architectures():
    assert len(ARCHITECTURES) >= 20
    assert any(architecture.seed is not None for architecture in ARCHITECTURES)


@pytest.mark.parametrize("size", [1e-43, 1e-38, 1.0, 1e38])
def test_weights_that_leave_the_range_hide_no_coupling(size: float, monkeypatch: Any):
    # 0 * 2**-12 is 0 whoever reached the sample, and infinity times 2**12 infinity.
    weights = torch.tensor([2.0**-12, 2.0**-11] if size < 1 else [2.0**12, 2.0**11])
    monkeypatch.setattr(_independence, "_powers", lambda *_: iter([weights]))
    cotangent = torch.tensor([[1.0, -1.0], [0.5, 1.5]], device=DEVICE)
    swapped = _independence.coupled_sample(lambda c: (c.flip(0) * size,), cotangent)
    assert swapped is not None
    own = _independence.coupled_sample(lambda c: (c * size,), cotangent)
    assert own is None
