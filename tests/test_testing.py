"""``check_gradients``: what it takes, refuses, skips and says."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from footprint import Footprint
from gradkit.errors import AgreementError, InputError, UnsupportedModelError
from gradkit.testing import GradientReport, check_gradients
from planted_functions import custom, float32_only, plain_twin, randn

NUMBER = r"[-+.e\d]+"


# --- error texts -------------------------------------------------------------------


class Wrong(nn.Module):
    """Wrong in one row of one parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(randn(2, 3))
        self.scale = nn.Parameter(randn(2))

        def backward(s: Any, g: Tensor) -> Any:
            by_weight = g.T @ s[0]
            by_weight[1, 2] *= 3
            return g @ s[1], by_weight

        self.linear = custom(lambda x, w: x @ w.T, backward)

    def forward(self, x: Tensor) -> Any:
        return {"scores": self.linear(x, self.weight) * self.scale}


def test_the_text_names_parameter_index_output_numbers_mode_and_order() -> None:
    with pytest.raises(AgreementError) as caught:
        check_gradients(Wrong(), randn(4, 3))
    error = caught.value
    assert re.fullmatch(
        r"check_gradients: reverse mode is wrong \(order 1\): d output\['scores'\]"
        rf"\[\d, 1\] / d weight\[1, 2\] is {NUMBER} against {NUMBER} \(differences of"
        rf" the function, ± {NUMBER}\)\. Hint: it is 3 times what it should be",
        str(error),
    )
    assert (error.variable, error.index) == ("weight", (1, 2))
    assert (error.output, error.output_index[1]) == ("output['scores']", 1)
    assert (error.mode, error.order) == ("reverse", 1)
    assert error.analytic == pytest.approx(3 * error.numerical)


def test_wrt_looks_at_what_it_names_alone() -> None:
    model = Wrong()
    for wrt in ("scale", 0, ["scale", 0], "inputs", "sc*"):
        report = check_gradients(model, randn(4, 3), wrt=wrt)
        assert "weight" not in report.variables
    for wrt in ("weight", "*", ["weight", "scale"]):
        with pytest.raises(AgreementError):
            check_gradients(model, randn(4, 3), wrt=wrt)
    with pytest.raises(InputError, match=r"wrt='wieght' names no .*nearest: 'weight'"):
        check_gradients(model, randn(4, 3), wrt="wieght")


def test_names_of_nested_inputs() -> None:
    def function(pair: Any, *, scale: Tensor) -> Tensor:
        return pair[0] * pair[1].detach() * scale

    inputs = {"pair": [randn(3), randn(3, seed=5)], "scale": torch.tensor(2.0)}
    with pytest.raises(AgreementError, match=r"d inputs\['pair'\]\[1\]\[\d\] is 0 aga"):
        check_gradients(function, inputs)
    assert check_gradients(function, inputs, wrt="scale")
    with pytest.raises(AgreementError):
        check_gradients(function, inputs, wrt="pair")


@pytest.mark.parametrize(
    ("slope", "hint"),
    [
        (lambda x: -x.cos(), "the sign is opposite"),
        (lambda x: x.cos() / 5, "it is 1/5 times what it should be"),
        (lambda x: -x.cos() * 4, "it is -4 times what it should be"),
        (lambda x: 0 * x, "nothing arrives"),
        (lambda x: x / 0, "it is not finite where the function is smooth"),
    ],
)
def test_hints(slope: Any, hint: str) -> None:
    function = custom(torch.sin, lambda s, g: g * slope(s[0]))
    with pytest.raises(AgreementError, match=f"Hint: {hint}"):
        check_gradients(function, randn(4))


def test_a_backward_that_raises_is_wrong() -> None:
    function = custom(torch.sin, lambda s, g: g[:1])
    with pytest.raises(AgreementError, match=r"reverse mode raised RuntimeError \(ord"):
        check_gradients(function, randn(4))


def test_a_pullback_that_is_not_linear_is_caught() -> None:
    function = custom(torch.sin, lambda s, g: g.clamp(-0.4, 0.4) * s[0].cos())
    with pytest.raises(AgreementError):
        check_gradients(function, randn(4))


