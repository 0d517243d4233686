"""``gk.numerics``: units in the last place, bounds, promotion, differences."""

from __future__ import annotations

import math
from typing import Any

import mpmath
import pytest
import torch
from torch import Tensor, nn

import gradkit as gk
from found import doubles
from gradkit import numerics
from gradkit.errors import InputError

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
MOST = torch.iinfo(torch.int64).max


@pytest.fixture(autouse=True)
def _on_device(device):
    with torch.device(device):
        yield


class TestUnitsInTheLastPlace:
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_count_the_steps_of_nextafter(self, dtype):
        start = torch.tensor([1.0, -3.0, 1e-3, 0.0, -0.0, 240.0], dtype=dtype)
        far = torch.tensor(300.0, dtype=dtype)
        x = start.clone()
        for steps in range(1, 6):
            x = torch.nextafter(x, far) if dtype.itemsize >= 4 else after(x)
            assert numerics.ulp_distance(start, x).tolist() == [steps] * 6
            assert numerics.ulp_distance(x, start).tolist() == [steps] * 6

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_at_the_ends(self, dtype):
        inf, nan = float("inf"), float("nan")
        last, least = torch.finfo(dtype).max, torch.finfo(dtype).smallest_normal
        a = torch.tensor([0.0, inf, nan, nan, 1.0, inf], dtype=dtype)
        b = torch.tensor([-0.0, last, nan, 1.0, nan, inf], dtype=dtype)
        found = numerics.ulp_distance(a, b)
        assert found.tolist() == [0, 1, 0, MOST, MOST, 0]
        across = torch.tensor([least, -least], dtype=dtype)
        assert numerics.ulp_distance(*across) == 2 * numerics.ulp_distance(
            across[0], torch.tensor(0.0, dtype=dtype)
        )

    def test_do_not_overflow(self):
        last = torch.finfo(torch.float64).max
        far = numerics.ulp_distance(double(last), double(-last))
        assert far.item() == MOST
        assert 0 < numerics.ulp_distance(double(1.0), double(-1.0)).item() <= MOST

    def test_broadcast(self):
        a, b = torch.ones(3, 1), torch.ones(2)
        assert numerics.ulp_distance(a, b).shape == (3, 2)

    @pytest.mark.parametrize(
        ("a", "b", "text"),
        [
            (torch.ones(2), torch.ones(2).double(), "a and b must have one dtype"),
            (torch.ones(2, dtype=torch.int64), torch.ones(2), "a must be a floating"),
            (torch.ones(2), 1.0, "b must be a floating tensor; got float; pass"),
            (torch.ones(2), torch.ones(3), r"b must broadcast with a; got \(3,\) and"),
        ],
    )
    def test_are_refused(self, a, b, text):
        with pytest.raises(InputError, match=text) as caught:
            numerics.ulp_distance(a, b)
        assert str(caught.value).startswith("ulp_distance: ")


def after(x: Tensor) -> Tensor:
    """Return the next number up, of dtypes that ``nextafter`` lacks."""
    bits = x.view(torch.int16)
    up = torch.where(x == 0, 1, torch.where(bits < 0, bits - 1, bits + 1))
    return up.to(torch.int16).view(x.dtype)


