"""Custom Functions as they are first written: wrong in ways that numbers hide."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from gradkit.errors import AgreementError, InputError, UnsupportedModelError
from gradkit.testing import check_gradients
from planted_functions import custom, once_only, plain_twin, randn

# --- what is not checked is not called right ---------------------------------------


def test_a_second_derivative_that_does_not_exist_is_refused() -> None:
    assert check_gradients(once_only(), randn(5))
    text = "no second derivative to check, .*once_differentiable"
    with pytest.raises(UnsupportedModelError, match=text):
        check_gradients(once_only(), randn(5), order=2)
    with pytest.raises(UnsupportedModelError, match=text):
        check_gradients(once_only(), randn(5).float(), order=2, reference=torch.sin)


def test_order_two_needs_reverse_mode() -> None:
    with pytest.raises(InputError, match=r"order=2 takes .*Add 'reverse'"):
        check_gradients(torch.sin, randn(5), order=2, modes="forward")


def test_nothing_checked_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="no derivative to check: forward"):
        check_gradients(once_only(), randn(5), modes="forward")


# --- what a backward does beside its numbers ---------------------------------------


def test_a_backward_that_writes_to_a_saved_tensor() -> None:
    function = custom(lambda x: x * x, lambda s, g: s[0].mul_(2) * g)
    for inner in (function, lambda x: function(x.sin())):
        with pytest.raises(AgreementError, match="Planted changes a saved tensor in"):
            check_gradients(inner, randn(3, 2))


def test_a_backward_that_writes_to_what_it_kept_of_an_input() -> None:
    class Kept(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.x = x
            return x * x

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return g * ctx.x.mul_(2)

    class Result(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.y = x.exp()
            return ctx.y

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return ctx.y.mul_(g)

    with pytest.raises(AgreementError, match="Result changes the value of output in"):
        check_gradients(Result.apply, randn(3, 2))
    # It was a copy.
    x = randn(3, 2)
    before = x.clone()
    with pytest.raises(AgreementError, match="Kept changes the value of inputs in"):
        check_gradients(Kept.apply, x)
    assert torch.equal(x, before)


@pytest.mark.parametrize("reference", [None, torch.sin])
def test_a_backward_that_writes_to_its_cotangent(reference: Any) -> None:
    function = custom(torch.sin, lambda s, g: g.mul_(s[0].cos()))
    with pytest.raises(AgreementError, match="changes the cotangent that arrives"):
        check_gradients(function, randn(3, 2), reference=reference)


def test_a_backward_that_asks_for_the_flag_of_another_input() -> None:
    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
            ctx.save_for_backward(x, y)
            return x * y

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            x, y = ctx.saved_tensors
            needed = ctx.needs_input_grad[1]
            return g * y if needed else None, g * x if needed else None

    inputs = (randn(3, 2), randn(3, 2, seed=5))
    with pytest.raises(
        AgreementError, match=r"where inputs\[0\] alone requires grad \(see ctx.needs_i"
    ) as caught:
        check_gradients(Product.apply, inputs)
    assert caught.value.variable == "inputs[0]"
    assert caught.value.analytic == 0
    assert check_gradients(Product.apply, inputs, wrt=1)


def test_a_backward_that_reads_memory_as_contiguous() -> None:
    def backward(s: Any, g: Tensor) -> Any:
        size, stride = s[0].shape, s[0].contiguous().stride()
        return s[0].cos() * g.as_strided(size, stride)

    with pytest.raises(AgreementError, match="where cotangents are not contiguous: at"):
        check_gradients(custom(torch.sin, backward), randn(3, 2))

    def raising(s: Any, g: Tensor) -> Any:
        return (g.view(-1) * s[0].cos().reshape(-1)).view(s[0].shape)

    text = "raised RuntimeError where cotangents are not contiguous: view size"
    with pytest.raises(AgreementError, match=text):
        check_gradients(custom(torch.sin, raising), randn(3, 2))


def test_a_forward_that_takes_contiguous_inputs_alone_is_said() -> None:
    function = custom(
        lambda x: x.view(-1).sin(), lambda s, g: g.reshape(s[0].shape) * s[0].cos()
    )
    report = check_gradients(function, randn(3, 2))
    assert "view size" in report.skipped["inputs that are not contiguous"]


def in_place(*, told: bool) -> Any:
    def forward(ctx: Any, x: Tensor) -> Tensor:
        if told:
            ctx.mark_dirty(x)
        return x.mul_(2)

    names = {
        "forward": staticmethod(forward),
        "backward": staticmethod(lambda ctx, g: 2 * g),
    }
    return type("Doubled", (torch.autograd.Function,), names).apply


def test_a_forward_in_place_is_told_to_autograd() -> None:
    report = check_gradients(in_place(told=True), randn(3, 2))
    assert "the function writes to inputs in place" in report.notes
    with pytest.raises(AgreementError, match=r"inputs in place.*ctx\.mark_dirty"):
        check_gradients(in_place(told=False), randn(3, 2))


def test_right_functions_of_several_inputs_and_layouts_pass() -> None:
    def backward(s: Any, g: Tensor) -> Any:
        inner = g * (1 - (s[0] @ s[1]).tanh() ** 2)
        return inner @ s[1].T, s[0].T @ inner

    function = custom(plain_twin, backward)
    assert check_gradients(function, (randn(4, 3), randn(3, 5)), order=2)
    assert check_gradients(function, (randn(3, 4).T, randn(5, 3).T), order=2)

    # Among equals a layout may choose another.
    def first_or_last(s: Any, g: Tensor) -> Any:
        among = (s[0] == s[0].amax(-1, keepdim=True)).double()
        index = among.argmax(-1, keepdim=True)
        if not s[0].is_contiguous():
            index = among.shape[-1] - 1 - among.flip(-1).argmax(-1, keepdim=True)
        return torch.zeros_like(s[0]).scatter(-1, index, g[..., None])

    largest = custom(lambda x: x.amax(-1), first_or_last)
    assert check_gradients(lambda x: largest(x).sin(), torch.ones(3, 4))


# --- hints -------------------------------------------------------------------------


def hint(function: Any, inputs: Any, **how: Any) -> str:
    with pytest.raises(AgreementError) as caught:
        check_gradients(function, inputs, **how)
    return caught.value.hint


@pytest.mark.parametrize("reference", [None, torch.matmul])
def test_a_transposed_gradient_is_called_so(reference: Any) -> None:
    function = custom(
        lambda x, w: x @ w, lambda s, g: (g @ s[1].T, (s[0].T @ g).T.contiguous())
    )
    for seed in range(3):  # whichever entry is met first, zeros among them
        found = hint(function, (randn(4, 3), randn(3, 3)), seed=seed,
                     reference=reference)  # fmt: skip
        assert found == "it is the transpose of what it should be"


def test_a_reshaped_transpose_is_called_so() -> None:
    function = custom(
        lambda x, w: x @ w.T, lambda s, g: (g @ s[1], (s[0].T @ g).reshape(s[1].shape))
    )
    found = hint(function, (randn(4, 3), randn(2, 3)))
    assert found == "its entries are those of the transpose: reshape or view is not .T"


def test_nothing_arrives_is_said_of_all_alone() -> None:
    # Two columns changed places: zeros of single outputs are no missing term.
    function = custom(
        lambda x, w: x @ w, lambda s, g: (g @ s[1].T, s[0].T @ g[:, [1, 0, 2]])
    )
    for seed in range(3):
        assert hint(function, (randn(4, 3), randn(3, 3)), seed=seed) == ""
    cut = custom(lambda x, w: x @ w, lambda s, g: (g @ s[1].T, 0 * s[1]))
    assert hint(cut, (randn(4, 3), randn(3, 3))).startswith("nothing arrives")


def test_a_factor_is_said_where_it_holds() -> None:
    for factor in (-75.018, 2.0004, 1 / 3.001):
        function = custom(torch.sin, lambda s, g, f=factor: f * g * s[0].cos())
        assert hint(function, randn(4)) == ""
    for factor in (-75, 128.0):
        function = custom(torch.sin, lambda s, g, f=factor: f * g * s[0].cos())
        assert hint(function, randn(4)) == f"it is {factor:g} times what it should be"


def test_a_factor_is_that_of_most_entries() -> None:
    factors = torch.tensor([2.0, 3.3, 4.7, 5.9, 8.3])
    function = custom(torch.sin, lambda s, g: factors * g * s[0].cos())
    for seed in range(3):
        assert hint(function, randn(5), seed=seed) == ""
