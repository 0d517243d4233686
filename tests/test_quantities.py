"""Ready-made functions of a batch give what a loop over its samples gives."""

from __future__ import annotations

import functools
import pickle
from collections import UserDict, namedtuple
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import gradkit as gk
from footprint import Footprint
from gradkit.streaming import quantities as q

# Samples, inputs, hidden units, classes, tokens: no two alike.
N, D, H, C, T = 5, 3, 4, 7, 6


def network() -> nn.Module:
    norm = nn.BatchNorm1d(H)
    for buffer in (norm.running_mean, norm.running_var):
        assert buffer is not None
        buffer.uniform_(0.5, 2)
    parts = nn.Linear(D, H), norm, nn.Tanh(), nn.Linear(H, C)
    return nn.Sequential(*parts).double().eval()


@pytest.fixture
def model() -> nn.Module:
    return network()


@pytest.fixture
def batch() -> tuple[Tensor, Tensor]:
    return torch.randn(N, D, dtype=torch.float64), torch.tensor([6, 0, 3, 3, 1])


class Tokens(nn.Module):
    """Returns logits by name, as language models do."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, H)
        self.head = nn.Linear(H, C)

    def forward(self, ids: Tensor, scale: Tensor) -> dict[str, Tensor]:
        hidden = self.embedding(ids).tanh() * scale[:, None, None]
        return {"hidden": hidden, "logits": self.head(hidden.cumsum(1))}


class Pair(nn.Module):
    """Two inputs, of which two outputs depend."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(D, H), nn.Linear(2, H)

    def forward(self, x: Tensor, z: Tensor) -> dict[str, Tensor]:
        h = (self.a(x) * self.b(z)).tanh()
        return {"h": h, "square": h[:, :2] ** 2}


def tokens() -> tuple[nn.Module, dict[str, Tensor]]:
    labels = torch.randint(C, (N, T))
    labels[2, 3:] = -100
    return Tokens().double(), {
        "ids": torch.randint(11, (N, T)),
        "labels": labels,
        "scale": torch.rand(N, dtype=torch.float64),
    }


def token_loss(labels: Tensor) -> Any:
    return gk.objectives.token_loss(labels, shift=True)


def close(found: Tensor, expected: Any) -> None:
    expected = expected if isinstance(expected, Tensor) else torch.stack(expected)
    torch.testing.assert_close(found, expected.detach(), rtol=1e-12, atol=1e-13)


# -- a loop over samples, without gradkit ------------------------------------------


def losses(model: nn.Module, x: Tensor, y: Tensor) -> Iterator[Tensor]:
    for n in range(len(x)):
        yield F.cross_entropy(model(x[n : n + 1]), y[n : n + 1])


def loop_gradients(model: nn.Module, x: Tensor, y: Tensor) -> list[dict[str, Tensor]]:
    names, parameters = zip(*model.named_parameters(), strict=True)
    return [
        dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))
        for loss in losses(model, x, y)
    ]


def flat(gradients: dict[str, Tensor]) -> Tensor:
    return torch.cat([g.flatten() for g in gradients.values()])


