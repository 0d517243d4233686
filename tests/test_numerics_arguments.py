"""What the functions of ``gk.numerics`` take, and how they refuse what they do not."""

from __future__ import annotations

import math
import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gradkit import numerics
from gradkit.errors import AgreementError, InputError
from gradkit.numerics._arguments import refuse_other_devices
from gradkit.testing import assert_gradients_close

NAN = float("nan")


@pytest.fixture(autouse=True)
def _on_device(device):
    with torch.device(device):
        yield


def odd(kind: str) -> Any:
    """Return a value that is no dense floating tensor."""
    from torch._subclasses import FakeTensorMode

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nested and quantized ones are to change
        if kind == "fake":
            with FakeTensorMode():
                return torch.ones(3)
        parts = [torch.ones(2), torch.ones(3)]
        makers = {
            "meta": lambda: torch.ones(3, device="meta"),
            "quantized": lambda: torch.quantize_per_tensor(
                torch.ones(3), 0.1, 0, torch.qint8
            ),
            "nested": lambda: torch.nested.nested_tensor(parts),
            "jagged": lambda: torch.nested.nested_tensor(parts, layout=torch.jagged),
            "complex": lambda: torch.ones(3, dtype=torch.complex64),
            "int64": lambda: torch.ones(3, dtype=torch.int64),
            "bool": lambda: torch.ones(3, dtype=torch.bool),
            "ndarray": lambda: np.ones(3),
            "float": lambda: 1.0,
            "list": lambda: [torch.ones(3)],
            "dict": lambda: {"b": torch.ones(3)},
        }
        return makers[kind]()


#: What is said of each kind; None where that depends on the function.
ODD = {
    "meta": "got a meta tensor; pass one that holds values",
    "fake": "got a fake tensor; pass one that holds values",
    "quantized": r"got a quantized tensor; pass x.dequantize\(\)",
    "nested": r"got a nested tensor; pass x.to_padded_tensor\(0.0\)",
    "jagged": r"got a nested tensor; pass x.to_padded_tensor\(0.0\)",
    "complex": r"got a complex tensor; pass torch.view_as_real\(x\)",
    "int64": r"got an int64 tensor; pass x.double\(\)",
    "bool": r"got a bool tensor; pass x.double\(\)",
    "ndarray": r"got ndarray; pass torch.from_numpy\(x\)",
    "float": r"got float; pass torch.tensor\(x\)",
}


@pytest.mark.parametrize("kind", ODD)
class TestWhatIsNoDenseFloatingTensor:
    def test_is_refused_by_its_name(self, kind: str) -> None:
        x, ones = odd(kind), torch.ones(3)
        calls = {
            "a": lambda: numerics.ulp_distance(x, ones),
            "b": lambda: numerics.ulp_distance(ones, x),
            "x": lambda: numerics.dot_error_bound(x, ones),
            "y": lambda: numerics.dot_error_bound(ones, x),
            "inputs": lambda: numerics.linear_error_bound(x, ones[None]),
            "weight": lambda: numerics.linear_error_bound(ones, x),
            "bias": lambda: numerics.linear_error_bound(ones, ones[None], x),
        }
        for argument, call in calls.items():
            text = f"{argument} must be a floating tensor; {ODD[kind]}"
            with pytest.raises(InputError, match=text) as caught:
                call()
            assert caught.value.function is not None
            assert caught.value.argument == argument

    @pytest.mark.parametrize("turned", [False, True])
    def test_is_refused_by_its_place(self, kind: str, turned: bool) -> None:
        pair = [{"w": torch.ones(3), "b": torch.ones(3)} for _ in "ab"]
        pair[turned]["b"] = odd(kind)
        place = rf"{'ab'[turned]}\['b'\]"
        with pytest.raises(
            InputError, match=rf"difference: {place} must .*{ODD[kind]}"
        ):
            numerics.explain_difference(*pair)
        place = ("actual", "expected")[turned]
        with pytest.raises(InputError, match=rf"close: {place}\['b'\] .*{ODD[kind]}"):
            assert_gradients_close(*pair)
        lists = [list(tensors.values()) for tensors in pair]
        with pytest.raises(InputError, match=rf"{place}\[1\] must be .*{ODD[kind]}"):
            assert_gradients_close(*lists)
        with pytest.raises(InputError, match=rf"close: {place} .*{ODD[kind]}"):
            assert_gradients_close(*(tensors["b"] for tensors in pair))


