"""Parameter rows of every module that PyTorch's own tests know.

For the figures, with all entries of every class::

    python tests/test_module_database.py
"""

from __future__ import annotations

import functools
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import gradkit as gk
import module_database as database
from gradkit.errors import GradkitError, SampleDependenceError
from module_database import MIXED, NO_PARAMETERS, NO_SAMPLES, REDUCED, Entry
from sample_loop import (
    Rows,
    Verdict,
    assert_rows,
    assert_sums,
    gradient,
    judge,
    named_parameters,
    sample_rows,
)

# Classes some of whose calls cannot be asked for rows, and why; of those in
# `WITHOUT_PARAMETERS` none can.
LEFT_OUT: dict[str, set[str]] = {
    "nn.BatchNorm1d": {MIXED, NO_PARAMETERS},
    "nn.BatchNorm2d": {MIXED, NO_PARAMETERS},
    "nn.BatchNorm3d": {MIXED, NO_PARAMETERS},
    "nn.GroupNorm": {NO_PARAMETERS},
    "nn.InstanceNorm1d": {NO_PARAMETERS},
    "nn.InstanceNorm2d": {NO_PARAMETERS},
    "nn.InstanceNorm3d": {NO_PARAMETERS},
    "nn.LayerNorm": {NO_PARAMETERS, NO_SAMPLES},
    "nn.LinearCrossEntropyLoss": {REDUCED},
    "nn.RMSNorm": {NO_PARAMETERS, NO_SAMPLES},
}
WITHOUT_PARAMETERS = {
    "nn.AdaptiveAvgPool1d", "nn.AdaptiveAvgPool2d", "nn.AdaptiveAvgPool3d",
    "nn.AdaptiveMaxPool1d", "nn.AdaptiveMaxPool2d", "nn.AdaptiveMaxPool3d",
    "nn.AvgPool1d", "nn.AvgPool2d", "nn.AvgPool3d", "nn.CELU", "nn.CosineEmbeddingLoss",
    "nn.ELU", "nn.FractionalMaxPool2d", "nn.FractionalMaxPool3d", "nn.L1Loss",
    "nn.SmoothL1Loss", "nn.LPPool1d", "nn.LPPool2d", "nn.LPPool3d", "nn.MaxPool1d",
    "nn.MaxPool2d", "nn.MaxPool3d", "nn.KLDivLoss", "nn.MSELoss",
    "nn.MarginRankingLoss", "nn.MultiLabelMarginLoss", "nn.MultiMarginLoss",
    "nn.SoftMarginLoss", "nn.MultiLabelSoftMarginLoss", "nn.NLLLoss",
    "nn.GaussianNLLLoss", "nn.PoissonNLLLoss", "nn.HingeEmbeddingLoss", "nn.HuberLoss",
    "nn.BCELoss", "nn.BCEWithLogitsLoss", "nn.CrossEntropyLoss", "nn.CTCLoss",
    "nn.GELU", "nn.GLU", "nn.Hardshrink", "nn.Hardswish", "nn.Hardtanh",
    "nn.LocalResponseNorm", "nn.ReLU", "nn.LeakyReLU", "nn.ReLU6", "nn.Sigmoid",
    "nn.LogSigmoid", "nn.SiLU", "nn.Softmax", "nn.Softmax2d", "nn.LogSoftmax",
    "nn.Softmin", "nn.Softplus", "nn.Softshrink", "nn.Softsign", "nn.Tanh",
    "nn.Tanhshrink", "nn.Threshold", "nn.Mish", "nn.ReflectionPad1d",
    "nn.ReflectionPad2d", "nn.ReflectionPad3d", "nn.ReplicationPad1d",
    "nn.ReplicationPad2d", "nn.ReplicationPad3d", "nn.SELU", "nn.ZeroPad1d",
    "nn.ZeroPad2d", "nn.ZeroPad3d", "nn.CircularPad1d", "nn.CircularPad2d",
    "nn.CircularPad3d", "nn.ConstantPad1d", "nn.ConstantPad2d", "nn.ConstantPad3d",
}  # fmt: skip
SERVED = [name for name in database.classes() if name not in WITHOUT_PARAMETERS]

