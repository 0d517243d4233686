"""Large products by oneDNN are the same products, whatever lies in memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import gradkit as gk
from gradkit import _products
from gradkit._products import product
from gradkit._quick import _Quick, gains_forward, quick_products

ROWS, INNER, COLUMNS = 300, 170, 260


def drawn(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3)).to(dtype)


LEFTS = {
    "rows": lambda: drawn(ROWS, INNER),
    "columns": lambda: drawn(INNER, ROWS).t(),
    "a slice": lambda: drawn(ROWS, INNER + 3)[:, 2:-1],
    "every second": lambda: drawn(ROWS, 2 * INNER)[:, ::2],
    "one row": lambda: drawn(1, INNER).expand(ROWS, INNER),
    "one column": lambda: drawn(ROWS, 1).expand(ROWS, INNER),
}
RIGHTS = {
    "rows": lambda: drawn(INNER, COLUMNS),
    "columns": lambda: drawn(COLUMNS, INNER).t(),
    "a slice": lambda: drawn(INNER + 5, COLUMNS)[2:-3],
    "every third": lambda: drawn(INNER, 3 * COLUMNS)[:, ::3],
    "one row": lambda: drawn(1, COLUMNS).expand(INNER, COLUMNS),
    "one column": lambda: drawn(INNER, 1).expand(INNER, COLUMNS),
}


def is_near(found: Tensor, left: Tensor, right: Tensor) -> bool:
    """Whether each entry is within the rounding of a sum of ``INNER`` products."""
    exact = left.double() @ right.double()
    most = INNER * 2**-24 * (left.double().abs() @ right.double().abs())
    return bool(((found.double() - exact).abs() <= most).all())


@pytest.mark.parametrize("right", RIGHTS)
@pytest.mark.parametrize("left", LEFTS)
def test_a_product_is_the_product(left: str, right: str) -> None:
    a, b = LEFTS[left](), RIGHTS[right]()
    assert a.shape[0] * a.shape[1] * b.shape[1] >= _products._LARGE
    assert is_near(product(a, b), a, b)
    with quick_products(a, 10**6):
        assert is_near(a @ b, a, b)


@pytest.mark.parametrize("right", RIGHTS)
@pytest.mark.parametrize("left", LEFTS)
def test_a_product_with_a_bias_is_the_product(left: str, right: str) -> None:
    a, b, bias = LEFTS[left](), RIGHTS[right](), drawn(COLUMNS)
    with _Quick():
        found = torch.addmm(nn.Parameter(bias), a, b).detach()
        others = [
            torch.addmm(drawn(ROWS, COLUMNS), a, b),
            torch.addmm(bias, a, b, beta=2, alpha=3),
            torch.addmm(drawn(1), a, b),
        ]
    assert is_near(found - bias, a, b) or is_near(found.double() - bias.double(), a, b)
    assert is_near(others[0] - drawn(ROWS, COLUMNS), a, b)
    torch.testing.assert_close(others[1], 2 * bias + 3 * (a @ b), rtol=1e-4, atol=1e-3)
    assert is_near(others[2] - drawn(1), a, b)


def test_which_forwards_gain() -> None:
    x = torch.rand(2, 3, requires_grad=True)
    layer = nn.Linear(3, 2)
    for y, gains in ((layer(x), True), (x @ layer.weight.t(), True), (x.sin(), False)):
        assert gains_forward([y.grad_fn]) is gains
    pooled = nn.functional.max_pool2d(torch.rand(1, 2, 4, 4, requires_grad=True), 2)
    assert gains_forward([pooled.grad_fn])


def test_factors_stay_and_the_result_is_detached() -> None:
    a, b = LEFTS["rows"]().requires_grad_(), RIGHTS["columns"]()
    before = a.detach().clone(), b.clone()
    found = product(a, b)
    assert not found.requires_grad
    assert torch.equal(a, before[0])
    assert torch.equal(b, before[1])
    assert found.untyped_storage().data_ptr() != b.untyped_storage().data_ptr()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_spreads_as_in_any_product(value: float) -> None:
    a, b = LEFTS["rows"](), RIGHTS["rows"]()
    a[7, 5] = value
    b[5, 11] = 0.0
    found, usual = product(a, b), a @ b
    assert torch.equal(found.isnan(), usual.isnan())
    assert torch.equal(found.isinf(), usual.isinf())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64])
def test_other_dtypes_are_left_to_torch(dtype: torch.dtype) -> None:
    a, b = drawn(ROWS, INNER, dtype=dtype), drawn(INNER, COLUMNS, dtype=dtype)
    with quick_products(drawn(1), 10**6):
        found = a @ b
    assert torch.equal(found, a @ b)
    assert torch.equal(product(a, b), a @ b)


@pytest.mark.filterwarnings("ignore:TF32 acceleration")
def test_it_can_be_switched_off() -> None:
    a, b = LEFTS["rows"](), RIGHTS["rows"]()
    with torch.backends.mkldnn.flags(enabled=False):
        assert torch.equal(product(a, b), a @ b)


class Counter(TorchDispatchMode):
    """Counts products."""

    products = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.products += func is torch.ops.aten.mm.default
        return func(*args, **(kwargs or {}))


def test_another_mode_sees_the_products() -> None:
    a, b = LEFTS["rows"](), RIGHTS["rows"]()
    with Counter() as counter, quick_products(a, 10**6):
        found = a @ b
    assert counter.products == 1
    assert torch.equal(found, a @ b)


@pytest.mark.filterwarnings("ignore:TF32 acceleration")
def test_a_jacobian_is_the_same_to_rounding_with_it_and_without() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(150, 130), nn.Tanh(), nn.Linear(130, 7))
    x = torch.rand(60, 150)
    quick = gk.jacobian(model, x)
    with torch.backends.mkldnn.flags(enabled=False):
        usual = gk.jacobian(model, x)
    exact = gk.jacobian(model.double(), x.double())
    scale = exact.abs().max()
    assert (quick - exact).abs().max() <= 1e-6 * scale
    assert (usual - exact).abs().max() <= 1e-6 * scale
