"""Faults that were planted in ``gradkit.streaming`` and that other tests let pass."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Sampler, TensorDataset, get_worker_info

import gradkit as gk
from gradkit.errors import InputError
from gradkit.streaming._checkpoint import Checkpoint, Progress
from gradkit.streaming._digest import digest_batch, digest_json, digest_tensor
from gradkit.streaming._folder import LocalFolder, open_folder
from gradkit.streaming._code import code_of
from gradkit.streaming._identity import describe
from gradkit.streaming._settings import differences
from gradkit.streaming._store import Store, find_manifest
from gradkit.streaming.reducers import _noise
from gradkit.streaming.reducers._reducer import Place
from stream_kills import contents

pytest.importorskip("zarr")

R = gk.reducers
SAMPLES = 406  # 136 batches of three, of which the last has one; two in a chunk


def x() -> Tensor:
    return torch.arange(float(2 * SAMPLES)).reshape(SAMPLES, 2).sqrt()


def both(batch: Tensor) -> dict[str, Tensor]:
    return {"sum": batch.sum(1), "double": 2 * batch}


def stored(store: Path, compute: Any = both, batches: Any = None, **given: Any) -> Any:
    batches = x().split(3) if batches is None else batches
    given = {"identity": {}, **given}
    return gk.stream(compute, batches, store, progress=False, **given)


def reduced(compute: Callable[[Any], Any], batches: Any, reducer: Any) -> Any:
    return gk.reduce(compute, batches, reducer, progress=False)


def same(batch: Any) -> Any:
    return batch if isinstance(batch, Tensor) else batch[0]


def dying(after: int) -> Callable[[Tensor], Any]:
    calls = iter(range(after))

    def compute(batch: Tensor) -> dict[str, Tensor]:
        if next(calls, None) is None:
            raise KeyboardInterrupt
        return both(batch)

    return compute


def interrupted(store: Path, after: int) -> None:
    with pytest.raises(KeyboardInterrupt):
        stored(store, dying(after))


# -- what tells runs apart ----------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (torch.zeros(4), torch.zeros(4, dtype=torch.int32)),
        (torch.zeros(4), torch.zeros(2, 2)),
        ({"a": torch.zeros(2)}, {"b": torch.zeros(2)}),
        ([torch.zeros(2)], {"a": torch.zeros(2)}),
        ([np.zeros(4, np.float32)], [np.zeros(4, np.int32)]),
        ([np.zeros(4)], [np.zeros((2, 2))]),
        ([torch.zeros(2), 3], [torch.zeros(2), 4]),
        ([torch.zeros(2), 3], [torch.zeros(2), 3.0]),
        (torch.tensor([1 + 2j]), torch.tensor([1 + 2j]).conj()),
    ],
)
def test_batches_that_differ_have_different_digests(one: Any, other: Any) -> None:
    assert digest_batch(one) != digest_batch(other)
    assert digest_batch(one) == digest_batch(one)


def test_views_are_digested_by_their_values() -> None:
    value = torch.tensor([1 + 2j, 3 - 1j])
    conjugate, imaginary = value.conj(), value.conj().imag
    assert digest_tensor(conjugate) == digest_tensor(conjugate.resolve_conj())
    assert digest_tensor(imaginary) == digest_tensor(imaginary.resolve_neg())


def network(value: Any) -> nn.Module:
    class Net(nn.Module):
        forward = (lambda s, x: x + 1) if value == 1 else (lambda s, x: x + 2)

    return Net()


def holding(value: Any) -> nn.Module:
    module = nn.Identity()
    module.held = value
    return module


def with_default(value: Any) -> Callable[..., Any]:
    return lambda x, scale=value: x * scale


def with_keyword(value: Any) -> Callable[..., Any]:
    return lambda x, *, scale=value: x * scale


@dataclasses.dataclass
class Scale:
    by: float

    def __call__(self, x: Tensor) -> Tensor:
        return x * self.by


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (network(1), network(2)),
        (holding(torch.zeros(2)), holding(torch.ones(2))),
        (holding([1, 2]), holding([1, 3])),
        (with_default(1), with_default(2)),
        (with_keyword(1), with_keyword(2)),
        (lambda x: x.sin(), lambda x: x.cos()),
        (lambda x: (lambda y: y + 1)(x), lambda x: (lambda y: y + 2)(x)),
        (functools.partial(pow, 2), functools.partial(pow, 3)),
        (functools.partial(F.gelu, approximate="none"), functools.partial(F.gelu)),
        (Scale(1.0).__call__, Scale(2.0).__call__),
        (Scale(1.0), Scale(2.0)),
        (torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)),
        ({"a": 1, "b": 2}, {"a": 1}),
        ({"a": 1}, {"a": 1, "b": 2}),
    ],
)
def test_what_decides_results_is_told_apart(one: Any, other: Any) -> None:
    was, now = describe(one, "it"), describe(other, "it")
    assert differences(was, now)
    assert not differences(was, describe(one, "it"))


def test_what_holds_itself_and_sets_are_described() -> None:
    held: list[Any] = [1]
    held.append(held)
    assert describe(held, "it") == [1, "itself"]
    code = with_default.__code__
    one, other = (code.replace(co_consts=(frozenset(s),)) for s in ([0, 8], [8, 0]))
    assert list(code_of(one)) == list(code_of(other))


def test_an_identity_adds_to_that_of_a_quantity(tmp_path: Path) -> None:
    data = [(x()[:4], torch.zeros(4, dtype=torch.long))]
    for seed in (0, 1):
        torch.manual_seed(seed)
        quantity = gk.quantities.gradient_norm(nn.Linear(2, 3))
        if not seed:
            stored(tmp_path, quantity, data, identity={"more": 1})
    with pytest.raises(InputError, match="parameter weight"):
        stored(tmp_path, quantity, data, identity={"more": 1})


def test_dtype_and_order_are_part_of_a_run(tmp_path: Path) -> None:
    def loader(samples: int, drop_last: bool = False) -> DataLoader[Any]:
        data = TensorDataset(x()[:samples])
        return DataLoader(data, batch_size=5, drop_last=drop_last)

    stored(tmp_path, same, loader(23))
    with pytest.raises(InputError, match="order, batches: was 5, is 4"):
        stored(tmp_path, same, loader(23, drop_last=True))
    with pytest.raises(InputError, match="samples in the data set: was 23, is 24"):
        stored(tmp_path, same, loader(24))
    torch.set_default_dtype(torch.float64)
    try:
        with pytest.raises(InputError, match="default dtype"):
            stored(tmp_path, same, loader(23))
    finally:
        torch.set_default_dtype(torch.float32)


# -- batches and rows ---------------------------------------------------------------


def test_a_generator_of_one_batch_has_a_last_batch(tmp_path: Path) -> None:
    assert torch.equal(stored(tmp_path, same, iter([x()]))[:], x())


@pytest.mark.parametrize("empty", [0, 2])
def test_batches_without_samples_are_refused(tmp_path: Path, empty: int) -> None:
    batches = [torch.ones(2, 1)] * 3
    batches[empty] = torch.ones(0, 1)
    with pytest.raises(InputError, match=r"0 samples|no entries"):
        stored(tmp_path, same, batches)


def test_another_first_batch_at_the_second_look_is_refused(tmp_path: Path) -> None:
    class Moving(list[Tensor]):
        looks = 0

        def __getitem__(self, place: Any) -> Any:
            self.looks += 1
            return super().__getitem__(place) + self.looks

    with pytest.raises(InputError, match="another batch 0 the second time"):
        stored(tmp_path, same, Moving(x().split(3)))


def test_compute_may_write_to_its_batch(tmp_path: Path) -> None:
    loader = DataLoader(TensorDataset(x()), batch_size=3)
    for _ in range(2):
        rows = stored(tmp_path, lambda b: b[0].mul_(2), loader)
    assert torch.equal(rows[:], 2 * x())


class Own(DataLoader[Any]):
    def __iter__(self) -> Any:
        return (2 * batch[0] for batch in super().__iter__())


def marked(items: list[tuple[Tensor]]) -> Tensor:
    """Collate, with what ``prepare`` has left in this process."""
    mark = getattr(torch.utils.data, "_mark", 0.0) if get_worker_info() else 1.0
    return torch.stack([item[0] for item in items]) + mark


def prepare(_: int) -> None:
    torch.utils.data._mark = 1.0  # pyright: ignore


@pytest.mark.parametrize(
    ("kind", "given", "expected"),
    [
        (Own, {}, lambda x: 2 * x),
        (DataLoader, {"collate_fn": marked}, lambda x: x + 1),
        (
            DataLoader,
            {"collate_fn": marked, "num_workers": 1, "worker_init_fn": prepare},
            lambda x: x + 1,
        ),
    ],
)
def test_what_a_loader_does_to_batches_is_kept(
    tmp_path: Path, kind: Any, given: Any, expected: Any
) -> None:
    rows = stored(tmp_path, same, kind(TensorDataset(x()), batch_size=50, **given))
    assert torch.equal(rows[:], expected(x()))


def test_rows_of_all_sorts_are_stored(tmp_path: Path) -> None:
    values = torch.randn(6, 2, dtype=torch.complex64)
    layer = nn.Linear(2, 1)

    def compute(batch: Tensor) -> dict[str, Tensor]:
        real = layer(batch.real)  # which asks for a gradient
        return {"c": batch.conj(), "n": batch.conj().imag, "g": real, "h": batch}

    rows = stored(tmp_path / "a", compute, values.split(2))
    assert torch.equal(rows["c"][:], values.conj().resolve_conj())
    assert torch.equal(rows["n"][:], -values.imag)
    torch.testing.assert_close(rows["g"][:], layer(values.real).detach())
    half = values.to(torch.complex32)
    rows = stored(tmp_path / "b", same, half.split(2))
    assert torch.equal(rows[:], half.to(torch.complex64))
    # Tensors that disagree on the samples leave it to compute to say.
    unlike = [(part, torch.zeros(7)) for part in x()[:6].split(2)]
    assert torch.equal(stored(tmp_path / "c", same, unlike)[:], x()[:6])
    with pytest.raises(InputError, match="got a meta one"):
        stored(tmp_path / "d", lambda b: b.to("meta"), [x()])
    with pytest.raises(InputError, match="'__b', which cannot name"):
        stored(tmp_path / "e", lambda b: {"__b": b}, [x()])


def test_indices_that_are_nearly_right_are_refused(tmp_path: Path) -> None:
    rows = stored(tmp_path)["sum"]
    for index in ([0, -SAMPLES - 1], np.ones(5, bool), [True, False]):
        with pytest.raises(IndexError, match=r"out of range|are indexed by"):
            rows[index]


class Drawing(Sampler[int]):
    def __init__(self) -> None:
        super().__init__()
        self.own = torch.Generator().manual_seed(3)

    def __iter__(self) -> Iterator[int]:
        torch.randperm(9, generator=self.own)
        return iter(torch.randperm(9).tolist())

    def __len__(self) -> int:
        return 12


def test_a_refused_sampler_has_drawn_nothing(tmp_path: Path) -> None:
    sampler = Drawing()
    before, own = torch.get_rng_state(), sampler.own.get_state()
    with pytest.raises(InputError, match="Drawing draws from torch"):
        loader = DataLoader(TensorDataset(x()), batch_size=5, sampler=sampler)
        stored(tmp_path, same, loader)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(sampler.own.get_state(), own)


def test_a_promise_of_samples_is_kept(tmp_path: Path) -> None:
    class Short(Drawing):
        def __iter__(self) -> Iterator[int]:
            return iter(range(11))

    loader = DataLoader(TensorDataset(x()), batch_size=5, sampler=Short())
    with pytest.raises(InputError, match="promised 12 samples, and gave 11"):
        stored(tmp_path, same, loader)


# -- stores -------------------------------------------------------------------------


def test_arrays_come_before_records_and_the_journal_stays_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []
    write = LocalFolder.write

    def noting(self: Any, name: str, data: bytes, **given: Any) -> None:
        written.append(name)
        write(self, name, data, **given)

    def compute(batch: Tensor) -> dict[str, Tensor]:
        assert len(list((tmp_path / "_journal").glob("*"))) < 9
        return both(batch)

    monkeypatch.setattr(LocalFolder, "write", noting)
    stored(tmp_path, compute)
    assert [n for n in written if n.endswith("zarr.json")][-1] == "zarr.json"
    for chunk in range(68):
        record = written.index(f"_chunks/c/{chunk}/0")
        assert written.index(f"sum/c/{chunk}") < record
        assert written.index(f"double/c/{chunk}/0") < record


def test_writes_of_a_few_bytes_are_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(tmp_path / "whole")
    write = _folder_os().write
    monkeypatch.setattr(
        "gradkit.streaming._folder.os.write", lambda to, data: write(to, data[:99])
    )
    stored(tmp_path / "s")
    assert contents(tmp_path / "s") == contents(tmp_path / "whole")


def _folder_os() -> Any:
    import os

    return os


def test_a_last_chunk_in_the_journal_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(tmp_path / "whole")
    write = Store.write

    def failing(self: Any, chunk: int, batches: Any) -> None:
        if chunk == 67:
            raise KeyboardInterrupt
        write(self, chunk, batches)

    with monkeypatch.context() as patch:
        patch.setattr(Store, "write", failing)
        with pytest.raises(KeyboardInterrupt):
            stored(tmp_path / "s")
    (tmp_path / "s" / "_journal" / "0a.partial").touch()

    def compute(batch: Tensor) -> dict[str, Tensor]:
        raise AssertionError("all of it was computed")

    stored(tmp_path / "s", compute)
    assert contents(tmp_path / "s") == contents(tmp_path / "whole")


def test_what_was_left_half_written_is_removed_first(tmp_path: Path) -> None:
    interrupted(tmp_path, 3)
    (tmp_path / "_journal" / "0a.partial").touch()

    def compute(batch: Tensor) -> dict[str, Tensor]:
        assert not list(tmp_path.glob("_journal/0a*"))
        return both(batch)

    stored(tmp_path, compute)


def test_a_batch_that_is_computed_late_takes_its_place(tmp_path: Path) -> None:
    data = torch.arange(300.0)[:, None]
    loader = DataLoader(TensorDataset(data), num_workers=1)  # which runs ahead
    calls = iter(range(3))

    def compute(batch: Any) -> Tensor:
        if next(calls, None) is None:
            raise KeyboardInterrupt
        return batch[0]

    with pytest.raises(KeyboardInterrupt):
        stored(tmp_path, compute, loader)
    (tmp_path / "_journal" / "0").write_bytes(b"")
    assert torch.equal(stored(tmp_path, same, loader)[:], data)


def test_a_flipped_bit_of_a_record_is_found(tmp_path: Path) -> None:
    stored(tmp_path)
    path = tmp_path / "_chunks" / "c" / "5" / "0"
    data = bytearray(path.read_bytes())
    data[35] ^= 1  # in the digest of a batch's inputs
    path.write_bytes(data)
    with pytest.raises(InputError, match="samples 30 to 35"):
        gk.open_rows(tmp_path).check()


@pytest.mark.parametrize("sample", [0, SAMPLES - 4])
@pytest.mark.parametrize("after", [1, 999])
def test_a_change_in_either_end_is_refused(
    tmp_path: Path, sample: int, after: int
) -> None:
    if after == 1:
        interrupted(tmp_path, after)  # with a journal alone
        sample = 0
    else:
        stored(tmp_path)
    other = x()
    other[sample] += 1
    with pytest.raises(InputError, match=f"batch {sample // 3} is not the one"):
        stored(tmp_path, both, other.split(3))
    with pytest.raises(InputError, match="was 1, is 2|it: is new"):
        stored(tmp_path, identity={"it": 2})


def test_a_store_without_rows_is_begun_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".hidden").touch()
    with monkeypatch.context() as patch:
        patch.setattr(Store, "note", dying(0))
        with pytest.raises(KeyboardInterrupt):
            stored(tmp_path, lambda b: {"old": b}, identity={"it": 1})
    stored(tmp_path)
    assert not (tmp_path / "old").exists()


def test_chunks_that_go_while_a_run_is_on_are_missed(tmp_path: Path) -> None:
    def compute(batch: Tensor) -> dict[str, Tensor]:
        (tmp_path / "_chunks" / "c" / "0" / "0").unlink(missing_ok=True)
        for folder in tmp_path.glob("_chunks/c/0"):
            folder.rmdir()
        return both(batch)

    with pytest.raises(InputError, match="does not hold what was written"):
        stored(tmp_path, compute)


def test_journals_and_records_of_other_runs_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted(tmp_path, 1)
    folder = open_folder(tmp_path)
    manifest = find_manifest(folder)
    assert manifest is not None
    other = Store(folder, dataclasses.replace(manifest, about={}))
    assert Store(folder, manifest).noted(0) is not None
    assert other.noted(0) is None
    path = tmp_path / "zarr.json"
    ours = path.read_bytes()
    other.write_metadata()
    theirs = path.read_bytes()
    # The other run comes before a chunk is written, or between its arrays and record.
    for at in (0, 2):
        path.write_bytes(ours if at else theirs)
        held, name = Store(folder, manifest), f"_chunks/c/{at}/0"
        batch = held.noted(0)
        assert batch is not None
        write = folder.write

        def writing(name: str, data: bytes, **given: Any) -> None:
            write(name, data, **given)
            if name.startswith("double"):
                path.write_bytes(theirs)

        monkeypatch.setattr(folder, "write", writing)
        with pytest.raises(InputError, match="another run's meanwhile"):
            held.write(at, [batch])
        assert folder.read(name) is None
        assert (folder.read(f"sum/c/{at}") is None) is (at == 0)


def test_another_versions_manifest_is_not_read(tmp_path: Path) -> None:
    stored(tmp_path)
    for path in tmp_path.rglob("zarr.json"):
        document = json.loads(path.read_text())
        own = document["attributes"]["gradkit"]
        own["manifest"]["format"] = 2
        own["digest"] = digest_json(own["manifest"]).hex()
        path.write_text(json.dumps(document))
    with pytest.raises(InputError, match="no manifest that can be read"):
        gk.open_rows(tmp_path)


# -- reductions ---------------------------------------------------------------------


def test_files_of_the_run_before_count_once(tmp_path: Path) -> None:
    calls: list[Any] = []

    def compute(batch: Any) -> Any:
        calls.append(batch)
        return same(batch)

    kept = R.Checkpointed(R.Sum(), tmp_path, identity={"it": 1})
    first = reduced(compute, x().split(50), kept)
    old = {p.name: p.read_bytes() for p in tmp_path.iterdir() if p.is_file()}
    reduced(compute, x().split(50), kept)
    assert not set(old) & {p.name for p in tmp_path.iterdir()}
    for name, data in old.items():  # as if it had died before they were removed
        (tmp_path / name).write_bytes(data)
    assert torch.equal(reduced(compute, x().split(50), kept), first)
    assert len(calls) == 9
    # And they go last: a disk that is full at the next run's first file keeps them.
    checkpoint = Checkpoint(open_folder(tmp_path), {})
    checkpoint.join(9)
    checkpoint.write = dying(0)  # pyright: ignore
    with pytest.raises(TypeError):
        checkpoint.begin(Progress.none({}))
    assert [p for p in tmp_path.iterdir() if p.is_file()]


def test_a_state_is_kept_without_what_it_is_a_view_of(tmp_path: Path) -> None:
    progress = Progress.none({"a": torch.zeros(10**6)[:2]})
    Checkpoint(open_folder(tmp_path), {}).write(progress, 0)
    assert sum(p.stat().st_size for p in tmp_path.iterdir() if p.is_file()) < 10**4


def test_samples_of_a_last_batch_have_their_numbers() -> None:
    found = reduced(lambda b: b[:, 0], x().split(100), R.TopK(2))
    assert found.samples.tolist() == [SAMPLES - 1, SAMPLES - 2]
