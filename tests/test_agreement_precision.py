"""Models of mixed precision, constants, and numbers beyond a precision's range."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import gradkit as gk
from gradkit.errors import AgreementError
from gradkit.numerics._own import Precisions, Step
from gradkit.numerics._range import Limited


@pytest.fixture(autouse=True)
def _on_device(device: str) -> Iterator[None]:
    with torch.device(device):
        yield


Model = Callable[[Tensor], Tensor]
FIVE = [0.1, 0.2, 0.3, 0.4, 0.5]


def off_by(factor: float) -> gk.Method:
    """Return a method that is wrong by a factor."""
    right: Any = gk.METHODS["onehot"].inputs

    def rows(task: Any) -> Iterator[Any]:
        for block in right(task):
            values = tuple(factor * v for v in block.values)
            yield gk.Block(block.samples, block.rows, values)

    return gk.Method("off", "reverse", "for a test", inputs=rows)


def verdicts(model: Model, x: Tensor, *methods: Any) -> dict[str, str]:
    chosen = ["loop", "onehot", *methods] if methods else gk.METHODS
    report = gk.compare_methods(gk.jacobian, model, x, methods=chosen)
    return {m.name: m.verdict for m in report.methods if m.verdict != "skipped"}


#: What a float64 model makes in float32, and only moves or chooses by there.
CONSTANTS: dict[str, Model] = {
    "linspace": lambda x: torch.sin(x * torch.linspace(0, 1, 5)),
    "tensor": lambda x: torch.sin(x * torch.tensor(FIVE)),
    "full": lambda x: torch.sin(x * torch.full((5,), 0.1)),
    "as_tensor": lambda x: torch.sin(x + torch.as_tensor(FIVE).float()),
    "arange": lambda x: torch.sin(x * torch.arange(0, 0.5, 0.1)),
    "a mask": lambda x: x.sin() * (x.detach() > -9).half(),
}
#: What rounds in float32 there.
COMPUTED: dict[str, Model] = {
    "positions": lambda x: torch.sin(x + (torch.arange(5).float() / 5).exp()),
    "a cast of an input": lambda x: (x.float().double() * x).sin(),
    "a cast of a result": lambda x: (x.sin().half().double() * x).sin(),
    "a chain": lambda x: (x.half().relu() + 1).tanh().double() * x,
}
#: What a float32 model writes with Python's numbers, which float32 does not hold.
SCALARS: dict[str, Model] = {
    "by its dtype": lambda x: torch.sin(x * torch.linspace(0, 1, 5, dtype=x.dtype)),
    "new_full": lambda x: torch.sin(x * x.new_full((5,), 0.1)),
    "full_like": lambda x: torch.sin(x - torch.full_like(x, 0.7)),
    "what cancels": lambda x: 1 / ((x * 0 + 0.70001) - 0.7 + 1e-3 * x),
    "clamp": lambda x: (x.clamp(0.1, 0.7) - 0.7 + 1e-3).log() * x,
    "where": lambda x: (torch.where(x > 0.5, x, 0.3) - 0.3 + 1e-3).log() * x,
}


class TestConstants:
    @pytest.mark.parametrize("name", CONSTANTS)
    def test_they_are_data(self, name: str) -> None:
        x = torch.rand(4, 5, dtype=torch.float64) + 0.1
        found = verdicts(CONSTANTS[name], x, off_by(1 + 1e-12))
        assert found.pop("off") == "different"
        assert set(found.values()) <= {"equal", "rounding"}

    @pytest.mark.parametrize("name", COMPUTED)
    def test_what_is_computed_there_rounds_there(self, name: str) -> None:
        x = torch.rand(4, 5, dtype=torch.float64) + 0.1
        found = verdicts(COMPUTED[name], x, off_by(1.5))
        assert found.pop("off") == "different"
        assert set(found.values()) <= {"equal", "rounding"}

    @pytest.mark.parametrize("name", SCALARS)
    def test_numbers_that_the_precision_does_not_hold(self, name: str) -> None:
        x = torch.rand(4, 5) + 0.1
        found = verdicts(SCALARS[name], x, off_by(1.5))
        assert found.pop("off") == "different"
        assert set(found.values()) <= {"equal", "rounding"}

    def test_only_the_coarse_part_is_coarse(self) -> None:
        """One entry passes through half precision, the others do not."""

        def model(x: Tensor) -> Tensor:
            return torch.cat((x[:, :1].half().tanh().double(), x[:, 1:].tanh()), 1)

        x = torch.rand(4, 5, dtype=torch.float64) + 0.1
        report = gk.compare_methods(gk.jacobian, model, x, methods=[off_by(1 + 1e-9)])
        assert report["off"].verdict == "different"
        assert bool(gk.assert_agreement(gk.jacobian, model, x))
        assert report.dtype == "float16"


def square(x: Tensor) -> Tensor:
    return x.reshape(-1, 6, 6)


def positive(x: Tensor) -> Tensor:
    return square(x) @ square(x).mT + torch.eye(6)


def two_places(x: Tensor) -> Tensor:
    """Add all of a sample's numbers up in one of two places."""
    rows = torch.arange(len(x))[:, None].expand_as(x)
    columns = torch.zeros_like(x, dtype=torch.long)
    empty = torch.zeros(len(x), 2, dtype=x.dtype)
    return empty.index_put((rows, columns), x.sin(), accumulate=True)


