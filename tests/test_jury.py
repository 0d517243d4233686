"""Planted faults are called different, and what differs by rounding alone is not."""

from __future__ import annotations

import pytest

import gradkit as gk
from jury import FAULTS, MODELS, drawn, faulty, honest

#: What a fault of so few roundoffs is called depends on the rounding of the model.
SMALL = {name for name in FAULTS if name.startswith("1 ")}
QUESTIONS = {"parameters": gk.parameter_jacobian, "inputs": gk.jacobian}
#: What changes nothing where all rows are one.
ALIKE = {"swapped samples", "samples shifted", "averaged", "first for all", "stale"}
#: A rounding pair is never called this.
WRONG = ("different", "convention")


def compared(name: str, kind: str) -> gk.AgreementReport:
    model, x = drawn(name)
    methods = [*honest(kind), *faulty(kind)]
    return gk.compare_methods(QUESTIONS[kind], model, x, methods=methods)


@pytest.mark.parametrize("kind", QUESTIONS)
@pytest.mark.parametrize("name", MODELS)
def test_verdicts(name: str, kind: str) -> None:
    report = compared(name, kind)
    dtype = MODELS[name][2]
    rounding = [m for m in report.methods if m.name not in FAULTS]
    assert [m.name for m in rounding if m.verdict in WRONG] == []
    assert sum(m.verdict != "skipped" for m in rounding) >= 12
    missed = {m.name for m in report.methods
              if m.name in FAULTS and m.verdict not in WRONG}  # fmt: skip
    # What is below the model's own rounding cannot be told from it.
    coarse = {"float16 inside", "bfloat16 inside", "13 digits less"}
    below = SMALL | (
        coarse | {"a thousandth of noise"} if dtype.itemsize < 4 else set()
    )
    below |= {"largest off by a thousandth"} if dtype.itemsize < 4 else set()
    if (name, kind) == ("linear", "inputs"):
        below |= ALIKE  # all samples have one Jacobian
    assert missed - below == set()


def test_the_jury_is_large_enough() -> None:
    pairs = sum(len(honest(kind)) for kind in QUESTIONS) * len(MODELS)
    assert len(FAULTS) * len(MODELS) * len(QUESTIONS) >= 300
    assert pairs >= 300
