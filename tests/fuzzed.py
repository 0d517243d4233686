"""Random small networks, for hypothesis: ``sketches()``.

Every line of a network is a step that is drawn and tried, on a batch and on one
sample; a line that does not fit is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from fuzzed_builder import Builder
from fuzzed_features import ODDITIES, POINTWISE, PRODUCTS, Step
from fuzzed_layers import CHANNELS, FLAT, SEQUENCES
from fuzzed_layouts import (
    TIME_FIRST,
    back,
    block,
    of_images,
    over_time,
    to_a_sequence,
    to_other_axes,
    to_time_first,
    to_tokens,
)
from fuzzed_sketch import Sketch
from fuzzed_weights import weight

#: Numbers of one sample's output: each is one backward of the oracle.
MOST_OUTPUTS = 8

ANYWHERE = (PRODUCTS, POINTWISE, ODDITIES)


@st.composite
def sketches(draw: Callable[[st.SearchStrategy], Any]) -> Sketch:
    """Draw a network of a few steps."""
    b = Builder(draw, _inputs(draw))
    if b.sketch.words:
        _look_up(b)
    for _ in range(draw(st.integers(2, 7))):
        _step(b)
    back(b)
    _read_out(b)
    if not any(p.requires_grad for p in b.tried.parameters()):
        b.add(f"x = x * {b.part('parameter()')}")
    return b.sketch


def _inputs(draw: Callable[[st.SearchStrategy], Any]) -> Sketch:
    """Draw how many samples there are, and of what kind."""
    size = st.integers(1, 5)
    n = draw(size)
    # With as many steps as samples, either axis may be taken for the other.
    same_or_not = st.one_of(st.just(n), size)
    kind = draw(st.sampled_from(("steps", "features", "images", "words")))
    seed = draw(st.integers(0, 99))
    if kind == "features":
        return Sketch((n, draw(same_or_not)), seed=seed)
    if kind == "images":
        sides = st.integers(2, 4)
        return Sketch((n, draw(size), draw(sides), draw(sides)), seed=seed)
    if kind == "words":
        return Sketch((n, draw(same_or_not)), draw(st.integers(2, 6)), seed)
    return Sketch((n, draw(same_or_not), draw(same_or_not)), seed=seed)


def _look_up(b: Builder) -> None:
    words, width = b.sketch.words, b.width()
    w = weight(b, words, width)
    padding = b.pick(None, 0, words - 1)
    layer = b.module(f"nn.Embedding({words}, {width}, padding_idx={padding})")
    mode = b.pick("mean", "sum")
    position = b.part(f"parameter({b.shape[1]}, {width})")
    b.add(
        b.pick(
            f"x = F.embedding(x, {w}, padding_idx={padding})",
            f"x = {layer}(x)",
            f"x = {layer}(x) + {position}",
            f"x = {layer}(x) * {w}[x]",
            f"x = F.linear({layer}(x).sin(), {layer}.weight)",
            f"x = {w}[x]",
            f"x = F.one_hot(x, {words}).to({w}) @ {w}",
            f"x = F.embedding_bag(x, {w}, mode='{mode}', padding_idx={padding})",
            f"x = {w}.index_select(0, x.flatten()).view(*x.shape, {width})",
        )
    )


def _step(b: Builder) -> None:
    groups: list[tuple[Step, ...]] = [*ANYWHERE]
    if b.layout == "first":
        groups += {
            2: [FLAT, (to_a_sequence,)],
            3: [CHANNELS, SEQUENCES, SEQUENCES, (over_time, to_other_axes),
                (to_time_first, to_tokens)],
            4: [CHANNELS, CHANNELS, (of_images,)],
        }.get(b.rank, [])  # fmt: skip
    elif b.layout == "second":
        groups += [TIME_FIRST, TIME_FIRST]
    else:
        groups += [(back,)]
    group = b.pick(*groups, ())
    if group:
        b.pick(*group)(b)
    else:
        block(b, b.pick(*ANYWHERE))


def _read_out(b: Builder) -> None:
    """Leave a few numbers of each sample."""
    few = b.number(1, MOST_OUTPUTS)
    b.add(
        b.pick(
            "x = x",
            f"x = x.flatten(1)[:, :{few}]",
            "x = x.flatten(1).square().sum(1)",
            "x = x.flatten(1).sin().mean(1, keepdim=True)",
            f"x = x.flatten(1).cumsum(1)[:, -{few}:]",
        )
    )
    numbers = 1
    for size in b.shape[1:]:
        numbers *= size
    if numbers > MOST_OUTPUTS:
        b.add(f"x = x.flatten(1).cumsum(1)[:, -{MOST_OUTPUTS}:]")