def loop_norms(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return torch.stack([flat(g).norm() for g in loop_gradients(model, x, y)])


def loop_errors(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    errors = model(x).detach().exp()
    errors = errors / errors.sum(1, keepdim=True)
    for n, label in enumerate(y.tolist()):
        errors[n, label] -= 1
    return (errors**2).sum(1).sqrt()


def loop_jacobians(function: Callable[..., Tensor], *inputs: Tensor) -> list[Tensor]:
    """Return ``(K, D)`` per sample, of all inputs side by side."""
    found = []
    for n in range(len(inputs[0])):
        own = [x[n : n + 1].clone().requires_grad_() for x in inputs]
        rows = [
            torch.cat(
                [g.flatten() for g in torch.autograd.grad(y, own, retain_graph=True)]
            )
            for y in function(*own).flatten()
        ]
        found.append(torch.stack(rows))
    return found


# -- values ----------------------------------------------------------------------


def test_loss(model: nn.Module, batch: Any) -> None:
    found = q.loss(model)(batch)
    close(found, list(losses(model, *batch)))
    assert not found.requires_grad


def test_loss_follows_its_criterion(model: nn.Module, batch: Any) -> None:
    smoothed = functools.partial(F.cross_entropy, label_smoothing=0.2)
    x, y = batch
    expected = [smoothed(model(x[n : n + 1]), y[n : n + 1]) for n in range(N)]
    close(q.loss(model, smoothed)(batch), expected)
    close(q.loss(model, nn.CrossEntropyLoss(label_smoothing=0.2))(batch), expected)


def test_loss_of_tokens() -> None:
    model, batch = tokens()
    logits = model(batch["ids"], batch["scale"])["logits"]
    expected = [
        F.cross_entropy(logits[n, :-1], batch["labels"][n, 1:]) for n in range(N)
    ]
    close(q.loss(model, objective=token_loss, of="logits")(batch), expected)


def test_gradient_norm(model: nn.Module, batch: Any) -> None:
    found = q.gradient_norm(model)(batch)
    assert list(found) == ["loss", "gradient_norm"]
    close(found["loss"], list(losses(model, *batch)))
    close(found["gradient_norm"], loop_norms(model, *batch))


def test_gradient_norm_per_parameter(model: nn.Module, batch: Any) -> None:
    quantity = q.gradient_norm(model, per_parameter=True, parameters="3")
    found = quantity(batch)
    assert list(found) == ["loss", "3.weight", "3.bias"]
    close(found["loss"], list(losses(model, *batch)))
    for name in ("3.weight", "3.bias"):
        expected = [g[name].norm() for g in loop_gradients(model, *batch)]
        close(found[name], expected)


def test_gradient_norm_of_tokens() -> None:
    model, batch = tokens()
    found = q.gradient_norm(model, objective=token_loss, of="logits")(batch)
    norms = []
    for n in range(N):
        logits = model(batch["ids"][n : n + 1], batch["scale"][n : n + 1])["logits"]
        loss = F.cross_entropy(logits[0, :-1], batch["labels"][n, 1:])
        own = torch.autograd.grad(loss, list(model.parameters()))
        norms.append(torch.cat([g.flatten() for g in own]).norm())
    close(found["gradient_norm"], norms)


@pytest.mark.parametrize("per_parameter", [False, True])
def test_projected_gradients(model: nn.Module, batch: Any, per_parameter: bool) -> None:
    x, y = batch
    given = {"projection_seed": 3, "per_parameter": per_parameter}
    found = q.projected_gradients(model, 9, **given)(batch)
    rows = gk.per_sample_gradients(
        model, x, gk.objectives.sample_loss(F.cross_entropy, y)
    )
    expected = rows.project(9, seed=3, per_parameter=per_parameter)
    parts = found if per_parameter else {"": found}
    wanted = expected if per_parameter else {"": expected}
    assert list(parts) == list(wanted)
    for name, part in parts.items():
        assert part.shape == (N, 9)
        close(part, wanted[name])


def test_projections_keep_products(model: nn.Module, batch: Any) -> None:
    found = q.projected_gradients(model, 20000)(batch)
    rows = torch.stack([flat(g) for g in loop_gradients(model, *batch)])
    gap = (found @ found.T - rows @ rows.T).abs().max()
    assert gap < 0.05 * (rows @ rows.T).abs().max()


def test_gradients(model: nn.Module, batch: Any) -> None:
    found = q.gradients(model)(batch)
    assert isinstance(found, gk.ParameterJacobian)
    expected = loop_gradients(model, *batch)
    for name in expected[0]:
        close(found[name], [g[name] for g in expected])


def test_el2n(model: nn.Module, batch: Any) -> None:
    close(q.el2n(model)(batch), loop_errors(model, *batch))


@pytest.mark.parametrize("sequence", [list, tuple, nn.ModuleList])
def test_scores_are_means_over_models(batch: Any, sequence: Any) -> None:
    models = [network() for _ in range(3)]
    errors = sum(loop_errors(m, *batch) for m in models) / 3
    norms = sum(loop_norms(m, *batch) for m in models) / 3
    close(q.el2n(sequence(models))(batch), errors)
    close(q.grand(sequence(models))(batch), norms)


def test_grand_of_one_model_is_the_gradient_norm(model: nn.Module, batch: Any) -> None:
    close(q.grand(model)(batch), loop_norms(model, *batch))


def test_el2n_of_half_precision_is_not_rounded_to_it() -> None:
    logits = torch.tensor([[8.0, 0.0, 0.0]], dtype=torch.bfloat16)
    found = q.el2n(lambda x: x)((logits, torch.tensor([0])))
    assert found.dtype == torch.float32
    expected = loop_errors(nn.Identity(), logits.double(), torch.tensor([0]))
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=0)


# -- input Jacobians -------------------------------------------------------------


def test_norms_of_jacobians(model: nn.Module, batch: Any) -> None:
    jacobians = loop_jacobians(model, batch[0])
    assert jacobians[0].shape == (C, D)
    close(q.jacobian_norm(model)(batch), [(J**2).sum().sqrt() for J in jacobians])
    close(
        q.spectral_norm(model)(batch),
        [torch.linalg.eigvalsh(J.T @ J)[-1].sqrt() for J in jacobians],
    )


def test_jacobians_of_several_inputs_and_outputs_are_one_matrix() -> None:
    model = Pair().double()
    x, z = torch.randn(N, D).double(), torch.randn(N, 2).double()
    jacobians = loop_jacobians(
        lambda x, z: torch.cat(list(model(x, z).values()), 1), x, z
    )
    assert jacobians[0].shape == (H + 2, D + 2)
    batch = {"x": x, "z": z}
    close(q.jacobian_norm(model)(batch), [J.norm() for J in jacobians])
    largest = [torch.linalg.svdvals(J)[0] for J in jacobians]
    close(q.spectral_norm(model)(batch), largest)
    close(q.spectral_norm(model, wrt=["z", "x"])(batch), largest)
    only = [J[:H, D:].norm() for J in jacobians]
    close(q.jacobian_norm(model, wrt="z", of="h")(batch), only)


@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_norms_neither_underflow_nor_overflow(size: float) -> None:
    x = torch.zeros(2, 9)
    for make, expected in ((q.jacobian_norm, 3 * size), (q.spectral_norm, size)):
        found = make(lambda x: size * x)(x)
        wanted = torch.full((2,), expected)
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=0)