# The database gives it options that it says it leaves out.
pytestmark = pytest.mark.filterwarnings("ignore:linear_cross_entropy")


def objective(weights: Tensor) -> Callable[[Tensor], Tensor]:
    """Return one number per sample: its outputs weighted at random, with a bend."""

    def objective(outputs: Tensor) -> Tensor:
        bent = weights * torch.sin(outputs)
        return bent.flatten(1).sum(1) if bent.ndim > 1 else bent

    return objective


def weights_for(entry: Entry) -> Tensor:
    outputs = entry.outputs().detach()
    return torch.randn(
        outputs.shape[1:], dtype=outputs.dtype, device=outputs.device,
        generator=torch.Generator(outputs.device).manual_seed(2),
    )  # fmt: skip


def rows_of(entry: Entry, weights: Tensor) -> gk.ParameterJacobian:
    inputs = {
        name: gk.shared(value) if name in entry.shared else value
        for name, value in entry.inputs.items()
    }
    of = 0 if entry.several else None
    return gk.per_sample_gradients(entry.model, inputs, objective(weights), of=of)


def loop(entry: Entry, weights: Tensor) -> Rows:
    def own(n: int) -> Tensor:
        return objective(weights)(entry.outputs(slice(n, n + 1)))[0]

    return sample_rows(named_parameters(entry.model), own, entry.samples)


def judged(entry: Entry, ask: Callable[[Entry, Tensor], Any] = rows_of) -> Verdict:
    """Return what came of the question for an entry's rows."""
    weights = weights_for(entry)
    expected = loop(entry, weights)

    def check(found: Any) -> None:
        assert_rows(found, expected)
        total = objective(weights)(entry.outputs()).sum()
        ordinary = gradient(total, named_parameters(entry.model).values())
        assert_sums(found, expected, ordinary)

    return judge(lambda: ask(entry, weights), check, (GradkitError,))


@functools.cache
def entries(name: str, device: torch.device, **most: int) -> list[Entry]:
    """Return the entries of a class, in eval and in training mode."""
    return [
        entry
        for training in (False, True)
        for entry in database.entries(name, training, device, **most)
    ]


def verdicts(entries: list[Entry]) -> dict[str, Verdict]:
    return {e.name: judged(e) for e in entries if not e.left_out}


# --- what gradkit owes ------------------------------------------------------------


@pytest.mark.parametrize("name", SERVED)
def test_rows_norms_and_gram_matrix_are_the_loops(
    name: str, device: torch.device
) -> None:
    found = verdicts(entries(name, device))
    # Older releases of torch give some classes no entry with parameters.
    assert found or {e.left_out for e in entries(name, device)} == {NO_PARAMETERS}
    assert {n: v for n, v in found.items() if v[0] != "right"} == {}


# --- what is left out, and why ----------------------------------------------------


@pytest.mark.parametrize("name", SERVED)
def test_what_is_left_out_is_listed(name: str, device: torch.device) -> None:
    reasons = {entry.left_out for entry in entries(name, device)}
    assert reasons - {""} == LEFT_OUT.get(name, set())


@pytest.mark.parametrize("name", sorted(WITHOUT_PARAMETERS & {*database.classes()}))
def test_what_has_no_parameters_has_none(name: str, device: torch.device) -> None:
    assert {entry.left_out for entry in entries(name, device)} == {NO_PARAMETERS}


def left_out(reason: str, device: torch.device) -> list[Entry]:
    names = [name for name, reasons in LEFT_OUT.items() if reason in reasons]
    known = [name for name in names if name in database.classes()]
    found = [e for n in known for e in entries(n, device) if e.left_out == reason]
    assert found or not known  # which older releases of torch need not have
    return found


def test_what_has_no_samples_has_no_rows(device: torch.device) -> None:
    for entry in left_out(NO_SAMPLES, device):
        assert entry.samples == 0
        rows = rows_of(entry, torch.ones((), dtype=torch.float64, device=device))
        shapes = {name: part.shape for name, part in rows.items()}
        parameters = named_parameters(entry.model)
        assert shapes == {name: (0, *p.shape) for name, p in parameters.items()}


