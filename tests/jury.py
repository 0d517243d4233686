"""Planted faults, and honest computations that differ by rounding alone.

Each is a ``gk.Method``. An honest one runs the model's own forward on other batches, in
another order, on another number of threads; a fault changes the rows of an honest one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

import gradkit as gk

Values = tuple[Tensor, ...]
Fault = Callable[[Values], Values]


# -- honest ------------------------------------------------------------------------


def alone(task: Any, graph: Any, sample: int, place: int, row: int) -> Values:
    """Return one row of one sample, ``(size,)`` per source."""
    count = graph.samples
    cotangent = torch.zeros(count, task.outputs, dtype=task.graph.dtype)
    cotangent[place] = task.cotangents(slice(row, row + 1))[0][sample]
    pulled = graph.pull(cotangent)
    return pulled if task.kind == "parameters" else tuple(p[place] for p in pulled)


def on_batches(
    batches: Callable[[int], list[list[int]]], *, first: bool = False
) -> Callable[..., Any]:
    """Return rows from graphs of other batches: lists of samples.

    Of each batch all rows are taken, or the ``first`` sample's alone.
    """

    def rows(task: Any) -> Iterator[Any]:
        for batch in batches(task.samples):
            graph = task.forwards.graph(torch.tensor(batch))
            for place, sample in enumerate(batch[:1] if first else batch):
                for row in range(task.rows):
                    values = alone(task, graph, sample, place, row)
                    yield gk.Block(
                        slice(sample, sample + 1),
                        slice(row, row + 1),
                        tuple(v[None, None] for v in values),
                    )

    return rows


def pieces(size: int) -> Callable[[int], list[list[int]]]:
    return lambda n: [[*range(k, min(k + size, n))] for k in range(0, n, size)]


def in_order(seed: int) -> Callable[[int], list[list[int]]]:
    def batches(n: int) -> list[list[int]]:
        drawn = torch.Generator().manual_seed(seed)
        return [torch.randperm(n, generator=drawn).tolist()]

    return batches


def with_others(n: int) -> list[list[int]]:
    """Each sample in a batch with three copies of the next."""
    return [[k, *[(k + 1) % n] * 3] for k in range(n)]


def on_one_thread(rows: Callable[..., Any]) -> Callable[..., Any]:
    def run(task: Any) -> Iterator[Any]:
        before = torch.get_num_threads()
        torch.set_num_threads(1 if before > 1 else 2)
        try:
            yield from rows(task)
        finally:
            torch.set_num_threads(before)

    return run


def without_onednn(rows: Callable[..., Any]) -> Callable[..., Any]:
    def run(task: Any) -> Iterator[Any]:
        before = torch._C._get_mkldnn_enabled()
        torch._C._set_mkldnn_enabled(False)
        try:
            yield from rows(task)
        finally:
            torch._C._set_mkldnn_enabled(before)

    return run


ROWS: dict[str, Callable[..., Any]] = {
    "pieces of 2": on_batches(pieces(2)),
    "pieces of 3": on_batches(pieces(3)),
    "pieces of 5": on_batches(pieces(5)),
    "another order": on_batches(in_order(1)),
    "a third order": on_batches(in_order(2)),
    "beside copies of another": on_batches(with_others, first=True),
    "on another number of threads": on_one_thread(on_batches(pieces(99))),
    "in pieces on them": on_one_thread(on_batches(pieces(4))),
    "in pieces of 6": on_batches(pieces(6)),
    "a fourth order": on_batches(in_order(3)),
    "by other kernels": without_onednn(on_batches(pieces(99))),
    "in pieces by other kernels": without_onednn(on_batches(pieces(1))),
}


def method(name: str, rows: Callable[..., Any], kind: str) -> gk.Method:
    by: dict[str, Any] = {kind: rows}
    return gk.Method(name, "reverse", "of the jury", **by)


def honest(kind: str) -> list[gk.Method]:
    own = [m for m in gk.METHODS.values() if getattr(m, kind) and m.name != "jacfwd"]
    return [*own, *(method(name, rows, kind) for name, rows in ROWS.items())]


# -- faults ------------------------------------------------------------------------


def each(change: Callable[[Tensor], Tensor]) -> Fault:
    """Return a fault of every source's rows ``(N, R, size)``."""
    return lambda values: tuple(change(v.clone()) for v in values)


def scaled(units: float) -> Fault:
    """Return rows times one and so many units of roundoff."""

    def change(v: Tensor) -> Tensor:
        u = torch.finfo(v.dtype).eps / 2
        return (v.double() * (1 + units * u)).to(v.dtype)

    return each(change)


def widest(v: Tensor) -> tuple[int, ...]:
    """Return the place of the largest entry."""
    flat = int(v.abs().argmax())
    return tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), v.shape))


