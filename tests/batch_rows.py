"""Layers, layouts of memory and work, to compare a sample's rows in two batches."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

DTYPES = (torch.float32, torch.float64, torch.bfloat16)


class Function(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, inputs: Tensor) -> Tensor:
        return self.function(inputs)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(24, 72)

    def forward(self, inputs: Tensor) -> Tensor:
        heads = self.project(inputs).unflatten(-1, (3, 2, 12)).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(*heads.unbind())


class Columns(nn.Module):
    """Samples are the columns of its products."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(10, 37))

    def forward(self, inputs: Tensor) -> Tensor:
        return (
            torch.einsum("oi,ni->no", self.weight, inputs)
            + (self.weight @ inputs.t()).t()
        )


def activated(size: int, function: Callable[[Tensor], Tensor]) -> nn.Module:
    return nn.Sequential(nn.Linear(size, 11), Function(function), nn.Linear(11, 3))


def convolved(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers, nn.Flatten())


#: Layers, and the axes of one of their samples.
LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "tiny": (lambda: nn.Linear(3, 2), (3,)),
    "linear": (lambda: nn.Linear(10, 10), (10,)),
    "wide": (lambda: nn.Linear(784, 50), (784,)),
    "one output": (lambda: nn.Linear(300, 1), (300,)),
    "tokens": (lambda: nn.Linear(33, 17), (5, 33)),
    "columns": (Columns, (37,)),
    "deep": (
        lambda: nn.Sequential(nn.Linear(20, 70), nn.ReLU(), nn.Linear(70, 7)),
        (20,),
    ),
    "conv1d": (lambda: convolved(nn.Conv1d(3, 5, 3)), (3, 20)),
    "conv2d": (lambda: convolved(nn.Conv2d(3, 8, 3, padding=1)), (3, 9, 9)),
    "conv pooled": (
        lambda: convolved(nn.Conv2d(1, 16, 3), nn.GELU(), nn.AvgPool2d(2)),
        (1, 12, 12),
    ),
    "depthwise": (lambda: convolved(nn.Conv2d(4, 4, 3, groups=4)), (4, 8, 8)),
    "transposed": (lambda: convolved(nn.ConvTranspose2d(3, 4, 3, 2)), (3, 6, 6)),
    "conv3d": (lambda: convolved(nn.Conv3d(2, 3, 2)), (2, 4, 5, 4)),
    "layer norm": (lambda: nn.Sequential(nn.Linear(9, 19), nn.LayerNorm(19)), (4, 9)),
    "group norm": (lambda: convolved(nn.GroupNorm(2, 6)), (6, 5, 5)),
    "batch norm": (lambda: convolved(nn.BatchNorm2d(6).eval()), (6, 5, 5)),
    "attention": (Attention, (7, 24)),
    **{
        name: (lambda function=function: activated(13, function), (13,))
        for name, function in {
            "sigmoid": torch.sigmoid,
            "silu": F.silu,
            "gelu": F.gelu,
            "softplus": F.softplus,
            "mish": F.mish,
            "elu": F.elu,
            "celu": F.celu,
            "selu": F.selu,
            "logsigmoid": F.logsigmoid,
            "hardswish": F.hardswish,
            "tanh": torch.tanh,
            "cos": torch.cos,
            "sinh": torch.sinh,
            "rsqrt": lambda x: (x.square() + 0.1).rsqrt(),
            "pow": lambda x: (x.abs() + 0.1) ** 2.5,
            "pow of pairs": lambda x: (x.abs() + 0.1) ** x,
            "softmax": lambda x: x.softmax(-1),
            "log softmax": lambda x: x.log_softmax(-1),
            "std": lambda x: x / x.std(-1, keepdim=True),
            "normalize": lambda x: F.normalize(x, dim=-1),
            "cumsum": lambda x: x.cumsum(-1),
            "logsumexp": lambda x: x - x.logsumexp(-1, keepdim=True),
            "glu": lambda x: torch.cat((F.glu(x[:, 1:]), x[:, :6]), 1),
        }.items()
    },
}


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def shifted(inputs: Tensor) -> Tensor:
    """Off the alignment of vectors."""
    room = inputs.new_empty(inputs.numel() + 1)[1:].view(inputs.shape)
    return room.copy_(inputs)


def strided(inputs: Tensor) -> Tensor:
    return torch.stack((inputs, inputs), -1)[..., 0]


def transposed(inputs: Tensor) -> Tensor:
    return inputs.movedim(1, -1).contiguous().movedim(-1, 1)


LAYOUTS = (torch.clone, shifted, strided, transposed)


def forward(model: nn.Module, inputs: Tensor) -> list[Tensor]:
    with torch.no_grad():
        return [model(inputs)]


def by_inputs(model: nn.Module, inputs: Tensor) -> list[Tensor]:
    inputs = inputs.detach().requires_grad_()
    outputs = model(inputs)
    weights = torch.linspace(-1, 1, outputs[0].numel()).view(outputs[0].shape)
    weights = weights.to(inputs.dtype).expand_as(outputs)
    return [torch.autograd.grad(outputs, inputs, weights)[0]]


def by_parameters(model: nn.Module, inputs: Tensor) -> list[Tensor]:
    parameters = {n: p.detach() for n, p in model.named_parameters()}

    def objective(values: dict[str, Tensor], sample: Tensor) -> Tensor:
        outputs = torch.func.functional_call(model, values, (sample[None],))
        return outputs.square().sum()

    gradient = torch.func.grad(objective)
    rows = torch.func.vmap(gradient, in_dims=(None, 0))(parameters, inputs)
    return list(rows.values())


WORK = (forward, by_inputs, by_parameters)


def differs(
    name: str,
    dtype: torch.dtype,
    samples: int,
    work: Callable[[nn.Module, Tensor], list[Tensor]],
    draw: random.Random,
) -> bool:
    """Whether a sample's rows change with its batch, its place, layout or threads."""
    make, shape = LAYERS[name]
    model = make().to(dtype)
    inputs = torch.randn(samples, *shape).to(dtype)
    with threads(draw.choice((1, 2))):
        whole = work(model, draw.choice(LAYOUTS)(inputs))
    start = draw.randrange(samples)
    stop = draw.choice((start + 1, draw.randint(start + 1, samples)))
    with threads(draw.choice((1, 2))):
        part = work(model, draw.choice(LAYOUTS)(inputs[start:stop]))
    return not all(
        torch.equal(a[start:stop], b) for a, b in zip(whole, part, strict=True)
    )