def test_jacobians_that_are_not_finite_leave_the_others() -> None:
    x = torch.tensor([[4.0, 1.0, 1.0], [4.0, 0.0, 1.0], [-4.0, 1.0, 1.0]])
    found = q.spectral_norm(lambda x: x.sqrt())(x)
    assert found.isfinite().tolist() == [True, False, False]
    torch.testing.assert_close(found[0], torch.tensor(0.5))


def test_a_jacobian_of_half_precision_has_a_norm_in_float32() -> None:
    x = torch.randn(N, D, dtype=torch.bfloat16)
    layer = nn.Linear(D, C).bfloat16()
    expected = torch.linalg.matrix_norm(layer.weight.detach().float(), ord=2)
    torch.testing.assert_close(q.spectral_norm(layer)(x), expected.expand(N))


# -- forms of batches ------------------------------------------------------------

Named = namedtuple("Named", ["image", "label"])


@pytest.mark.parametrize(
    "form",
    [
        lambda x, y: (x, y),
        lambda x, y: [x, y],
        lambda x, y: Named(x, y),
        lambda x, y: {"input": x, "labels": y},
        lambda x, y: {"y": y, "input": x},
        lambda x, y: UserDict({"input": x, "target": y}),
        lambda x, y: ({"input": x}, y),
        lambda x, y: ([x], y),
    ],
)
def test_forms_of_a_batch(batch: Any, form: Any) -> None:
    layer = nn.Linear(D, C).double()
    given = form(*batch)
    expected = list(losses(layer, *batch))
    close(q.loss(layer)(given), expected)
    close(q.gradient_norm(layer)(given)["loss"], expected)
    close(q.el2n(layer)(given), loop_errors(layer, *batch))
    close(q.jacobian_norm(layer)(given), layer.weight.norm().expand(N))


