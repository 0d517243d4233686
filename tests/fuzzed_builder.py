"""What writes a sketch line by line: every line is tried, and left out if it fails."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from hypothesis import strategies as st
from torch import nn

from fuzzed_sketch import Sketch, function

#: Of one sample; a line after which there would be more is left out.
MOST_NUMBERS = 120
#: Beyond are overflows, before long.
LARGEST = 50.0


class Builder:
    """A sketch that is being drawn, and where its last line has led.

    Attributes:
        shape: Of ``x`` as it is now.
        layout: Where the samples are in ``x``: ``first``; ``second``, after time;
            ``tokens`` and ``time tokens``, samples and time flattened to one axis,
            the first named varying slowest.
        block: The lines of the block that is open, if one is.
    """

    def __init__(self, draw: Callable[[st.SearchStrategy], Any], sketch: Sketch):
        self.draw, self.sketch = draw, sketch
        self.shape, self.layout = sketch.shape, "first"
        self.block: list[str] | None = None
        self.tried: nn.Module = sketch.make()
        self._kept = dict(sketch.parts)
        self._count = 0

    # -- what is drawn ----------------------------------------------------------

    def pick(self, *choices: Any) -> Any:
        return self.draw(st.sampled_from(choices))

    def number(self, least: int, most: int) -> int:
        return self.draw(st.integers(least, most))

    def yes(self) -> bool:
        return self.draw(st.booleans())

    def width(self) -> int:
        return self.number(1, 5)

    # -- what is known of x -----------------------------------------------------

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def features(self) -> int:
        return self.shape[-1]

    @property
    def fixed(self) -> tuple[int, ...]:
        """The last axes, as far as a parameter may have their sizes."""
        return self.shape[1:] if self.layout == "first" else self.shape[-1:]

    # -- what is written --------------------------------------------------------

    def part(self, text: str) -> str:
        """Add a parameter or a module; return how a line refers to it."""
        self._count += 1
        name = f"p{self._count}"
        self.sketch.parts[name] = text
        return f"m.{name}"

    def module(self, text: str) -> str:
        """Return a module that is made by this text: a new one, or the same again."""
        known = [f"m.{n}" for n, made in self.sketch.parts.items() if made == text]
        if known and self.yes():
            return self.pick(*known)
        return self.part(text)

    def add(self, *texts: str, layout: str | None = None) -> bool:
        """Write the first line that fits; return whether one did.

        Args:
            *texts: Lines that would do, the dearest first.
            layout: The layout afterwards, if it changes.
        """
        lines = self.sketch.lines if self.block is None else self.block
        for text in texts:
            lines.append(text)
            shape = self._shape_after()
            if shape is not None:
                self.shape, self.layout = shape, layout or self.layout
                self._keep()
                return True
            lines.pop()
        self.sketch.parts = dict(self._kept)
        return False

    def _keep(self) -> None:
        """Drop the parts that no line names: choices that were not taken."""
        text = "\n".join([*self.sketch.lines, *(self.block or [])])
        named = {*re.findall(r"\bm\.(p\d+)\b", text)}
        parts = self.sketch.parts
        self._kept = {name: made for name, made in parts.items() if name in named}
        self.sketch.parts = dict(self._kept)

    @contextmanager
    def opened(self) -> Iterator[list[str]]:
        """Write lines into a function of ``x``, which is called for a try alone."""
        before = self.shape, self.layout, dict(self.sketch.parts)
        self.block = []
        yield self.block
        self.block = None
        self.shape, self.layout, self._kept = before

    def _shape_after(self) -> tuple[int, ...] | None:
        """Return the shape of ``x`` if autograd can serve a batch and one sample."""
        sketch = self.sketch
        lines = sketch.lines
        if self.block is not None:
            lines = [*lines, function("block", self.block), "x = block(x)"]
        tried = Sketch(
            sketch.shape, sketch.words, sketch.seed, dict(sketch.parts), lines
        )
        try:
            model = tried.make()
            x, k = tried.data()
            model(x[:1].clone(), k[:1])
            y = model(x, k)
            if y.requires_grad:
                y.sum().backward()
        except (RuntimeError, ValueError, IndexError, AssertionError):
            return None
        shape = tuple(y.shape)
        if not bool((y.detach().abs() < LARGEST).all()):
            return None
        if not math.prod(shape) or math.prod(shape) > MOST_NUMBERS * sketch.samples:
            return None
        self.tried = model
        return shape