def changed_at_largest(change: Callable[[Tensor], Tensor]) -> Fault:
    def change_one(v: Tensor) -> Tensor:
        place = widest(v)
        v[place] = change(v[place])
        return v

    return each(change_one)


def swapped(v: Tensor) -> Tensor:
    """Swap the largest entry of each row with its neighbour."""
    for row in v.flatten(0, 1):
        k = int(row.abs().argmax())
        other = k - 1 if k else min(1, len(row) - 1)
        row[k], row[other] = row[other].clone(), row[k].clone()
    return v


def zero(v: Tensor, *place: Any) -> Tensor:
    v[place] = 0
    return v


def coarse(bits: int) -> Callable[[Tensor], Tensor]:
    """Return a cast that keeps so many digits less."""

    def change(v: Tensor) -> Tensor:
        mantissa, exponent = torch.frexp(v.double())
        digits = 24 - bits
        return torch.ldexp((mantissa * 2**digits).round() / 2**digits, exponent).to(v)

    return change


def only_first(change: Callable[[Tensor], Tensor]) -> Fault:
    return lambda values: (change(values[0].clone()), *values[1:])


def noisy(part: float) -> Callable[[Tensor], Tensor]:
    def change(v: Tensor) -> Tensor:
        drawn = torch.Generator().manual_seed(7)
        return v * (1 + part * torch.randn(v.shape, generator=drawn, dtype=v.dtype))

    return change


FAULTS: dict[str, Fault] = {
    **{f"1 + {k:,} u": scaled(k) for k in (50, 100, 300, 1000, 3000, 10_000, 10**5)},
    "1 - 1,000 u": scaled(-1000),
    "1/N": each(lambda v: v / len(v)),
    "N": each(lambda v: v * len(v)),
    "minus": each(torch.neg),
    "twice": each(lambda v: 2 * v),
    "absolute": each(torch.abs),
    "swapped entries": each(swapped),
    "swapped samples": each(lambda v: v.flip(0)),
    "samples shifted": each(lambda v: v.roll(1, 0)),
    "entries shifted": each(lambda v: v.roll(1, -1)),
    "entries reversed": each(lambda v: v.flip(-1)),
    "last sample dropped": each(lambda v: zero(v, -1)),
    "last chunk dropped": each(lambda v: zero(v, slice(-2, None))),
    "half masked": each(lambda v: zero(v, ..., slice(None, None, 2))),
    "largest lost": changed_at_largest(torch.zeros_like),
    "largest with another sign": changed_at_largest(torch.neg),
    "largest off by a thousandth": changed_at_largest(lambda v: v * 1.001),
    "largest not a number": changed_at_largest(lambda v: v * float("nan")),
    "largest infinite": changed_at_largest(lambda v: v * float("inf")),
    "added up": each(lambda v: v.cumsum(0)),
    "averaged": each(lambda v: v.mean(0, keepdim=True).expand_as(v)),
    "first for all": each(lambda v: v[:1].expand_as(v)),
    "float16 inside": each(lambda v: v.half().to(v)),
    "bfloat16 inside": each(lambda v: v.bfloat16().to(v)),
    "13 digits less": each(coarse(13)),
    "a thousandth of noise": each(noisy(1e-3)),
    "a tenth of noise": each(noisy(0.1)),
    "clipped": each(lambda v: v.clamp(max=0.5 * float(v.max()))),
    "first source twice": only_first(lambda v: 2 * v),
    "first source zero": only_first(torch.zeros_like),
    "stale": each(lambda v: torch.cat([v[:1], v[:-1]])),
}


def collected(task: Any, blocks: Iterator[Any]) -> Values:
    size = (task.samples, task.rows)
    whole: list[Tensor] = []
    for block in blocks:
        if not whole:
            whole = [v.new_zeros(*size, v.shape[-1]) for v in block.values]
        for target, value in zip(whole, block.values, strict=True):
            target[block.samples, block.rows] = value.detach()
    return tuple(whole)


def faulty(kind: str) -> list[gk.Method]:
    base: Any = gk.METHODS["rows" if kind == "parameters" else "onehot"]
    rows = getattr(base, kind)

    known: dict[int, Values] = {}

    def right(task: Any) -> Values:
        if id(task) not in known:
            known[id(task)] = collected(task, rows(task))
        return known[id(task)]

    def planted(fault: Fault) -> Callable[..., Any]:
        def run(task: Any) -> Iterator[Any]:
            size = (task.samples, task.rows)
            values = tuple(v.contiguous() for v in fault(right(task)))
            yield gk.Block(slice(0, size[0]), slice(0, size[1]), values)

        return run

    return [method(name, planted(fault), kind) for name, fault in FAULTS.items()]