#: Operations whose errors are no roundoffs of each entry of their results.
NORMWISE: dict[str, Model] = {
    "inv": lambda x: torch.linalg.inv(square(x)).flatten(1)[:, :5],
    "solve": lambda x: torch.linalg.solve(positive(x), square(x)).flatten(1)[:, :5],
    "pinv": lambda x: torch.linalg.pinv(square(x)).flatten(1)[:, :5],
    "slogdet": lambda x: torch.linalg.slogdet(square(x))[1],
    "eigvalsh": lambda x: torch.linalg.eigvalsh(positive(x)),
    "svdvals": lambda x: torch.linalg.svdvals(square(x)),
    "qr": lambda x: torch.linalg.qr(square(x))[1].flatten(1)[:, :5],
    "cholesky": lambda x: torch.linalg.cholesky(positive(x)).flatten(1)[:, :8],
    "matrix_exp": lambda x: torch.matrix_exp(square(x) / 3).flatten(1)[:, :5],
    "fft": lambda x: torch.fft.fft(x).abs()[:, :7],
    "rfft": lambda x: torch.fft.rfft(x).imag[:, :7],
    "irfft": lambda x: torch.fft.irfft(torch.fft.rfft(x) * torch.arange(19))[:, :7],
    "complex products": lambda x: (
        (
            torch.complex(square(x), square(x) ** 2)
            @ torch.complex(square(x), 1 - square(x))
        )
        .abs()
        .flatten(1)[:, :5]
    ),
    "index_put": two_places,
    "resized": lambda x: F.interpolate(
        square(x)[:, None], size=(17, 13), mode="bilinear"
    ).flatten(1)[:, 30:40],
    "bicubic": lambda x: F.interpolate(
        square(x)[:, None], scale_factor=2.3, mode="bicubic"
    ).flatten(1)[:, 30:40],
    "layer norm of a large mean": lambda x: F.layer_norm(100 + x, (36,))[:, :5],
    "batch norm of a large mean": lambda x: (
        F.batch_norm(100 + square(x), torch.full((6,), 100.0), torch.ones(6)).flatten(
            1
        )[:, :5]
        ** 2
    ),
    "product": lambda x: x.prod(1, keepdim=True),
    "digamma near its root": lambda x: (
        torch.digamma(1.4616 + 1e-3 * x)[:, :5] * x[:, :5]
    ),
    "fold": lambda x: F.fold(x.reshape(-1, 9, 4).sin(), (4, 4), (3, 3)).flatten(1)[
        :, :5
    ],
    "near points": lambda x: torch.cdist(
        1 + 1e-3 * square(x), 1 - 1e-3 * square(x)
    ).flatten(1)[:, :5],
}


@pytest.mark.parametrize("name", NORMWISE)
def test_operations_with_errors_of_their_own(name: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 36)
    # Some are transformed wrongly by torch.func, which is no matter of rounding.
    found = verdicts(NORMWISE[name], x, "vmap", off_by(1.01))
    assert found.pop("off") == "different"
    assert set(found) == {"loop", "onehot", "vmap"}
    assert set(found.values()) <= {"equal", "rounding"}


