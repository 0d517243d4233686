"""Functions with a planted error in a derivative, and functions that are right.

``PLANTED`` must be caught, each in the mode and at the entry that it says; ``RIGHT``
must pass. Shapes are unequal everywhere, values are of both signs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

D = torch.float64


@dataclass(frozen=True)
class Trial:
    name: str
    function: Callable[[], Any]
    inputs: Callable[[], Any]
    how: dict[str, Any] = field(default_factory=dict)
    #: What the error must say: mode and variable; ``None`` for either is not asked.
    mode: str | None = None
    variable: str | None = None


def randn(*shape: int, seed: int = 3, dtype: torch.dtype = D) -> Tensor:
    draws = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=draws, dtype=D).to(dtype)


def custom(
    forward: Callable[..., Any],
    backward: Callable[..., Any],
    jvp: Callable[..., Any] | None = None,
    **more: Any,
) -> Callable[..., Any]:
    """Return ``apply`` of a Function: ``backward(saved inputs, cotangent)``."""

    def run(ctx: Any, *args: Any) -> Any:
        ctx.save_for_backward(*(a for a in args if isinstance(a, Tensor)))
        if jvp is not None:
            ctx.save_for_forward(*(a for a in args if isinstance(a, Tensor)))
        return forward(*args)

    def pull(ctx: Any, *cotangents: Tensor) -> Any:
        return backward(ctx.saved_tensors, *cotangents)

    names = {"forward": staticmethod(run), "backward": staticmethod(pull), **more}
    if jvp is not None:
        names["jvp"] = staticmethod(lambda ctx, *t: jvp(ctx.saved_tensors, *t))
    return type("Planted", (torch.autograd.Function,), names).apply


def one(*shape: int) -> Callable[[], Tensor]:
    return lambda: randn(*shape)


def two(first: tuple[int, ...], second: tuple[int, ...]) -> Callable[[], Any]:
    return lambda: (randn(*first), randn(*second, seed=5))


# --- planted errors ----------------------------------------------------------------


def sign():
    return custom(torch.cos, lambda s, g: g * s[0].sin())


def missing_term():
    return custom(lambda x: x * x.exp(), lambda s, g: g * s[0].exp())


def factor():
    return custom(lambda x: x**3, lambda s, g: 2 * g * s[0] ** 2)


def broadcast_sum():
    def backward(s, g):
        return g * s[1], (g * s[0])[0]  # not summed over the rows

    return custom(lambda x, w: x * w, backward)


def swapped():
    return custom(lambda x, y: x * y, lambda s, g: (g * s[0], g * s[1]))


def transposed():
    return custom(lambda x, w: x @ w, lambda s, g: (g @ s[1], s[0].T @ g))


def saved_modified():
    def forward(ctx, x):
        y = x.exp()
        ctx.kept = y
        y.data.mul_(2)
        return y / 2

    def backward(ctx, g):
        return g * ctx.kept

    names = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type("Modified", (torch.autograd.Function,), names).apply


def off_by_one():
    def backward(s, g):
        return torch.cat([g[..., 1:], g[..., :1]], -1) * s[0].cos()

    return custom(torch.sin, backward)


def wrong_mask():
    return custom(lambda x: x.clamp(-0.5, 0.5), lambda s, g: g * (s[0] > -0.5))


def last_chunk():
    def backward(s, g):
        result = torch.zeros_like(s[0])
        for start in range(0, len(g) - 2, 3):
            result[start : start + 3] = (g * s[0].cos())[start : start + 3]
        return result

    return custom(torch.sin, backward)


def double_backward():
    def forward(ctx, x):
        ctx.slope = 2 * x.detach()
        return x**2

    names = {
        "forward": staticmethod(forward),
        "backward": staticmethod(lambda ctx, g: g * ctx.slope),
    }
    return type("Kept", (torch.autograd.Function,), names).apply


def wrong_jvp():
    return custom(
        torch.sin, lambda s, g: g * s[0].cos(), lambda s, t: t * s[0].cos() ** 2
    )


def one_none():
    return custom(lambda x, y: x * y.sin(), lambda s, g: (g * s[1].sin(), None))


def half_inside():
    return custom(torch.sin, lambda s, g: (g.half() * s[0].half().cos()).to(g))


def missing_conjugate():
    # z = a + ib as two last entries; the backward of z² uses 2z, not its conjugate.
    def times(a, b):
        return torch.stack(
            [
                a[..., 0] * b[..., 0] - a[..., 1] * b[..., 1],
                a[..., 0] * b[..., 1] + a[..., 1] * b[..., 0],
            ],
            -1,
        )

    return custom(lambda z: times(z, z), lambda s, g: 2 * times(s[0], g))


def negative_only():
    return custom(lambda x: F.elu(x), lambda s, g: g * torch.where(s[0] > 0, 1.0, 0.9))


def large_index():
    def backward(s, g):
        result = g * s[0].cos()
        result[3000:] = 0.0
        return result

    return custom(torch.sin, backward)


def detached_part():
    return lambda x: x / x.detach().norm()


def one_nth():
    return custom(lambda x: x.exp().sum(), lambda s, g: g * s[0].exp() / len(s[0]))


def stale_buffer():
    class Scaled(nn.Module):
        doubled: Tensor
        weight: nn.Parameter

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(randn(4))
            self.register_buffer("doubled", torch.zeros(4))

        def forward(self, x: Tensor) -> Any:
            self.doubled.copy_(2 * self.weight.detach())  # kept for speed
            return x * self.doubled

    return Scaled()


def kink_outside():
    return custom(torch.relu, lambda s, g: g * ((s[0] > 0) + 3.0 * (s[0] == 0)))


def wrong_beside_kinks():
    # Right at the zeros, wrong beside them, and most entries are zeros.
    return custom(torch.relu, lambda s, g: g * (s[0] > 0) * 1.001)


def one_entry():
    def backward(s, g):
        result = g * s[0].cos()
        result[17, 5] *= 1 + 1e-4
        return result

    return custom(torch.sin, backward)


def with_zeros() -> Tensor:
    x = randn(6, 7)
    x[1:] = 0.0
    return x


REVERSE, FORWARD = "reverse", "forward"
PLANTED = (
    Trial("sign", sign, one(3, 2), mode=REVERSE, variable="inputs"),
    Trial("missing term", missing_term, one(5), mode=REVERSE, variable="inputs"),
    Trial("factor", factor, one(4), mode=REVERSE, variable="inputs"),
    Trial("broadcast sum", broadcast_sum, two((3, 4), (4,)), {}, REVERSE, "inputs[1]"),
    Trial("swapped inputs", swapped, two((3,), (3,)), mode=REVERSE),
    Trial("transposed", transposed, two((2, 3), (3, 3)), {}, REVERSE, "inputs[0]"),
    Trial("saved tensor modified", saved_modified, one(3, 2), mode=REVERSE),
    Trial("off by one", off_by_one, one(2, 5), mode=REVERSE),
    Trial("wrong mask", wrong_mask, one(9), mode=REVERSE),
    Trial("last chunk dropped", last_chunk, one(7, 2), mode=REVERSE),
    Trial("double backward", double_backward, one(3), {"order": 2}, REVERSE),
    Trial("wrong jvp", wrong_jvp, one(4), mode=FORWARD),
    Trial("None for one input", one_none, two((3,), (3,)), {}, REVERSE, "inputs[1]"),
    Trial("half inside", half_inside, one(6), mode=REVERSE),
    Trial("missing conjugate", missing_conjugate, one(3, 2), mode=REVERSE),
    Trial("negative only", negative_only, one(8), mode=REVERSE),
    Trial("large index", large_index, one(3001), mode=REVERSE),
    Trial("detached part", detached_part, one(5), mode=REVERSE),
    Trial("1/N", one_nth, one(7), mode=REVERSE),
    Trial("stale buffer", stale_buffer, one(2, 4), {}, REVERSE, "weight"),
    Trial("outside the kink", kink_outside, lambda: torch.zeros(3, 2), mode=REVERSE),
    Trial("beside kinks", wrong_beside_kinks, with_zeros, mode=REVERSE),
    Trial("1e-4 in one entry", one_entry, one(40, 30), mode=REVERSE),
)


# --- right -------------------------------------------------------------------------


def float32_only(wrong: float = 1.0):
    def forward(x, w):
        if x.dtype != torch.float32:
            raise RuntimeError("expected scalar type Float but found Double")
        return (x @ w).tanh()

    def backward(s, g):
        inner = g * (1 - (s[0] @ s[1]).tanh() ** 2)
        return inner @ s[1].T, wrong * s[0].T @ inner

    return custom(forward, backward)


def plain_twin(x, w):
    return (x @ w).tanh()


def no_jvp():
    return custom(torch.sin, lambda s, g: g * s[0].cos())


def once_only():
    once = torch.autograd.function.once_differentiable

    class Once(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x.sin()

        @staticmethod
        @once
        def backward(ctx: Any, g: Tensor) -> Any:
            return g * ctx.saved_tensors[0].cos()

    return Once.apply


def several(first, second, *, scale=2.0):
    return {"sum": first + second.sum(), "parts": [first * scale, second.exp()[None]]}


def shared_parameters():
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    model[2].weight = model[0].weight
    return model


def in_place(x):
    x.mul_(2)
    y = x.sin()
    y[0] = y[0] * 3
    return y


def checkpointed():
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(2)
            self.inner = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Tanh())

        def forward(self, x: Tensor) -> Any:
            return checkpoint(self.inner, x, use_reentrant=False)

    return Checkpointed()


def convolution():
    torch.manual_seed(4)
    return nn.Sequential(
        nn.Conv2d(2, 3, 3, stride=2, padding=1, groups=1), nn.ReLU(), nn.MaxPool2d(2)
    )


def attention():
    torch.manual_seed(5)
    return nn.TransformerEncoderLayer(6, 2, 8, batch_first=True)


def recurrent():
    torch.manual_seed(6)
    return nn.GRU(3, 4)


def embedding():
    torch.manual_seed(7)
    return nn.Embedding(5, 3, padding_idx=1)


def right_relu():
    return custom(torch.relu, lambda s, g: g * (s[0] > 0), lambda s, t: t * (s[0] > 0))


def second_order():
    return custom(lambda x: x.exp(), lambda s, g: g * s[0].exp())


def large_and_small(x, y):
    return 1e8 * x.sin(), 1e-6 * (x.sum() * y).cos()


RIGHT = (
    Trial(
        "float32 alone",
        float32_only,
        lambda: (randn(4, 30, dtype=torch.float32), randn(30, 5, dtype=torch.float32)),
        {"reference": plain_twin},
    ),
    Trial("relu at zeros", lambda: torch.relu, with_zeros),
    Trial("abs at zeros", lambda: torch.abs, with_zeros),
    Trial("max of equals", lambda: lambda x: x.max(-1)[0], lambda: torch.ones(3, 4)),
    Trial("amax of equals", lambda: lambda x: x.amax(-1), lambda: torch.ones(3, 4)),
    Trial("custom relu", right_relu, with_zeros),
    Trial("no jvp", no_jvp, one(5)),
    Trial("no double backward", once_only, one(5)),
    Trial("double backward", second_order, one(5), {"order": 2}),
    Trial("non-contiguous", lambda: torch.tanh, lambda: randn(4, 6)[:, ::2].T),
    Trial("expanded", lambda: torch.tanh, lambda: randn(4, 1).expand(4, 3)),
    Trial("several", lambda: several, lambda: {"first": randn(3), "second": randn(2)}),
    Trial("shared parameters", shared_parameters, one(3, 4), {"order": 2}),
    Trial("dropout", lambda: nn.Dropout(0.4), one(5, 6)),
    Trial("in place", lambda: in_place, one(4, 3)),
    Trial("checkpoint", checkpointed, one(5, 3)),
    Trial("zero size", lambda: torch.exp, lambda: torch.zeros(0, 3)),
    Trial("0-d", lambda: torch.sin, lambda: torch.tensor(0.3)),
    Trial("convolution", convolution, one(2, 2, 9, 7)),
    Trial("batch norm", lambda: nn.BatchNorm1d(3), one(5, 3), {"order": 2}),
    Trial("attention", attention, one(2, 3, 6)),
    Trial("recurrent", recurrent, one(4, 2, 3)),
    Trial("embedding", embedding, lambda: torch.tensor([[0, 1, 4]])),
    Trial("large and small", lambda: large_and_small, two((3,), (4,))),
    Trial("edge of a domain", lambda: torch.sqrt, lambda: torch.tensor([0.0, 1.0, 2])),
    Trial(
        "bilinear",
        lambda: F.bilinear,
        lambda: (randn(3, 2), randn(3, 4), randn(5, 2, 4)),
    ),
)
