"""Random small networks: rows are right or refused, and ``auto`` refuses none alone.

``GRADKIT_FUZZ=2000`` in the environment draws so many, and others at every run.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import hypothesis
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
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
    gradient,
    named_parameters,
    ramp,
    sample_rows,
)
from silent_case import QUESTIONS, Question

#: At the third call what was proved is remembered, and the parameters are others.
CALLS = 3
#: What torch 2.13 differentiates wrongly in a batch of one, where the cotangent lies
#: in memory as a transposed one does; so a sample travels with its own copy.
WRONG_ALONE = "BatchNorm2d"
#: Of the largest entry of the answer.
TOLERANCE = 1e-9
#: Of what an answer's terms may come to: a parameter may have rows that are zero but
#: for rounding, as has the bias before a norm.
ROUNDING = 1e-11

MORE = int(os.environ.get("GRADKIT_FUZZ", "0"))
SETTINGS = settings(
    deadline=None,
    database=None,
    derandomize=not MORE,
    max_examples=MORE or 120,
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
                    p += 0.2 * torch.cos(ramp(p) + n)
        yield model


def near(found: Any, expected: Any, what: str, size: float) -> None:
    """Raise unless a tensor, or each of a dict, is as expected.

    ``size`` is what the terms of an entry may come to.
    """
    if isinstance(expected, dict):
        assert list(found) == list(expected), what
        for name, part in expected.items():
            near(found[name], part, f"{what} of {name}", size)
    else:
        # Inputs and parameters are of order one, and so is what cancels to nothing.
        assert_near(found, expected, what, ROUNDING * max(size, 0.01), TOLERANCE)


def truth(model: nn.Module, sketch: Sketch, question: Question, call: int) -> Rows:
    """Return the rows by batches of one."""
    parameters = named_parameters(model)
    x, k = sketch.data(call)

    def values(samples: slice, copies: int = 1) -> Tensor:
        given = (
            x[samples].repeat(copies, *[1] * (x.ndim - 1)),
            k[samples].repeat(copies),
        )
        outputs = model(*given)[: len(x[samples])]
        if question == "parameter_jacobian":
            return outputs
        return objective(outputs, samples.start)

    def alone(sample: int) -> Tensor:
        return values(slice(sample, sample + 1), copies)[0]

    copies = 1
    if any(WRONG_ALONE in text for text in sketch.parts.values()):
        hypothesis.assume(len(x) > 1)
        copies = 2
    rows = sample_rows(parameters, alone, len(x))
    hypothesis.assume(all(bool(part.isfinite().all()) for part in rows.parts.values()))
    # A sketch that mixed samples would tell nothing.
    whole = gradient(values(slice(0, len(x))).sum(), parameters.values())
    ordinary = dict(zip(parameters, whole, strict=True))
    size = math.prod(rows.lead) * rows.largest()
    near(rows.sum(), ordinary, "of the sketch itself, the sum", size)
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
    flat, norms = expected.flat(), expected.norms()
    # What one entry, the entries of a row, and all rows' may come to.
    largest, longest = expected.largest(), float(norms.max())
    across = largest * sum(part.shape[1] for part in flat.values())
    along = largest * math.prod(expected.lead)
    near(found.to_dict(), expected.parts, "rows", largest)
    near(found.norms(), norms, "norms", longest)
    parts = expected.norms(per_parameter=True)
    near(found.norms(per_parameter=True), parts, "norms", longest)
    near(found.gram(), expected.gram(), "Gram matrix", longest**2)
    near(found.sum(), expected.sum(), "sum", along)
    near(found.second_moment(), expected.second_moment(), "second moment", largest**2)
    vectors = {name: ramp(part).cos() for name, part in expected.sum().items()}
    near(found.matvec(vectors), expected.matvec(vectors), "matvec", across)
    weights = ramp(norms).sin()
    near(found.rmatvec(weights), expected.rmatvec(weights), "rmatvec", along)
    bound = max(float(norms.median()), 1e-6)
    clipped = expected.rmatvec((bound / norms).clamp(max=1))
    near(found.clipped_sum(bound), clipped, "clipped sum", along)
    projected = found.project(SIZE, seed=1, per_parameter=True)
    near(projected, by_hand(expected), "projection", across)


#: Of a projection.
SIZE = 3


def by_hand(rows: Rows) -> dict[str, Tensor]:
    """Return projections; the directions are gradkit's, what is projected is not."""
    projected = {}
    for name, part in rows.flat().items():
        shape = rows.parts[name].shape[len(rows.lead) :]
        directions = [drawn for _, drawn in signs(1, name, shape, SIZE)]
        found = part @ torch.cat(directions).to(part) / SIZE**0.5
        projected[name] = found.reshape(*rows.lead, SIZE)
    return projected


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


def examine(sketch: Sketch, question: Question, rules: Any = "rules") -> None:
    """Ask the same model several times, by ``auto``, and another by rules alone."""
    expected = [
        truth(model, sketch, question, call)
        for call, model in enumerate(networks(sketch))
    ]
    for method in ("auto", rules):
        for call, model in enumerate(networks(sketch)):
            try:
                found = ask(model, sketch, question, call, method)
            except GradkitError as error:
                if method != "auto" and isinstance(error, UnsupportedModelError):
                    continue
                if not others_refuse(model, sketch, question, call):
                    raise
            else:
                check(found, expected[call])


@given(sketches(), st.sampled_from(QUESTIONS))
@SETTINGS
def test_random_networks_are_right_or_refused(
    sketch: Sketch, question: Question
) -> None:
    examine(sketch, question)


def bias_counted_twice() -> gk.Rule:
    linear = gk.RULES["linear"]
    rows = linear.rows["bias"]
    return replace(linear, rows={**linear.rows, "bias": lambda o, c: rows(o, 2 * c)})


def weight_of_the_next_sample() -> gk.Rule:
    linear = gk.RULES["linear"]
    rows = linear.rows["weight"]
    return replace(
        linear, rows={**linear.rows, "weight": lambda o, c: rows(o, c.roll(1, 0))}
    )


def sum_of_one_sign() -> gk.Rule:
    subtract = gk.RULES["sub"]
    return replace(subtract, rows={**gk.RULES["add"].rows})


@pytest.mark.parametrize(
    "make", [bias_counted_twice, weight_of_the_next_sample, sum_of_one_sign]
)
def test_a_wrong_rule_is_found(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test can fail, where no check of gradkit's own sees the rule first."""
    monkeypatch.setattr(_by_rules, "_wrong", lambda *_: [])
    wrong = gk.rules_method(make())

    @given(sketches())
    @settings(SETTINGS, max_examples=400, derandomize=True, phases=[Phase.generate])
    def run(sketch: Sketch) -> None:
        examine(sketch, "per_sample_gradients", wrong)

    with pytest.raises(AssertionError, match="off by"):
        run()