# -- models ------------------------------------------------------------------------


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.read = nn.GRU(4, 6, batch_first=True), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.read(self.cell(x)[0][:, -1])


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.read = nn.Embedding(11, 6), nn.Linear(6, 3)
        self.norm = nn.LayerNorm(6)

    def forward(self, x: Tensor) -> Tensor:
        return self.read(self.norm(self.table((x * 3).long().clamp(0, 10))).mean(1))


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    return nn.Sequential(layer, nn.Flatten(), nn.Linear(40, 3))


def normed(norm: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 4, 3), norm, nn.SiLU(), nn.Flatten(),
                         nn.Linear(36, 3))  # fmt: skip


#: Each with the shape of a sample, and a dtype.
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], torch.dtype]] = {
    "linear": (lambda: nn.Linear(60, 5), (60,), torch.float32),
    "relu": (
        lambda: nn.Sequential(nn.Linear(40, 30), nn.ReLU(), nn.Linear(30, 4)),
        (40,), torch.float32,
    ),
    "smooth, in double": (
        lambda: nn.Sequential(nn.Linear(20, 16), nn.Tanh(), nn.Linear(16, 3)),
        (20,), torch.float64,
    ),
    "gelu, bfloat16": (
        lambda: nn.Sequential(nn.Linear(20, 16), nn.GELU(), nn.Linear(16, 3)),
        (20,), torch.bfloat16,
    ),
    "pooled": (
        lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2),
                              nn.Flatten(), nn.Linear(36, 3)),
        (1, 8, 8), torch.float32,
    ),
    "group norm": (lambda: normed(nn.GroupNorm(2, 4)), (2, 5, 5), torch.float32),
    "batch norm": (lambda: normed(nn.BatchNorm2d(4)), (2, 5, 5), torch.float32),
    "encoder": (encoder, (5, 8), torch.float32),
    "recurrent": (Recurrent, (5, 4), torch.float32),
    "softmax": (
        lambda: nn.Sequential(nn.Linear(12, 9), nn.Softmax(-1), nn.Linear(9, 3)),
        (12,), torch.float32,
    ),
}  # fmt: skip


def drawn(name: str, samples: int = 7) -> tuple[nn.Module, Tensor]:
    make, shape, dtype = MODELS[name]
    torch.manual_seed(len(name))
    model = make().eval().to(dtype)
    return model, torch.randn(samples, *shape).to(dtype)


# -- the confusion matrix: `python tests/jury.py` -----------------------------------

QUESTIONS: dict[str, Any] = {"parameters": gk.parameter_jacobian, "inputs": gk.jacobian}


def alike_by_allclose(found: Values, base: Values) -> bool:
    return all(map(torch.allclose, found, base))


def alike_by_assert_close(found: Values, base: Values) -> bool:
    try:
        torch.testing.assert_close(found, base)
    except AssertionError:
        return False
    return True


def votes(name: str, kind: str) -> Iterator[tuple[str, bool, bool]]:
    """Yield judge, whether a fault was planted, and whether it was called different."""
    model, x = drawn(name)
    seen: dict[str, Values] = {}

    def kept(m: gk.Method) -> gk.Method:
        rows = getattr(m, kind)

        def run(task: Any) -> Iterator[Any]:
            blocks = [*rows(task)]
            seen[m.name] = collected(task, iter(blocks))
            yield from blocks

        return method(m.name, run, kind)

    methods = [m for m in honest(kind) if m.name != "rules"] + faulty(kind)
    report = gk.compare_methods(
        QUESTIONS[kind], model, x, methods=[*map(kept, methods)]
    )
    base = seen["rows" if kind == "parameters" else "onehot"]
    for m in report.methods:
        if m.verdict == "skipped":
            continue
        values = seen[m.name]
        planted = m.name in FAULTS
        if planted and all(map(torch.equal, values, base)):
            continue  # it changes nothing here
        yield "gradkit", planted, m.verdict in ("different", "convention")
        yield "torch.allclose", planted, not alike_by_allclose(values, base)
        yield "assert_close", planted, not alike_by_assert_close(values, base)


def main() -> None:
    counts: dict[tuple[str, bool, bool], int] = {}
    for kind in QUESTIONS:
        for name in MODELS:
            for vote in votes(name, kind):
                counts[vote] = counts.get(vote, 0) + 1
    lines = [
        "| judge | faults found | faults missed | rounding let pass | alarms |",
        "| :-- | --: | --: | --: | --: |",
    ]
    order = ((True, True), (True, False), (False, False), (False, True))
    for judge in ("gradkit", "torch.allclose", "assert_close"):
        cells = [str(counts.get((judge, *c), 0)) for c in order]
        lines.append(f"| {judge} | {' | '.join(cells)} |")
    sys.stdout.write("\n".join([*lines, ""]))


if __name__ == "__main__":
    main()