@pytest.mark.parametrize("layout", ["coo", "csr", "uncoalesced"])
def test_sparse_gradients_are_compared_and_refused_elsewhere(layout: str) -> None:
    table = nn.Embedding(5, 3, sparse=True)
    words = torch.tensor([1, 4, 1])
    (found,) = torch.autograd.grad(table(words).sum(), table.weight)
    dense = nn.functional.embedding(words, table.weight, sparse=False).sum()
    (right,) = torch.autograd.grad(dense, table.weight)
    if layout != "uncoalesced":
        found = found.coalesce()
    if layout == "csr":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it is in beta
            found = found.to_dense().to_sparse_csr()
    assert numerics.explain_difference(found, right).verdict == "equal"
    assert assert_gradients_close([found], [right]).verdict == "equal"
    assert not numerics.explain_difference(found, 2 * right)
    name = "sparse_csr" if layout == "csr" else "sparse_coo"
    with pytest.raises(InputError, match=rf"a {name} tensor; pass x.to_dense\(\)"):
        numerics.ulp_distance(found, right)
    with pytest.raises(InputError, match=rf"a {name} tensor; pass x.to_dense\(\)"):
        numerics.dot_error_bound(right, found)


class TestUlps:
    @pytest.mark.parametrize(
        "name", ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"]
    )
    def test_of_eight_bits(self, name: str) -> None:
        dtype = getattr(torch, name)
        eps = 2 * numerics.unit_roundoff(dtype)
        a = torch.tensor([1.0, -2.0, 0.0, NAN, NAN, 1.0]).to(dtype)
        b = torch.tensor([1 + eps, -2 - 2 * eps, -0.0, NAN, 1.0, NAN]).to(dtype)
        most = torch.iinfo(torch.int64).max
        assert numerics.ulp_distance(a, b).tolist() == [1, 1, 0, 0, most, most]
        assert not numerics.explain_difference(a, b)
        assert numerics.explain_difference(a[:4], b[:4]).verdict == "rounding"
        assert numerics.explain_difference(a, a).verdict == "equal"

    def test_of_a_sign_that_is_still_to_be_changed(self) -> None:
        x = torch.complex(torch.ones(3), torch.ones(3)).conj().imag
        assert x.is_neg()
        assert numerics.ulp_distance(x, -torch.ones(3)).tolist() == [0, 0, 0]
        assert numerics.explain_difference(x, -torch.ones(3)).verdict == "equal"

    def test_of_dtypes_without_an_order(self) -> None:
        x = torch.ones(2).to(torch.float8_e8m0fnu)
        with pytest.raises(
            InputError, match=r"a must be of float64, .*; got float8_e8"
        ):
            numerics.ulp_distance(x, x)
        assert numerics.explain_difference(x, x).verdict == "equal"


