"""A parameter Jacobian stays true for the moment of its call, whatever comes after."""

import gc
import weakref

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import gradkit as gk
from case import DEVICE
from footprint import bits
from gradkit.errors import StaleError

N, FEATURES, CLASSES = 5, 4, 3
FORWARDS: list[int] = []


class Counted(nn.Module):
    """Counts its forwards outside itself, where copies and originals both count."""

    def forward(self, x):
        FORWARDS.append(len(x))
        return x


class Gate(nn.Module):
    """Uses a buffer, a plain tensor, a flag and the training mode in its forward."""

    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.linspace(1.0, 2.0, 6))
        self.shift = torch.linspace(0.0, 1.0, 6, device=DEVICE)
        self.sign = 1.0

    def forward(self, x):
        gated = self.sign * x * self.scale + self.shift
        return gated if self.training else gated * 7.0


def network(*extra):
    model = nn.Sequential(
        Counted(), nn.Linear(FEATURES, 6), nn.LayerNorm(6), Gate(), nn.Tanh(), *extra,
        nn.Linear(6, CLASSES),
    )  # fmt: skip
    return model.to(DEVICE)


MODELS = {"deterministic": network, "dropout": lambda: network(nn.Dropout(0.3))}


class Moment:
    """A model, a batch that lives in numpy's memory, and a call on them."""

    def __init__(self, name, question, kept):
        torch.manual_seed(3)
        self.model = MODELS[name]()
        self.array = np.random.default_rng(4).normal(size=(N, FEATURES))
        self.array = self.array.astype(np.float32)
        self.classes = np.array([0, 2, 1, 1, 0])
        x = torch.from_numpy(self.array)
        loss = gk.objectives.sample_loss(
            F.cross_entropy, torch.from_numpy(self.classes).to(DEVICE)
        )
        if DEVICE.type != "cpu":
            x = x.to(DEVICE)
        self.x = x
        how = {"seed": 9, **kept}
        if question == "parameter_jacobian":
            self.result = gk.parameter_jacobian(self.model, x, **how)
        else:
            self.result = gk.per_sample_gradients(self.model, x, loss, **how)

    def passes(self):
        """Train on, refill the batch, change every mode and buffer, and let go."""
        model, x = self.model, self.x
        optimiser = torch.optim.Adam(model.parameters(), lr=0.1, fused=True)
        targets = torch.zeros(N, dtype=torch.int64, device=DEVICE)
        F.cross_entropy(model(x), targets).backward()
        optimiser.step()
        with torch.no_grad():
            for tensor in (*model.parameters(), *model.buffers(), model[3].shift):
                tensor.data.mul_(-3.0)
            x.zero_()
        self.array[:] = 100.0
        self.classes[:] = 1
        model[3].sign = -1.0
        model.eval()
        model.requires_grad_(False)
        model[1].register_forward_hook(lambda *_: torch.zeros(N, 6, device=DEVICE))
        model[4] = nn.ReLU()
        model.double()
        del self.model, self.x, model, x, optimiser
        gc.collect()


def draw(shape, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, device="cpu").to(DEVICE)


def vector(jacobian):
    width = sum(part.stop - part.start for part in jacobian.columns.values())
    return draw((width,), 2)


QUANTITIES = {
    "outputs": lambda j: j.outputs,
    "norms": lambda j: j.norms(),
    "norms per parameter": lambda j: j.norms(per_parameter=True),
    "gram": lambda j: j.gram(),
    "matvec": lambda j: j.matvec(vector(j)),
    "rmatvec": lambda j: j.rmatvec(draw(j.norms().shape, 1)),
    "sum": lambda j: j.sum(),
    "mean": lambda j: j.mean(),
    "second_moment": lambda j: j.second_moment(),
    "clipped_sum": lambda j: j.clipped_sum(0.5),
    "project": lambda j: j.project(7, seed=2),
    "project per parameter": lambda j: j.project(7, seed=2, per_parameter=True),
    "flat": lambda j: j.flat(),
    "to_dict": lambda j: j.to_dict(),
    "select": lambda j: j.select("1").flat(),
    "samples": lambda j: j.samples([4, 1]).flat(),
    "one sample": lambda j: j.samples(slice(2, 3)).to_dict(),
    "by name": lambda j: j["1.weight"],
    "values": lambda j: dict(j.items()),
}


def as_bits(value):
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), value.dtype, bits(value)
    return {name: as_bits(tensor) for name, tensor in value.items()}


