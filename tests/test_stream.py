"""``stream`` and ``open_rows``: values, order, arguments, and what tells runs apart."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    TensorDataset,
)

import gradkit as gk
from gradkit.errors import InputError

zarr = pytest.importorskip("zarr")

SAMPLES = 23


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(SAMPLES, 3, generator=generator)
    return x, torch.randint(4, (SAMPLES,), generator=generator)


def loader(**given: Any) -> DataLoader[Any]:
    return DataLoader(TensorDataset(*data()), **{"batch_size": 5, **given})


def model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 4))


def double(batch: Any) -> Tensor:
    return 2 * batch[0]


def stored(compute: Callable[..., Any], batches: Any, store: Path, **given: Any) -> Any:
    return gk.stream(compute, batches, store, progress=False, **given)


# -- values ------------------------------------------------------------------------


def test_rows_are_what_a_loop_over_samples_computes(tmp_path: Path) -> None:
    network = model().double()
    x, y = data()[0].double(), data()[1]

    def compute(batch: Any) -> dict[str, Any]:
        loss = gk.objectives.sample_loss(F.cross_entropy, batch[1])
        rows = gk.per_sample_gradients(network, batch[0], loss)
        return {"loss": rows.objective_values, **rows.to_dict()}

    rows = stored(compute, DataLoader(TensorDataset(x, y), batch_size=5), tmp_path)
    assert len(rows) == SAMPLES
    for n in range(SAMPLES):
        loss = F.cross_entropy(network(x[n : n + 1]), y[n : n + 1])
        expected = torch.autograd.grad(loss, list(network.parameters()))
        torch.testing.assert_close(rows["loss"][n], loss.detach())
        for (name, _), gradient in zip(
            network.named_parameters(), expected, strict=True
        ):
            torch.testing.assert_close(rows[name][n], gradient)


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float16, torch.float32, torch.float64, torch.int8, torch.int16,
        torch.int32, torch.int64, torch.uint8, torch.bool, torch.complex64,
        torch.complex128,
    ],
)  # fmt: skip
def test_every_dtype_comes_back_bit_for_bit(tmp_path: Path, dtype: torch.dtype) -> None:
    values = (torch.randn(7, 2, 3) * 3).to(dtype)
    rows = stored(lambda batch: batch, values.split(2), tmp_path)
    assert rows["rows"].dtype == dtype
    assert torch.equal(rows[:], values)
    group = zarr.open_group(tmp_path, mode="r")
    assert np.array_equal(group["rows"][:], values.numpy())


def test_bfloat16_is_stored_exactly_as_float32(tmp_path: Path) -> None:
    values = torch.randn(7, 2).bfloat16()
    rows = stored(lambda batch: batch, values.split(3), tmp_path)
    assert rows["rows"].dtype == torch.float32
    assert torch.equal(rows[:], values.float())


class Named(NamedTuple):
    twice: Tensor
    nothing: None
    thrice: Tensor


@dataclasses.dataclass
class Fields:
    twice: Tensor
    thrice: Tensor


@pytest.mark.parametrize(
    ("returned", "names"),
    [
        (lambda x: {"twice": 2 * x, "thrice": 3 * x}, ("twice", "thrice")),
        (lambda x: Named(2 * x, None, 3 * x), ("twice", "thrice")),
        (lambda x: Fields(2 * x, 3 * x), ("twice", "thrice")),
        (lambda x: [2 * x, None, 3 * x], ("0", "2")),
    ],
    ids=["mapping", "named tuple", "dataclass", "sequence"],
)
def test_named_tensors_become_arrays(
    tmp_path: Path, returned: Callable[[Tensor], Any], names: tuple[str, str]
) -> None:
    x = data()[0]
    rows = stored(returned, x.split(4), tmp_path)
    assert rows.names == names
    assert torch.equal(rows[names[0]][:], 2 * x)
    assert {n: v.shape for n, v in rows[2:9].items()} == dict.fromkeys(names, (7, 3))


def test_what_gradkit_returns_with_values_can_be_stored(tmp_path: Path) -> None:
    network, (x, y) = model(), data()
    rows = stored(
        lambda b: gk.input_gradients(network, b[0], b[1], with_values=True),
        loader(),
        tmp_path,
    )
    assert rows.names == ("derivative", "outputs", "objective_values", "at")
    whole = gk.input_gradients(network, x, y)
    torch.testing.assert_close(rows["derivative"][:], whole)


@pytest.mark.parametrize("size", [1, 4, 23, 40])
@pytest.mark.parametrize("samples", [1, 7, 23])
def test_all_batch_sizes(tmp_path: Path, size: int, samples: int) -> None:
    x = torch.arange(3.0 * samples).reshape(samples, 3)
    rows = stored(lambda b: {"x": b}, x.split(size), tmp_path)
    assert torch.equal(rows["x"][:], x)


def test_small_rows_share_chunks_and_large_ones_do_not(tmp_path: Path) -> None:
    x = torch.arange(1000.0)
    rows = stored(lambda b: {"x": b}, x.split(5), tmp_path / "small")
    assert len(list((tmp_path / "small" / "x" / "c").iterdir())) == 50
    assert torch.equal(rows["x"][:], x)
    wide = torch.randn(6, 1, 1).expand(6, 100_000, 2)
    rows = stored(lambda b: {"x": b}, wide.split(2), tmp_path / "large")
    assert len(list((tmp_path / "large" / "x" / "c").iterdir())) == 3
    assert torch.equal(rows["x"][3:5], wide[3:5])


# -- order -------------------------------------------------------------------------


class Own(Sampler[int]):
    """A sampler whose order is its own, from a generator of Python's."""

    def __init__(self) -> None:
        self.random = random.Random(5)

    def __iter__(self) -> Iterator[int]:
        return iter(self.random.sample(range(SAMPLES), SAMPLES))

    def __len__(self) -> int:
        return SAMPLES