class TestBounds:
    @pytest.mark.parametrize("dtype", [torch.int64, torch.bool, int, "float32"])
    def test_refuse_dtypes(self, dtype: Any) -> None:
        x = torch.ones(3)
        calls = {
            "unit_roundoff": lambda: numerics.unit_roundoff(dtype),
            "gamma": lambda: numerics.gamma(3, dtype),
            "dot_error_bound": lambda: numerics.dot_error_bound(x, x, dtype),
            "linear_error_bound": lambda: numerics.linear_error_bound(
                x, x[None], dtype=dtype
            ),
        }
        for function, call in calls.items():
            text = f"{function}: dtype must be a floating dtype, such as torch.float32"
            with pytest.raises(InputError, match=text) as caught:
                call()
            assert caught.value.argument == "dtype"

    @pytest.mark.parametrize("length", [-1, 2.5, "3", True, None])
    def test_refuse_lengths(self, length: Any) -> None:
        with pytest.raises(InputError, match="gamma: length must be a whole number of"):
            numerics.gamma(length, torch.float32)

    def test_refuse_shapes(self) -> None:
        one = torch.tensor(1.0)
        with pytest.raises(InputError, match="x and y must have one length"):
            numerics.dot_error_bound(one, one)
        with pytest.raises(InputError, match="leading axes of x and y must broadcast"):
            numerics.dot_error_bound(torch.ones(2, 3), torch.ones(4, 3))
        with pytest.raises(InputError, match=r"bias \(k,\)") as caught:
            numerics.linear_error_bound(torch.ones(3), torch.ones(2, 3), torch.ones(3))
        assert caught.value.argument == "bias"

    def test_of_nothing_are_zero(self) -> None:
        """A bound that is infinite times a size of zero is no NaN."""
        zeros = torch.zeros(2, 300, dtype=torch.bfloat16)
        assert numerics.gamma(300, torch.bfloat16) == math.inf
        assert numerics.dot_error_bound(zeros, zeros).tolist() == [0.0, 0.0]
        assert numerics.linear_error_bound(zeros, zeros).tolist() == [[0.0, 0.0]] * 2
        assert numerics.dot_error_bound(zeros + 1, zeros + 1).tolist() == [math.inf] * 2


class TestComparisons:
    @pytest.mark.parametrize("pair", [(1.0, 0.0), (NAN, 0.0), (math.inf, 1.0)])
    def test_of_lone_numbers(self, pair: tuple[float, float]) -> None:
        a, b = map(torch.tensor, pair)
        found = numerics.explain_difference(a, b)
        assert not found
        assert found.index == ()
        assert numerics.explain_difference(a, a.clone()).verdict == "equal"

    def test_of_infinities(self) -> None:
        a, b = torch.tensor([math.inf, 1.0]), torch.tensor([-math.inf, 1.0])
        assert numerics.explain_difference(a, b).error == math.inf
        assert numerics.explain_difference(a, a.clone()).verdict == "equal"

    def test_names_that_are_one_as_text(self) -> None:
        a = {1: torch.ones(2), "1": torch.ones(2)}
        b = {1: torch.ones(2), "1": torch.zeros(2)}
        with pytest.raises(InputError, match="names that differ as text; got 1, '1'"):
            numerics.explain_difference(a, b)  # pyright: ignore[reportArgumentType]

    def test_order_of_names_does_not_matter(self) -> None:
        a = {"w": torch.ones(2), "b": torch.zeros(3)}
        assert numerics.explain_difference(a, dict(reversed(a.items())))

    @pytest.mark.parametrize(
        ("b", "text"),
        [
            ({"w": torch.ones(2)}, "b must have the names of a; it lacks 'b'$"),
            ({"w": torch.ones(2), "c": torch.ones(2)}, "lacks 'b' and has 'c' besides"),
            (torch.ones(2), "b must be of the kind of a; got a tensor and a mapping"),
            ({"w": torch.ones(2), "b": torch.ones(4)},
             r"b must have the shapes of a; b\['b'\] is \(4,\), a\['b'\] \(2,\)"),
        ],
    )  # fmt: skip
    def test_what_does_not_belong_together(self, b: Any, text: str) -> None:
        a = {"w": torch.ones(2), "b": torch.ones(2)}
        with pytest.raises(InputError, match=text):
            numerics.explain_difference(a, b)

    def test_lists_are_refused_with_a_way_out(self) -> None:
        ones: Any = [torch.ones(2)]
        with pytest.raises(InputError, match=r"list; pass dict\(enumerate\(x\)\)"):
            numerics.explain_difference(ones, ones)
        with pytest.raises(InputError, match=r"a\['w'\] .* got dict; flatten what is"):
            numerics.explain_difference({"w": odd("dict")}, {"w": odd("dict")})

    def test_a_referee_is_precise(self) -> None:
        x = torch.rand(4, dtype=torch.float64)
        with pytest.raises(InputError, match=r"less precise .* float32 beside float64"):
            numerics.explain_difference(x, x, x.float())
        assert numerics.explain_difference(x.bfloat16(), x, x)

    def test_inside_a_transform(self) -> None:
        def error(x: Tensor) -> float:
            return numerics.explain_difference(x, x).error

        with pytest.raises(InputError, match=r"a is inside a torch.func transform"):
            torch.func.vmap(error)(torch.ones(3, 2))

    def test_numbers_of_other_libraries(self) -> None:
        x = torch.rand(4)
        how: dict[str, Any] = {"terms": np.int64(3), "samples": torch.tensor(4)}
        assert numerics.explain_difference(x, x, **how).verdict == "equal"

    def test_tensors_of_two_devices(self) -> None:
        places = {n: SimpleNamespace(device=torch.device(n)) for n in ("cpu", "cuda")}
        tensors: Any = {"a['w']": places["cpu"], "b['w']": places["cuda"]}
        text = r"b\['w'\] must be on the device of a\['w'\]; got cuda and cpu; move one"
        with pytest.raises(InputError, match=text) as caught:
            refuse_other_devices(tensors)
        assert caught.value.argument == "b"