FACTORS, HELD = {}, {"method": "rows"}
# Rows of 252 bytes, 15 or 5 of them, in nothing less than 1 KB: rerun.
RERUN = {"method": "rows", "max_memory": 1_000}
KEPT = pytest.mark.parametrize(
    "kept", [FACTORS, HELD, RERUN], ids=["factors", "held", "rerun"]
)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("question", ["parameter_jacobian", "per_sample_gradients"])
@KEPT
def test_every_quantity_is_that_of_the_call(name, question, kept):
    at_once = Moment(name, question, kept).result
    expected = {key: as_bits(of(at_once)) for key, of in QUANTITIES.items()}
    later = Moment(name, question, kept)
    later.passes()
    FORWARDS.clear()
    found = {key: as_bits(of(later.result)) for key, of in QUANTITIES.items()}
    assert bool(FORWARDS) == (kept is RERUN)
    assert [key for key in expected if found[key] != expected[key]] == []


@KEPT
@pytest.mark.parametrize(
    "context",
    [
        torch.no_grad,
        torch.inference_mode,
        lambda: torch.autocast(DEVICE.type, torch.bfloat16),
        lambda: torch.device("meta"),
    ],
    ids=["no_grad", "inference_mode", "autocast", "default device"],
)
def test_quantities_do_not_depend_on_the_context_they_are_asked_in(context, kept):
    moment = Moment("deterministic", "parameter_jacobian", kept)
    some = ("norms", "gram", "rmatvec", "second_moment", "project", "to_dict")
    expected = {key: as_bits(QUANTITIES[key](moment.result)) for key in some}
    with context():
        found = {key: QUANTITIES[key](moment.result) for key in some}
    assert {key: as_bits(value) for key, value in found.items()} == expected


@KEPT
def test_rows_of_a_call_under_autocast(kept):
    with torch.autocast(DEVICE.type, torch.bfloat16):
        at_once = Moment("deterministic", "parameter_jacobian", kept).result
        expected = as_bits(at_once.to_dict())
        later = Moment("deterministic", "parameter_jacobian", kept)
    exact = Moment("deterministic", "parameter_jacobian", kept).result
    later.passes()
    assert as_bits(later.result.to_dict()) == expected
    assert as_bits(exact.to_dict()) != expected


@KEPT
def test_arithmetic_on_rows_is_not_cast(kept):
    with torch.autocast(DEVICE.type, torch.bfloat16):
        result = Moment("deterministic", "parameter_jacobian", kept).result
    rows = result.flat()
    width = rows.shape[-1]
    exact = {
        "gram": torch.einsum("nkp,mlp->nkml", rows, rows),
        "matvec": rows @ draw((width,), 2),
        "sum": rows.sum((0, 1)),
        "norms": torch.linalg.vector_norm(rows, dim=-1),
    }
    found = {
        "gram": result.gram(),
        "matvec": result.matvec(draw((width,), 2)),
        "sum": torch.cat([part.flatten() for part in result.sum().values()]),
        "norms": result.norms(),
    }
    torch.testing.assert_close(found, exact)


@KEPT
def test_every_access_builds_a_fresh_tensor(kept):
    result = Moment("deterministic", "parameter_jacobian", kept).result
    for of in map(QUANTITIES.get, ("outputs", "norms", "sum", "flat", "by name")):
        assert of is not None
        expected = as_bits(of(result))
        value = of(result)
        for tensor in [value] if isinstance(value, torch.Tensor) else value.values():
            tensor.fill_(5.0)
        assert as_bits(of(result)) == expected


@KEPT
def test_two_moments_of_one_training_run(kept):
    early = Moment("deterministic", "per_sample_gradients", kept)
    rows = early.result.flat()
    model, x = early.model, early.x.clone()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    late = gk.per_sample_gradients(model, x[:3], gk.objectives.class_score(1), **kept)
    torch.testing.assert_close(early.result.gram(late), rows @ late.flat().T)


@pytest.mark.parametrize("kept", [FACTORS, HELD], ids=["factors", "held"])
def test_the_caller_may_drop_everything_and_the_result_frees_all(kept):
    moment = Moment("deterministic", "per_sample_gradients", kept)
    result, kept = moment.result, weakref.ref(moment.model)
    del moment
    gc.collect()
    assert kept() is None
    held = weakref.ref(result)
    del result
    gc.collect()
    assert held() is None


FACTOR = [1.0]


class ReadsFactor(nn.Linear):
    def forward(self, input):
        return super().forward(input) * FACTOR[0]


def test_what_a_rerun_cannot_put_back_is_seen():
    model = ReadsFactor(FEATURES, CLASSES).to(DEVICE)
    x = torch.ones(N, FEATURES, device=DEVICE)
    held = gk.parameter_jacobian(model, x)
    rerun = gk.parameter_jacobian(model, x, method="vmap", max_memory=600)
    expected = as_bits(held.to_dict())
    assert as_bits(rerun.to_dict()) == expected
    FACTOR[0] = 2.0
    try:
        assert as_bits(held.to_dict()) == expected
        with pytest.raises(StaleError, match="reads something else that has changed"):
            rerun.to_dict()
    finally:
        FACTOR[0] = 1.0
    assert as_bits(rerun.to_dict()) == expected
