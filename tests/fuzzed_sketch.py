"""A small network as a short program.

It prints as the program that it is, so that a failure can be read and run by itself.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.checkpoint import checkpoint

from case import DEVICE, randomise
from probes import fork_random_state


def parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.zeros(shape))


def frozen(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.zeros(shape), requires_grad=False)


_WORDS = {
    "torch": torch,
    "F": F,
    "nn": nn,
    "checkpoint": checkpoint,
    "weight_norm": weight_norm,
    "parameter": parameter,
    "frozen": frozen,
}


@dataclass(repr=False)
class Sketch:
    """A network as source text, and what its inputs are.

    Attributes:
        shape: Of the inputs ``x``, samples first.
        words: How many words there are, where the inputs are those; else 0.
        seed: Of parameters and inputs.
        parts: Parameters and modules of ``m``, each by the text that makes it.
        lines: What ``forward`` does.
    """

    shape: tuple[int, ...]
    words: int = 0
    seed: int = 0
    parts: dict[str, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)

    def __repr__(self) -> str:
        kind = f"words below {self.words}" if self.words else "floats"
        parts = "".join(f"m.{name} = {text}\n" for name, text in self.parts.items())
        return f"\n# x: {self.shape} {kind}, seed {self.seed}\n{parts}{self.source}"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Print alike in hypothesis, which would print the fields."""
        del cycle
        printer.text(repr(self))

    @property
    def samples(self) -> int:
        return self.shape[0]

    @property
    def source(self) -> str:
        body = "\n".join(indented(line) for line in self.lines)
        return f"def forward(m, x, k):\n    n = len(x)\n{body}\n    return x\n"

    def make(self) -> nn.Module:
        """Return the network, equal at every call."""
        with fork_random_state():
            torch.manual_seed(self.seed)
            model = Network(self.parts, self.source).eval()
            randomise(model)
        return model.to(DEVICE, torch.float64)

    def data(self, call: int = 0) -> tuple[Tensor, Tensor]:
        """Return the inputs of a call: ``x``, and a number ``k`` for each sample."""
        drawn = torch.Generator().manual_seed(1000 * (1 + self.seed) + call)
        x = torch.randn(self.shape, generator=drawn, dtype=torch.float64)
        if self.words:
            x = torch.randint(self.words, self.shape, generator=drawn)
        k = torch.randint(12, self.shape[:1], generator=drawn)
        return x.to(DEVICE), k.to(DEVICE)


class Network(nn.Module):
    """Parts, and a forward, from their source."""

    def __init__(self, parts: dict[str, str], source: str) -> None:
        super().__init__()
        for name, text in parts.items():
            setattr(self, name, eval(text, _WORDS))
        # So that tracebacks show its lines.
        name, names = f"<fuzzed {hash(source):x}>", dict(_WORDS)
        linecache.cache[name] = len(source), None, source.splitlines(True), name
        exec(compile(source, name, "exec"), names)
        self._forward: Callable[..., Tensor] = names["forward"]

    if TYPE_CHECKING:  # parts are of any kind

        def __getattr__(self, name: str) -> Any: ...

    def forward(self, x: Tensor, k: Tensor) -> Tensor:
        return self._forward(self, x, k)


def indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())


def function(name: str, lines: list[str]) -> str:
    body = "\n".join(indented(line) for line in lines) or "    pass"
    return f"def {name}(x):\n{body}\n    return x"
