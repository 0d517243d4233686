"""``reduce``: several reducers and fields, checkpoints, several processes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import gradkit as gk
from gradkit.errors import InputError

R = gk.reducers
SAMPLES = 37


def x() -> Tensor:
    return torch.randn(SAMPLES, 3, generator=torch.Generator().manual_seed(0))


def y() -> Tensor:
    return torch.randint(2, (SAMPLES,), generator=torch.Generator().manual_seed(1))


def loader(size: int = 5) -> DataLoader[Any]:
    return DataLoader(TensorDataset(x(), y()), batch_size=size)


def model() -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def reduced(compute: Callable[[Any], Any], batches: Any, reducer: Any) -> Any:
    return gk.reduce(compute, batches, reducer, progress=False)


def inputs(batch: Any) -> Tensor:
    return batch[0]


# -- values -------------------------------------------------------------------------


def test_results_have_the_form_of_what_was_given() -> None:
    fields = {"x": x(), "norm": x().norm(dim=1)}
    both = {"mean": R.Mean(), "top": R.TopK(2)}

    def compute(batch: Any) -> dict[str, Tensor]:
        return {"x": batch[0], "norm": batch[0].norm(dim=1)}

    mean = reduced(compute, loader(), R.Mean())
    for name, value in fields.items():
        torch.testing.assert_close(mean[name], value.double().mean(0))
    found = reduced(lambda b: b[0].norm(dim=1), loader(), both)
    torch.testing.assert_close(found["mean"], fields["norm"].double().mean())
    values, samples = fields["norm"].topk(2)
    assert torch.equal(found["top"].samples, samples)
    assert torch.equal(found["top"].values, values)


@pytest.mark.parametrize("size", [1, 4, 37, 50])
def test_the_batch_size_does_not_matter(size: int) -> None:
    found = reduced(inputs, loader(size), R.Variance())
    torch.testing.assert_close(found, x().double().var(0))


def test_rows_of_parameters_are_reduced_without_names_of_their_own() -> None:
    network = model()
    rows = gk.per_sample_gradients(
        network, x(), gk.objectives.sample_loss(F.cross_entropy, y())
    ).to_dict()
    found = reduced(
        gk.quantities.gradients(network),
        loader(),
        {"mean": R.Mean(), "square": R.SecondMoment()},
    )
    for name, value in rows.items():
        torch.testing.assert_close(found["mean"][name], value.double().mean(0))
        expected = value.double().square().mean(0)
        torch.testing.assert_close(found["square"][name], expected)


def test_a_reducer_serves_two_passes() -> None:
    mean = R.Mean()
    first = reduced(inputs, loader(), mean)
    assert torch.equal(reduced(inputs, loader(7), mean).isnan(), first.isnan())
    torch.testing.assert_close(reduced(inputs, loader(), mean), first)


def test_random_rows_are_allowed_and_the_state_is_put_back() -> None:
    before = torch.get_rng_state()
    found = reduced(lambda b: torch.rand(len(b[0])), loader(), R.Mean())
    assert 0 < found < 1
    assert torch.equal(torch.get_rng_state(), before)


# -- what is refused ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("compute", "batches", "reducer", "text"),
    [
        (inputs, loader(), R.Mean, "got the class Mean, which is called to make one"),
        (inputs, loader(), "mean", "one of gk.reducers"),
        (inputs, loader(), {}, "got none"),
        (inputs, loader(), {"a": R.Mean(), "b": 3}, "got int"),
        (3, loader(), R.Mean(), "compute must be a function"),
        (inputs, [], R.Mean(), "gives no batches"),
        (
            inputs,
            [[torch.zeros(2, 1)], [torch.zeros(3, 1)]],
            R.Mean(),
            "batch 1 has 3 samples",
        ),
        (lambda b: b[0].mean(), loader(), R.Mean(), "one row per sample"),
        (
            lambda b: gk.parameter_jacobian(model(), b[0]),
            loader(),
            R.Mean(),
            "one per sample",
        ),
        (
            lambda b: gk.per_sample_gradients(
                model(), b[0], gk.objectives.class_score(0)
            ),
            loader(),
            R.TopK(1),
            "Sum, Variance take",
        ),
        (
            lambda b: {f"x{int(b[0][0, 0] > 0)}": b[0]},
            [[torch.ones(2, 1)], [-torch.ones(2, 1)]],
            R.Mean(),
            "got x0 at batch 1, and x1 before",
        ),
        (
            inputs,
            loader(),
            R.Checkpointed(R.Mean(), "unused"),
            "identity={'model': model, ...}",
        ),
    ],
)
def test_what_is_refused(compute: Any, batches: Any, reducer: Any, text: str) -> None:
    with pytest.raises(InputError) as caught:
        reduced(compute, batches, reducer)
    assert text in str(caught.value)
    assert not Path("unused").exists()


def test_checkpointed_says_what_it_takes(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Checkpointed: every must be"):
        R.Checkpointed(R.Mean(), tmp_path, every=0)
    for wrong in (object(), R.Mean, {}, {"mean": 3}):
        with pytest.raises(InputError, match="Checkpointed: reducer must be one of"):
            R.Checkpointed(wrong, tmp_path)  # pyright: ignore
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="Checkpointed: store must be a folder"):
        R.Checkpointed(R.Mean(), tmp_path / "file")


# -- checkpoints --------------------------------------------------------------------

REDUCERS = {
    "mean": R.Mean(),
    "variance": R.Variance(),
    "top": R.TopK(3),
    "counts": R.Histogram((0.0, 1.0, 2.0)),
    "gram": R.Gram(),
    "outer": R.OuterProduct(),
}


def norms(batch: Any) -> Tensor:
    return batch[0].norm(dim=1)


def kept(folder: Path, every: int = 1, identity: Any = 1) -> Any:
    return R.Checkpointed(
        REDUCERS, folder, every, identity={"it": identity, "compute": "any"}
    )


def failing(after: int, calls: list[Any]) -> Callable[[Any], Tensor]:
    def compute(batch: Any) -> Tensor:
        if len(calls) == after:
            calls.append(None)
            raise KeyError("stop")
        calls.append(batch)
        return norms(batch)

    return compute


def same(one: Any, other: Any) -> None:
    for name in REDUCERS:
        torch.testing.assert_close(one[name], other[name])


@pytest.mark.parametrize("every", [1, 3, 100])
@pytest.mark.parametrize("after", [0, 1, 4, 7])
@pytest.mark.parametrize("batches", ["DataLoader", "generator"])
def test_a_reduction_goes_on_where_it_stopped(
    tmp_path: Path, every: int, after: int, batches: str
) -> None:
    def make() -> Any:
        if batches == "DataLoader":
            return loader()
        return ([part] for part in x().split(5))

    calls: list[Any] = []
    with pytest.raises(KeyError):
        reduced(failing(after, calls), make(), kept(tmp_path, every))
    found = reduced(failing(99, calls), make(), kept(tmp_path, every))
    same(found, reduced(norms, loader(), REDUCERS))
    written = after // every * every
    # The batch that failed is counted among the calls too.
    assert len(calls) == after + 1 + 8 - written
    # And what is done is not done again.
    same(reduced(failing(99, calls), make(), kept(tmp_path, every)), found)
    assert len(calls) == after + 1 + 8 - written


def test_checkpoints_of_another_reduction_are_refused(tmp_path: Path) -> None:
    reduced(norms, loader(), kept(tmp_path))
    for call, text in (
        (lambda: reduced(norms, loader(), kept(tmp_path, identity=2)), "was 1, is 2"),
        (lambda: reduced(norms, loader(6), kept(tmp_path)), "batch_size: was 5, is 6"),
        (
            lambda: reduced(
                norms,
                loader(),
                R.Checkpointed(R.TopK(4), tmp_path, identity={"it": 1}),
            ),
            "reducers",
        ),
    ):
        with pytest.raises(InputError, match=text):
            call()
    other = DataLoader(TensorDataset(x() + 1, y()), batch_size=5)
    with pytest.raises(InputError, match="loader's batch 0 is not the one"):
        reduced(norms, other, kept(tmp_path))


def test_a_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    reduced(norms, loader(), kept(tmp_path))
    (path,) = (p for p in tmp_path.iterdir() if p.is_file())
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(InputError, match="is damaged; remove the folder"):
        reduced(norms, loader(), kept(tmp_path))