def test_the_last_of_three_is_the_targets(batch: Any) -> None:
    x, y = batch
    z, labels = torch.randn(N, 2, dtype=torch.float64), y % H
    model = Pair().double()
    h = model(x, z)["h"]
    expected = [F.cross_entropy(h[n], labels[n]) for n in range(N)]
    close(q.loss(model, of="h")([x, z, labels]), expected)
    close(q.gradient_norm(model, of="h")((x, z, labels))["loss"], expected)


def test_split_reads_any_batch(model: nn.Module, batch: Any) -> None:
    x, y = batch
    odd = {"label": y * 0, "y": y, "x": x, "index": torch.arange(N)}

    def split(batch: Any) -> Any:
        return batch["x"], batch["y"]

    close(q.loss(model, split=split)(odd), list(losses(model, x, y)))
    close(q.grand(model, split=split)(odd), loop_norms(model, x, y))
    norm = q.jacobian_norm(model, split=split)(odd)
    close(norm, [J.norm() for J in loop_jacobians(model, x)])


@pytest.mark.parametrize(
    "form",
    [lambda x: x, lambda x: [x], lambda x: {"input": x}, lambda x: [{"input": x}]],
)
def test_a_batch_without_targets(model: nn.Module, batch: Any, form: Any) -> None:
    given = form(batch[0])
    close(
        q.spectral_norm(model)(given),
        [torch.linalg.svdvals(J)[0] for J in loop_jacobians(model, batch[0])],
    )
    summed = q.loss(model, objective=lambda _: gk.objectives.output_sum)
    close(summed(given), model(batch[0]).sum(1))
    for make in (q.loss, q.gradient_norm, q.el2n, q.grand):
        with pytest.raises(gk.errors.InputError, match="split must give the targets"):
            make(model)(given)


MAKERS: dict[str, Callable[..., q.Quantity]] = {
    "loss": q.loss,
    "gradient_norm": q.gradient_norm,
    "per_parameter": functools.partial(q.gradient_norm, per_parameter=True),
    "el2n": q.el2n,
    "grand": q.grand,
    "gradients": q.gradients,
    "projected_gradients": functools.partial(
        q.projected_gradients, size=2, projection_seed=0
    ),
    "jacobian_norm": q.jacobian_norm,
    "spectral_norm": q.spectral_norm,
}
every = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


def test_no_maker_is_left_out() -> None:
    # noise_scale goes over a loader itself.
    assert set(q.__all__) - {"Quantity", "noise_scale"} <= set(MAKERS)


def parts(rows: Any) -> dict[str, Tensor]:
    return {"": rows} if isinstance(rows, Tensor) else dict(rows)


@every
@pytest.mark.parametrize("count", [0, 1])
def test_batches_of_none_and_one(
    model: nn.Module, batch: Any, make: Any, count: int
) -> None:
    x, y = batch
    quantity = make(model)
    whole, few = parts(quantity((x, y))), parts(quantity((x[:count], y[:count])))
    assert list(whole) == list(few)
    for name, rows in few.items():
        assert rows.dtype == whole[name].dtype
        close(rows, whole[name][:count])


@every
def test_two_calls_are_equal_bit_for_bit(
    model: nn.Module, batch: Any, make: Any
) -> None:
    quantity = make(model)
    # The proof of independence is made at calls 1, 2 and 4.
    first, *others = [parts(quantity(batch)) for _ in range(4)]
    for other in others:
        assert all(torch.equal(first[name], other[name]) for name in first)


@every
def test_no_trace(model: nn.Module, batch: Any, make: Any) -> None:
    x, y = batch
    model.get_parameter("0.weight").grad = torch.ones(H, D, dtype=torch.float64)
    model[0].train()  # pyright: ignore[reportIndexIssue]
    given = {"input": x, "y": y}
    quantity = make(model)
    footprint = Footprint(model, tensors=given)
    quantity(given)
    footprint.assert_unchanged()
    assert list(given) == ["input", "y"]
    assert given["input"] is x
    with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
        rows = parts(quantity(given))
    for name, value in parts(quantity(given)).items():
        assert torch.equal(rows[name], value)
        assert not rows[name].is_inference()


