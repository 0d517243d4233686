"""METHODS × CASES × CHECKS: every method gives every case the right answer.

Which pairs run is declared: all of them, but for those that ``REFUSALS`` names with
the words of the reason. A refused pair must be refused with those words, and any
other must run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch.torch_version import TorchVersion

import gradkit as gk
from case import Case
from cases import CASES
from checks import CHECKS, Check, check_chunks, check_per_entry_loop, owed
from gradkit.errors import UnsupportedModelError
from oracles import central_differences, one_backward_per_entry
from trial import (
    AGAINST_DIFFERENCES,
    QUESTIONS,
    Question,
    Trial,
    assert_close,
    truth,
)

# torch says so of every operation that it vmaps one by one; the answers are right.
pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")

ASKED = [(q, case) for q in QUESTIONS for case in CASES if q.suits(case)]


def methods_of(question: Question) -> tuple[str, ...]:
    """Return the names of all methods that compute what the question asks for."""
    kind = "parameters" if question.by_parameter else "inputs"
    serving = (name for name, m in gk.METHODS.items() if getattr(m, kind) is not None)
    return ("auto", *serving)


@dataclass(frozen=True)
class Refusal:
    """Why some methods cannot serve some cases; the error must hold ``words``.

    ``by_torch`` marks what a version of torch, or a device, cannot do: where another
    can, the answer must be right instead. ``late`` marks what shows only when the
    method is run; any other reason ``explain`` gives before.
    """

    words: str
    cases: tuple[str, ...]
    inputs: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()
    questions: tuple[str, ...] = tuple(question.name for question in QUESTIONS)
    by_torch: bool = False
    late: bool = False

    @property
    def name(self) -> str:
        return self.words.replace(" ", "_")

    def applies(self, question: Question, method: str, case: Case) -> bool:
        methods = self.parameters if question.by_parameter else self.inputs
        named = question.name in self.questions and case.name in self.cases
        return named and method in methods


EVERY_CASE = tuple(case.name for case in CASES)
RANDOM = ("dropout", "random_scale", "lstm_with_dropout")
RECURRENT = ("rnn", "gru", "lstm", "lstm_float32")
#: Those that run the model again, on single samples.
AGAIN: dict[str, Any] = {
    "inputs": ("loop", "jacrev", "jacfwd"),
    "parameters": ("loop", "vmap", "jacrev"),
}
#: Those that let torch.func transform the model.
TRANSFORMS: dict[str, Any] = {
    "inputs": ("jacrev", "jacfwd"),
    "parameters": ("vmap", "jacrev"),
}

#: torch 2.6 has no batching rule for what a checkpoint saves, 2.13 has one; releases
#: between were not run.
OLD = TorchVersion(torch.__version__) < TorchVersion("2.7")
CHECKPOINT = ("jacrev", "jacfwd") if OLD else ("jacrev",)

#: The first that applies is the reason.
REFUSALS = (
    Refusal("draws random numbers", RANDOM, **AGAIN),
    Refusal("moves buffers ('calls')", ("counting_buffer",), **AGAIN),
    Refusal("whole Jacobians", EVERY_CASE, ("jacrev", "jacfwd"), ("jacrev",),
            ("input_gradients", "per_sample_gradients")),
    Refusal("full backward hook", ("hooks",), **TRANSFORMS),
    Refusal("Cube has no setup_context", ("custom_function",), **TRANSFORMS),
    # cdist has a wrong batching rule, and no forward mode.
    Refusal("differs from the ordinary backward", ("distances",), ("jacrev",),
            ("vmap", "jacrev"), ("jacobian", "parameter_jacobian"), by_torch=True),
    # The function that torch.func is given reads the parameter from somewhere else.
    Refusal("differs from the ordinary backward", ("parameter_in_a_plain_list",),
            parameters=("vmap", "jacrev"), late=True),
    Refusal("differs from the ordinary gradient", ("distances",),
            parameters=("rules",), questions=("parameter_jacobian",), by_torch=True),
    Refusal("several outputs at once", (*RECURRENT, "lstm_with_dropout"),
            parameters=("rules",)),
    Refusal("did not see every use", ("output_is_a_parameter", "derivative_in_forward"),
            parameters=("rules",)),
    Refusal("forward AD", ("distances", "lstm_float32"), ("jacfwd",), by_torch=True),
    Refusal("RuntimeError", RECURRENT, **TRANSFORMS, by_torch=True),
    Refusal("RuntimeError", ("checkpoint",), CHECKPOINT, ("vmap", "jacrev"),
            by_torch=True),
    Refusal("RuntimeError", ("derivative_in_forward",), ("jacfwd",),
            ("vmap", "jacrev"), by_torch=True),
    Refusal("RuntimeError", ("prelu",), ("jacrev",), ("vmap", "jacrev"),
            ("jacobian", "parameter_jacobian"), by_torch=True),
    Refusal("inplace", ("relu_first_in_place", "wrt_what_changes_in_place"),
            ("jacfwd",), by_torch=True),
)  # fmt: skip


def refusal(question: Question, method: str, case: Case) -> Refusal | None:
    """Return why the pair must be refused, or ``None``."""
    reasons = (r for r in REFUSALS if r.applies(question, method, case))
    return next(reasons, None)


def served() -> Iterator[Any]:
    for question, case in ASKED:
        for method in methods_of(question):
            if refusal(question, method, case) is None:
                yield question, method, case


def refused() -> Iterator[Any]:
    for question, case in ASKED:
        for method in methods_of(question):
            reason = refusal(question, method, case)
            if reason is not None:
                yield question, method, case, reason


def failure(check: Check, trial: Trial) -> Exception | None:
    try:
        check(trial)
    except Exception as error:
        return error
    return None


# All checks of a trial in one test: they share its ordinary call, and one test each
# would spend more time in pytest than in gradkit.
@pytest.mark.parametrize(("question", "method", "case"), list(served()))
def test_answer(question: Question, method: str, case: Case):
    trial = Trial(question, method, case)
    checks = [check for check in CHECKS if owed(check, question, case)]
    failures = {check.__name__: failure(check, trial) for check in checks}
    failures = {name: error for name, error in failures.items() if error is not None}
    lines = [f"{k}: {type(e).__name__}: {e}" for k, e in failures.items()]
    if lines:
        text = f"{len(lines)} of {len(checks)} checks fail\n" + "\n".join(lines)
        raise AssertionError(text) from next(iter(failures.values()))


@pytest.mark.parametrize(("question", "method", "case", "reason"), list(refused()))
def test_refusal(question: Question, method: str, case: Case, reason: Refusal):
    trial = Trial(question, method, case)
    try:
        _ = trial.answer
    except UnsupportedModelError as error:
        text = str(error)
    else:
        assert reason.by_torch
        return check_per_entry_loop(trial)
    assert text.startswith(f"{question.name}: method {method!r}")
    assert reason.words in text
    if not (reason.by_torch or reason.late):
        foreseen = question.explain(case).reasons[method]
        assert foreseen is not None, "explain says that it could serve"
        assert foreseen in text
    return None


def test_every_refusal_applies():
    pairs = list(refused())
    for reason in REFUSALS:
        assert any(reason is found for *_, found in pairs), reason


@pytest.mark.parametrize(
    ("question", "method"),
    [(q, m) for q in QUESTIONS if not q.of_objective for m in ("vmap", "jacrev", "rows")
     if m in methods_of(q)],
)  # fmt: skip
def test_the_chunks_of_check_chunks_do_not_divide_the_rows(
    question: Question, method: str
):
    kind = "parameters" if question.by_parameter else "inputs"
    sound = gk.METHODS[method]
    seen: set[tuple[int, int]] = set()

    def watched(task: Any) -> Iterator[Any]:
        for block in getattr(sound, kind)(task):
            seen.add((block.rows.start, block.rows.stop))
            yield block

    case = next(case for case in CASES if case.name == "mlp")
    check_chunks(Trial(question, replace(sound, **{kind: watched}), case))
    assert seen == {(0, 7), (0, 2), (2, 4), (4, 6), (6, 7)}


@pytest.mark.parametrize(("question", "case"), ASKED)
def test_oracles_agree(question: Question, case: Case):
    loop = truth(question, case, one_backward_per_entry)
    differences = truth(question, case, central_differences)
    assert_close(
        loop, differences, AGAINST_DIFFERENCES, "the loop, against differences"
    )


def test_every_case_has_its_own_name():
    assert len({case.name for case in CASES}) == len(CASES)


def test_every_case_is_asked():
    assert {case.name for _, case in ASKED} == {case.name for case in CASES}


def test_a_wrong_oracle_would_show():
    case = next(case for case in CASES if case.name == "mlp")
    right = truth(QUESTIONS[1], case, one_backward_per_entry)
    wrong = {path: value * (1 + 1e-5) for path, value in right.items()}
    with pytest.raises(AssertionError, match="against"):
        assert_close(right, wrong, AGAINST_DIFFERENCES, "against the wrong one")
    assert_close(right, right, {torch.float64: 0.0}, "against itself")