def test_forward_through_no_grad() -> None:
    def function(x: Tensor) -> Tensor:
        with torch.no_grad():
            y = 3 * x
        return x * x + y

    with pytest.raises(AgreementError) as caught:
        check_gradients(function, randn(3))
    assert caught.value.mode == "reverse"
    assert caught.value.numerical == pytest.approx(caught.value.analytic + 3)
    assert check_gradients(function, randn(3), modes="forward")


def test_the_trap_of_where() -> None:
    def function(x: Tensor) -> Tensor:
        return torch.where(x > 0, x.sqrt(), 0 * x.detach())

    with pytest.raises(AgreementError, match=r"is nan against .*not finite"):
        check_gradients(function, torch.tensor([-1.0, 2.0]))


def test_two_kinks_that_cancel() -> None:
    # 2 relu(x) - |x| is x: its slope at 0 is 1, and autograd says 0.
    with pytest.raises(AgreementError, match="is 0 against 1"):
        check_gradients(lambda x: 2 * x.relu() - x.abs(), torch.zeros(2))


# --- refusals ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "inputs", "how", "argument", "text"),
    [
        (nn.Linear, randn(3), {}, "function", "must be a callable or a module; got Li"),
        (randn(3), randn(3), {}, "function", "must be a callable or a module; got Ten"),
        (torch.sin, randn(3), {"order": 3}, "order", "order must be 1 or 2; got 3"),
        (torch.sin, randn(3), {"modes": ()}, "modes", "'reverse', 'forward'; got"),
        (torch.sin, randn(3), {"modes": "back"}, "modes", r"got \('back',\)"),
        (torch.sin, randn(3), {"dtype": torch.half}, "dtype", "got torch.float16"),
        (torch.sin, randn(3), {"directions": 0}, "directions", "whole number; got 0"),
        (torch.sin, torch.ones(3, dtype=torch.long), {}, "inputs", "Integers have no"),
        (torch.sin, randn(3).to(torch.cfloat), {}, "inputs", "got a complex one"),
        (torch.sin, randn(3).to_sparse(), {}, "inputs", "got a sparse_coo one"),
        (lambda x: x > 0, randn(3), {}, "function", "return a floating tensor; got to"),
        (lambda x: None, randn(3), {}, "function", "a floating tensor; got NoneType"),
        (lambda x: x + 0j, randn(3), {}, "function", "output is complex"),
        (lambda x: x / 0, randn(3), {}, "inputs", "finite values at inputs"),
        (nn.LazyLinear(3), randn(2, 3), {}, "function", "uninitialized"),
        (
            F.binary_cross_entropy,
            (torch.rand(3), torch.ones(3)),
            {},
            "wrt",
            "run beside the given values too; .*between 0 and 1",
        ),
        (
            F.cosine_embedding_loss,
            (randn(4, 3), randn(4, 3, seed=5), torch.ones(4)),
            {},
            "wrt",
            r"it jumps at the given values of inputs\[2\].*\['inputs\[0\]', 'inputs",
        ),
    ],
)
def test_refused(
    function: Any, inputs: Any, how: Any, argument: str, text: str
) -> None:
    with pytest.raises(InputError, match=text) as caught:
        check_gradients(function, inputs, **how)
    assert caught.value.argument == argument
    assert str(caught.value).startswith("check_gradients: ")


def test_a_function_that_does_not_repeat_is_refused() -> None:
    draws = torch.Generator().manual_seed(0)
    with pytest.raises(InputError, match="function must repeat"):
        check_gradients(lambda x: x * torch.rand(3, generator=draws), randn(3))

    calls = []

    def counting(x: Tensor) -> Tensor:
        calls.append(1)
        return x * len(calls)

    with pytest.raises(InputError, match="function must repeat"):
        check_gradients(counting, randn(3))


@pytest.mark.parametrize(
    "draw",
    [torch.rand, lambda n: torch.from_numpy(np.random.rand(n))],
    ids=["torch", "numpy"],
)
def test_draws_from_global_generators_are_the_same_each_time(draw: Any) -> None:
    assert check_gradients(lambda x: x.sin() * draw(3), randn(3))