def test_what_is_reduced_to_one_number_is_refused(device: torch.device) -> None:
    for entry in left_out(REDUCED, device):
        assert entry.outputs().ndim == 0
        with pytest.raises(GradkitError, match=r"\(\)"):
            rows_of(entry, torch.ones((), dtype=torch.float64, device=device))


def test_what_normalises_over_the_batch_is_refused_by_name(
    device: torch.device,
) -> None:
    for entry in left_out(MIXED, device):
        first = next(iter(entry.inputs))
        moved = entry.inputs[first].clone()
        moved[-1] += 1
        other = replace(entry, inputs={**entry.inputs, first: moved})
        assert not torch.allclose(entry.outputs()[0], other.outputs()[0])
        with pytest.raises(SampleDependenceError, match=type(entry.model).__name__):
            rows_of(entry, weights_for(entry))


# --- that the judge can find fault ------------------------------------------------


def one_entry() -> Entry:
    """Return an LSTM of two layers: four uses of each matrix, in a batch of four."""
    found = database.entries("nn.LSTM", False, torch.device("cpu"))
    return next(e for e in found if e.several and len(named_parameters(e.model)) > 6)


def planted(change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> Any:
    def ask(entry: Entry, weights: Tensor) -> Rows:
        right = loop(entry, weights)
        return replace(right, parts=change(dict(right.parts)))

    return ask


def one_zeroed(parts: dict[str, Tensor]) -> dict[str, Tensor]:
    name = next(iter(parts))
    return {**parts, name: torch.zeros_like(parts[name])}


class GramAlone(Rows):
    """Right but for the inner products of one sample's row with another's."""

    def gram(self) -> Tensor:
        return torch.diag(super().gram().diag())


def gram_alone(entry: Entry, weights: Tensor) -> Rows:
    right = loop(entry, weights)
    return GramAlone(right.parts, right.lead)


def raising(error: Exception) -> Any:
    def ask(entry: Entry, weights: Tensor) -> Rows:
        raise error

    return ask


def each(change: Callable[[Tensor], Tensor]) -> Any:
    return planted(lambda parts: {name: change(p) for name, p in parts.items()})


@pytest.mark.parametrize(
    ("ask", "verdict"),
    [
        pytest.param(each(lambda p: p), "right", id="the-loop-itself"),
        pytest.param(each(lambda p: p * (1 + 1e-8)), "wrong", id="slightly-off"),
        pytest.param(each(lambda p: p.flip(0)), "wrong", id="samples-turned-round"),
        pytest.param(each(lambda p: p / len(p)), "wrong", id="divided-by-the-batch"),
        pytest.param(each(lambda p: p * torch.nan), "wrong", id="undefined"),
        pytest.param(each(lambda p: p.float()), "wrong", id="single"),
        pytest.param(each(lambda p: p[:-1]), "wrong", id="one-sample-less"),
        pytest.param(
            each(lambda p: p.sum(0) - (p.sum(0) - p)), "right", id="rounded-anew"
        ),
        pytest.param(planted(one_zeroed), "wrong", id="one-parameter-zeroed"),
        pytest.param(gram_alone, "wrong", id="gram-alone"),
        pytest.param(raising(GradkitError("on purpose")), "refused", id="refused"),
        pytest.param(raising(RuntimeError("on purpose")), "crashed", id="crashed"),
    ],
)
def test_the_judge(ask: Any, verdict: str) -> None:
    assert judged(one_entry(), ask)[0] == verdict


if __name__ == "__main__":
    counts: Counter[str] = Counter()
    for served in SERVED:
        every = entries(served, torch.device("cpu"), most=10**6)
        found = verdicts(every)
        counts.update(verdict for verdict, _ in found.values())
        counts.update(entry.left_out for entry in every if entry.left_out)
        lines = [f"{n}: {v}: {why}" for n, (v, why) in found.items() if why]
        sys.stdout.write("".join(line + "\n" for line in lines))
    sys.stdout.write(f"{len(SERVED)} classes: {dict(counts)}\n")
