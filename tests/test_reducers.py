"""Reducers give of batches, in any order and cut, what numpy gives of all rows."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import gradkit as gk
from gradkit.errors import InputError
from gradkit.streaming import reducers as r
from gradkit.streaming.reducers import Place, _gram, _parameters

State = dict[str, Any]
EDGES = (-1.0, -0.25, 0.0, 0.5, 1.25)


# -- what each result must be, of all rows at once -------------------------------------


def array(rows: Tensor) -> np.ndarray:
    return rows.to(torch.complex128 if rows.is_complex() else torch.float64).numpy()


def top(rows: Tensor, k: int, largest: bool) -> tuple[list[float], list[int]]:
    values = rows.tolist()
    sign = -1 if largest else 1
    order = sorted(range(len(values)), key=lambda i: (sign * values[i], i))[:k]
    return [values[i] for i in order], order


def counts(rows: Tensor) -> tuple[Any, ...]:
    x = array(rows).ravel()
    nan, found = int(np.isnan(x).sum()), np.histogram(x[~np.isnan(x)], EDGES)[0]
    below, above = int((x < EDGES[0]).sum()), int((x > EDGES[-1]).sum())
    return list(EDGES), found.tolist(), below, above, nan


def gram(rows: Tensor) -> np.ndarray:
    x = array(rows).reshape(len(rows), -1)
    return x @ x.conj().T


def outer(rows: Tensor) -> np.ndarray:
    x = array(rows).reshape(len(rows), -1)
    return sum(np.outer(row, row.conj()) for row in x)  # type: ignore[return-value]


ENTRYWISE: dict[r.Reducer, Callable[[Tensor], Any]] = {
    r.Sum(): lambda x: array(x).sum(0),
    r.Mean(): lambda x: array(x).mean(0),
    r.Variance(correction=0): lambda x: array(x).var(0),
    r.SecondMoment(): lambda x: (np.abs(array(x)) ** 2).mean(0),
    r.OuterProduct(): outer,
    r.Gram(): gram,
}
ORDERED: dict[r.Reducer, Callable[[Tensor], Any]] = {
    r.TopK(3): lambda x: top(x, 3, True),
    r.TopK(4, largest=False): lambda x: top(x, 4, False),
}
EVERY: dict[r.Reducer, Callable[[Tensor], Any]] = {
    **ENTRYWISE,
    **ORDERED,
    r.Histogram(EDGES): counts,
}
LINEAR = (r.Sum(), r.Mean(), r.Variance(), r.SecondMoment())


def plain(value: Any) -> Any:
    """Return a result as numpy or Python's."""
    if isinstance(value, tuple):
        return tuple(v.tolist() if isinstance(v, Tensor) else v for v in value)
    return value.numpy()


def assert_is(found: Any, wanted: Any) -> None:
    if isinstance(found, tuple):
        assert plain(found) == tuple(wanted)
    else:
        wanted = np.asarray(wanted)
        assert tuple(found.shape) == wanted.shape
        assert found.dtype in (torch.float64, torch.complex128)
        size = max(np.abs(wanted).max(initial=0), 1e-300)
        assert np.abs(plain(found) - wanted).max(initial=0) <= 1e-12 * size


# -- however data is cut ---------------------------------------------------------------


