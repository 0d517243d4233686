"""Rules, one by one: rows and every answer of their factors, as by backwards."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import gradkit as gk
import operation_cases_of_others as others
import operation_cases_of_products as products
from rule_trial import (
    RULE_CHECKS,
    OperationCase,
    RuleTrial,
    check_one_sample,
    trial_name,
    trials,
)

OPERATION_CASES = [*products.OPERATION_CASES, *others.OPERATION_CASES]
RULES = gk.RULES.values()
# torch says so of an even kernel, and of the form of addmm that is refused.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Using padding='same'"),
    pytest.mark.filterwarnings("ignore:This overload of addmm is deprecated"),
]
SERVED = trials(OPERATION_CASES)
ALONE = trials(products.ONE_SAMPLE_CASES)
REFUSED = [case for case in OPERATION_CASES if case.refusal is not None]


@pytest.mark.parametrize("check", RULE_CHECKS, ids=trial_name)
@pytest.mark.parametrize(("case", "argument"), SERVED, ids=trial_name)
def test_rows(
    case: OperationCase, argument: str, check: Callable[[RuleTrial], None]
) -> None:
    check(RuleTrial(case, argument))


@pytest.mark.parametrize(("case", "argument"), ALONE, ids=trial_name)
def test_rows_of_one_sample(case: OperationCase, argument: str) -> None:
    check_one_sample(RuleTrial(case, argument))


@pytest.mark.parametrize("case", REFUSED, ids=trial_name)
def test_what_is_refused(case: OperationCase) -> None:
    for argument in case.parameters:
        assert RuleTrial(case, argument).refusal == case.refusal


def test_every_argument_of_every_rule_has_a_case() -> None:
    tried = {(case.rule.name, argument.partition("[")[0]) for case, argument in SERVED}
    tried |= {("mv", "input")}  # among ONE_SAMPLE_CASES
    assert tried == {(rule.name, name) for rule in RULES for name in rule.rows}
    assert {case.rule.name for case in REFUSED} == {rule.name for rule in RULES}
    assert len({case.name for case in OPERATION_CASES}) == len(OPERATION_CASES)