@every
def test_a_failure_leaves_no_trace(model: nn.Module, batch: Any, make: Any) -> None:
    quantity = make(model)
    footprint = Footprint(model)
    with pytest.raises((RuntimeError, gk.errors.GradkitError)):
        quantity((batch[0][:, :2], batch[1]))
    footprint.assert_unchanged()


@every
def test_dropout_needs_a_seed(batch: Any, make: Any) -> None:
    x, y = batch
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(D, C)).double()
    with pytest.raises(gk.errors.InputError, match="pass seed="):
        make(model)((x, y))
    footprint = Footprint(model)
    rows, again, other = (parts(make(model, seed=s)((x, y))) for s in (4, 4, 5))
    footprint.assert_unchanged()
    assert all(torch.equal(rows[name], again[name]) for name in rows)
    assert any(not torch.equal(rows[name], other[name]) for name in rows)


def test_the_seed_is_that_of_the_draw(batch: Any) -> None:
    x, y = batch
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(D, C)).double()
    found = q.loss(model, seed=4)((x, y))
    torch.manual_seed(4)
    close(found, F.cross_entropy(model(x), y, reduction="none"))


@every
def test_batch_normalisation_in_training_is_refused(batch: Any, make: Any) -> None:
    with pytest.raises(gk.errors.SampleDependenceError) as caught:
        make(network().train())(batch)
    assert caught.value.function == make(nn.Linear(D, C)).name


def test_a_model_that_couples_samples_out_of_sight_is_refused(batch: Any) -> None:
    class Centred(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x - x.mean(0))

    for make in (q.loss, q.el2n):
        with pytest.raises(gk.errors.SampleDependenceError):
            make(Centred(D, C).double())(batch)


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """Make this process a group of one."""
    dist.init_process_group(
        "gloo", init_method=f"file://{tmp_path / 'group'}", rank=0, world_size=1
    )
    yield
    dist.destroy_process_group()


@every
@pytest.mark.usefixtures("alone")
def test_wrapped_models(batch: Any, make: Any) -> None:
    layer = nn.Linear(D, C).double()
    expected = parts(make(layer)(batch))
    compiled = torch.compile(layer, backend="eager")
    for wrapped in (compiled, nn.parallel.DistributedDataParallel(layer)):
        found = parts(make(wrapped)(batch))
        assert list(found) == list(expected)
        for name in expected:
            close(found[name], expected[name])


@every
def test_half_precision(make: Any) -> None:
    layer = nn.Linear(D, C)
    x, y = torch.randn(N, D), torch.arange(N)
    expected = parts(make(layer)((x, y)))
    found = parts(make(layer.bfloat16())((x.bfloat16(), y)))
    for name in expected:
        scale = expected[name].abs().max().item()
        torch.testing.assert_close(
            found[name].float(), expected[name], rtol=0.05, atol=0.05 * scale
        )


def test_batches_are_moved_to_the_model() -> None:
    from gradkit.streaming.quantities._batch import Batch

    model = nn.Linear(D, C, device="meta")
    shared = gk.shared(torch.ones(2))
    given = Batch({"x": torch.ones(N, D), "mask": shared, "n": 3}, [torch.ones(N)])
    moved = given.beside(lambda x: model(x))
    assert moved.inputs["x"].is_meta
    assert moved.inputs["mask"].tensor.is_meta
    assert (moved.inputs["n"], moved.targets[0].is_meta) == (3, True)
    assert not given.inputs["x"].is_meta
    assert not shared.tensor.is_meta
    assert given.beside(lambda x: x) is given


# -- what a quantity is ----------------------------------------------------------


@every
def test_a_quantity_is_frozen_and_can_be_pickled(batch: Any, make: Any) -> None:
    quantity = make(nn.Linear(D, C).double())
    with pytest.raises(AttributeError):
        quantity.name = "another"
    found = parts(pickle.loads(pickle.dumps(quantity))(batch))
    for name, rows in parts(quantity(batch)).items():
        close(found[name], rows)


