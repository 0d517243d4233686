"""Rows of small BERTs, Llamas, ResNets … against one sample at a time."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

import gradkit as gk
from case import DEVICE
from gradkit.errors import SampleDependenceError
from probes import fork_random_state
from sample_loop import (
    Rows,
    assert_rows,
    assert_sums,
    gradient,
    named_parameters,
    sample_rows,
)
from zoo import ZOO, Inputs, N, Specimen, bert, padded_tokens, some

SEED = 31


@dataclass(frozen=True)
class Question:
    """A model, its inputs, and one number per sample of its outputs."""

    specimen: Specimen
    model: nn.Module
    inputs: Inputs
    weights: Tensor

    def objective(self, outputs: Tensor) -> Tensor:
        """Return each sample's outputs, weighted at random, with a bend."""
        return (self.weights * torch.sin(outputs)).flatten(1).sum(1)

    def values(self, samples: slice, seed: int | None = None) -> Tensor:
        """Return the numbers of some samples, run as a batch of their own."""
        with fork_random_state():
            if seed is not None:
                torch.manual_seed(seed)
            outputs = self.model(**some(self.inputs, samples))
        return self.objective(self.specimen.read(outputs))

    def ask(self, **options) -> gk.ParameterJacobian:
        return gk.per_sample_gradients(
            self.model, self.inputs, self.objective, of=self.specimen.of, **options
        )


def question(specimen: Specimen, training: bool) -> Question:
    model, inputs = specimen.make(training), specimen.inputs()
    with torch.no_grad(), fork_random_state():
        shape = specimen.read(model(**some(inputs, slice(0, 2)))).shape[1:]
    weights = torch.randn(shape, dtype=torch.float64, device=DEVICE)
    return Question(specimen, model, inputs, weights)


def loop(asked: Question) -> Rows:
    return sample_rows(
        named_parameters(asked.model),
        lambda n: asked.values(slice(n, n + 1), SEED)[0],
        N,
    )


def ordinary(asked: Question, seed: int = SEED) -> list[Tensor]:
    total = asked.values(slice(None), seed).sum()
    return gradient(total, named_parameters(asked.model).values())


def modes(specimens: tuple[Specimen, ...]) -> list:
    """Return each specimen in each mode in which its samples are independent."""
    return [
        pytest.param(s, training, id=f"{s.name}-{'training' if training else 'eval'}")
        for s in specimens
        for training in (False, True)
        if not (s.mixes and training)
    ]


@pytest.mark.parametrize(("specimen", "training"), modes(ZOO))
def test_rows_norms_and_gram_matrix_are_the_loops(
    specimen: Specimen, training: bool
) -> None:
    asked = question(specimen, training)
    # Some releases draw in training mode which layers to skip, with probability 0.
    found = asked.ask(seed=SEED if training else None)
    expected = loop(asked)
    # What has no derivative at all would show nothing.
    unused = [n for n, rows in expected.parts.items() if not rows.any()]
    assert unused == []
    assert_rows(found, expected, specimen.tolerance)
    assert_sums(found, expected, ordinary(asked), specimen.tolerance)


@pytest.mark.parametrize("specimen", [s for s in ZOO if s.mixes])
def test_models_that_mix_samples_in_training_are_refused_by_name(
    specimen: Specimen,
) -> None:
    asked = question(specimen, training=True)
    with pytest.raises(SampleDependenceError, match=specimen.mixes):
        asked.ask()


def test_dropout_with_a_seed_is_that_of_the_ordinary_forward() -> None:
    specimen = Specimen("dropout", lambda: bert(dropout=0.1), padded_tokens)
    asked = question(specimen, training=True)
    found = asked.ask(seed=SEED)
    # One seeded forward of the whole batch, and one backward per sample through it.
    values = asked.values(slice(None), SEED)
    expected = sample_rows(named_parameters(asked.model), lambda n: values[n], N)
    assert_rows(found, expected)
    assert_sums(found, expected, ordinary(asked))
    # The masks are the seed's, not those of another forward.
    with pytest.raises(AssertionError, match="sum of"):
        assert_sums(found, expected, ordinary(asked, SEED + 1))