class TestNoGradient:
    def test_beside_none_is_equal(self) -> None:
        w, b = torch.ones(2, requires_grad=True), torch.ones(3, requires_grad=True)
        found = torch.autograd.grad(w.sum(), (w, b), allow_unused=True)
        assert found[1] is None
        assert assert_gradients_close(found, [*found]).verdict == "equal"
        assert assert_gradients_close({"b": None}, {"b": None}).verdict == "equal"
        assert assert_gradients_close(None, None).verdict == "equal"
        with pytest.raises(AgreementError, match=r"worst at 0\[0\]"):
            assert_gradients_close(found, [2 * found[0], None])

    @pytest.mark.parametrize(
        ("value", "text"),
        [
            (
                torch.zeros(3),
                "a tensor of zeros. Where zeros are meant pass materialize",
            ),
            (torch.zeros(3).to_sparse(), "a tensor of zeros. Where"),
            (torch.tensor([0.0, -2.0]), "a tensor that is not zero"),
        ],
    )
    def test_beside_a_tensor_is_different(self, value: Tensor, text: str) -> None:
        w = torch.ones(2)
        with pytest.raises(AgreementError) as caught:
            assert_gradients_close({"w": w, "b": None}, {"b": value, "w": w})
        start = "assert_gradients_close: actual must have gradients where expected has;"
        place = "actual['b'] is None, no gradient at all, where expected['b'] is "
        assert str(caught.value).startswith(f"{start} {place}{text}")
        assert caught.value.difference.name == "b"
        assert not caught.value.difference
        with pytest.raises(
            AgreementError, match=r"expected\[0\] is None, .* actual\[0"
        ):
            assert_gradients_close([value], (None,))
        with pytest.raises(AgreementError, match=r"referee\[0\] is None, .* actual\[0"):
            assert_gradients_close([value], [value], referee=[None])
        with pytest.raises(AgreementError, match="and so on for 1 more"):
            assert_gradients_close([None, None], [value, value])

    @pytest.mark.parametrize("kind", ["dict", "int64"])
    def test_beside_what_is_no_gradient_is_refused(self, kind: str) -> None:
        with pytest.raises(
            InputError, match=r"expected\[0\] must be a floating tensor"
        ):
            assert_gradients_close([None], [odd(kind)])

    def test_names_and_lengths_count(self) -> None:
        with pytest.raises(InputError, match="the names of actual; it lacks 'w'"):
            assert_gradients_close({"w": None}, {})
        with pytest.raises(InputError, match="the length of actual, 1; got 2"):
            assert_gradients_close([None], [None, None])
        with pytest.raises(InputError, match="a mapping or sequence of 1 and None"):
            assert_gradients_close(None, [None])