class Process(Own):
    """The same from the process's generator."""

    def __iter__(self) -> Iterator[int]:
        return iter(random.sample(range(SAMPLES), SAMPLES))


class Parts(Dataset[list[Tensor]]):
    """Data that come in batches already."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> list[Tensor]:
        return [data()[0][5 * index : 5 * index + 5]]


class Counting(IterableDataset[Tensor]):
    def __iter__(self) -> Iterator[Tensor]:
        return iter(data()[0])


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(4)


LOADERS = {
    "sequential": lambda: loader(),
    "dropping": lambda: loader(drop_last=True),
    "shuffled": lambda: loader(shuffle=True, generator=seeded()),
    "replacing": lambda: loader(
        sampler=RandomSampler(range(SAMPLES), replacement=True, generator=seeded())
    ),
    "of its own": lambda: loader(sampler=Own()),
    "of batches": lambda: DataLoader(
        TensorDataset(*data()),
        batch_sampler=BatchSampler(SequentialSampler(range(20, 0, -1)), 5, False),
    ),
    "without batching": lambda: DataLoader(Parts(), batch_size=None),
    "workers": lambda: loader(
        shuffle=True, generator=seeded(), num_workers=2, prefetch_factor=3
    ),
    "iterable data": lambda: DataLoader(Counting(), batch_size=5),
    "list": lambda: [[x] for x in data()[0].split(5)],
    "generator": lambda: ([x] for x in data()[0].split(5)),
}


def first(batch: Any) -> Tensor:
    return batch if isinstance(batch, Tensor) else batch[0]


@pytest.mark.parametrize("make", LOADERS.values(), ids=LOADERS)
def test_rows_come_in_the_order_of_the_loader(
    tmp_path: Path, make: Callable[[], Any]
) -> None:
    expected = torch.cat([first(batch) for batch in make()])
    rows = stored(first, make(), tmp_path)
    assert torch.equal(rows[:], expected)


@pytest.mark.parametrize("make", LOADERS.values(), ids=LOADERS)
@pytest.mark.parametrize("fails", [0, 1, 3, 4])
def test_a_run_goes_on_where_one_failed(
    tmp_path: Path, make: Callable[[], Any], fails: int
) -> None:
    expected = torch.cat([first(batch) for batch in make()])
    calls: list[Tensor] = []

    def compute(batch: Any) -> Tensor:
        calls.append(first(batch))
        if len(calls) == fails + 1:
            raise KeyError("the night is over")
        return first(batch)

    total = -(-len(expected) // 5)
    if fails < total:
        with pytest.raises(KeyError, match="night"):
            stored(compute, make(), tmp_path, identity={})
    else:
        stored(compute, make(), tmp_path, identity={})
    before = min(fails, total)
    rows = stored(compute, make(), tmp_path, identity={})
    assert torch.equal(rows[:], expected)
    # One batch was lost, the one in flight.
    assert len(calls) == total + (fails < total)
    assert before <= total


def test_the_callers_generators_are_where_they_were(tmp_path: Path) -> None:
    generator = seeded()
    batches = loader(shuffle=True, generator=generator)
    state, process = generator.get_state(), torch.get_rng_state()
    python = random.getstate()
    stored(double, batches, tmp_path)
    assert torch.equal(generator.get_state(), state)
    assert torch.equal(torch.get_rng_state(), process)
    assert random.getstate() == python
    stored(double, loader(), tmp_path / "unseeded")
    assert torch.equal(torch.get_rng_state(), process)


# -- what is refused ---------------------------------------------------------------


def refused(call: Callable[[], Any], *texts: str) -> None:
    with pytest.raises(InputError) as caught:
        call()
    for text in texts:
        assert text in str(caught.value), str(caught.value)
    assert str(caught.value).count("stream: ") == 1


ONE = [torch.zeros(3, 2)]


@pytest.mark.parametrize(
    ("compute", "texts"),
    [
        (lambda x: x.mean(), ["one row per sample; got a number", "batches"]),
        (lambda x: x[:2], ["3 for this batch", "(2, 2)"]),
        (lambda x: {"a": x, "b": x[:1]}, ["(1, 2)", "'b'"]),
        (lambda x: {"a": {"b": x}}, ["got dict at 'a'", "one mapping"]),
        (lambda x: x.numpy(), ["ndarray", "torch.from_numpy"]),
        (lambda x: None, ["NoneType"]),
        (lambda x: {}, ["got none"]),
        (lambda x: x.to_sparse(), ["dense tensors; got a sparse_coo", ".to_dense()"]),
        (lambda x: {"a/b": x}, ["'a/b'", "cannot name"]),
        (lambda x: {"_chunks": x}, ["_chunks", "cannot name"]),
        (lambda x: x[:, :0], ["no entries"]),
        ("loss", ["compute must be a function", "gk.quantities"]),
    ],
    ids=lambda value: "" if isinstance(value, list) else None,
)
def test_what_compute_must_not_return(
    tmp_path: Path, compute: Any, texts: list[str]
) -> None:
    refused(lambda: stored(compute, ONE, tmp_path / "s"), *texts)
    assert not list(tmp_path.glob("s/**/zarr.json"))


def test_a_parameter_jacobian_is_refused_with_its_size(tmp_path: Path) -> None:
    network = model()

    def compute(batch: Any) -> Any:
        return gk.per_sample_gradients(
            network, batch[0], gk.objectives.class_score(batch[1])
        )

    size = 4 * sum(p.numel() for p in network.parameters())
    texts = [f"{size} bytes a sample", "rows.flat()", "rows.project("]
    refused(lambda: stored(compute, loader(), tmp_path / "s"), *texts)
    refused(
        lambda: stored(lambda b: {"a": compute(b)}, loader(), tmp_path / "t"), *texts
    )


@pytest.mark.parametrize(
    ("make", "texts"),
    [
        (lambda: loader(shuffle=True), ["RandomSampler", "torch.Generator()"]),
        (lambda: loader(sampler=Process()), ["Process draws from random"]),
        (
            lambda: loader(sampler=DistributedSampler(Noisy(), 2, 0)),
            ["DistributedSampler", "plain DataLoader"],
        ),
        (lambda: torch.zeros(3, 2), ["got Tensor", "x.split(100)"]),
        (lambda: {"x": torch.zeros(3)}, ["got dict"]),
        (lambda: 5, ["got int"]),
        (list, ["gives no batches"]),
        (lambda: iter([]), ["gives no batches"]),
        (
            lambda: [torch.zeros(2, 1), torch.zeros(3, 1)],
            ["batch 1 has 3 samples", "the first has 2"],
        ),
        (
            lambda: iter([torch.zeros(2, 1), torch.zeros(1, 1), torch.zeros(2, 1)]),
            ["batch 1 has 1 samples"],
        ),
    ],
)
def test_what_a_loader_must_not_be(
    tmp_path: Path, make: Callable[[], Any], texts: list[str]
) -> None:
    refused(lambda: stored(first, make(), tmp_path), *texts)


class Noisy(Dataset[Tensor]):
    def __len__(self) -> int:
        return 9

    def __getitem__(self, index: int) -> Tensor:
        return torch.randn(2)


def test_random_numbers_are_refused(tmp_path: Path) -> None:
    refused(
        lambda: stored(lambda b: torch.randn(len(b), 1), ONE, tmp_path / "a"),
        "random numbers were drawn (torch) by batch 0",
    )
    refused(
        lambda: stored(
            lambda b: b * np.random.rand(), [*ONE, ONE[0] + 1], tmp_path / "b"
        ),
        "numpy.random",
    )
    refused(
        lambda: stored(first, DataLoader(Noisy(), batch_size=2), tmp_path / "c"),
        "seeded by",
    )


def test_rows_of_another_kind_in_a_later_batch_are_refused(tmp_path: Path) -> None:
    def compute(batch: Tensor) -> dict[str, Tensor]:
        return {"x": batch if batch[0, 0] == 0 else batch.double()}

    x = torch.tensor([[0.0], [0.0], [1.0], [1.0]])
    refused(
        lambda: stored(compute, x.split(2), tmp_path / "a"),
        "at batch 1, 'x' is float64 (1,) a sample, and it is float32 (1,)",
    )
    refused(
        lambda: stored(lambda b: {f"x{int(b[0, 0])}": b}, x.split(2), tmp_path / "b"),
        "at batch 1, 'x0' is not there",
    )


# -- what tells one run from another -----------------------------------------------


def test_other_functions_need_an_identity_to_go_on(tmp_path: Path) -> None:
    stored(double, loader(), tmp_path)
    refused(lambda: stored(double, loader(), tmp_path), "identity={'model'")
    refused(lambda: stored(double, loader(), tmp_path, identity={}), "what wrote it")
    refused(
        lambda: stored(double, loader(), tmp_path, identity=[1]), "must be a mapping"
    )


def changed_weight() -> nn.Module:
    network = model()
    with torch.no_grad():
        network[0].weight[1, 2] += 1e-7  # pyright: ignore
    return network


class Scaled(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.register_buffer("table", torch.tensor([scale]).round())

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


def closing_over(value: Any) -> Callable[[Tensor], Tensor]:
    return lambda x: x * value


def frozen() -> nn.Module:
    network = model()
    network[0].bias.requires_grad_(False)  # pyright: ignore
    return network


DIFFERENT = {
    "a weight": (model(), changed_weight(), "identity, it, parameter 0.weight: was"),
    "mode": (model(), model().eval(), "identity, it, module, training"),
    "a frozen parameter": (model(), frozen(), "identity, it, frozen"),
    "an attribute": (Scaled(2.0), Scaled(2.1), "identity, it, module, scale: was 2.0"),
    "a buffer": (Scaled(2.0), Scaled(3.0), "identity, it, buffer table"),
    "dtype": (model(), model().double(), "float32[2, 3]"),
    "a plain value": (3, 4, "identity, it: was 3, is 4"),
    "a closure": (
        closing_over(2),
        closing_over(3),
        "identity, it, value (closed over): was 2, is 3",
    ),
    "code": (lambda x: x + 1, lambda x: x + 2, "identity, it, code: was"),
    "a tensor": (torch.zeros(2), torch.zeros(3), "identity, it: was float32[2]"),
    "a list": ([1, {"a": 2.5}], [1, {"a": 2.25}], "is [1, {'a': '2.25'}]"),
}


@pytest.mark.parametrize(("was", "now", "text"), DIFFERENT.values(), ids=DIFFERENT)
def test_what_differs_is_named(tmp_path: Path, was: Any, now: Any, text: str) -> None:
    stored(double, loader(), tmp_path, identity={"it": was})
    refused(
        lambda: stored(double, loader(), tmp_path, identity={"it": now}),
        "holds rows of another run",
        text,
    )
    # And what is the same, though it is another object, is gone on with.
    stored(double, loader(), tmp_path, identity={"it": was})


def test_the_same_things_made_again_are_the_same(tmp_path: Path) -> None:
    def identity() -> dict[str, Any]:
        return {
            "model": model(),
            "scaled": Scaled(1.5),
            "closed": closing_over(torch.ones(3)),
            "nested": {"a": [1, 2.5, None, "text"], "b": (torch.float32, {3, 1})},
            "function": F.cross_entropy,
            "generator": torch.Generator().manual_seed(3),
            "array": np.arange(4),
        }

    stored(double, loader(), tmp_path, identity=identity())
    stored(double, loader(), tmp_path, identity=identity())


def test_what_cannot_be_told_is_refused(tmp_path: Path) -> None:
    refused(
        lambda: stored(double, loader(), tmp_path, identity={"it": object()}),
        "identity: it must be models, tensors, functions or plain values",
        "got object",
    )


def test_another_order_or_setting_is_named(tmp_path: Path) -> None:
    stored(double, loader(), tmp_path, identity={})
    refused(
        lambda: stored(double, loader(batch_size=6), tmp_path, identity={}),
        "order, batch_size: was 5, is 6",
    )
    refused(
        lambda: stored(
            double, loader(shuffle=True, generator=seeded()), tmp_path, identity={}
        ),
        "order, samplers, was ['BatchSampler', 'SequentialSampler']"[:15],
        "RandomSampler",
    )
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(threads + 1)
        refused(
            lambda: stored(double, loader(), tmp_path, identity={}),
            f"settings, threads: was {threads}, is {threads + 1}",
        )
    finally:
        torch.set_num_threads(threads)


def test_another_seed_of_a_shuffle_is_named(tmp_path: Path) -> None:
    def shuffled(seed: int) -> DataLoader[Any]:
        generator = torch.Generator().manual_seed(seed)
        return loader(shuffle=True, generator=generator)

    stored(double, shuffled(1), tmp_path, identity={})
    refused(lambda: stored(double, shuffled(2), tmp_path, identity={}), "generators")
    stored(double, shuffled(1), tmp_path, identity={})


@pytest.mark.parametrize("kind", ["DataLoader", "list", "generator"])
def test_other_data_are_refused(tmp_path: Path, kind: str) -> None:
    def batches(x: Tensor) -> Any:
        if kind == "DataLoader":
            return DataLoader(TensorDataset(x), batch_size=5)
        return x.split(5) if kind == "list" else iter(x.split(5))

    x = data()[0]
    calls = 0

    def compute(batch: Any) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise KeyError
        return first(batch)

    with pytest.raises(KeyError):
        stored(compute, batches(x), tmp_path, identity={})
    refused(
        lambda: stored(compute, batches(x + 1), tmp_path, identity={}),
        "loader's batch 0 is not the one",
    )


def test_nothing_is_overwritten_without_resume(tmp_path: Path) -> None:
    stored(double, loader(), tmp_path, identity={}, resume=False)
    refused(
        lambda: stored(double, loader(), tmp_path, identity={}, resume=False),
        "holds rows already",
    )
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("dear")
    refused(
        lambda: stored(double, loader(), tmp_path / "other"),
        "holds other things (thesis.tex)",
    )
    refused(
        lambda: stored(double, loader(), tmp_path / "other" / "thesis.tex"),
        "is a file",
    )
    refused(lambda: stored(double, loader(), 5), "store must be a folder's path")  # pyright: ignore


def test_a_complete_store_is_not_computed_again(tmp_path: Path) -> None:
    identity = {"compute": "double"}
    stored(double, loader(), tmp_path, identity=identity)
    rows = stored(
        lambda b: pytest.fail("computed"), loader(), tmp_path, identity=identity
    )
    assert torch.equal(rows[:], 2 * data()[0])


# -- reading -----------------------------------------------------------------------


INDICES: dict[str, Any] = {
    "number": 7,
    "from the end": -1,
    "slice": slice(3, 17, 4),
    "backwards": slice(None, None, -1),
    "all": slice(None),
    "numbers": [5, 0, 22, 5],
    "array": np.array([3, -2]),
    "tensor": torch.tensor([9, 1]),
    "mask": torch.arange(SAMPLES) % 3 == 0,
    "none": [],
    "entries": (slice(2, 9), 1),
    "one entry": (4, 2),
    "picked entries": ([4, 1], slice(None, None, 2)),
    "empty": slice(4, 2),
}


@pytest.mark.parametrize("index", INDICES.values(), ids=INDICES)
def test_rows_are_indexed_as_tensors_are(tmp_path: Path, index: Any) -> None:
    rows = stored(lambda b: {"x": b[0]}, loader(), tmp_path)
    expected = data()[0]
    if isinstance(index, slice) and index.step is not None and index.step < 0:
        expected = expected.flip(0)
    else:
        expected = expected[index]
    assert torch.equal(rows["x"][index], expected)
    if not isinstance(index, tuple):
        assert torch.equal(rows[index]["x"], expected)


@pytest.mark.parametrize("index", [23, -24, [0, 23], [0.5], np.zeros((2, 2), int), "x"])
def test_indices_that_mean_nothing_are_refused(tmp_path: Path, index: Any) -> None:
    rows = stored(lambda b: {"x": b[0]}, loader(), tmp_path)
    with pytest.raises(IndexError, match=r"out of range|are indexed by"):
        rows["x"][index]


def test_rows_serve_as_data_and_as_arrays(tmp_path: Path) -> None:
    rows = stored(lambda b: {"x": b[0]}, loader(), tmp_path)
    x = data()[0]
    assert np.array_equal(np.asarray(rows["x"]), x.numpy())
    batches = list(DataLoader(rows, batch_size=4))
    assert torch.equal(torch.cat([b["x"] for b in batches]), x)
    assert torch.equal(torch.cat(list(rows["x"].chunks())), x)
    assert len(rows["x"]) == SAMPLES
    assert rows["x"].shape == (SAMPLES, 3)
    assert repr(rows) == "Rows(23 samples; x float32 (3,) a sample)"
    with pytest.raises(InputError, match="has no 'y'; it has x"):
        rows["y"]


def test_rows_that_are_not_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds nothing"):
        gk.open_rows(tmp_path / "none")

    def compute(batch: Any) -> dict[str, Tensor]:
        if torch.equal(batch[0], data()[0][15:20]):
            raise KeyError
        return {"x": batch[0]}

    with pytest.raises(KeyError):
        stored(compute, loader(), tmp_path / "s", identity={})
    rows = gk.open_rows(tmp_path / "s")
    assert torch.equal(rows["x"][:15], data()[0][:15])
    assert rows.missing == [range(15, 20), range(20, 23)]
    with pytest.raises(InputError, match="lacks the rows of samples 15 to 19"):
        rows["x"][14:16]
    with pytest.raises(InputError, match="lacks the rows of samples 15 to 19"):
        rows.check()


def test_an_address_of_fsspec_is_a_store_too() -> None:
    pytest.importorskip("fsspec")
    calls = 0

    def compute(batch: Any) -> dict[str, Tensor]:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyError
        return {"x": batch[0]}

    address = "memory://gradkit-test/rows"
    with pytest.raises(KeyError):
        stored(compute, loader(), address, identity={})  # pyright: ignore
    rows = stored(compute, loader(), address, identity={})  # pyright: ignore
    assert torch.equal(rows["x"][:], data()[0])
    assert calls == 6
    group = zarr.open_group(address, mode="r")
    assert np.array_equal(group["x"][:], data()[0].numpy())
    with pytest.raises(InputError, match="cannot be opened"):
        stored(compute, loader(), "nosuch://a/b")  # pyright: ignore
