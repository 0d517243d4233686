"""Parameters of a shape: new ones, the same again, and what is computed from some."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from fuzzed_builder import Builder

Shape = tuple[int, ...]


def weight(b: Builder, *shape: int) -> str:
    """Return an expression of parameters alone, of this shape."""
    kind = b.pick("new", "new", "again", "derived")
    known = [
        text
        for name, p in b.tried.named_parameters()
        if name.split(".")[0] in b.sketch.parts
        for text in _of(f"m.{name}", tuple(p.shape), shape)
    ]
    if kind == "again" and known:
        return b.pick(*known)
    if kind == "derived":
        return derived(b, *shape)
    return new(b, *shape)


def bias(b: Builder, *shape: int) -> str:
    """Return such an expression, or ``None``."""
    return weight(b, *shape) if b.yes() else "None"


def new(b: Builder, *shape: int) -> str:
    return b.part(f"parameter({', '.join(map(str, shape))})")


def derived(b: Builder, *shape: int) -> str:
    """Return a value that is computed from new parameters."""
    template, *shapes = b.pick(*_templates(shape))
    constant = f"frozen({', '.join(map(str, shape))})"
    values = {"c": b.part(constant)} if "{c}" in template else {}
    return template.format(*(new(b, *s) for s in shapes), **values)


def _templates(shape: Shape) -> Iterator[tuple[Any, ...]]:
    """Yield expressions, and the shapes of the parameters in them; ``{c}`` is frozen.

    Args:
        shape: Of the value.
    """
    yield "(1 + {0})", shape
    yield "{0}.tanh()", shape
    yield "{0}.sigmoid().clone()", shape
    yield "({0} * {c})", shape
    yield "({0} / (1 + {0}.square().sum()))", shape
    yield "({0}.detach() * {1})", shape, ()
    yield "({0} * {1})", shape, shape[-1:]
    yield "torch.lerp({0}, {1}, 0.3)", shape, shape
    yield "torch.stack([{0}, {1}]).mean(0)", shape, shape
    yield "{0}[1]", (2, *shape)
    yield "{0}.sum(0)", (2, *shape)
    yield "{0}.flatten()[1:].view(" + f"{shape})", (1 + math.prod(shape),)
    if not shape:
        return
    first, *rest = shape
    yield "{0}[1:]", (first + 1, *rest)
    yield "{0}[::2]", (2 * first, *rest)
    yield "{0}.expand(" + f"{shape})", (1, *rest)
    times = ", ".join(map(str, [first, *(1 for _ in rest)]))
    yield f"{{0}}.repeat({times})", (1, *rest)
    yield "torch.cat([{0}, {1}])[:" + f"{first}]", (1, *rest), shape
    each = ", ".join(f"{{{i}}}" for i in range(first))
    yield f"torch.stack([{each}])", *[(*rest,)] * first
    yield "{0}.roll(1, 0)", shape
    yield "{0}.flip(-1)", shape
    yield "({0} / {0}.norm(dim=-1, keepdim=True))", shape
    yield "{0}.softmax(-1)", shape
    places = f"torch.arange({first}, device=x.device).flip(0)"
    yield f"{{0}}.index_select(0, {places})", shape
    if len(rest) == 1:
        yield "{0}.t()", (*rest, first)
        yield "{0}.mT.contiguous()", (*rest, first)
        yield "({0} + {1} @ {2})", shape, (first, 1), (1, *rest)
        yield "torch.addmm({0}, {1}, {2})", shape, (first, 2), (2, *rest)
        yield "({0} @ {1})", (first, 3), (3, *rest)
        yield "{0}.tril()", shape
        yield "({0} * {1} / {0}.norm(dim=1, keepdim=True))", shape, (first, 1)


def _of(name: str, given: Shape, wanted: Shape) -> Iterator[str]:
    """Yield values of ``wanted`` shape that index or move the entries of one."""
    size, more = math.prod(wanted), math.prod(given)
    if given == wanted:
        yield name
        return
    if len(given) == 2 and given[::-1] == wanted:
        yield f"{name}.t()"
        yield f"{name}.mT"
    if given and given[1:] == wanted:
        yield f"{name}[-1]"
        yield f"{name}.unbind()[0]"
    if (1, *wanted) == given:
        yield f"{name}.squeeze(0)"
    if (1, *given) == wanted:
        yield f"{name}[None]"
    if wanted and given[1:] == wanted[1:] and given > wanted:
        yield f"{name}[:{wanted[0]}]"
    if size == more:
        yield f"{name}.reshape({wanted})"
    elif more > size:
        yield f"{name}.flatten()[:{size}].view({wanted})"
