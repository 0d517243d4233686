"""Faults that were planted in ``gradkit.streaming``, and what a noise scale is."""

from __future__ import annotations

import dataclasses
import functools
import math
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Sampler, TensorDataset

import gradkit as gk
from gradkit.errors import InputError
from gradkit.streaming._checkpoint import Checkpoint, Progress
from gradkit.streaming._digest import digest_batch
from gradkit.streaming._folder import LocalFolder, open_folder, os
from gradkit.streaming._identity import describe
from gradkit.streaming._settings import differences
from gradkit.streaming._store import Store, find_manifest
from gradkit.streaming.reducers._noise import _estimate, _fieller, _t_quantile
from gradkit.streaming.reducers._reducer import Place
from stream_kills import contents

pytest.importorskip("zarr")

R = gk.reducers
SAMPLES = 406  # 136 batches of three, of which the last has one; four in a chunk


def x() -> Tensor:
    return torch.arange(float(2 * SAMPLES)).reshape(SAMPLES, 2).sqrt()


def both(batch: Tensor) -> dict[str, Tensor]:
    return {"sum": batch.sum(1), "double": 2 * batch}


def stored(store: Path, compute: Any = both, batches: Any = None, **given: Any) -> Any:
    batches = x().split(3) if batches is None else batches
    given = {"identity": {"compute": "any"}, **given}
    return gk.stream(compute, batches, store, progress=False, **given)


def reduced(compute: Callable[[Any], Any], batches: Any, reducer: Any) -> Any:
    return gk.reduce(compute, batches, reducer, progress=False)


def same(batch: Any) -> Any:
    return batch if isinstance(batch, Tensor) else batch[0]


def dying(after: int) -> Callable[..., Any]:
    calls = iter(range(after))

    def compute(*batch: Any) -> Any:
        if next(calls, None) is None:
            raise KeyboardInterrupt
        return both(batch[0])

    return compute


ZERO = torch.zeros(4)
COMPLEX = torch.tensor([1 + 2j, 3 - 1j])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (ZERO, ZERO.int()), (ZERO, ZERO.reshape(2, 2)), ({"a": ZERO}, {"b": ZERO}),
        ([ZERO], {"a": ZERO}), ([ZERO.numpy()], [ZERO.int().numpy()]),
        ([ZERO.numpy()], [ZERO.reshape(2, 2).numpy()]), ([ZERO, 3], [ZERO, 4]),
        ([ZERO, 3], [ZERO, 3.0]), (COMPLEX, COMPLEX.conj()),
    ],
)  # fmt: skip
def test_batches_that_differ_have_different_digests(one: Any, other: Any) -> None:
    assert digest_batch(one) != digest_batch(other)
    assert digest_batch(one) == digest_batch(one)


def network(forward: Any, held: Any = None) -> nn.Module:
    module = type("Net", (nn.Module,), {"forward": forward})()
    module.held = held
    return module


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (network(lambda s, x: x + 1), network(lambda s, x: x + 2)),
        (network(None, ZERO), network(None, ZERO + 1)), ({}, {"a": 1}),
        (network(None, [1, 2]), network(None, [1, 3])), ({"a": 1}, {}),
        (lambda x, by=1: x * by, lambda x, by=2: x * by),
        (lambda x, *, by=1: x * by, lambda x, *, by=2: x * by),
        (lambda x: x.sin(), lambda x: x.cos()), (R.NoiseScale(8), R.NoiseScale(9)),
        (lambda x: (lambda y: y + 1)(x), lambda x: (lambda y: y + 2)(x)),
        (functools.partial(pow, 2), functools.partial(pow, 3)),
        (functools.partial(pow, exp=2), functools.partial(pow, exp=3)),
        (types.MethodType(both, 1), types.MethodType(both, 2)),
        (torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)),
    ],
)  # fmt: skip
def test_what_decides_results_is_told_apart(one: Any, other: Any) -> None:
    assert differences(describe(one, "it"), describe(other, "it"))
    assert not differences(describe(one, "it"), describe(one, "it"))
    held = [one]
    held.append(held)
    assert describe(held, "it")[1] == "the same as all"


def test_an_identity_adds_to_a_quantitys_own(tmp_path: Path) -> None:
    batch = x()[:4], torch.zeros(4, dtype=torch.long)
    norms = [gk.quantities.gradient_norm(nn.Linear(2, 3)) for _ in range(2)]
    stored(tmp_path, norms[0], [batch], identity={"more": 1})
    with pytest.raises(InputError, match="parameter weight"):
        stored(tmp_path, norms[1], [batch], identity={"more": 1})