def test_float32_alone_says_what_to_do() -> None:
    inputs = (randn(2, 3).float(), randn(3, 4).float())
    with pytest.raises(
        UnsupportedModelError, match=r"not in float64 .*Pass reference="
    ):
        check_gradients(float32_only(), inputs)
    assert check_gradients(float32_only(), inputs, dtype=torch.float32)
    with pytest.raises(AgreementError):
        check_gradients(float32_only(1.05), inputs, dtype=torch.float32)


def test_what_differences_cannot_see_through() -> None:
    with pytest.raises(
        UnsupportedModelError, match=r"computes in torch.float16 inside"
    ):
        check_gradients(lambda x: x.half().sin().double(), randn(5))
    report = check_gradients(lambda x: x.float().sin().double(), randn(5))
    assert any("computes in float32 inside" in note for note in report.notes)


# --- reference ---------------------------------------------------------------------


def test_a_reference_that_is_another_function_is_refused() -> None:
    inputs = (randn(2, 3).float(), randn(3, 4).float())
    with pytest.raises(InputError, match="reference must be the same function; the v"):
        check_gradients(float32_only(), inputs, reference=lambda x, w: x @ w)
    with pytest.raises(InputError, match="reference must return what function returns"):
        check_gradients(
            float32_only(), inputs, reference=lambda x, w: plain_twin(x, w)[:1]
        )
    with pytest.raises(InputError, match="reference must have the inputs and paramet"):
        check_gradients(nn.Linear(3, 2), randn(4, 3).float(), reference=torch.sin)


def test_a_reference_takes_the_parameters_of_the_function() -> None:
    torch.manual_seed(0)
    first, second = nn.Linear(3, 2), nn.Linear(3, 2)
    report = check_gradients(first, randn(4, 3).float(), reference=second, order=2)
    assert report.compared_with == "the reference in float64"
    assert report.dtype == "float32"
    assert set(report.largest) == {"reverse", "forward", "reverse, order 2"}
    assert 0 < report.largest["reverse"] < 1e-6


def test_a_reference_finds_one_entry_of_the_second_order() -> None:
    class Kept(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.slope = 2 * x.detach()
            return x**2

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return g * ctx.slope

    x = randn(3).float()
    assert check_gradients(Kept.apply, x, reference=torch.square)
    with pytest.raises(AgreementError, match=r"order 2\): d \(gradient by inputs\)"):
        check_gradients(Kept.apply, x, reference=torch.square, order=2)


# --- reports -----------------------------------------------------------------------


def test_what_a_report_says() -> None:
    function = custom(torch.sin, lambda s, g: g * s[0].cos())
    report = check_gradients(function, randn(3))
    assert isinstance(report, GradientReport)
    assert report
    assert report.function == "Planted.apply"
    assert report.variables == {"inputs": (3,)}
    assert set(report.skipped) == {"forward", "torch.func"}
    assert "jvp" in report.skipped["forward"]
    assert "setup_context" in report.skipped["torch.func"]
    assert report.largest["reverse"] <= report.tolerance["reverse"] < 1e-9
    assert json.loads(json.dumps(report.to_dict()))["variables"] == {"inputs": [3]}
    assert "skipped: forward: " in str(report)


def test_kinks_are_said() -> None:
    report = check_gradients(torch.relu, torch.tensor([0.0, 1.0, -1.0]))
    assert any("d output[0] / d inputs[0] is 0, on the two sides 0 and 1" in k
               for k in report.kinks)  # fmt: skip
    assert check_gradients(torch.relu, torch.tensor([2.0, 1.0, -1.0])).kinks == ()


def test_frozen_parameters_and_padding_rows_are_said() -> None:
    layer = nn.Embedding(5, 3, padding_idx=1)
    report = check_gradients(layer, torch.tensor([1, 2]))
    assert "the padding row of weight" in report.skipped
    linear = nn.Linear(3, 2)
    linear.weight.requires_grad_(False)
    report = check_gradients(linear, randn(4, 3))
    assert "wrt=" in report.skipped["weight"]
    assert "weight" in check_gradients(linear, randn(4, 3), wrt="weight").variables


def test_what_nothing_depends_on_is_said() -> None:
    report = check_gradients(lambda x, y: x.sin(), (randn(3), randn(2)))
    assert "nothing depends on inputs[1]" in report.notes


def test_a_function_that_raises_leaves_no_trace() -> None:
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(), nn.Linear(4, 2))
    x = randn(5, 3).float().requires_grad_()
    before = Footprint(model, tensors={"x": x})
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        check_gradients(model, x)
    before.assert_unchanged()


