"""Planted errors are caught, right functions pass, and what torch's gradcheck says."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from footprint import Footprint
from gradkit._problem._tree import leaves
from gradkit.errors import AgreementError
from gradkit.testing import check_gradients
from planted_functions import PLANTED, RIGHT, Trial, float32_only, plain_twin, randn


def named(trials: tuple[Trial, ...]) -> Any:
    return pytest.mark.parametrize("trial", trials, ids=lambda trial: trial.name)


@named(PLANTED)
def test_a_planted_error_is_caught(trial: Trial) -> None:
    with pytest.raises(AgreementError) as caught:
        check_gradients(trial.function(), trial.inputs(), **trial.how)
    error = caught.value
    assert trial.mode in (None, error.mode)
    assert trial.variable in (None, error.variable)
    assert error.order == trial.how.get("order", 1)
    # Both numbers and both places are in the text.
    for part in (f"{error.analytic:.10g}", f"{error.numerical:.10g}", error.variable):
        assert part in str(error)
    assert ", ".join(map(str, error.index)) in str(error)
    assert not abs(error.analytic - error.numerical) <= error.tolerance


@named(RIGHT)
def test_a_right_function_passes(trial: Trial) -> None:
    assert check_gradients(trial.function(), trial.inputs(), **trial.how)


@named(PLANTED)
def test_other_directions_catch_it_too(trial: Trial) -> None:
    for seed in (1, 2):
        with pytest.raises(AgreementError):
            check_gradients(trial.function(), trial.inputs(), seed=seed, **trial.how)


@named(RIGHT)
def test_other_directions_let_it_pass_too(trial: Trial) -> None:
    for seed in (1, 2):
        assert check_gradients(trial.function(), trial.inputs(), seed=seed, **trial.how)


def test_a_wrong_kernel_for_float32_alone_is_caught() -> None:
    inputs = RIGHT[0].inputs()
    with pytest.raises(AgreementError) as caught:
        check_gradients(float32_only(1.01), inputs, reference=plain_twin)
    assert caught.value.variable == "inputs[1]"
    assert caught.value.analytic == pytest.approx(1.01 * caught.value.numerical)


@named(tuple(t for t in RIGHT if t.name not in ("float32 alone",)))
def test_nothing_is_left_behind(trial: Trial) -> None:
    function, inputs = trial.function(), trial.inputs()
    model = function if isinstance(function, nn.Module) else nn.Identity()
    if isinstance(inputs, dict):
        tensors = inputs
    else:
        tensors = {str(i): t for i, t in enumerate(leaves(inputs))}
    before = Footprint(model, tensors=tensors)
    check_gradients(function, inputs, **trial.how)
    before.assert_unchanged()


@named(PLANTED[-6:])
def test_nothing_is_left_behind_where_it_fails(trial: Trial) -> None:
    function, inputs = trial.function(), trial.inputs()
    model = function if isinstance(function, nn.Module) else nn.Identity()
    before = Footprint(model, tensors={"0": inputs})
    with pytest.raises(AgreementError):
        check_gradients(function, inputs, **trial.how)
    before.assert_unchanged()


# --- beside torch's own check --------------------------------------------------------


def gradcheck_accepts(trial: Trial) -> bool:
    """Whether ``gradcheck`` (and ``gradgradcheck`` for order 2) lets it pass.

    It is given what its documentation asks for, float64 inputs that require grad and a
    module in float64, and all else is left as it comes.
    """
    function, inputs = trial.function(), trial.inputs()
    if isinstance(function, nn.Module):
        function = function.double()

    def ready(value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return value
        return value.double().detach().requires_grad_()

    if isinstance(inputs, dict):
        names, values = list(inputs), [ready(v) for v in inputs.values()]
        whole: Callable[..., Any] = function

        def function(*given: Any) -> Any:
            return whole(**dict(zip(names, given, strict=True)))
    else:
        several = inputs if isinstance(inputs, tuple) else (inputs,)
        values = [ready(v) for v in several]

    def flat(*given: Any) -> Any:
        return tuple(leaves(function(*given)))

    torch.manual_seed(0)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            good = torch.autograd.gradcheck(flat, values)
            if trial.how.get("order") == 2:
                good = good and torch.autograd.gradgradcheck(flat, values)
    except Exception:
        return False
    return good


#: Of the planted ones, what gradcheck lets pass. It looks at no parameter, and catches
#: the stale buffer only since a later forward wrote to what an earlier one had saved.
MISSED = {"1e-4 in one entry", "half inside", "wrong jvp"}
#: Of the right ones, what it rejects or cannot take: kinks; functions that draw, or
#: write to their inputs; no float64, no floating input.
REJECTED = {
    "amax of equals",
    "attention",
    "checkpoint",
    "custom relu",
    "dropout",
    "edge of a domain",
    "embedding",
    "expanded",
    "float32 alone",
    "in place",
    "max of equals",
    "relu at zeros",
}


def test_what_gradcheck_misses_and_what_it_rejects(capsys: Any) -> None:
    missed = {trial.name for trial in PLANTED if gradcheck_accepts(trial)}
    rejected = {trial.name for trial in RIGHT if not gradcheck_accepts(trial)}
    with capsys.disabled():
        print()  # noqa: T201
        for title, names, total in (
            ("planted errors that gradcheck misses", missed, len(PLANTED)),
            ("right functions that gradcheck rejects", rejected, len(RIGHT)),
        ):
            print(f"{title}: {len(names)} of {total}: {sorted(names)}")  # noqa: T201
    assert (missed, rejected) == (MISSED, REJECTED)


def test_large_inputs_cost_no_more_evaluations() -> None:
    counts = []
    for size in (3, 3000):
        calls = 0

        def function(x: Tensor) -> Tensor:
            nonlocal calls
            calls += 1
            return x.sin()

        assert check_gradients(function, randn(size))
        counts.append(calls)
    assert counts[0] == counts[1]