#: Models, inputs, and what overflows in them.
BEYOND: dict[str, tuple[Model, Tensor, str]] = {
    "exp": (lambda x: torch.exp(88.9 + x), torch.rand(3, 4) / 10, "exp"),
    "half": (
        lambda x: (x * x).sum(-1, keepdim=True).rsqrt() * x,
        (300 + torch.rand(3, 4)).half(),
        "mul",
    ),
    "single": (
        lambda x: ((x * 1e15) ** 3).sum(-1, keepdim=True).rsqrt() * x,
        torch.rand(3, 4) + 0.5,
        "pow",
    ),
}


class TestRange:
    @pytest.mark.parametrize("name", BEYOND)
    def test_overflow_is_named(self, name: str, device: str) -> None:
        model, x, operation = BEYOND[name]
        x = x.to(device)
        report = gk.compare_methods(gk.jacobian, model, x, methods=["onehot", "vmap"])
        assert not report
        assert {m.verdict for m in report.methods} == {"overflow"}
        reason = str(report["onehot"].reason)
        assert operation in reason
        assert "wider dtype" in reason
        with pytest.raises(AgreementError, match="'onehot' overflows: sample "):
            gk.assert_agreement(gk.jacobian, model, x, methods=["onehot"])

    def test_a_fault_is_not_blamed_on_another_samples_overflow(self) -> None:
        def model(x: Tensor) -> Tensor:
            return torch.exp(80 * x)

        x = torch.tensor([[0.1, 0.2], [0.3, 1.2]])
        found = verdicts(model, x, off_by(1.01))
        assert found == {"loop": "overflow", "onehot": "overflow", "off": "different"}

    def test_a_cast_that_overflows_leaves_its_argument_alone(self) -> None:
        steps = [Step("tanh", torch.float16, (torch.float16,))]
        x = torch.tensor([1.0, 1e5], dtype=torch.float64)
        with Limited(Precisions(torch.float32, steps)) as limited:
            found = x.tanh()
        assert limited.found == {"a cast before tanh": 1}
        assert x.tolist() == [1.0, 1e5]
        assert found[1] == 1

    def test_small_and_large_numbers_are_compared(self) -> None:
        for size in (1e160, 1e-160):
            x = torch.rand(3, 5, dtype=torch.float64) - 0.5
            weight = torch.rand(5, 2, dtype=torch.float64)
            found = verdicts(lambda x, w=weight, s=size: (x * s) @ w, x, off_by(1.01))
            assert found.pop("off") == "different"
            assert set(found.values()) <= {"equal", "rounding"}

    def test_underflow_is_rounding(self) -> None:
        def model(x: Tensor) -> Tensor:
            return (x * 1e-25) ** 2 * 1e30 * x

        found = verdicts(model, torch.rand(3, 4) + 0.5, off_by(1.01))
        assert set(found.values()) == {"rounding"}

    def test_a_bound_above_the_numbers_is_said(self) -> None:
        def model(x: Tensor) -> Tensor:
            return 1e-30 * x * (1 + 1e30 * (1e8 * x + 1 - 1e8 * x - 1))

        report = gk.compare_methods(gk.jacobian, model, torch.rand(3, 4) + 0.5,
                                    methods=["onehot"])  # fmt: skip
        assert "says nothing" in str(report["onehot"].reason)


class TestRefusals:
    def test_a_transform_that_calls_refuse_says_so(self) -> None:
        def model(x: Tensor) -> Tensor:
            return torch.linalg.det(x.reshape(-1, 4, 4))

        torch.manual_seed(0)
        x = torch.randn(3, 16)
        x[1] = torch.arange(16.0)  # singular, which torch.func does not see
        report = gk.compare_methods(gk.jacobian, model, x)
        assert not report
        assert report["jacrev"].verdict == "different"
        assert report["loop"].verdict == "rounding"
        assert "a call with it is refused" in str(report["jacrev"].reason)

    def test_rows_that_never_come_are_different(self) -> None:
        def few(task: Any) -> Iterator[Any]:
            values = tuple(torch.zeros(1, task.rows, size) for size in task.sizes)
            yield gk.Block(slice(0, 1), slice(0, task.rows), values)

        method = gk.Method("few", "reverse", "for a test", inputs=few)
        x = torch.rand(3, 4)
        found = verdicts(torch.tanh, x, method)
        assert found["few"] == "different"
        assert found["loop"] != "different"
        with pytest.raises(AgreementError, match="'few' is different: A method must"):
            gk.assert_agreement(gk.jacobian, torch.tanh, x, methods=[method])
