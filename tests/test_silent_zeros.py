"""Kinds of silent zeros: each is right against the loop over samples, or refused."""

from __future__ import annotations

import pytest
import torch

from sample_loop import Rows, assert_rows
from silent_case import QUESTIONS, Question, SilentCase
from silent_zeros import CASES

# Case -> part of the reason for which it is refused. All others are served.
REFUSED: dict[str, str] = {
    "checkpoint_re_entrant": "use_reentrant",
    "objective_with_a_parameter": "objective must depend on the outputs alone",
    "objective_with_a_parameter_of_nothing_else": "must depend on the outputs alone",
}
ASKED = [
    pytest.param(case, question, id=f"{case.name}-{question}")
    for case in CASES
    for question in case.questions()
]


def named(name: str) -> SilentCase:
    return next(case for case in CASES if case.name == name)


@pytest.mark.parametrize(("case", "question"), ASKED)
def test_right_or_refused(case: SilentCase, question: Question) -> None:
    verdict, reason = case.judge(question)
    if case.name in REFUSED:
        assert verdict == "refused", (verdict, reason)
        assert REFUSED[case.name] in reason
    else:
        assert verdict == "right", (verdict, reason)


@pytest.mark.parametrize(("case", "question"), ASKED)
def test_every_parameter_that_is_used_has_rows(
    case: SilentCase, question: Question
) -> None:
    # Where the loop's rows are zero, a silent zero would pass for right.
    rows = case.expected(question)[1].parts
    assert {name for name, part in rows.items() if not part.any()} == {*case.unused}
    assert all(part.isfinite().all() for part in rows.values())


def test_names_are_not_repeated() -> None:
    names = [case.name for case in CASES]
    assert len(names) == len({*names})
    assert {*REFUSED} <= {*names}
    assert all(named(name).may_refuse for name in REFUSED)


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("name", ["gru_time_first", "tied_read_out", "lora"])
def test_a_planted_zero_is_found(name: str, question: Question) -> None:
    case = named(name)
    expected = case.expected(question)[1]
    found = case.ask(question).to_dict()
    assert_rows(Rows(found, expected.lead), expected)
    for parameter, rows in found.items():
        silenced = {**found, parameter: torch.zeros_like(rows)}
        with pytest.raises(AssertionError, match=f"rows of {parameter}"):
            assert_rows(Rows(silenced, expected.lead), expected)
        if torch.equal(rows[0], rows[1]):
            continue  # of a last bias every sample has the same
        turned = {**found, parameter: rows.flip(0)}
        with pytest.raises(AssertionError, match=f"rows of {parameter}"):
            assert_rows(Rows(turned, expected.lead), expected)
