"""What factors of products know without rows, in parts, in float32, under autocast."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from case import DEVICE
from gradkit._rules import _kernel
from gradkit._rules._convolution import CONVOLUTION
from gradkit._rules._einsum import EINSUM
from gradkit._rules._factor import Factor
from gradkit._rules._kernel import Kernel
from gradkit._rules._layout import Layout
from gradkit._rules._linear import LINEAR
from gradkit._rules._products import MATMUL
from gradkit._rules._rule import Operation, Rule
from operation_cases_of_convolutions import CONVOLUTION_CASES
from operation_cases_of_products import OPERATION_CASES
from rule_trial import (
    OperationCase,
    RuleTrial,
    check_dense,
    check_products,
    check_write,
    trial_name,
)

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same'")

BY_NAME = {case.name: case for case in OPERATION_CASES}
KERNELS = [case for case in CONVOLUTION_CASES if case.refusal is None]

#: Case and argument, and what the factor answers from what it holds.
KNOWN = [
    ("linear: one position", "weight", "squares inner gram matvec rmatvec second"),
    ("linear: one position", "bias", "squares inner gram matvec rmatvec second"),
    ("linear: positions", "weight", "squares inner matvec rmatvec"),
    ("linear: many positions", "weight", "matvec rmatvec"),
    ("matmul: heads", "other", "squares inner"),
    ("matmul: heads of it alone", "other", "squares inner matvec rmatvec"),
    ("convolution: (7, 8, (2,), (1,), {})", "weight", "squares inner matvec rmatvec"),
    (
        "convolution: (4, 5, (4, 6), (4, 6), {})",
        "weight",
        "squares inner gram matvec rmatvec",
    ),
    ("convolution: (4, 5, (6, 7), (3, 2), {})", "weight", "matvec rmatvec"),
]


@pytest.mark.parametrize(("name", "argument", "known"), KNOWN)
def test_what_is_known_without_rows(name: str, argument: str, known: str) -> None:
    trial = RuleTrial(BY_NAME[name], argument)
    factor, (vector, weights) = trial.factor, trial.weights()
    answers: dict[str, Callable[[], Tensor | None]] = {
        "squares": factor.squares,
        "inner": lambda: factor.inner(trial.make()),
        "gram": lambda: factor.gram(trial.make()),
        "matvec": lambda: factor.matvec(vector),
        "rmatvec": lambda: factor.rmatvec(weights),
        "second": factor.sum_of_squares,
    }
    unknown = [what for what in known.split() if answers[what]() is None]
    assert unknown == []


@pytest.mark.parametrize("case", KERNELS, ids=trial_name)
def test_kernels_one_sample_at_a_time(
    monkeypatch: pytest.MonkeyPatch, case: OperationCase
) -> None:
    monkeypatch.setattr(_kernel, "_PART", 1)
    for check in (check_dense, check_write, check_products):
        check(RuleTrial(case, "weight"))


@pytest.mark.parametrize("part", [1, 2**22], ids=["in parts", "at once"])
@pytest.mark.parametrize("case", KERNELS, ids=trial_name)
def test_kernels_in_float32(
    monkeypatch: pytest.MonkeyPatch, case: OperationCase, part: int
) -> None:
    # Where oneDNN is at hand the samples are groups of one convolution.
    monkeypatch.setattr(_kernel, "_PART", part)
    trial = RuleTrial(case, "weight")
    exact = trial.factor
    assert isinstance(exact, Kernel)
    factor = Kernel(
        exact.shape, exact.cotangent.float(), exact.flow.float(), exact.sliding
    )
    scale = trial.flat.abs().max()
    wide = torch.full((*trial.flat.shape[:2], trial.leaf.numel() + 3), torch.nan)
    target = wide.to(DEVICE)[..., 1:-2].unflatten(-1, trial.leaf.shape)
    assert factor.write(target)
    for found in (factor.dense(slice(None)), target.flatten(2)):
        assert found.dtype == torch.float32
        assert (found - trial.flat).abs().max() <= 1e-5 * scale


def test_rows_of_another_dtype_are_not_written() -> None:
    trial = RuleTrial(BY_NAME["convolution: (4, 5, (6, 7), (3, 2), {})"], "weight")
    target = torch.zeros_like(trial.expected, dtype=torch.float32)
    assert not trial.factor.write(target)
    assert not bool(target.any())


# Under autocast a rule multiplies with what the operation multiplied with: inputs
# rounded to the output's dtype, in the parameter's dtype.


def drawn(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(sum(shape)))


ROUNDED: list[tuple[Rule, tuple[str, ...], Callable[..., Tensor], list[Tensor]]] = [
    (LINEAR, ("input", "weight"), F.linear, [drawn(3, 2, 4), drawn(5, 4)]),
    (MATMUL, ("input", "other"), torch.matmul, [drawn(3, 4), drawn(4, 5)]),
    (
        EINSUM,
        ("left", "right"),
        lambda x, w: torch.einsum("nsi,oi->nso", x, w),
        [drawn(3, 2, 4), drawn(5, 4)],
    ),
    (
        CONVOLUTION,
        ("input", "weight"),
        torch.conv1d,
        [drawn(3, 4, 7), drawn(5, 4, 2)],
    ),
]


@pytest.mark.parametrize(
    ("rule", "names", "function", "values"), ROUNDED, ids=[r[0].name for r in ROUNDED]
)
def test_rows_are_of_what_was_multiplied(
    rule: Rule,
    names: tuple[str, ...],
    function: Callable[..., Tensor],
    values: list[Tensor],
) -> None:
    x, weight = (value.to(DEVICE) for value in values)
    rounded = x.to(torch.bfloat16)
    assert not torch.equal(rounded.float(), x)
    exact, leaf = rounded.double(), weight.double().requires_grad_()
    output = function(exact, leaf)
    cotangent = torch.linspace(-1, 1, output.numel(), device=DEVICE)
    cotangent = cotangent.reshape(output.shape)
    operation = Operation(
        function=function,
        arguments={names[0]: x, names[1]: weight, "equation": "nsi,oi->nso"},
        parameters={names[1]: weight.shape},
        shape=output.shape,
        dtype=torch.bfloat16,
        samples=3,
        layout=Layout(0),
        compute=torch.float32,
    )
    assert rule.unsupported(operation) is None
    factor = rule.rows[names[1]](operation, cotangent[:, None])
    assert isinstance(factor, Factor)
    rows = factor.dense(slice(None))[:, 0].reshape(3, *weight.shape)
    for n in range(3):
        own = torch.zeros_like(cotangent)
        own[n] = cotangent[n]
        (expected,) = torch.autograd.grad(output, leaf, own.double(), retain_graph=True)
        assert rows.dtype == torch.float32
        torch.testing.assert_close(rows[n], expected.float(), rtol=1e-5, atol=1e-6)
