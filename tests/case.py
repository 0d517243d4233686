"""What a case is: a model, inputs for it, and what is known of its derivatives.

Parameters and buffers are drawn at random: with their usual first values (ones,
zeros) many wrong results are right.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from probes import by_path, fork_random_state, is_floating, map_structure

DEVICE = torch.device(os.environ.get("GRADKIT_TEST_DEVICE", "cpu"))


@dataclass(frozen=True, eq=False)
class Case:
    """A model, inputs for it, and how the four questions are to be put.

    Attributes:
        name: Its id in the matrix.
        model: Makes the model; called with the generators seeded.
        inputs: Draws inputs of so many samples; called with the generators seeded.
        samples: How many samples the ordinary call has.
        shared: Positions or keys of the inputs that all samples share.
        several_outputs: Whether the model returns more than one tensor.
        jacobian: The input Jacobian in closed form, from model and inputs.
        parameter_jacobian: The same for the parameters, by name.
        refusals: Method names to the words in the reason of their refusal.
    """

    name: str
    model: Callable[[], Any]
    inputs: Callable[[int], Any]
    samples: int = 3
    wrt: Any = None
    of: Any = None
    batched: bool | None = None
    seed: int | None = None
    shared: tuple[Any, ...] = ()
    dtype: torch.dtype = torch.float64
    several_outputs: bool = False
    jacobian: Callable[[Any, Any], Tensor] | None = None
    parameter_jacobian: Callable[[Any, Any], dict[str, Tensor]] | None = None
    refusals: Mapping[str, str] = field(default_factory=dict)

    def make(self) -> Any:
        """Return a fresh model, equal at every call."""
        with fork_random_state():
            torch.manual_seed(20)
            model = self.model()
            owner = getattr(model, "__self__", model)
            if isinstance(owner, nn.Module):
                randomise(owner)
                owner.to(DEVICE, self.dtype)
            return model

    def draw(self, samples: int | None = None, seed: int = 0) -> Any:
        """Return fresh inputs, equal at every call with the same arguments."""
        with fork_random_state():
            torch.manual_seed(100 + seed)
            inputs = self.inputs(self.samples if samples is None else samples)
        return map_structure(lambda _, leaf: self._placed(leaf), inputs)

    def _placed(self, leaf: Any) -> Any:
        if is_floating(leaf) and leaf.dtype == torch.float64:
            return leaf.to(DEVICE, self.dtype)
        return leaf.to(DEVICE) if isinstance(leaf, Tensor) else leaf

    def take(self, inputs: Any, samples: slice) -> Any:
        """Return those samples of the inputs; what is shared stays whole."""

        def part(path: tuple, leaf: Any) -> Any:
            shared = bool(path) and path[0] in self.shared
            sampled = isinstance(leaf, Tensor) and leaf.ndim > 0 and not shared
            return leaf[samples] if sampled else leaf

        return map_structure(part, inputs)

    @property
    def device(self) -> torch.device:
        """Where its model and inputs are."""
        return DEVICE

    def trainable(self) -> bool:
        """Whether the model has parameters that require grad."""
        model = self.make()
        owner = getattr(model, "__self__", model)
        return isinstance(owner, nn.Module) and any(
            parameter.requires_grad for parameter in owner.parameters()
        )

    def objective(self, first: int = 0) -> Callable[[Any], Tensor]:
        """Return an objective whose weights differ from sample to sample.

        Sample ``n`` of its outputs is sample ``first + n`` of the ordinary call, so
        that parts of a batch can be given the weights that they have in the whole.
        """

        def objective(outputs: Any) -> Tensor:
            values: list[Tensor] = []
            for y in by_path(outputs).values():
                if not is_floating(y):
                    continue
                lead = 0 if self.batched is False else 1
                size = math.prod(y.shape[lead:])
                n = len(y) if lead else 1
                index = torch.arange(n * size, device=y.device, dtype=y.dtype)
                weights = torch.cos(1 + 0.7 * (index + first * size)).reshape(n, size)
                values.append((weights * torch.sin(y.reshape(n, size))).sum(1))
            total = torch.stack(values).sum(0)
            return total[0] if self.batched is False else total

        return objective


def randomise(model: nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.6)
        for name, buffer in model.named_buffers():
            if is_floating(buffer):
                buffer.normal_(0, 0.5)
                if name.endswith("running_var"):
                    buffer.abs_().add_(0.5)


class Net(nn.Module):
    """Named parts, and a forward written as a function of them and the inputs."""

    def __init__(self, function: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self.function = function

    if TYPE_CHECKING:  # parts are of any kind

        def __getattr__(self, name: str) -> Any: ...

    def forward(self, *inputs: Any, **named: Any) -> Any:
        return self.function(self, *inputs, **named)


def weight(*shape: int) -> nn.Parameter:
    return nn.Parameter(0.6 * torch.randn(shape))


def normal(*shapes: tuple[int, ...]) -> Callable[[int], Any]:
    """Return a draw of one normal tensor, or of a tuple of them."""

    def draw(n: int) -> Any:
        parts = tuple(torch.randn(n, *shape, dtype=torch.float64) for shape in shapes)
        return parts[0] if len(parts) == 1 else parts

    return draw


def ids(n: int, *shape: int, below: int = 7) -> Tensor:
    return torch.randint(below, (n, *shape))