def test_inside_other_modes() -> None:
    with torch.no_grad():
        assert check_gradients(torch.sin, randn(3))
    with torch.inference_mode():
        assert check_gradients(torch.sin, torch.ones(3))
    with torch.autocast("cpu", torch.bfloat16):
        assert check_gradients(nn.Linear(3, 2), randn(4, 3))


def test_a_bound_method_and_a_layer_used_twice() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(3, 3)

        def energy(self, x: Tensor) -> Tensor:
            return self.inner(self.inner(x)).square().sum()

    report = check_gradients(Twice().energy, randn(4, 3), order=2)
    assert set(report.variables) == {"inputs", "inner.weight", "inner.bias"}


# --- each part of the method is needed ---------------------------------------------


def test_a_small_derivative_beside_a_large_one() -> None:
    def backward(s: Any, g: Tensor) -> Any:
        return 1e9 * g * s[0].cos(), 1.001e-3 * g * s[1].cos()

    function = custom(lambda x, y: 1e9 * x.sin() + 1e-3 * y.sin(), backward)
    x = torch.zeros(3)  # where the large part has no value to round
    with pytest.raises(AgreementError) as caught:
        check_gradients(function, (x, randn(3)), modes="reverse")
    assert caught.value.variable == "inputs[1]"


def test_what_is_wrong_for_some_strides_alone() -> None:
    def backward(s: Any, g: Tensor) -> Any:
        return g * s[0].cos() * (1 if s[0].is_contiguous() else 2)

    function, x = custom(torch.sin, backward), randn(4, 6)
    for strided in (x.T, x[:, ::2], x[1:, 1:3]):
        with pytest.raises(AgreementError):
            check_gradients(function, strided)
    with pytest.raises(AgreementError, match="where inputs are not contiguous"):
        check_gradients(function, x)


def test_what_is_wrong_under_torch_func_alone() -> None:
    class Sine(torch.autograd.Function):
        @staticmethod
        def forward(x: Tensor) -> Tensor:
            return x.sin()

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.save_for_backward(*inputs)
            # Inside a transform the saved tensor is a wrapper.
            inside = torch._C._functorch.peek_interpreter_stack()  # pyright: ignore
            ctx.factor = 2 if inside else 1

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return ctx.factor * g * ctx.saved_tensors[0].cos()

    with pytest.raises(AgreementError, match=r"torch\.func\.vjp and autograd differ"):
        check_gradients(Sine.apply, randn(3))


def test_one_wrong_parameter_among_many_layers() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factor = nn.Parameter(torch.ones(4))
            self.times = custom(
                lambda x, w: x * w, lambda s, g: (g * s[1], (g * s[0]).mean(0))
            )

        def forward(self, x: Tensor) -> Any:
            return self.times(x, self.factor)

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), Scaled(), nn.Linear(4, 2))
    with pytest.raises(AgreementError, match=r"d 2\.factor\[") as caught:
        check_gradients(model, randn(5, 3))
    assert caught.value.variable == "2.factor"
    assert caught.value.hint == "it is 1/5 times what it should be"


def test_directions_and_seed_make_the_check_the_same_each_time() -> None:
    model = nn.Linear(3, 2)
    first = check_gradients(model, randn(4, 3), seed=5)
    assert first == check_gradients(model, randn(4, 3), seed=5)
    assert first != check_gradients(model, randn(4, 3), seed=6)


def test_a_network_on_an_image_with_a_background_of_ties() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 3)
    )
    report = check_gradients(model, randn(2, 1, 10, 10).clamp(min=0), order=2)
    assert "the first derivative jumps, as at a kink" in report.notes