class Moving(list[Tensor]):
    looks = 0

    def __getitem__(self, place: Any) -> Any:
        self.looks += 1
        return super().__getitem__(place) + self.looks


class Own(DataLoader[Any]):
    def __iter__(self) -> Any:
        return (2 * batch[0] for batch in super().__iter__())


class Short(Sampler[int]):
    __iter__, __len__ = lambda self: iter(range(11)), lambda self: 12


def test_what_loaders_do_is_kept_or_refused(tmp_path: Path) -> None:
    assert torch.equal(stored(tmp_path / "a", same, iter([x()]))[:], x())
    data = TensorDataset(x())
    assert torch.equal(stored(tmp_path / "b", same, Own(data, 50))[:], 2 * x())
    collated = DataLoader(data, 50, collate_fn=lambda b: torch.stack(sum(b, ())) + 1)
    assert torch.equal(stored(tmp_path / "c", same, collated)[:], x() + 1)
    with pytest.raises(InputError, match="another batch 0 the second time"):
        stored(tmp_path / "d", same, Moving(x().split(3)))
    with pytest.raises(InputError, match="batch 1 has 0 samples"):
        stored(tmp_path / "e", same, [x()[:2], x()[:0]])
    with pytest.raises(InputError, match="promised 12 samples, and gave 11"):
        stored(tmp_path / "f", same, DataLoader(data, 5, sampler=Short()))


def test_a_store_is_written_in_order_and_a_few_bytes_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(tmp_path / "whole")
    written: list[str] = []
    write, write_bytes = LocalFolder.write, os.write

    def noting(self: Any, name: str, data: bytes, **given: Any) -> None:
        written.append(name)
        write(self, name, data, **given)

    monkeypatch.setattr(LocalFolder, "write", noting)
    monkeypatch.setattr(
        "gradkit.streaming._folder.os.write", lambda to, b: write_bytes(to, b[:99])
    )
    stored(tmp_path / "s")
    assert contents(tmp_path / "s") == contents(tmp_path / "whole")
    assert [n for n in written if n.endswith("zarr.json")][-1] == "zarr.json"
    for record in (n for n in written if n.startswith("_chunks/c")):
        chunk = record.split("/")[2]
        for array in (f"sum/c/{chunk}", f"double/c/{chunk}/0"):
            assert written.index(array) < written.index(record)
    data = bytearray((tmp_path / "s" / "_chunks" / "c" / "5" / "0").read_bytes())
    data[35] ^= 1  # in the digest of a batch's inputs, of which no row tells
    (tmp_path / "s" / "_chunks" / "c" / "5" / "0").write_bytes(data)
    with pytest.raises(InputError, match="samples 60 to 71"):
        gk.open_rows(tmp_path / "s").check()
    for index in ([0, -SAMPLES - 1], np.ones(5, bool), [True, False]):
        with pytest.raises(IndexError, match=r"out of range|are indexed by"):
            gk.open_rows(tmp_path / "s")["sum"][index]


def test_a_last_chunk_in_the_journal_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, failing = Store.write, dying(0)
    with monkeypatch.context() as patch:
        patch.setattr(
            Store, "write", lambda s, n, b: failing() if n == 33 else write(s, n, b)
        )
        with pytest.raises(KeyboardInterrupt):
            stored(tmp_path)
    rows = stored(tmp_path, lambda b: pytest.fail("all of it was computed"))
    assert torch.equal(rows["double"][:], 2 * x())
    assert torch.equal(rows["sum"][:], x().sum(1))


@pytest.mark.parametrize(("after", "sample"), [(1, 0), (999, 0), (999, 396)])
def test_other_data_at_either_end_are_refused(
    tmp_path: Path, after: int, sample: int
) -> None:
    try:
        stored(tmp_path, dying(after))
    except KeyboardInterrupt:
        assert after == 1
    other = x()
    other[sample] += 1
    with pytest.raises(InputError, match=f"batch {sample // 3} is not the one"):
        stored(tmp_path, both, other.split(3))
    with pytest.raises(InputError, match="it: is new"):
        stored(tmp_path, identity={"it": 2})


def test_stores_of_others_are_not_written_to_or_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(KeyboardInterrupt):
        stored(tmp_path, dying(1))
    folder = open_folder(tmp_path)
    manifest = find_manifest(folder)
    assert manifest is not None
    other = Store(folder, dataclasses.replace(manifest, about={}))
    held = Store(folder, manifest)
    batch, write = held.noted(0)[0], folder.write

    def writing(name: str, data: bytes, **given: Any) -> None:
        write(name, data, **given)
        if name.startswith("double/c"):  # another run comes between array and record
            other.write_metadata()

    monkeypatch.setattr(folder, "write", writing)
    for chunk in (5, 6):
        with pytest.raises(InputError, match="another run's meanwhile"):
            held.write(chunk, [batch])
    assert folder.read("sum/c/6") is None
    assert not other.noted(0)


