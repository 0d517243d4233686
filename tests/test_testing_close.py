"""``assert_gradients_close``: rounding passes, everything else is named."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from gradkit.errors import AgreementError, InputError
from gradkit.testing._close import assert_gradients_close


@pytest.fixture(autouse=True)
def _on_device(device):
    with torch.device(device):
        yield


def gradients(dtype: torch.dtype, size: int = 64) -> tuple[dict, dict, dict]:
    """Return a batch's gradients, the sum of the samples', and those in float64."""
    model = nn.Sequential(nn.Linear(30, 20), nn.Tanh(), nn.Linear(20, 4)).to(dtype)
    x = torch.randn(size, 30).to(dtype)
    names = [name for name, _ in model.named_parameters()]

    def of(part: Tensor) -> dict[str, Tensor]:
        found = torch.autograd.grad(model(part).square().sum(), [*model.parameters()])
        return dict(zip(names, found, strict=True))

    whole, each = of(x), [of(row[None]) for row in x]
    summed = {n: torch.stack([e[n] for e in each]).sum(0) for n in names}
    model.double()
    return whole, summed, of(x.double())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_rounding_passes(dtype):
    for _ in range(10):
        whole, summed, right = gradients(dtype)
        assert assert_gradients_close(summed, whole, terms=64 * 4)
        assert assert_gradients_close(summed, whole, terms=64 * 4, referee=right)
        flat = [*summed.values()], tuple(whole.values())
        assert assert_gradients_close(*flat, terms=64 * 4).verdict == "rounding"
    assert assert_gradients_close(whole, whole).verdict == "equal"


WRONG: dict[str, Callable[[Tensor], Tensor]] = {
    "a mean for a sum": lambda g: g / 64,
    "another sign": torch.neg,
    "a little larger": lambda g: 1.001 * g,
    "one entry": lambda g: g.index_fill(0, torch.tensor([1]), 0.0),
    "not a number": lambda g: g * float("nan"),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("refereed", [False, True])
def test_what_is_wrong_is_found(name, refereed):
    whole, _, right = gradients(torch.float32)
    wrong = {**whole, "0.weight": WRONG[name](whole["0.weight"])}
    referee = right if refereed else None
    with pytest.raises(AgreementError, match=r"different; worst at 0\.weight\[") as e:
        assert_gradients_close(wrong, whole, terms=64 * 4, referee=referee)
    assert "only '0.weight' of 4 differ" in str(e.value)
    assert e.value.difference.name == "0.weight"


def test_the_text():
    right = torch.tensor([[1.0, -2.0], [3.0, 4.0]])
    wrong = right.clone()
    wrong[1, 0] = 3.5
    with pytest.raises(AgreementError) as caught:
        assert_gradients_close(wrong, right, terms=2)
    assert str(caught.value).startswith(
        "assert_gradients_close: actual must be expected but for rounding; it is"
        " different; worst at [1, 0]: 3.5 against 3 (difference +5.00e-01, allowed"
    )


@pytest.mark.parametrize(
    ("actual", "expected", "text"),
    [
        (torch.ones(2), torch.ones(3), r"expected must have the shapes of actual"),
        ({"a": torch.ones(2)}, {"b": torch.ones(2)}, "expected must have the names of"),
        ([torch.ones(2)], torch.ones(2), "expected must be of the kind of actual"),
        (3.0, torch.ones(2), "actual must be a floating tensor, or a mapping"),
    ],
)
def test_what_does_not_belong_together(actual, expected, text):
    with pytest.raises(InputError, match=text):
        assert_gradients_close(actual, expected)
