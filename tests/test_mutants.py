"""Every mutant is killed, every check kills something, and sound methods live."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import checks
import gradkit as gk
from case import DEVICE, Case
from cases import CASES
from gradkit.errors import GradkitError, InputError, UnsupportedModelError
from mutants import METHOD_MUTANTS, MUTANTS, Mutant, Rows, foreign, whole
from trial import QUESTIONS, Question, Trial

PAIRS = [(m, q) for m in MUTANTS for q in QUESTIONS if q.name in m.questions]
METHOD_PAIRS = [(m, q) for m, q in PAIRS if m in METHOD_MUTANTS]
CASES_SHOWN = [case for case in CASES if case.name in {m.case for m in MUTANTS}]


@pytest.mark.parametrize(("mutant", "question"), PAIRS)
def test_mutant_is_killed(mutant: Mutant, question: Question):
    trial = mutant.trial(question)
    assert checks.owed(mutant.killer, question, trial.case)
    refused = question.name in mutant.refused
    with pytest.raises(GradkitError if refused else AssertionError):
        mutant.killer(trial)


def test_every_check_kills():
    assert {mutant.killer for mutant in MUTANTS} == set(checks.CHECKS)


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("case", CASES_SHOWN)
def test_a_sound_method_in_the_same_wrapping_lives(case: Case, question: Question):
    # Else a mutant might be killed for the wrapping and not for its fault.
    sound = foreign("sound", whole(lambda v: v), trusted=True)
    trial = Trial(question, sound, case, corrupt=lambda call: call)
    for check in checks.CHECKS:
        if checks.owed(check, question, case):
            check(trial)


@pytest.mark.parametrize(("mutant", "question"), METHOD_PAIRS)
def test_the_library_itself_checks_foreign_methods(mutant: Mutant, question: Question):
    trial = mutant.trial(question, trusted=False)
    words = r"differs from the ordinary|never came|not finite"
    with pytest.raises((InputError, UnsupportedModelError), match=words):
        mutant.killer(trial)


def test_a_large_derivative_excuses_no_wrong_small_one():
    def first_doubled(rows: Rows) -> Rows:
        def run(task: Any) -> Iterator[Any]:
            for block in rows(task):
                first, *others = block.values
                yield block._replace(values=(2 * first, *others))

        return run

    method = foreign("first_doubled", first_doubled, trusted=False)
    x, y = torch.randn(3, 4, device=DEVICE), torch.randn(3, 4, device=DEVICE)
    with pytest.raises(UnsupportedModelError, match="differs from the ordinary"):
        gk.jacobian(lambda x, y: 1e-5 * x.sin() + 100 * y, (x, y), method=method)
