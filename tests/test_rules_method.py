"""Rules of other people's, and the registry of gradkit's own."""

from __future__ import annotations

import importlib
import pkgutil

import pytest
import torch
from torch import Tensor, nn

import gradkit as gk
import gradkit._rules
from gradkit._parameter_jacobian._by_rules import _signed_powers
from gradkit.errors import InputError, UnsupportedModelError


class Power(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.exponent = nn.Parameter(torch.tensor([2.0, 3.0, 0.5]))

    def forward(self, x: Tensor) -> Tensor:
        return x.pow(self.exponent)


def rows(operation, cotangent):
    x = operation.samples_first("input")[:, None]
    return cotangent * x.log() * x ** operation.arguments["exponent"].detach()


FUNCTIONS = (torch.pow, Tensor.pow)
POWER = gk.Rule("power", FUNCTIONS, ("input", "exponent"), {"exponent": rows})


def asked(rule: gk.Rule, x: Tensor) -> Tensor:
    method = gk.rules_method(rule)
    found = gk.per_sample_gradients(Power(), x, gk.objectives.output_sum, method=method)
    return found["exponent"]


def test_a_rule_of_ones_own_serves():
    x = torch.rand(4, 3) + 0.5
    wanted = x.log() * x ** torch.tensor([2.0, 3.0, 0.5])
    torch.testing.assert_close(asked(POWER, x), wanted)


def test_it_comes_before_the_generic_one():
    calls = []

    def watched(operation, cotangent):
        calls.append(operation.shape)
        return rows(operation, cotangent)

    asked(gk.Rule("power", FUNCTIONS, ("input", "exponent"), {"exponent": watched}),
          torch.rand(4, 3) + 0.5)  # fmt: skip
    assert calls == [(4, 3)]


def test_it_comes_before_one_of_gradkit_s():
    def halved(operation, cotangent):
        return cotangent / 2

    linear = gk.RULES["linear"]
    mine = gk.Rule("mine", linear.functions, linear.arguments, {"bias": halved})
    layer = nn.Linear(3, 2)
    with pytest.raises(UnsupportedModelError, match=r"'bias'.*sum of its rows differs"):
        gk.per_sample_gradients(
            layer,
            torch.rand(4, 3),
            gk.objectives.output_sum,
            parameters=["bias"],
            method=gk.rules_method(mine),
        )
    assert gk.RULES["linear"] is linear


@pytest.mark.parametrize("samples", [1, 2, 3, 8, 17])
def test_equal_rows_do_not_hide_a_wrong_rule(samples: int):
    # Rows of a bias are equal: random weights of them may add up to zero.
    weights = torch.stack([_signed_powers(torch.zeros(samples, 3)) for _ in range(500)])
    assert (weights.sum(1) != 0).all()
    if samples <= 8:
        signs = torch.randint(0, 2, weights.shape) * 2 - 1
        assert ((weights * signs).sum(1) != 0).all()


def test_what_it_refuses_goes_to_the_generic_rule():
    refusing = gk.Rule(
        "power", FUNCTIONS, ("input", "exponent"), {"exponent": rows}, lambda _: "no"
    )
    x = torch.rand(4, 3) + 0.5
    torch.testing.assert_close(asked(refusing, x), asked(POWER, x))


@pytest.mark.parametrize("factor", [0.0, -1.0, 1.001])
def test_a_wrong_rule_is_found(factor: float):
    wrong = gk.Rule(
        "power",
        FUNCTIONS,
        ("input", "exponent"),
        {"exponent": lambda operation, c: factor * rows(operation, c)},
    )
    x = torch.rand(4, 3) + 0.5
    with pytest.raises(UnsupportedModelError, match="the sum of its rows differs"):
        asked(wrong, x.double())


def test_rows_that_swap_samples_are_found():
    wrong = gk.Rule(
        "power",
        FUNCTIONS,
        ("input", "exponent"),
        {"exponent": lambda operation, c: rows(operation, c).flip(0)},
    )
    with pytest.raises(UnsupportedModelError, match="the sum of its rows differs"):
        asked(wrong, torch.rand(4, 3) + 0.5)


def test_rows_for_an_argument_that_is_not_named():
    with pytest.raises(InputError) as caught:
        gk.Rule("power", FUNCTIONS, ("input", "exponent"), {"power": rows})
    assert str(caught.value) == (
        "Rule: rows must be given for names among arguments ('input', 'exponent');"
        " got 'power'"
    )


def test_what_is_no_rule():
    with pytest.raises(InputError) as caught:
        gk.rules_method(rows)  # pyright: ignore[reportArgumentType]
    assert str(caught.value) == "rules_method: extra must be gk.Rule; got function"


def test_the_registry_is_immutable():
    with pytest.raises(TypeError):
        gk.RULES["mine"] = POWER  # pyright: ignore[reportIndexIssue]


def test_every_rule_that_is_written_is_in_the_registry():
    written = {}
    for module in pkgutil.iter_modules(gradkit._rules.__path__):
        holder = importlib.import_module(f"gradkit._rules.{module.name}")
        for value in vars(holder).values():
            if isinstance(value, gk.Rule):
                written[value.name] = value
    assert written == dict(gk.RULES)


def test_no_function_has_two_rules():
    served = [f for rule in gk.RULES.values() for f in rule.functions]
    assert len(served) == len({*served})