def double(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


class TestBounds:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_hold_and_are_not_idle(self, dtype):
        x, y = torch.randn(50, 300).to(dtype), torch.randn(50, 300).to(dtype)
        found = torch.zeros(50, dtype=dtype)
        for k in range(300):  # one after another, each rounded
            found = found + x[:, k] * y[:, k]
        exact = (x.double() * y.double()).sum(-1)
        bound = numerics.dot_error_bound(x, y)
        error = (found.double() - exact).abs()
        assert bool((error <= bound).all())
        if dtype == torch.float32:
            assert bool((error > bound / 1e4).any())
            assert not bool((exact * 1e-3 <= bound).all())

    def test_of_a_sum_of_equal_terms_are_reached_in_order(self):
        """One long sum of ones stalls in bfloat16, which no smaller bound explains."""
        ones = torch.ones(1, 200, dtype=torch.bfloat16)
        assert numerics.gamma(256, torch.bfloat16) == math.inf
        assert 0 < float(numerics.dot_error_bound(ones, ones)) < 1000

    def test_of_a_linear_layer(self):
        layer, x = nn.Linear(300, 7), torch.randn(4, 6, 300)
        weight, bias = layer.weight, layer.bias
        exact = x.double() @ weight.double().T + bias.double()
        bound = numerics.linear_error_bound(x, weight, bias)
        assert bound.shape == (4, 6, 7)
        assert bool(((layer(x).double() - exact).abs() <= bound).all())
        without = numerics.linear_error_bound(x, weight)
        assert bool((without < bound).all())

    def test_are_refused(self):
        with pytest.raises(InputError, match="must have one length"):
            numerics.dot_error_bound(torch.ones(2), torch.ones(3))
        with pytest.raises(InputError, match=r"weight must be \(k, d\)"):
            numerics.linear_error_bound(torch.ones(2), torch.ones(3, 4))


class TestPromoting:
    def test_promotes_casts_factories_and_lower_tensors(self):
        x = doubles(4, 3)
        low = torch.rand(3)
        with numerics.promoting() as seen:
            found = [
                x.float(), x.half() * 2, x.to(torch.bfloat16), x.type(torch.float32),
                torch.zeros(3), torch.rand(3, dtype=torch.float32), low * 2,
                x.softmax(-1, dtype=torch.float32), x.sum(dtype=torch.float32),
                torch.tensor([0.1]), torch.nn.functional.linear(low, low[None]),
            ]  # fmt: skip
        assert {t.dtype for t in found} == {torch.float64}
        assert torch.equal(found[0], x)
        assert seen.lower == {}
        assert torch.float32 in seen.asked

    def test_draws_what_was_asked_for(self):
        torch.manual_seed(1)
        expected = torch.rand(5, dtype=torch.float32)
        torch.manual_seed(1)
        with numerics.promoting():
            found = torch.rand(5, dtype=torch.float32)
        assert torch.equal(found, expected.double())

    def test_reports_what_writes_to_lower_memory(self):
        low, x = torch.zeros(3), doubles(3)
        with numerics.promoting() as seen:
            low.copy_(x)
        assert dict(seen.lower) == {"copy_": 1}

    def test_is_over_afterwards(self):
        with pytest.raises(ZeroDivisionError), numerics.promoting():
            raise ZeroDivisionError
        assert torch.get_default_dtype() == torch.float32
        assert torch.zeros(1).double().float().dtype == torch.float32

    def test_goes_through_a_backward(self):
        x = doubles(4).requires_grad_()
        with numerics.promoting():
            (x.float().sin().half() ** 2).sum().backward()
        expected = 2 * x.detach().sin() * x.detach().cos()
        torch.testing.assert_close(x.grad, expected, rtol=1e-14, atol=1e-15)


class TestExplainDifference:
    def test_of_equal_tensors(self):
        a = {"w": torch.rand(3, 2), "b": torch.rand(3)}
        found = numerics.explain_difference(a, {n: t.clone() for n, t in a.items()})
        assert found.verdict == "equal"
        assert bool(found)

    def test_of_rounding(self):
        x, w = torch.randn(20, 300), torch.randn(7, 300)
        one = x @ w.T
        other = torch.stack([(w * row).sum(1) for row in x])
        found = numerics.explain_difference(one, other, terms=300)
        assert found.verdict == "rounding"
        right = x.double() @ w.double().T
        assert numerics.explain_difference(one, other, right, terms=300)

    @pytest.mark.parametrize(
        ("change", "hint"),
        [
            (lambda g: g / 6, "every entry is 1/N = 1/6 times the right one"),
            (lambda g: 6 * g, "every entry is N = 6 times the right one"),
            (lambda g: -g, "every entry is -1 times the right one"),
            (lambda g: 0 * g, "every entry is zero"),
            (lambda g: 1.01 * g, "every entry is 1.01 times the right one"),
            (lambda g: g.flip(0), "the rows are in another order: 5, 4, 3, 2, 1, 0"),
            (lambda g: g.cumsum(0), "each row holds the sum of those before it: it"
                                    " accumulates"),
            (lambda g: g.sum(0).expand_as(g), "each row is the sum of all rows"),
            (lambda g: g.mean(0).expand_as(g), "each row is the mean of all rows"),
            (lambda g: g.mT.reshape(g.shape), "the entries are those of the transpose,"
                                              " in its order"),
            (lambda g: torch.cat([g[:5], 2 * g[5:]]), "only 5 of 6 samples differ"),
        ],
    )  # fmt: skip
    def test_says_what_it_looks_like(self, change, hint):
        g = torch.randn(6, 4, 5)
        found = numerics.explain_difference(change(g), g, samples=6)
        assert not found
        assert found.hints[0] == hint

    def test_names_the_tensor_and_the_entry(self):
        right = {"w": torch.randn(4, 3), "b": torch.randn(3)}
        wrong = {n: t.clone() for n, t in right.items()}
        wrong["w"][2, 1] += 0.5
        found = numerics.explain_difference(wrong, right)
        assert (found.name, found.index) == ("w", (2, 1))
        assert found.a - found.b == pytest.approx(0.5)
        assert "only 'w' of 2 differ" in found.hints
        assert str(found).startswith("different; worst at w[2, 1]: ")

    def test_with_a_referee_says_who_is_wrong(self):
        right = doubles(5, 4)
        a, b = right.float(), right.float() * (1 + 1e-5)
        assert not numerics.explain_difference(a, b, right)
        assert numerics.explain_difference(a, a.clone(), right)

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_in_few_digits_still_tells(self, dtype):
        a = torch.randn(200, 100).to(dtype)
        assert not numerics.explain_difference(a, -a * 7)
        assert not numerics.explain_difference(a, torch.zeros_like(a))
        ones = torch.ones(3000, dtype=dtype)
        assert not numerics.explain_difference(ones, torch.zeros_like(ones))
        both = {"a": ones, "b": a}
        found = numerics.explain_difference(both, {**both, "a": 0 * ones})
        assert (found.verdict, found.name) == ("different", "a")

    @pytest.mark.parametrize("how", [{"terms": 0}, {"terms": 2.5}, {"samples": 5}])
    def test_numbers_that_make_no_sense_are_refused(self, how):
        with pytest.raises(InputError, match=next(iter(how))):
            numerics.explain_difference(torch.ones(4), torch.zeros(4), **how)

    def test_of_nan_and_infinity(self):
        a = torch.tensor([1.0, float("nan"), float("inf")])
        assert numerics.explain_difference(a, a.clone())
        assert not numerics.explain_difference(a, torch.tensor([1.0, 2.0, 3.0]))

    @pytest.mark.parametrize(
        ("a", "b", "text"),
        [
            (torch.ones(2), torch.ones(3), "b must have the shapes of a"),
            ({"x": torch.ones(2)}, {"y": torch.ones(2)}, "b must have the names of a"),
            (torch.ones(2), [1.0], "b must be a floating tensor"),
        ],
    )
    def test_is_refused(self, a, b, text):
        with pytest.raises(InputError, match=text):
            numerics.explain_difference(a, b)


def rms_norms() -> dict[str, tuple[Any, Any]]:
    """Return norms that cast to float32 inside, and what their weight multiplies by."""
    from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
    from transformers.models.llama.modeling_llama import LlamaRMSNorm
    from transformers.models.t5.modeling_t5 import T5LayerNorm

    def as_it_is(weight: Tensor) -> Tensor:
        return weight

    return {
        "Llama": (LlamaRMSNorm, as_it_is),
        "Gemma": (GemmaRMSNorm, lambda weight: 1 + weight),
        "T5": (T5LayerNorm, as_it_is),
    }


@pytest.mark.parametrize("name", ["Llama", "Gemma", "T5"])
class TestRefereeOfModelsThatCast:
    def test_is_closer_to_fifty_digits_than_the_model_in_double(self, name):
        make, factor = rms_norms()[name]
        norm = make(5, eps=1e-6).double()
        with torch.no_grad():
            norm.weight.copy_(doubles(5))
        x = doubles(2, 5)
        weight = factor(norm.weight.detach())
        with mpmath.workdps(50):
            right = [by_mpmath(mpmath, row, weight) for row in x]
            plain = gk.jacobian(norm, x, method="onehot")
            with numerics.promoting() as seen:
                referee = gk.jacobian(norm, x, method="onehot")
            far = distance(mpmath, plain, right)
            near = distance(mpmath, referee, right)
        assert referee.dtype == torch.float64
        assert seen.lower == {}
        assert near < 1e-15 < 1e-9 < far

    def test_leaves_nothing_below_float64(self, name):
        from zoo import ZOO

        called = {"Gemma": "gemma_as_it_is"}.get(name, name.lower())
        (specimen,) = (s for s in ZOO if s.name == called)
        model, inputs = specimen.make().float(), specimen.inputs()
        inputs = {n: t.float() if t.is_floating_point() else t
                  for n, t in inputs.items()}  # fmt: skip
        report = gk.compare_methods(
            gk.per_sample_gradients, model, inputs,
            lambda logits: logits.flatten(1).sin().sum(1), of=specimen.of,
            methods=["rules", "rows"],
        )  # fmt: skip
        assert report.lower == {}
        assert bool(report), str(report)
        assert report["rows"].verdict in ("rounding", "branch")


def by_mpmath(mpmath: Any, row: Tensor, weight: Tensor) -> list[list[Any]]:
    """Return the Jacobian of ``w x / sqrt(mean(x**2) + eps)`` in fifty digits."""
    x = [mpmath.mpf(v) for v in row.tolist()]
    size = len(x)
    root = 1 / mpmath.sqrt(sum(v * v for v in x) / size + mpmath.mpf(1e-6))
    return [
        [
            mpmath.mpf(w) * root * ((i == j) - x[i] * x[j] * root**2 / size)
            for j in range(size)
        ]
        for i, w in enumerate(weight.tolist())
    ]


def distance(mpmath: Any, found: Tensor, right: list[list[list[Any]]]) -> float:
    """Return the largest difference, as a part of the largest entry."""
    gaps, sizes = [], []
    for sample, rows in zip(found.tolist(), right, strict=True):
        for line, expected in zip(sample, rows, strict=True):
            gaps += [
                abs(mpmath.mpf(v) - e) for v, e in zip(line, expected, strict=True)
            ]
            sizes += [abs(e) for e in expected]
    return float(max(gaps) / max(sizes))