def test_files_of_the_run_before_count_once_and_go_last(tmp_path: Path) -> None:
    kept = R.Checkpointed(R.Sum(), tmp_path, every=1, identity={"it": 1})

    def run(after: int) -> Any:
        compute = dying(after)
        return reduced(lambda b: compute(b)["double"], x().split(50), kept)

    def files() -> dict[str, bytes]:
        return {p.name: p.read_bytes() for p in tmp_path.iterdir() if p.is_file()}

    with pytest.raises(KeyboardInterrupt):
        run(4)
    old, expected = files(), run(5)
    assert not old.keys() & files().keys()
    for name, data in old.items():  # as if it had died before they were removed
        (tmp_path / name).write_bytes(data)
    assert torch.equal(run(0), expected)
    checkpoint = Checkpoint(open_folder(tmp_path), {})
    checkpoint.join(99)
    checkpoint.write = dying(0)
    with pytest.raises(KeyboardInterrupt):
        checkpoint.begin(Progress.none({}))
    assert files()
    found = reduced(lambda b: b[:, 0], x().split(100), R.TopK(2))
    assert found.samples.tolist() == [SAMPLES - 1, SAMPLES - 2]


# -- the noise scale ----------------------------------------------------------------

WIDTH, OFF = 6, 0.5  # of x; each entry of w - w0
SIGNAL = 4 * WIDTH * OFF**2
NOISE = 4 * ((WIDTH + 1) * WIDTH * OFF**2 + WIDTH)


def regression(seed: int, count: int = 2000) -> tuple[Tensor, Tensor, Tensor]:
    """Return x, y = x·w0 + e, w0 = 0, and per-sample gradients of (x·w - y)² at OFF.

    These are 2 x (x·δ - e), δ = w - w0: with x and e standard normal, G = 2 δ, and
    E |g|² = 4 ((d + 2) |δ|² + d), so that tr Σ = 4 ((d + 1) |δ|² + d).
    """
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(count, WIDTH + 1, generator=generator, dtype=torch.float64)
    x, e = drawn[:, :WIDTH], drawn[:, WIDTH:]
    return x, e, 2 * x * (x.sum(1, keepdim=True) * OFF - e)


def near(one: Any, other: Any, tolerance: float = 1e-9) -> None:
    for name, value in dataclasses.asdict(one).items():
        assert getattr(other, name) == pytest.approx(value, rel=tolerance)


def test_the_interval_holds_the_noise_scale_as_often_as_it_says(
    request: pytest.FixtureRequest,
) -> None:
    threads = torch.get_num_threads()
    request.addfinalizer(lambda: torch.set_num_threads(threads))
    torch.set_num_threads(1)  # on small sums they would wait for one another
    first = [
        reduced(same, regression(seed)[2].split(20), R.NoiseScale()).interval
        for seed in range(100)
    ]
    several = []
    for seed in range(1000):
        batches = regression(seed)[2].split(20)
        parts = [torch.cat(batches[k::32]) for k in range(32)]
        groups = [
            {"count": len(p), "squares": float(p.square().sum()), "sum": [p.sum(0)]}
            for p in parts
        ]
        several.append(_estimate(groups, 0.95).interval)
    held = [low <= NOISE / SIGNAL <= high for low, high in several]
    print(f"{sum(held[:100])} of 100 and {sum(held)} of 1000")  # noqa: T201
    assert np.allclose(several[:100], first, rtol=1e-9)
    assert 930 <= sum(held) <= 970


def test_a_model_gives_the_noise_scale_of_its_rows_however_they_come() -> None:
    x, y, rows = regression(0, 16 * 24)
    model = nn.Linear(WIDTH, 1, bias=False).double()
    with torch.no_grad():
        model.weight.fill_(OFF)
    scale, gradients = R.NoiseScale(groups=16), gk.quantities.gradients
    expected = reduced(same, rows.split(24), scale)
    for size in (24, 8, 3):
        # Group k has samples 24 k to 24 k + 23, whatever the batches' size is.
        order = torch.arange(len(x)).reshape(16, -1, size).transpose(0, 1).reshape(-1)
        loader = DataLoader(TensorDataset(x[order], y[order]), size)
        near(reduced(same, rows[order].split(size), scale), expected)
        near(reduced(gradients(model, F.mse_loss), loader, scale), expected)
        given: Any = {"groups": 16, "progress": False}
        near(gk.quantities.noise_scale(model, loader, F.mse_loss, **given), expected)
        states = [scale.start() for _ in range(3)]
        for number, part in enumerate(rows[order].split(size)):
            at = Place(number, number * size)
            states[number % 3] = scale.add(states[number % 3], part, at)
        merged = scale.merge(states[2], scale.merge(states[0], states[1]))
        near(scale.result(merged), expected)