def test_identity(model: nn.Module) -> None:
    def split(batch: Any) -> Any:
        return batch

    quantity = q.projected_gradients(
        model, 9, projection_seed=3, parameters="3", split=split, seed=8,
        criterion=F.nll_loss, max_memory="1GB", method="vmap",
    )  # fmt: skip
    identity = quantity.identity()
    assert {name: value for name, value in identity.items() if value is not None} == {
        "quantity": "projected_gradients",
        "model": model,
        "criterion": F.nll_loss,
        "parameters": "3",
        "split": split,
        "seed": 8,
        "method": "vmap",
        "max_memory": "1GB",
        "size": 9,
        "projection_seed": 3,
        "per_parameter": False,
    }
    several = q.el2n([model, model]).identity()
    assert {name: value for name, value in several.items() if value is not None} == {
        "quantity": "el2n",
        "model": [model, model],
        "method": "auto",
    }
    assert q.loss(model, objective=token_loss).identity()["criterion"] is None
    assert q.loss(model, objective=token_loss).identity()["objective"] is token_loss


def test_a_list_of_models_is_copied(model: nn.Module) -> None:
    models = [model]
    quantity = q.el2n(models)
    models.clear()
    assert quantity.identity()["model"] == [model]
    assert repr(quantity) == "el2n([Sequential])"


# -- errors ----------------------------------------------------------------------

MADE: list[tuple[Callable[[nn.Module], Any], str]] = [
    (
        lambda m: q.gradient_norm(m, F.nll_loss, objective=token_loss),
        "gradient_norm: criterion and objective are two ways to say the same; give one",
    ),
    (
        lambda m: q.loss(m, objective=gk.objectives.class_score(0)),
        "loss: objective must be a function of a batch's targets that returns an"
        " objective, such as lambda labels: gk.objectives.token_loss(labels,"
        " shift=True); got an objective itself. Pass objective=lambda targets: ...",
    ),
    (
        lambda m: q.loss(m, objective=3),  # pyright: ignore[reportArgumentType]
        "loss: objective must be a function of a batch's targets that returns an"
        " objective, such as lambda labels: gk.objectives.token_loss(labels,"
        " shift=True); got the int 3",
    ),
    (
        lambda m: q.loss(m, "mse"),  # pyright: ignore[reportArgumentType]
        "loss: sample_loss takes a criterion that can be called; got the string"
        " 'mse'. Write sample_loss(F.cross_entropy, targets).",
    ),
    (
        lambda m: q.el2n(m, split="y"),  # pyright: ignore[reportArgumentType]
        "el2n: split must be a function batch -> (inputs, targets); got the string 'y'",
    ),
    (
        lambda m: q.el2n([]),
        "el2n: model must be a model or a sequence of some; got an empty one",
    ),
    (
        lambda m: q.grand([m, 3]),
        "grand: model must be an nn.Module or a callable; got int. The order of the"
        " arguments is (model, inputs, ...): pass the model, not its outputs",
    ),
    (
        lambda m: q.projected_gradients(m, 0),
        "projected_gradients: size must be a positive number; got the int 0",
    ),
    (
        lambda m: q.projected_gradients(m, 2, projection_seed="a"),  # pyright: ignore[reportArgumentType]
        "projected_gradients: projection_seed must be a whole number; got the string"
        " 'a'",
    ),
    (
        lambda m: q.gradient_norm(m, per_parameter=1),  # pyright: ignore[reportArgumentType]
        "gradient_norm: per_parameter must be True or False; got the int 1",
    ),
    (
        lambda m: q.spectral_norm(m, seed=0.5),  # pyright: ignore[reportArgumentType]
        "spectral_norm: seed must be a whole number; got the float 0.5",
    ),
    (
        lambda m: q.jacobian_norm(m, max_memory="much"),
        "jacobian_norm: max_memory must be a positive number of bytes or a text such"
        " as '2GB' or '512MiB'; got 'much'",
    ),
    (
        lambda m: q.gradients(lambda x: x),
        "gradients: model is a function, so parameters= must say whose parameters: a"
        " module, or a mapping of names to tensors",
    ),
]


