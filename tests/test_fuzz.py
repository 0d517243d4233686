"""Random small networks: rows are right or refused, and ``auto`` refuses none alone.

``GRADKIT_FUZZ=2000`` in the environment draws so many, and others at every run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal

import hypothesis
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from torch import Tensor, nn

import gradkit as gk
from footprint import Footprint
from fuzzed import sketches
from fuzzed_sketch import Sketch
from gradkit._parameter_jacobian import _by_rules
from gradkit._parameter_jacobian._projection import signs
from gradkit.errors import GradkitError, UnsupportedModelError
from sample_loop import (
    Rows,
    assert_near,
    assert_rows,
    assert_sums,
    gradient,
    named_parameters,
    sample_rows,
)

Question = Literal["per_sample_gradients", "parameter_jacobian"]
QUESTIONS: tuple[Question, ...] = ("per_sample_gradients", "parameter_jacobian")

#: What is asked by name; the last test puts a wrong one there.
METHODS_BY_NAME: dict[str, Any] = {"rules": "rules"}
#: At the third call what was proved is remembered, and the parameters are others.
CALLS = 3
MORE = int(os.environ.get("GRADKIT_FUZZ", "0"))
SETTINGS = settings(
    deadline=None,
    database=None,
    derandomize=not MORE,
    max_examples=MORE or 20,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def objective(outputs: Tensor, first: int = 0) -> Tensor:
    """Weigh the outputs of each sample otherwise; the first is sample ``first``."""
    flat = outputs.reshape(len(outputs), -1)
    index = torch.arange(flat.numel(), device=flat.device, dtype=flat.dtype)
    weights = torch.cos(1 + 0.7 * (index + first * flat.shape[1]))
    return (weights.reshape(flat.shape) * torch.sin(flat)).sum(1)


def networks(sketch: Sketch) -> Iterator[nn.Module]:
    """Yield one network for each call, as it is then."""
    model = sketch.make()
    for call in range(CALLS):
        if call == CALLS - 1:
            with torch.no_grad():
                for n, p in enumerate(model.parameters()):
                    p += 0.2 * torch.cos(torch.arange(p.numel()).to(p) + n).view_as(p)
        yield model


def truth(model: nn.Module, sketch: Sketch, question: Question, call: int) -> Rows:
    """Return the rows by batches of one."""
    parameters = named_parameters(model)
    x, k = sketch.data(call)

    def values(samples: slice) -> Tensor:
        outputs = model(x[samples].clone(), k[samples])
        if question == "parameter_jacobian":
            return outputs
        return objective(outputs, samples.start)

    rows = sample_rows(parameters, lambda n: values(slice(n, n + 1))[0], len(x))
    # A sketch that mixes samples tells nothing; other tests plant couplings.
    whole = values(slice(0, len(x)))
    hypothesis.assume(whole.shape[:1] == x.shape[:1])
    try:
        assert_sums(rows, rows, gradient(whole.sum(), parameters.values()))
    except AssertionError:
        hypothesis.reject()
    hypothesis.assume(all(bool(part.isfinite().all()) for part in rows.parts.values()))
    return rows


def ask(
    model: nn.Module, sketch: Sketch, question: Question, call: int, method: Any
) -> gk.ParameterJacobian:
    """Return gradkit's answer, when nothing was touched."""
    x, k = sketch.data(call)
    before = Footprint(model, tensors={"x": x, "k": k})
    try:
        if question == "parameter_jacobian":
            return gk.parameter_jacobian(model, (x, k), method=method)
        return gk.per_sample_gradients(model, (x, k), objective, method=method)
    finally:
        before.assert_unchanged()


def check(found: gk.ParameterJacobian, expected: Rows) -> None:
    """Raise unless every quantity is that of the rows."""
    assert_rows(found, expected)
    ordinary = expected.sum()
    assert_sums(found, expected, ordinary.values())
    norms = expected.norms()
    bound = max(float(norms.median()), 1e-6)
    assert_clipped(found.clipped_sum(bound), expected, (bound / norms).clamp(max=1))
    projected = found.project(3, seed=1, per_parameter=True)
    for name, rows in expected.flat().items():
        shape = ordinary[name].shape
        # The directions are gradkit's; what is projected onto them is not.
        drawn = [part for _, part in signs(1, name, shape, 3)]
        by_hand = rows @ torch.cat(drawn).to(rows) / 3**0.5
        floor = 1e-12 * float(norms.max())
        whole = by_hand.reshape(*expected.lead, 3)
        assert_near(projected[name], whole, f"projection of {name}", floor)


def assert_clipped(found: dict[str, Tensor], expected: Rows, factors: Tensor) -> None:
    sums, floor = expected.rmatvec(factors), 1e-12 * float(expected.norms().sum())
    for name, part in found.items():
        assert_near(part, sums[name], f"clipped sum of {name}", floor)


def others_refuse(
    model: nn.Module, sketch: Sketch, question: Question, call: int
) -> bool:
    """Whether no method answers."""
    for method in ("loop", "rows", "vmap"):
        try:
            ask(model, sketch, question, call, method).norms()
        except GradkitError:
            continue
        return False
    return True


def examine(
    sketch: Sketch, question: Question, methods: tuple[str, ...] = ("auto", "rules")
) -> None:
    """Ask the same model several times, by ``auto`` and by ``rules``."""
    expected = [
        truth(model, sketch, question, call)
        for call, model in enumerate(networks(sketch))
    ]
    for call, model in enumerate(networks(sketch) if "auto" in methods else ()):
        try:
            found = ask(model, sketch, question, call, "auto")
        except GradkitError:
            assert others_refuse(model, sketch, question, call), "only auto refuses"
        else:
            check(found, expected[call])
    for call, model in enumerate(networks(sketch)):
        try:
            found = ask(model, sketch, question, call, METHODS_BY_NAME["rules"])
        except UnsupportedModelError:
            continue
        except GradkitError:
            if not others_refuse(model, sketch, question, call):
                raise
            continue
        check(found, expected[call])


@pytest.mark.parametrize("question", QUESTIONS)
def test_random_networks_are_right_or_refused(question: Question) -> None:
    @given(sketches())
    @SETTINGS
    def run(sketch: Sketch) -> None:
        examine(sketch, question)

    run()


def test_a_wrong_rule_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test can fail: a bias that counts double, and no check that would see it."""
    linear = gk.RULES["linear"]

    def doubled(operation: Any, cotangent: Any) -> Any:
        return linear.rows["bias"](operation, 2 * cotangent)

    rows = {**linear.rows, "bias": doubled}
    wrong = gk.rules_method(replace(linear, rows=rows))
    monkeypatch.setattr(_by_rules, "_wrong", lambda *_: [])
    monkeypatch.setitem(METHODS_BY_NAME, "rules", wrong)

    @given(sketches())
    @settings(SETTINGS, max_examples=200, derandomize=True, phases=[Phase.generate])
    def run(sketch: Sketch) -> None:
        examine(sketch, "per_sample_gradients", ("rules",))

    with pytest.raises(AssertionError):
        run()