@pytest.mark.parametrize("count", [40, 37])
def test_an_estimate_is_that_of_its_formula(count: int) -> None:
    rows = np.arange(3.0 * count).reshape(count, 3) ** 1.5 % 7 - 2.0
    group = np.arange(count) // 5

    def moments(part: Any) -> Any:
        noise = part.var(0, ddof=1).sum()
        return np.array([noise, (part.mean(0) ** 2).sum() - noise / len(part)])

    whole = moments(rows)
    leaving = np.array([moments(rows[group != k]) for k in range(8)])
    share = (count / np.bincount(group))[:, None]
    centre = 8 * whole - ((1 - 1 / share) * leaving).sum(0)
    apart = share * whole - (share - 1) * leaving - centre
    spread = sum(np.outer(a, a) / (h - 1) for a, h in zip(apart, share, strict=True))
    found = reduced(same, torch.from_numpy(rows).split(5), R.NoiseScale(groups=8))
    assert (found.noise, found.signal) == pytest.approx(tuple(whole), rel=1e-9)
    assert (found.scale, found.samples) == (found.noise / found.signal, count)
    scan = scanned(whole[0], whole[1], np.asarray(spread) / 8, 2.364624)
    assert found.interval == pytest.approx(scan, rel=2e-3)


def scanned(noise: float, signal: float, spread: Any, bound: float) -> Any:
    ratios = np.append(np.linspace(0, 100, 1_000_001), 1e9)
    variance = spread[0, 0] - 2 * ratios * spread[0, 1] + ratios**2 * spread[1, 1]
    held = ratios[(noise - ratios * signal) ** 2 <= bound**2 * variance]
    return held[0], math.inf if held[-1] == 1e9 else held[-1]


def test_intervals_are_fiellers_and_quantiles_students() -> None:
    numbers = np.random.default_rng(0)
    for _ in range(40):
        half = numbers.normal(size=(2, 2)) * [[0.4], [0.5]]
        noise, signal = 3 + abs(numbers.normal()), 0.2 + abs(numbers.normal())
        spread = half @ half.T
        found = _fieller(noise, signal, torch.from_numpy(spread), 2.0)
        if found[1] < 100 or found[1] == math.inf:
            expected = scanned(noise, signal, spread, 2.0)
            assert found == pytest.approx(expected, rel=1e-3, abs=2e-4)
    for freedom, value in ((7, 2.364624), (15, 2.131450), (31, 2.039513)):
        assert _t_quantile(0.975, freedom) == pytest.approx(value, abs=1e-3)


def test_noise_scales_that_cannot_be_had_are_refused() -> None:
    for groups in (7, 8.0, True):
        with pytest.raises(InputError, match="NoiseScale: groups must be a whole"):
            R.NoiseScale(groups=groups)  # pyright: ignore
    with pytest.raises(InputError, match=r"level must lie between 0 and 1; got 1\.0"):
        R.NoiseScale(level=1.0)
    with pytest.raises(InputError, match=r"at least 8 groups, .* got 7"):
        reduced(same, x().split(58), R.NoiseScale())
    scale = R.NoiseScale()
    state = scale.add(scale.start(), x(), Place(0, 0))
    with pytest.raises(InputError, match=r"one shape in all batches; got \[1\] beside"):
        scale.add(state, x()[:, :1], Place(1, 3))


def test_intervals_at_the_edges_of_what_data_can_say() -> None:
    rows = torch.randn(640, 6, dtype=torch.float64)
    found = reduced(same, (rows - rows.mean(0)).split(20), R.NoiseScale())
    assert found.scale == math.inf  # the mean gradient is zero, to the last bit
    assert found.interval == (math.inf, math.inf)
    inf, none = math.inf, torch.zeros(2, 2, dtype=torch.float64)
    for noise, signal, spread, interval in (
        (6.0, 2.0, none, (3.0, 3.0)),
        (6.0, -2.0, none, (inf, inf)),
        (1.0, 1.0, torch.eye(2), (0.0, inf)),  # neither is above zero for certain
        (9.0, 0.0, torch.eye(2), (math.sqrt(81 - 4) / 2, inf)),
        (9.0, 2.0, torch.diag(torch.tensor([0.0, 1.0])), (81 / 36, inf)),
    ):
        assert _fieller(noise, signal, spread.double(), 2.0) == pytest.approx(interval)
