"""Faults that a hostile reader found in ``stream`` and ``reduce``, each of its kind."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    TensorDataset,
)

import gradkit as gk
from gradkit.errors import InputError

pytest.importorskip("zarr")

R = gk.reducers


def stored(compute: Callable[..., Any], batches: Any, store: Path, **given: Any) -> Any:
    return gk.stream(compute, batches, store, progress=False, **given)


def same(batch: Any) -> Tensor:
    return batch if isinstance(batch, Tensor) else batch[0]


def numbers(count: int) -> TensorDataset:
    return TensorDataset(torch.arange(float(count)))


# -- stores beside other things -----------------------------------------------------


def test_a_store_in_a_folder_of_stores_is_left_alone(tmp_path: Path) -> None:
    data = torch.arange(6.0).split(2)
    stored(lambda x: {"norm": x}, data, tmp_path / "norm")
    before = sorted(tmp_path.rglob("*"))
    for given in ({}, {"resume": False}, {"identity": {}}):
        with pytest.raises(InputError, match=r"holds other things \(norm\)"):
            stored(lambda x: {"loss": x}, data, tmp_path, **given)
    with pytest.raises(InputError, match="holds other things"):
        gk.open_rows(tmp_path)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_checkpoint_leaves_what_is_not_its_own(tmp_path: Path) -> None:
    (tmp_path / "2024-report.csv").write_text("dear")
    (tmp_path / "7").mkdir()
    kept = R.Checkpointed(R.Mean(), tmp_path, identity={})
    with pytest.raises(InputError, match=r"holds other things \(2024-report.csv, 7\)"):
        gk.reduce(same, torch.arange(6.0).split(2), kept, progress=False)
    assert {p.name for p in tmp_path.iterdir()} == {"2024-report.csv", "7"}


def test_a_relative_path_is_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()

    def compute(batch: Tensor) -> Tensor:
        os.chdir(tmp_path / "elsewhere")
        return batch

    rows = gk.stream(compute, torch.arange(6.0).split(2), "rows", progress=False)
    assert torch.equal(rows[:], torch.arange(6.0))
    assert not list((tmp_path / "elsewhere").iterdir())


# -- what an identity sees ----------------------------------------------------------

SCALE = 2.0


def helper(x: Tensor) -> Tensor:
    return x * SCALE


class Acting(nn.Module):
    """A layer with something that decides its results."""

    def __init__(self, act: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(3, 2)
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        return helper(self.layer(x))


class Config:
    def __init__(self, scale: float) -> None:
        self.scale = scale


def hooked(factor: float, pre: bool) -> nn.Module:
    module = Acting(None)
    if pre:
        module.register_forward_pre_hook(lambda m, x: (x[0] * factor,))
    else:
        module.register_forward_hook(lambda m, x, y: torch.mul(y, factor))  # pyright: ignore
    return module


def patched(factor: float) -> nn.Module:
    module = Acting(None)
    module.forward = lambda x: factor * module.layer(x)
    return module


ALIKE: dict[str, Callable[[int], Any]] = {
    "an activation": lambda n: Acting((torch.tanh, torch.sigmoid)[n]),
    "a mapping": lambda n: Acting({"scale": n}),
    "a list with None": lambda n: Acting([float(n), None]),
    "an array": lambda n: Acting(np.arange(n + 2)),
    "texts": lambda n: Acting(np.array(["a", "b"][: n + 1])),
    "a config": lambda n: Acting(Config(n)),
    "a partial": lambda n: Acting(functools.partial(torch.add, n)),
    "modules in a list": lambda n: Acting([nn.Dropout(0.1 + n / 10)]),
    "a hook": lambda n: hooked(1.0 + n, pre=False),
    "a hook before": lambda n: hooked(1.0 + n, pre=True),
    "a patched forward": lambda n: patched(1.0 + n),
    "torch's layer": lambda n: nn.TransformerEncoderLayer(
        4, 2, 4, activation=(torch.tanh, torch.sin)[n]
    ),
}


@pytest.mark.parametrize("make", ALIKE.values(), ids=ALIKE)
def test_models_that_differ_in_any_way_are_told_apart(
    tmp_path: Path, make: Callable[[int], Any]
) -> None:
    def run(n: int) -> None:
        torch.manual_seed(0)
        data = torch.arange(6.0).split(2)
        stored(same, data, tmp_path, identity={"model": make(n)})

    run(0)
    run(0)
    with pytest.raises(InputError, match="holds rows of another run"):
        run(1)


def test_globals_that_code_reads_are_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = torch.arange(6.0).split(2)

    def outer(x: Tensor) -> Tensor:
        return helper(x)

    def empty() -> Any:
        return later  # pyright: ignore

    stored(helper, data, tmp_path, identity={"f": outer, "e": empty})
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    with pytest.raises(InputError, match="SCALE"):
        stored(helper, data, tmp_path, identity={"f": outer, "e": empty})
    later = 3


def test_an_identity_does_not_stand_in_for_the_quantitys_own(tmp_path: Path) -> None:
    quantity = gk.quantities.loss(nn.Linear(3, 2))
    batches = [(torch.randn(4, 3), torch.tensor([0, 1, 0, 1]))]
    with pytest.raises(InputError, match="what compute says itself: model"):
        stored(quantity, batches, tmp_path, identity={"model": "resnet"})


# -- loaders that are not what they say ---------------------------------------------


class Longer(Sampler[Any]):
    """Gives more than its length."""

    def __init__(self, entries: list[Any], length: int) -> None:
        self.entries, self.length = entries, length

    def __iter__(self) -> Iterator[Any]:
        return iter(self.entries)

    def __len__(self) -> int:
        return self.length


LYING: dict[str, Callable[[], Any]] = {
    "batches": lambda: DataLoader(
        numbers(10), batch_sampler=Longer([[i, i + 1] for i in range(0, 10, 2)], 3)
    ),
    "samples": lambda: DataLoader(
        numbers(10), batch_size=2, sampler=Longer(list(range(10)), 6)
    ),
}


@pytest.mark.parametrize("make", LYING.values(), ids=LYING)
def test_a_length_that_is_too_small_is_refused(
    tmp_path: Path, make: Callable[[], Any]
) -> None:
    with pytest.raises(InputError, match="loader gives more batches than the 3"):
        stored(same, make(), tmp_path)
    with pytest.raises(InputError, match="loader gives more batches than the 3"):
        gk.reduce(same, make(), R.Mean(), progress=False)


class Shorter(list[Tensor]):
    def __len__(self) -> int:
        return 5


def test_a_length_that_is_too_large_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a length of 5, and no batch 2"):
        stored(same, Shorter(torch.arange(4.0).split(2)), tmp_path)


@dataclasses.dataclass
class Held:
    x: Tensor


def test_a_batch_that_is_filled_again_and_again_is_read_in_time(tmp_path: Path) -> None:
    def refilled() -> Iterator[Held]:
        held = Held(torch.empty(2))
        for n in range(6):
            held.x = torch.full((2,), float(n))
            yield held

    rows = stored(lambda held: held.x.clone(), refilled(), tmp_path)
    expected = torch.arange(6.0).repeat_interleave(2)
    assert torch.equal(rows[:], expected)
    mean = gk.reduce(lambda held: held.x, refilled(), R.Mean(), progress=False)
    assert mean == 2.5


def test_batches_of_objects_are_told_apart(tmp_path: Path) -> None:
    def run(value: Any, compute: Any, name: str) -> None:
        stored(compute, [value], tmp_path / name, identity={})

    for name, one, other in (
        ("dataclass", Held(torch.ones(2)), Held(torch.zeros(2))),
        ("array", np.array([1, "a"], dtype=object), np.array([1, "b"], dtype=object)),
        ("nested", {"h": [Held(torch.ones(2))]}, {"h": [Held(torch.zeros(2))]}),
    ):
        run(one, lambda _: torch.ones(2), name)
        run(one, lambda _: torch.ones(2), name)
        with pytest.raises(InputError, match="loader's batch 0 is not the one"):
            run(other, lambda _: torch.ones(2), name)


class Drawing(Dataset[Tensor]):
    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Tensor:
        return index + torch.rand(())


@pytest.mark.parametrize("seeded", [False, True])
def test_what_workers_draw_is_refused_too(tmp_path: Path, seeded: bool) -> None:
    generator = torch.Generator().manual_seed(0) if seeded else None
    loader = DataLoader(Drawing(), 2, num_workers=2, generator=generator)
    with pytest.raises(InputError, match="another batch 0 the second time"):
        stored(same, loader, tmp_path)


class Epochs(Sampler[int]):
    """Counts its own epochs, as samplers of some libraries do."""

    def __init__(self) -> None:
        self.epoch = 0

    def __iter__(self) -> Iterator[int]:
        self.epoch += 1
        order = torch.randperm(9, generator=torch.Generator().manual_seed(self.epoch))
        return iter(order.tolist())

    def __len__(self) -> int:
        return 9


def test_a_sampler_that_counts_epochs_is_at_the_one_it_was(tmp_path: Path) -> None:
    sampler = Epochs()
    loader = DataLoader(numbers(9), batch_size=2, sampler=sampler)
    rows = stored(same, loader, tmp_path)
    assert sampler.epoch == 0
    assert torch.equal(rows[:], torch.cat([batch[0] for batch in loader]))


class Several(IterableDataset[Tensor]):
    def __iter__(self) -> Iterator[Tensor]:
        return iter(torch.arange(6.0))


def test_the_generator_of_an_iterable_data_set_is_put_back(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(3)
    state = generator.get_state()
    stored(same, DataLoader(Several(), 2, generator=generator), tmp_path)
    assert torch.equal(generator.get_state(), state)


def test_a_worker_that_lives_on_does_not_hold_the_store(tmp_path: Path) -> None:
    loader = DataLoader(Several(), 2, num_workers=1, persistent_workers=True)
    for _ in range(2):
        stored(same, loader, tmp_path, identity={})


def test_more_data_are_refused_before_a_row_is_written(tmp_path: Path) -> None:
    def made(count: int) -> Iterator[Tensor]:
        return (torch.full((2, 1), float(n)) for n in range(count))

    stored(same, made(3), tmp_path, identity={})
    with pytest.raises(InputError, match="more than the 6 samples"):
        stored(same, made(4), tmp_path, identity={})
    rows = stored(same, made(3), tmp_path, identity={})
    assert len(rows) == 6


@pytest.mark.parametrize("count", [1, 70])
def test_a_short_batch_of_an_earlier_run_is_no_longer_the_last(
    tmp_path: Path, count: int
) -> None:
    """It stands in the journal, or in a checkpoint, and more samples follow it now."""

    def made(more: bool) -> Iterator[Tensor]:
        yield from torch.arange(4.0 * count).split(4)
        yield torch.zeros(2)
        if more:
            yield torch.ones(4)

    def run(more: bool) -> Any:
        return stored(same, made(more), tmp_path / "rows", identity={})

    def reduced(more: bool) -> Any:
        kept = R.Checkpointed(R.TopK(1), tmp_path / "top", every=1, identity={})
        return gk.reduce(same, made(more), kept, progress=False)

    for call in (run, reduced):
        for _ in range(2):
            with pytest.raises(InputError, match=f"batch {count} has 2 samples"):
                call(more=True)
    assert len(run(more=False)) == 4 * count + 2


def test_an_exhausted_generator_is_named(tmp_path: Path) -> None:
    batches = iter(torch.arange(6.0).split(2))
    stored(same, batches, tmp_path, identity={})
    with pytest.raises(InputError, match="loader gives no batches"):
        stored(same, batches, tmp_path, identity={})


def test_another_seed_inside_a_batch_sampler_is_named(tmp_path: Path) -> None:
    def loader(seed: int) -> DataLoader[Any]:
        generator = torch.Generator().manual_seed(seed)
        order = RandomSampler(range(9), generator=generator)
        return DataLoader(numbers(9), batch_sampler=BatchSampler(order, 2, False))

    stored(same, loader(0), tmp_path, identity={})
    with pytest.raises(InputError, match="order, generators"):
        stored(same, loader(1), tmp_path, identity={})


def test_a_compute_that_writes_to_its_batch_is_named(tmp_path: Path) -> None:
    batches = list(torch.arange(6.0).split(2))
    with pytest.raises(InputError, match="compute changes its batch in place"):
        stored(lambda x: x.mul_(2), batches, tmp_path)


def test_an_empty_first_batch_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="first batch is empty"):
        stored(same, [torch.zeros(0, 3), torch.zeros(2, 3)], tmp_path)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_batches_of_other_kinds_of_tensors(tmp_path: Path) -> None:
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    jagged = torch.nested.nested_tensor([torch.ones(2)], layout=torch.jagged)
    for batch, count in ((nested, 2), (jagged, 1), (torch.eye(3).to_sparse(), 3)):
        rows = torch.ones(count)
        stored(lambda _, r=rows: r, [(batch, 1)], tmp_path / f"{count}")
    with pytest.raises(InputError, match="got a meta tensor"):
        stored(lambda _: torch.ones(2), [torch.ones(2, device="meta")], tmp_path / "m")


# -- rows ---------------------------------------------------------------------------


def test_an_ellipsis_is_torchs(tmp_path: Path) -> None:
    x = torch.randn(5, 3, 4)
    column = stored(lambda b: {"x": b}, x.split(2), tmp_path)["x"]
    for index in ((..., 0), (..., 0, slice(1)), (2, ...), (slice(2), ..., [1, 0]), ...):
        assert torch.equal(column[index], x[index])
    for index in (True, np.True_, [True]):
        with pytest.raises(IndexError):
            column[index]


def test_names_that_would_collide_are_refused_and_others_kept(tmp_path: Path) -> None:
    data = torch.arange(6.0).split(2)
    with pytest.raises(InputError, match="alike as texts"):
        stored(lambda x: {1: x, "1": 2 * x}, data, tmp_path / "a")
    rows = stored(lambda x: {"rows": x}, data, tmp_path / "b")
    assert torch.equal(rows[0:1]["rows"], torch.zeros(1))
    mean = gk.reduce(lambda x: {"rows": x}, data, R.Mean(), progress=False)
    assert list(mean) == ["rows"]


# -- checkpoints --------------------------------------------------------------------


def test_checkpoints_see_other_data(tmp_path: Path) -> None:
    x = torch.arange(20.0)

    def reduced(batches: Any, name: str) -> Any:
        kept = R.Checkpointed(R.Mean(), tmp_path / name, every=1, identity={})
        return gk.reduce(same, batches, kept, progress=False)

    reduced(x.split(2), "list")
    with pytest.raises(InputError, match="batches: was 10, is 5"):
        reduced(x[:10].split(2), "list")
    changed = torch.cat([x[:18], x[18:] + 1])
    with pytest.raises(InputError, match="loader's batch 9 is not the one"):
        reduced(changed.split(2), "list")
    reduced((t for t in x.split(4)), "generator")
    later = torch.cat([x[:8], x[8:] + 100])
    with pytest.raises(InputError, match="loader's batch 2 is not the one"):
        reduced((t for t in later.split(4)), "generator")
    reduced((t for t in x[:10].split(4)), "short")
    with pytest.raises(InputError, match="loader's batch 2 is not the one"):
        reduced((t for t in x.split(4)), "short")