def saved(state: State) -> State:
    """Return a state as a checkpoint gives it back."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def of(reducer: r.Reducer, *batches: Tensor) -> State:
    """Return the state of batches that follow one another."""
    state, first = reducer.start(), 0
    for number, rows in enumerate(batches):
        state = reducer.add(state, rows, Place(number, first))
        first += len(rows)
    return state


def rows_for(reducer: r.Reducer, n: int, kind: str = "real") -> Tensor:
    row = () if isinstance(reducer, r.TopK) else (3, 2)
    if kind == "ties":
        return torch.randint(-2, 3, (n, *row)) / 2.0
    if kind == "half":
        return torch.randn(n, *row).bfloat16()
    dtype = torch.complex64 if kind == "complex" else torch.float32
    return torch.randn(n, *row, dtype=dtype)


def pieces(draw: Any, n: int) -> list[slice]:
    """Return slices of ``n`` samples that are cut anywhere, some of them empty."""
    cuts = sorted(draw(st.lists(st.integers(0, n), max_size=5)))
    ends = [*cuts, n]
    return [slice(a, b) for a, b in zip([0, *cuts], ends, strict=True)]


def folded(reducer: r.Reducer, rows: Tensor, draw: Any) -> Any:
    """Return the result by states of a few ranks that are merged as a random tree."""
    parts = enumerate(pieces(draw, len(rows)))
    batches = [(Place(i, part.start), rows[part]) for i, part in parts]
    states = [reducer.start() for _ in range(draw(st.integers(1, 4)))]
    for place, batch in draw(st.permutations(batches)):
        rank = draw(st.integers(0, len(states) - 1))
        states[rank] = reducer.add(states[rank], batch, place)
    while len(states) > 1:
        mine = states.pop(draw(st.integers(0, len(states) - 1)))
        other = states.pop(draw(st.integers(0, len(states) - 1)))
        states.append(saved(reducer.merge(mine, other)))
    return reducer.result(states[0])


@pytest.mark.parametrize("kind", ["real", "ties", "half", "complex"])
@pytest.mark.parametrize("reducer", EVERY, ids=repr)
def test_any_cut_and_tree_gives_the_same(reducer: r.Reducer, kind: str) -> None:
    if kind == "complex" and reducer not in ENTRYWISE:
        pytest.skip("complex numbers have no order")

    @settings(max_examples=25, deadline=None)
    @given(st.data(), st.integers(1, 9))
    def check(data: Any, n: int) -> None:
        torch.manual_seed(n)
        rows = rows_for(reducer, n, kind)
        assert_is(folded(reducer, rows, data.draw), EVERY[reducer](rows))

    check()


@pytest.mark.parametrize("reducer", EVERY, ids=repr)
def test_no_rows_add_nothing(reducer: r.Reducer) -> None:
    rows, none = rows_for(reducer, 5), rows_for(reducer, 0)
    assert_is(reducer.result(of(reducer, none, rows, none)), EVERY[reducer](rows))
    # What an empty list becomes.
    found = reducer.result(of(reducer, torch.empty(0), rows, torch.empty(0, 4, 7)))
    assert_is(found, EVERY[reducer](rows))
    state, empty = of(reducer, rows), of(reducer, none)
    for merged in (reducer.merge(state, empty), reducer.merge(empty, state)):
        assert_is(reducer.result(merged), EVERY[reducer](rows))
    assert reducer.merge(empty, reducer.start()) == reducer.start()


@pytest.mark.parametrize("reducer", [*EVERY, r.Variance()], ids=repr)
def test_no_rows_at_all_are_refused(reducer: r.Reducer) -> None:
    state = saved(of(reducer, rows_for(reducer, 0)))
    with pytest.raises(InputError) as raised:
        reducer.result(state)
    assert str(raised.value) == (
        f"{type(reducer).__name__}: there must be rows to reduce; got no rows, whose"
        " shape is unknown. Check that the data has samples"
    )


@pytest.mark.parametrize("reducer", EVERY, ids=repr)
def test_one_sample(reducer: r.Reducer) -> None:
    rows = rows_for(reducer, 1)
    assert_is(reducer.result(of(reducer, rows)), EVERY[reducer](rows))


@pytest.mark.parametrize("reducer", ENTRYWISE, ids=repr)
@pytest.mark.parametrize("row", [(), (4,), (0,), (2, 0)])
def test_rows_of_any_shape(reducer: r.Reducer, row: tuple[int, ...]) -> None:
    rows = torch.randn(5, *row)
    found = reducer.result(of(reducer, rows[:2], rows[2:]))
    assert_is(found, ENTRYWISE[reducer](rows))


@pytest.mark.parametrize("reducer", EVERY, ids=repr)
def test_whole_numbers_and_booleans(reducer: r.Reducer) -> None:
    row = () if isinstance(reducer, r.TopK) else (3, 2)
    for rows in (
        torch.randint(0, 255, (5, *row), dtype=torch.uint8),
        torch.rand(5, *row) > 0.5,
    ):
        found = reducer.result(of(reducer, rows[:2], rows[2:]))
        wanted = EVERY[reducer](rows)
        if isinstance(reducer, r.Sum):
            found = found.double()
        assert_is(found, wanted)


# -- states ----------------------------------------------------------------------------


def tensors(state: Any) -> Iterator[Tensor]:
    if isinstance(state, Tensor):
        yield state
    elif isinstance(state, (dict, list)):
        values = state.values() if isinstance(state, dict) else state
        for value in values:
            yield from tensors(value)
    else:
        assert isinstance(state, (int, float, str))


def addresses(state: Any) -> set[int]:
    return {t.untyped_storage().data_ptr() for t in tensors(state) if t.numel()}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.int64])
@pytest.mark.parametrize("reducer", EVERY, ids=repr)
def test_rows_are_neither_kept_nor_changed(
    reducer: r.Reducer, dtype: torch.dtype
) -> None:
    for n in (1, 5):
        rows = (10 * rows_for(reducer, n)).to(dtype)
        before = rows.clone()
        state = of(reducer, rows)
        assert torch.equal(rows, before)
        assert rows.untyped_storage().data_ptr() not in addresses(state)
        wanted = plain(reducer.result(state))
        rows.zero_()
        np.testing.assert_equal(plain(reducer.result(state)), wanted)


@pytest.mark.parametrize("reducer", EVERY, ids=repr)
def test_results_and_states_share_nothing_that_is_written(reducer: r.Reducer) -> None:
    rows, more = rows_for(reducer, 5), rows_for(reducer, 4)
    state, other = of(reducer, rows), of(reducer, more)
    kept = saved(state), saved(other)
    found = reducer.result(state)
    for tensor in found if isinstance(found, tuple) else [found]:
        if isinstance(tensor, Tensor):
            tensor.zero_()
    if not isinstance(reducer, (r.TopK, r.Gram)):
        reducer.add(state, more, Place(1, 5))
    merged = reducer.merge(reducer.start(), state)
    reducer.add(merged, more, Place(1, 5))
    reducer.merge(state, other)
    for now, before in zip((state, other), kept, strict=True):
        for left, right in zip(tensors(now), tensors(before), strict=True):
            assert torch.equal(left, right)


@pytest.mark.parametrize("reducer", EVERY, ids=repr)
def test_a_reducer_used_twice_starts_anew(reducer: r.Reducer) -> None:
    before = repr(reducer)
    for n in (5, 3):
        rows = rows_for(reducer, n)
        assert_is(reducer.result(of(reducer, rows)), EVERY[reducer](rows))
    assert repr(reducer) == before
    assert reducer == dataclasses.replace(reducer)  # type: ignore[type-var]
    with pytest.raises(dataclasses.FrozenInstanceError):
        reducer.k = 1  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "reducer", [e for e in EVERY if not isinstance(e, r.Gram)], ids=repr
)
def test_memory_is_constant(reducer: r.Reducer) -> None:
    def size(state: State) -> int:
        return sum(t.untyped_storage().nbytes() for t in tensors(state))

    short = of(reducer, *(rows_for(reducer, 7) for _ in range(2)))
    long = of(reducer, *(rows_for(reducer, 7) for _ in range(20)))
    assert size(long) == size(short)


@pytest.mark.parametrize("reducer", EVERY, ids=repr)
def test_what_gradients_and_inference_mode_do(reducer: r.Reducer) -> None:
    with torch.inference_mode():
        frozen = rows_for(reducer, 2)
        state = reducer.add(reducer.start(), frozen, Place(0, 0))
        early = reducer.result(state)
    rows = rows_for(reducer, 3).requires_grad_()
    state = reducer.add(state, rows, Place(1, 2))
    assert not any(t.requires_grad or t.is_inference() for t in tensors(state))
    for tensor in early if isinstance(early, tuple) else [early]:
        assert not (isinstance(tensor, Tensor) and tensor.is_inference())
    wanted = EVERY[reducer](torch.cat([frozen.clone(), rows.detach()]))
    assert_is(reducer.result(state), wanted)


# -- numbers ---------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(400,), (1,) * 400, (7, 300, 93)])
def test_a_variance_far_from_zero(sizes: tuple[int, ...]) -> None:
    noise = torch.randn(400, 3, dtype=torch.float64)
    rows = noise + 1e8
    found = r.Variance().result(of(r.Variance(), *rows.split(sizes)))  # type: ignore[arg-type]
    # Distances from 1e8 are exact. A mean is known to 1e-8, and squares of 1e8 to 1.
    exact = (rows - 1e8).var(0)
    assert ((found - exact).abs() / exact).max() < 1e-7


@pytest.mark.parametrize("sizes", [(13,), (1,) * 13, (3, 7, 3)])
def test_rows_that_are_alike_have_no_variance(sizes: tuple[int, ...]) -> None:
    rows = torch.full((13, 2), 0.1, dtype=torch.float64)
    found = r.Variance().result(of(r.Variance(), *rows.split(sizes)))  # type: ignore[arg-type]
    assert found.tolist() == [0, 0]


@pytest.mark.parametrize("correction", [0, 1, 2.5])
def test_corrections(correction: float) -> None:
    rows = torch.randn(5, 3)
    reducer = r.Variance(correction)
    found = reducer.result(of(reducer, rows[:1], rows[1:]))
    assert_is(found, array(rows).var(0) * 5 / (5 - correction))


def test_sums_of_whole_numbers_are_exact() -> None:
    rows = torch.tensor([2**62, 2**62 - 1, -(2**62), 7, -3])
    for parts in ((5,), (1, 1, 3), (2, 3)):
        found = r.Sum().result(of(r.Sum(), *rows.split(parts)))  # type: ignore[arg-type]
        assert found.dtype == torch.int64
        assert found.item() == 2**62 + 3
    # Over the top, and back again.
    found = r.Sum().result(
        of(r.Sum(), torch.tensor([2**62] * 3), torch.tensor([-(2**62)] * 2))
    )
    assert found.item() == 2**62
    mixed = r.Sum().result(of(r.Sum(), rows[3:], torch.tensor([0.5])))
    assert (mixed.dtype, mixed.item()) == (torch.float64, 4.5)


@pytest.mark.parametrize("sign", [1, -1])
def test_sums_of_whole_numbers_that_do_not_fit_are_refused(sign: int) -> None:
    state = of(r.Sum(), *torch.full((3, 1), sign * 2**62))
    with pytest.raises(InputError) as raised:
        r.Sum().result(state)
    assert str(raised.value) == (
        "Sum: sums of whole numbers must fit in int64; got about"
        f" {sign * 3 * 2.0**62:.4g}. Pass rows.double()".replace("-", "")
    )


def test_small_numbers_are_not_lost() -> None:
    rows = torch.full((2**12, 1), 1.0).bfloat16()
    assert r.Sum().result(of(r.Sum(), *rows.split(7))).item() == 2**12
    tiny = torch.tensor([1e-30, 1e-30])
    assert r.SecondMoment().result(of(r.SecondMoment(), tiny)).item() == pytest.approx(
        1e-60
    )


def test_rows_without_a_number_give_none() -> None:
    rows = torch.tensor([[1.0, float("nan"), float("inf")], [2.0, 3.0, 1.0]])
    assert r.Mean().result(of(r.Mean(), rows)).isfinite().tolist() == [
        True,
        False,
        False,
    ]
    assert r.Variance().result(of(r.Variance(), rows)).isnan().tolist() == [
        False,
        True,
        True,
    ]


def test_top_takes_earlier_samples_of_equals() -> None:
    rows = torch.tensor([1.0, 2.0, -0.0, 2.0, float("inf"), 0.0, 2.0])
    late, early = of(r.TopK(3)), of(r.TopK(3))
    late = r.TopK(3).add(late, rows[3:], Place(1, 3))
    early = r.TopK(3).add(early, rows[:3], Place(0, 0))
    for state in (r.TopK(3).merge(late, early), r.TopK(3).merge(early, late)):
        found = r.TopK(3).result(state)
        assert found.samples.tolist() == [4, 1, 3]
        assert found.samples.dtype == torch.int64
        assert torch.equal(found.values, rows[found.samples])
    lowest = r.TopK(9, largest=False)
    assert lowest.result(of(lowest, rows)).samples.tolist() == [2, 5, 0, 1, 3, 6, 4]


def test_bins_are_numpys_on_their_edges() -> None:
    rows = torch.tensor([-1.0, -0.25, 0.0, 0.5, 1.25, 1.25, 1.26, -9.0, float("nan")])
    rows = torch.cat([rows, torch.tensor([float("inf"), -float("inf")])])
    reducer = r.Histogram(torch.tensor(EDGES))
    found = reducer.result(of(reducer, rows))
    assert plain(found) == counts(rows)
    assert found.counts.tolist() == [1, 1, 1, 3]
    assert found[2:] == (2, 2, 1)
    assert (found.edges.dtype, found.counts.dtype) == (torch.float64, torch.int64)
    assert reducer == r.Histogram(list(EDGES)) == r.Histogram(np.array(EDGES))


@pytest.mark.parametrize("kind", ["real", "complex"])
def test_products_in_blocks(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_gram, "_SAMPLES", 3)
    monkeypatch.setattr(_gram, "_ENTRIES", 4)
    rows = rows_for(r.Gram(), 10, kind)
    whole = r.Gram().result(of(r.Gram(), rows))
    cut = r.Gram().result(of(r.Gram(), rows[:4], rows[4:5], rows[5:]))
    assert_is(whole, gram(rows))
    assert torch.equal(whole, cut)
    assert {t.dtype for t in tensors(of(r.Gram(), rows))} == {rows.dtype}


def test_products_of_rows_in_two_precisions() -> None:
    rows = torch.randn(4, 3)
    state = of(r.Gram(), rows.bfloat16(), rows.to(torch.complex64))
    both = torch.cat([rows.bfloat16().to(torch.complex64), rows.to(torch.complex64)])
    assert_is(r.Gram().result(state), gram(both))


# -- per-sample gradients, without their rows ------------------------------------------


N, D, H, C = 7, 3, 5, 2


def gradients(
    method: str = "auto", dtype: torch.dtype = torch.float64
) -> gk.ParameterJacobian:
    model = nn.Sequential(nn.Linear(D, H), nn.Tanh(), nn.Linear(H, C)).to(dtype)
    x, labels = torch.randn(N, D, dtype=dtype), torch.tensor([0, 1, 1, 0, 1, 0, 0])
    loss = gk.objectives.sample_loss(nn.functional.cross_entropy, labels)
    return gk.per_sample_gradients(model, x, loss, method=method)


def of_parameters(reducer: r.Reducer, *parts: gk.ParameterJacobian) -> State:
    state = reducer.start()
    for number, rows in enumerate(parts):
        state = reducer.add_parameters(state, rows, Place(number, 0))
    return state


@pytest.mark.parametrize("method", ["rules", "vmap", "loop"])
@pytest.mark.parametrize("reducer", LINEAR, ids=repr)
def test_parameters(
    reducer: r.Reducer, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_parameters, "_PIECE_BYTES", 2 * 8 * H * D)
    rows = gradients(method)
    parts = [rows.samples(slice(*cut)) for cut in ((0, 2), (2, 2), (2, 3), (3, N))]
    left = of_parameters(reducer, *parts[:2])
    right = of_parameters(reducer, *parts[2:])
    whole = reducer.result(of_parameters(reducer, rows))
    for state in (reducer.merge(left, right), saved(reducer.merge(right, left))):
        found = reducer.result(state)
        assert list(found) == list(rows)
        for name, formed in rows.to_dict().items():
            wanted = reducer.result(of(reducer, formed))
            assert_is(found[name], wanted)
            assert_is(whole[name], wanted)


def test_a_variance_of_parameters_far_from_zero() -> None:
    layer = nn.Linear(D, 1)
    # The rows are the inputs: in float32 their squares hold nothing of the spread.
    x = torch.randn(N, D) + 1e4
    rows = gk.per_sample_gradients(layer, x)
    found = r.Variance().result(of_parameters(r.Variance(), rows))
    assert_is(found["weight"], array(x).var(0, ddof=1)[None])
    assert_is(found["bias"], np.zeros(1))


def test_sums_of_parameters_are_not_rounded_to_halves() -> None:
    layer = nn.Linear(D, 1).bfloat16()
    x = (torch.randn(N, D) + 3).bfloat16()
    rows = gk.per_sample_gradients(layer, x)
    found = r.Sum().result(of_parameters(r.Sum(), rows))["weight"][0]
    assert ((found - x.double().sum(0)).abs() < 1e-5).all()


@pytest.mark.parametrize("reducer", LINEAR, ids=repr)
def test_parameters_are_neither_kept_nor_changed(reducer: r.Reducer) -> None:
    rows = gradients("vmap").samples(slice(0, 2))
    before = rows.to_dict()
    state = of_parameters(reducer, rows)
    entries: Any = rows._entries
    held = addresses([tensor for e in entries for tensor in e._rows.values()])
    assert held
    assert not held & addresses(state)
    for name, tensor in rows.to_dict().items():
        assert torch.equal(tensor, before[name])


@pytest.mark.parametrize(
    "reducer", [r.TopK(2), r.Histogram(EDGES), r.Gram(), r.OuterProduct()], ids=repr
)
def test_reducers_that_take_tensors_alone_say_which_do_not(reducer: r.Reducer) -> None:
    rows = gradients()
    with pytest.raises(InputError) as raised:
        reducer.add_parameters(reducer.start(), rows, Place(0, 0))
    takers = raised.value.reducers
    assert {type(taker).__name__ for taker in LINEAR} <= set(takers)
    for name in takers:
        of_parameters(getattr(r, name)(), rows)
    assert str(raised.value) == (
        f"{type(reducer).__name__}: rows must be a tensor; got a ParameterJacobian,"
        f" which {', '.join(takers)} take. Use rows.flat(), or"
        " rows.project(size, seed=0), which gives a tensor too"
    )
    for tensor in (rows.flat(), rows.project(4, seed=0)):
        if not isinstance(reducer, r.TopK):
            of(reducer, tensor)


@pytest.mark.parametrize("reducer", LINEAR, ids=repr)
def test_rows_of_every_output_are_refused(reducer: r.Reducer) -> None:
    rows = gk.parameter_jacobian(nn.Linear(D, C), torch.randn(N, D))
    with pytest.raises(InputError) as raised:
        of_parameters(reducer, rows)
    assert str(raised.value) == (
        f"{type(reducer).__name__}: rows must be one per sample, (N,); got a"
        f" ParameterJacobian with rows ({N}, {C}), of every output. Use"
        " per_sample_gradients with an objective, or of= for one output"
    )


# -- refused ---------------------------------------------------------------------------

ANY: Any = r
X = torch.zeros(2, 3)
ROWS: Any = X


def shapes_of(*batches: Tensor) -> Callable[[], Any]:
    return lambda: of(r.Sum(), *batches)


def merged_shapes() -> Any:
    return r.Mean().merge(of(r.Mean(), X), of(r.Mean(), X[:, :2]))


def other_parameters() -> Any:
    left = gk.per_sample_gradients(nn.Linear(D, 1), torch.randn(N, D))
    right = gk.per_sample_gradients(nn.Linear(4, 1), torch.randn(N, 4))
    return of_parameters(r.Sum(), left, right)


def fewer_parameters() -> Any:
    rows = gradients()
    return of_parameters(r.Sum(), rows, rows.select("0.bias"))


def parameters_after_a_tensor() -> Any:
    return r.Sum().add_parameters(of(r.Sum(), X), gradients(), Place(4, 2))


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "k of none": (
        lambda: ANY.TopK(0),
        "TopK: k must be a whole number of at least 1; got 0",
    ),
    "k in half": (
        lambda: ANY.TopK(2.5),
        "TopK: k must be a whole number of at least 1; got 2.5",
    ),
    "k true": (
        lambda: ANY.TopK(True),
        "TopK: k must be a whole number of at least 1; got True",
    ),
    "largest": (
        lambda: ANY.TopK(2, "no"),
        "TopK: largest must be True or False; got 'no'",
    ),
    "correction": (
        lambda: ANY.Variance(-1),
        "Variance: correction must be a number of at least 0; got -1",
    ),
    "correction nan": (
        lambda: ANY.Variance(float("nan")),
        "Variance: correction must be a number of at least 0; got nan",
    ),
    "max_samples": (
        lambda: ANY.Gram(max_samples="9"),
        "Gram: max_samples must be a whole number of at least 1; got '9'",
    ),
    "one edge": (
        lambda: ANY.Histogram([1.0]),
        "Histogram: edges must be at least 2 finite numbers that increase; got 1",
    ),
    "no edges": (
        lambda: ANY.Histogram(5),
        "Histogram: edges must be at least 2 finite numbers that increase; got the"
        " int 5",
    ),
    "equal edges": (
        lambda: ANY.Histogram([0, 1, 1, 2]),
        "Histogram: edges must be at least 2 finite numbers that increase; got 1.0"
        " after 1.0. Use sorted(set(edges))",
    ),
    "infinite edge": (
        lambda: ANY.Histogram(torch.tensor([0.0, float("inf")])),
        "Histogram: edges must be at least 2 finite numbers that increase; got inf"
        " among them",
    ),
    "complex edge": (
        lambda: ANY.Histogram(np.array([0j, 1])),
        "Histogram: edges must be at least 2 finite numbers that increase; got 0j among"
        " them",
    ),
    "words for edges": (
        lambda: ANY.Histogram("01"),
        "Histogram: edges must be at least 2 finite numbers that increase; got the"
        " string '01'",
    ),
    "huge edge": (
        lambda: ANY.Histogram([0, 10**400]),
        "Histogram: edges must be at least 2 finite numbers that increase; got"
        f" {10**400} among them",
    ),
    "shapes": (
        shapes_of(X, X[:0], X[:, :2]),
        "Sum: rows must have one shape in all batches, but for the number of samples;"
        " got rows of shape (2,) in batch 2 beside rows of shape (3,) earlier. Reduce"
        " rows of different shapes apart",
    ),
    "shapes that broadcast": (
        shapes_of(X, X[:, 0]),
        "Sum: rows must have one shape in all batches, but for the number of samples;"
        " got rows of shape () in batch 1 beside rows of shape (3,) earlier. Reduce"
        " rows of different shapes apart",
    ),
    "shapes of states": (
        merged_shapes,
        "Mean: rows must have one shape in all batches, but for the number of"
        " samples; got rows of shape (2,) in the state to merge beside rows of shape"
        " (3,) earlier. Reduce rows of different shapes apart",
    ),
    "shapes of as many entries": (
        lambda: of(r.NoiseScale(), torch.ones(2, 6), torch.ones(2, 2, 3)),
        "NoiseScale: rows must have one shape in all batches; got [2, 3] beside [6]"
        " earlier",
    ),
    "no tensor of noise": (
        lambda: of(ANY.NoiseScale(), ANY.Place(0, 0)),
        "NoiseScale: rows must be a tensor with the samples first; got a Place",
    ),
    **{
        f"no parameters of {kind.__name__}": (
            lambda kind=kind: kind().add_parameters(kind().start(), ROWS, Place(0, 0)),
            f"{kind.__name__}: rows must be a ParameterJacobian; got Tensor. A"
            " tensor's rows go into add()",
        )
        for kind in (r.Mean, r.Sum, r.SecondMoment, r.Variance, r.NoiseScale)
    },
    "parameters": (
        other_parameters,
        "Sum: rows must have one shape in all batches, but for the number of samples;"
        " got parameters 'weight' (1, 4) in batch 1 beside parameters 'weight' (1, 3)"
        " earlier. Reduce rows of different shapes apart",
    ),
    "fewer parameters": (
        fewer_parameters,
        "Sum: rows must have one shape in all batches, but for the number of samples;"
        " got no other parameters in batch 1 beside parameters '0.weight' (5, 3),"
        " '2.weight' (2, 5), '2.bias' (2,) earlier. Reduce rows of different shapes"
        " apart",
    ),
    "a tensor before": (
        parameters_after_a_tensor,
        "Sum: rows must have one shape in all batches, but for the number of samples;"
        " got a ParameterJacobian in batch 4 beside rows of shape (3,) earlier."
        " Reduce rows of different shapes apart",
    ),
    "a number": (
        shapes_of(X[0, 0]),
        "Sum: rows must be a tensor with the samples first; got a float32 tensor of"
        " shape ()",
    ),
    "no tensor": (
        lambda: of(ANY.Sum(), ANY.Place(0, 0)),
        "Sum: rows must be a tensor with the samples first; got a Place",
    ),
    "rows in an order": (
        lambda: of(r.TopK(2), X),
        "TopK: rows must be one number per sample, (n,); got shape (2, 3). Return a"
        " number of each, rows.flatten(1).norm(dim=1) for example",
    ),
    "complex in an order": (
        lambda: of(r.TopK(2), X[:, 0] + 0j),
        "TopK: rows must be real to be ordered; got a complex64 tensor of shape (2,)."
        " Use rows.abs(), or rows.real and rows.imag apart",
    ),
    "complex in bins": (
        lambda: of(r.Histogram(EDGES), X + 0j),
        "Histogram: rows must be real to be counted in bins; got a complex64 tensor of"
        " shape (2, 3). Use rows.abs(), or rows.real and rows.imag apart",
    ),
    "nan": (
        lambda: of(r.TopK(2), X[:, 0], torch.tensor([1.0, float("nan")])),
        "TopK: rows must be numbers that have an order; got NaN for sample 3. Use"
        " rows.nan_to_num(), or leave the samples out",
    ),
    "nans": (
        lambda: of(r.TopK(2), X[:, 0] * float("nan")),
        "TopK: rows must be numbers that have an order; got NaN for sample 0 and 1"
        " more of its batch. Use rows.nan_to_num(), or leave the samples out",
    ),
    "too many at once": (
        lambda: of(r.Gram(1), X),
        "Gram: there must be at most max_samples=1 samples; got 2, whose result takes"
        " 32 B beside 24 B of rows. Pass a larger max_samples, or reduce some of the"
        " samples",
    ),
    "too many": (
        lambda: of(r.Gram(2), X[:1], X[:1], X[:1]),
        "Gram: there must be at most max_samples=2 samples; got 3, whose result takes"
        " 72 B beside 36 B of rows. Pass a larger max_samples, or reduce some of the"
        " samples",
    ),
    "one sample": (
        lambda: r.Variance().result(of(r.Variance(), X[:1])),
        "Variance: there must be more samples than correction=1; got 1. Pass"
        " correction=0 for the mean of squared distances",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    call, text = REFUSED[case]
    with pytest.raises(InputError) as raised:
        call()
    assert str(raised.value) == text


def test_the_sample_that_is_not_a_number_is_a_fact() -> None:
    with pytest.raises(InputError) as raised:
        r.TopK(2).add(
            r.TopK(2).start(), torch.tensor([0.0, float("nan")]), Place(3, 40)
        )
    assert raised.value.sample == 41


def test_as_many_as_allowed() -> None:
    assert r.Gram(2).result(of(r.Gram(2), X[:1], X[1:])).shape == (2, 2)


def test_public_names_are_documented() -> None:
    assert sorted(r.__all__) == r.__all__
    for kind in {r.Place, r.Reducer, *map(type, EVERY)}:
        assert kind.__name__ in r.__all__
        assert ">>> " in (kind.__doc__ or "")
