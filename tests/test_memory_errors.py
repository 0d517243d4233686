"""What people read when memory does not suffice."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import gradkit as gk
from gradkit import errors

MESSAGE = (
    r"^jacobian: out of memory: the result \(N = 1, K = 2,000,000, D = 2,000,000\)"
    r" takes 16 TB, and [\d.]+ \w?B are free\. Ask for less at once: .*of=.*wrt=.*out="
)


def test_a_result_beyond_memory_is_refused_before_any_work() -> None:
    # Expanded, so that the inputs themselves take no room.
    row = torch.ones(1, 1).expand(1, 2_000_000)
    pulled: list[Tensor] = []

    def watched(x: Tensor) -> Tensor:
        y = x.sin()
        if y.requires_grad:
            y.register_hook(pulled.append)
        return y

    with pytest.raises(errors.OutOfMemoryError, match=MESSAGE) as caught:
        gk.jacobian(watched, row)
    assert isinstance(caught.value, MemoryError)
    assert caught.value.needed == 4 * 2_000_000**2
    assert len(pulled) == 0


def test_a_result_that_fits_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(3, 4)
    for free, fits in ((3 * 4 * 4 * 4, True), (3 * 4 * 4 * 4 - 1, False)):
        monkeypatch.setattr("gradkit._call._room.free_memory", lambda _, n=free: n)
        if fits:
            assert gk.jacobian(torch.sin, x).shape == (3, 4, 4)
        else:
            with pytest.raises(MemoryError):
                gk.jacobian(torch.sin, x)
    out = torch.empty(3, 4, 4)
    assert gk.jacobian(torch.sin, x, out=out) is out


def doubled_until(error: Exception) -> Callable[[Tensor], Tensor]:
    """Return a function whose backward raises an error."""

    class Full(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def backward(ctx, g):
            raise error

    return Full.apply  # pyright: ignore[reportReturnType]


NO_ROOM = "DefaultCPUAllocator: can't allocate memory: you tried"


@pytest.mark.parametrize("ask", [gk.jacobian, gk.parameter_jacobian])
def test_work_that_runs_out_says_what_to_ask_for(ask) -> None:
    full = doubled_until(RuntimeError(NO_ROOM))

    class Model(nn.Linear):
        def forward(self, input):
            return full(super().forward(input))

    with pytest.raises(errors.OutOfMemoryError, match="Ask for less at once") as caught:
        ask(Model(3, 2), torch.ones(5, 3), method="loop")
    assert "max_memory=" in str(caught.value)
    assert caught.value.function == ask.__name__


def test_a_method_that_runs_out_says_so_too() -> None:
    def crowded(task):
        raise RuntimeError(NO_ROOM)
        yield

    mine = gk.Method("mine", "reverse", "runs out", inputs=crowded)
    with pytest.raises(errors.OutOfMemoryError, match="fewer samples") as caught:
        gk.jacobian(nn.Linear(3, 2), torch.ones(5, 3), method=mine)
    assert list(caught.value.reasons) == ["mine"]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exceptions have no notes")
def test_an_accelerators_own_error_is_explained() -> None:
    crowded = doubled_until(
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")
    )
    with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory") as caught:
        gk.jacobian(crowded, torch.ones(5, 3), method="loop")
    assert "Ask for less at once" in "".join(vars(caught.value)["__notes__"])