@pytest.mark.parametrize(("make", "message"), MADE)
def test_errors_when_it_is_made(
    model: nn.Module, make: Callable[[nn.Module], Any], message: str
) -> None:
    with pytest.raises(gk.errors.InputError) as caught:
        make(model)
    assert str(caught.value) == message


def test_unknown_names_are_refused_when_it_is_made(model: nn.Module) -> None:
    with pytest.raises(
        gk.errors.InputError, match=r"gradients: parameters='9' matches"
    ):
        q.gradients(model, parameters="9")
    with pytest.raises(gk.errors.InputError, match=r"jacobian_norm: method"):
        q.jacobian_norm(model, method="magic")


X, Y = torch.zeros(2, D, dtype=torch.float64), torch.tensor([0, 7])
CALLED: list[tuple[Callable[[nn.Module], q.Quantity], Any, str]] = [
    (
        q.loss,
        X,
        "loss: split must give the targets that cross_entropy compares with; the batch"
        " has inputs alone. Pass split=lambda batch: (inputs, targets)",
    ),
    (
        q.gradient_norm,
        {"x": X, "index": Y},
        "gradient_norm: split must give the targets that cross_entropy compares with;"
        " the batch has the keys 'x', 'index', and none of 'labels', 'label',"
        " 'targets', 'target', 'y'. Pass split=lambda batch: (inputs, targets)",
    ),
    (
        q.jacobian_norm,
        {"input": X, "label": Y, "y": Y},
        "jacobian_norm: split must say which of 'label', 'y' are the targets; the batch"
        " has the keys 'input', 'label', 'y'. Pass split=lambda batch: (inputs,"
        " targets)",
    ),
    (
        q.el2n,
        (X, Y),
        "el2n: targets must be classes from 0 to 6, for outputs of shape (2, 7); got 7"
        " at sample 1",
    ),
    (
        q.el2n,
        (X, -Y),
        "el2n: targets must be classes from 0 to 6, for outputs of shape (2, 7); got -7"
        " at sample 1",
    ),
    (
        q.el2n,
        (X, Y.double()),
        "el2n: targets must be classes, a tensor of whole numbers (N,); got a float64"
        " tensor of shape (2,)",
    ),
    (
        q.el2n,
        (X, Y[:1]),
        "el2n: targets must be one class per sample, (2,); got an int64 tensor of shape"
        " (1,)",
    ),
    (
        lambda m: q.el2n(lambda x: x[:, :1]),
        (X, Y),
        "el2n: outputs must be logits (N, C) of two classes at least; got a float64"
        " tensor of shape (2, 1)",
    ),
    (
        functools.partial(q.loss, split=lambda batch: batch[0]),
        (X, Y),
        "loss: split must return a pair, (inputs, targets); got a float64 tensor of"
        " shape (2, 3)",
    ),
    (
        functools.partial(q.loss, objective=lambda labels: labels),
        (X, Y),
        "loss: objective must return an objective, a function of the outputs, for a"
        " batch's targets; it returned an int64 tensor of shape (2,)",
    ),
    (
        q.loss,
        3,
        "loss: split must say what the batch holds, as a function batch -> (inputs,"
        " targets), where it is no tensor, sequence or mapping of tensors; got the int"
        " 3",
    ),
]


@pytest.mark.parametrize(("make", "batch", "message"), CALLED)
def test_errors_at_a_batch(
    model: nn.Module,
    make: Callable[[nn.Module], q.Quantity],
    batch: Any,
    message: str,
) -> None:
    with pytest.raises(gk.errors.InputError) as caught:
        make(model)(batch)
    assert str(caught.value) == message


def test_a_parameter_called_loss_is_refused(batch: Any) -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.loss = nn.Parameter(torch.randn(D, C, dtype=torch.float64))

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.loss

    assert q.gradient_norm(Odd())(batch)["loss"].shape == (N,)
    with pytest.raises(gk.errors.InputError, match="which is what one of them is"):
        q.gradient_norm(Odd(), per_parameter=True)(batch)
