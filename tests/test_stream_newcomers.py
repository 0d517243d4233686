"""What people guess wrong of whole data sets: refused, with the way out."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import gradkit as gk

SAMPLES, BATCH = 17, 5


def loader() -> DataLoader[Any]:
    x = torch.arange(SAMPLES * 3.0).reshape(SAMPLES, 3)
    return DataLoader(TensorDataset(x), batch_size=BATCH)


# --- the function's own code --------------------------------------------------------


def norms(batch: list[Tensor]) -> Tensor:
    return batch[0].norm(dim=1)


def squares(batch: list[Tensor]) -> Tensor:
    return batch[0].norm(dim=1) ** 2


class Scaled:
    def __call__(self, batch: list[Tensor]) -> Tensor:
        return 2 * batch[0].norm(dim=1)

    def twice(self, batch: list[Tensor]) -> Tensor:
        return self(batch)


def by_factor(factor: float) -> Callable[[list[Tensor]], Tensor]:
    return lambda batch: factor * batch[0].norm(dim=1)


def by_helper(helper: Callable[[Tensor], Tensor]) -> Callable[[list[Tensor]], Tensor]:
    return lambda batch: helper(batch[0])


def powers(batch: list[Tensor], power: int) -> Tensor:
    return batch[0].norm(dim=1) ** power


OTHERS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "a body": (norms, squares),
    "a lambda": (lambda b: b[0].sum(1), lambda b: b[0].mean(1)),
    "a closed over number": (by_factor(1.0), by_factor(2.0)),
    "a helper": (by_helper(lambda x: x.sum(1)), by_helper(lambda x: x.amax(1))),
    "a partial's argument": (
        functools.partial(powers, power=1),
        functools.partial(powers, power=2),
    ),
    "an object": (norms, Scaled()),
    "a method": (Scaled(), Scaled().twice),
}


@pytest.mark.parametrize("name", OTHERS)
def test_another_function_is_another_run(tmp_path: Path, name: str) -> None:
    one, other = OTHERS[name]
    identity = {"version": 1}
    gk.stream(one, loader(), tmp_path, identity=identity, progress=False)
    with pytest.raises(gk.errors.InputError, match="identity, compute"):
        gk.stream(other, loader(), tmp_path, identity=identity, progress=False)


@pytest.mark.parametrize("name", OTHERS)
def test_the_same_function_goes_on(tmp_path: Path, name: str) -> None:
    for made in OTHERS[name]:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        first = gk.stream(made, loader(), folder, identity={}, progress=False)[:]
        again = gk.stream(made, loader(), folder, identity={}, progress=False)[:]
        assert torch.equal(torch.as_tensor(first), torch.as_tensor(again))


def test_another_function_is_another_reduction(tmp_path: Path) -> None:
    total = gk.reducers.Checkpointed(gk.reducers.Sum(), tmp_path, every=1, identity={})
    gk.reduce(norms, loader(), total, progress=False)
    with pytest.raises(gk.errors.InputError, match="identity, compute"):
        gk.reduce(squares, loader(), total, progress=False)


def test_whoever_names_compute_vouches_for_it(tmp_path: Path) -> None:
    # A function that was mended after it failed may go on with the rows before.
    identity = {"compute": "version 1"}
    first = gk.stream(norms, loader(), tmp_path, identity=identity, progress=False)[:]
    same = gk.stream(squares, loader(), tmp_path, identity=identity, progress=False)
    assert torch.equal(torch.as_tensor(first), torch.as_tensor(same[:]))
    with pytest.raises(gk.errors.InputError, match="identity, compute"):
        gk.stream(norms, loader(), tmp_path, identity={"compute": "version 2"})


def test_what_a_function_counts_is_not_its_code(tmp_path: Path) -> None:
    seen: list[int] = []

    def counted(batch: list[Tensor]) -> Tensor:
        seen.append(len(batch[0]))
        return norms(batch)

    for _ in range(2):
        gk.stream(counted, loader(), tmp_path, identity={}, progress=False)
    assert sum(seen) >= SAMPLES


# --- loaders ------------------------------------------------------------------------


def test_a_data_set_is_no_loader(tmp_path: Path) -> None:
    data = TensorDataset(torch.ones(4, 6, 3), torch.zeros(4, 6).long())
    quantity = gk.quantities.gradient_norm(nn.Linear(3, 2))
    with pytest.raises(gk.errors.InputError, match=r"DataLoader\(dataset, batch_size"):
        gk.stream(quantity, data, tmp_path)
    assert not any(tmp_path.iterdir())


def test_a_pair_of_tensors_is_no_loader() -> None:
    pair = torch.ones(4, 3), torch.zeros(4).long()
    with pytest.raises(gk.errors.InputError, match="a list of batches"):
        gk.reduce(gk.quantities.loss(nn.Linear(3, 2)), pair, gk.reducers.Sum())
    parts = torch.ones(8, 3).split(4)
    assert gk.reduce(lambda b: b.sum(1), parts, gk.reducers.Sum()) == 8 * 3


# --- projections --------------------------------------------------------------------


def test_a_models_seed_chooses_no_projection() -> None:
    model = nn.Linear(3, 2)
    with pytest.raises(gk.errors.InputError, match="Pass projection_seed=1"):
        gk.quantities.projected_gradients(model, 8, seed=1)
    batch = torch.randn(4, 3), torch.tensor([0, 1, 1, 0])
    one, other = (
        gk.quantities.projected_gradients(model, 8, projection_seed=s, seed=3)(batch)
        for s in (1, 2)
    )
    assert not torch.equal(one, other)


# --- parameters ---------------------------------------------------------------------


def test_other_tensors_under_the_models_names_are_refused() -> None:
    model, x = nn.Linear(3, 2), torch.randn(4, 3)
    other = {n: (p + 1).detach().requires_grad_() for n, p in model.named_parameters()}
    for ask in (gk.per_sample_gradients, gk.parameter_jacobian):
        given = {"objective": gk.objectives.output_sum}
        more = given if ask is gk.per_sample_gradients else {}
        with pytest.raises(gk.errors.InputError, match="functional_call"):
            ask(model, x, parameters=other, **more)  # pyright: ignore

    def moved(x: Tensor) -> Tensor:
        return torch.func.functional_call(model, other, (x,))

    rows = gk.parameter_jacobian(moved, x, parameters=other)
    assert torch.equal(rows["weight"][:, 1, 1], x)
    own = gk.parameter_jacobian(model, x, parameters={"mine": model.weight})
    assert torch.equal(own["mine"][:, 0, 0], x)
