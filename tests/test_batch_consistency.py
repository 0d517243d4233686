"""``gk.batch_consistency``: what is rounding, what is coupling, and where it arises."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers as hf
from torch import Tensor, nn

import gradkit as gk
from footprint import Footprint
from gradkit.errors import InputError, SampleDependenceError
from gradkit.numerics._consistency import batch_consistency
from gradkit.numerics._consistency_report import BatchConsistencyReport
from gradkit.numerics._consistency_rows import Difference, Layout, layouts
from gradkit.numerics._consistency_verdict import judged, stays

U32, U64 = 2.0**-24, 2.0**-53


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


class Between(nn.Module):
    """Two layers with a function between them, called in ``forward`` itself."""

    def __init__(self, function: Callable[[Tensor], Tensor], width: int = 7) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(10, width), nn.Linear(width, 3)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.function(self.fc1(x)))


class Apply(nn.Module):
    """A submodule that is one function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


class First(nn.Module):
    """The first of several outputs of a layer."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[0]


# --- rounding ---------------------------------------------------------------------


def test_a_linear_layer_differs_by_rounding_and_is_named() -> None:
    # Of this many layers one at least does not give a row the same bits.
    model = nn.Sequential(*(nn.Linear(10, 10) for _ in range(20)))
    x = torch.randn(2, 10)
    assert not torch.equal(model(x)[0], model(x[:1])[0])
    report = batch_consistency(model, x)
    assert report.verdict == "rounding"
    assert bool(report)
    assert report.coupled is None
    assert report.first is not None
    assert "(Linear)" in report.first
    (first,) = [row for row in report.rows if row.is_first]
    index = int(first.name)
    before = model[:index](x)
    assert torch.equal(before[:1], model[:index](x[:1]))
    assert not torch.equal(model[: index + 1](x)[:1], model[: index + 1](x[:1])) or (
        not torch.equal(model[: index + 1](x)[1:], model[: index + 1](x[1:]))
    )
    assert 0 < first.differing <= first.entries == 20
    assert first.moved == 0
    assert 0 < first.relative < 1e-4


def test_counts_are_those_of_the_outputs() -> None:
    model, x = nn.Linear(64, 64), torch.randn(5, 64)
    report = batch_consistency(model, x)
    alone = torch.cat([model(x[n : n + 1]) for n in range(5)]).detach()
    whole = model(x).detach()
    (row,) = report.rows
    assert row.differing == int((alone != whole).sum()) > 0
    assert row.ulps == int(gk.numerics.ulp_distance(alone, whole).max())
    assert row.share == row.differing / 320
    gap = (alone - whole).double().abs() / torch.maximum(alone.abs(), whole.abs())
    assert row.relative == pytest.approx(float(gap.max()), rel=1e-6)


def test_several_sizes_have_their_own_rows() -> None:
    report = batch_consistency(
        nn.Linear(64, 64), torch.randn(7, 64), batch_sizes=(1, 3, 6)
    )
    assert [row.batch_size for row in report.rows] == [1, 3, 6]
    assert [row.entries for row in report.rows] == [7 * 64] * 3
    assert dict(report.slices) == {1: (7, 7), 3: (3, 3), 6: (2, 2)}


def test_of_many_slices_a_spread_is_taken() -> None:
    report = batch_consistency(nn.Linear(3, 2), torch.randn(200, 3))
    assert report.slices[1] == (64, 200)
    assert report.rows[0].entries == 128


def test_float64_is_told_from_coupling_too() -> None:
    x = torch.randn(6, 64, dtype=torch.float64)
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)).double()
    assert batch_consistency(model, x).verdict in ("rounding", "equal")
    coupled = Between(lambda h: h + 1e-9 * h.mean(0)).double()
    report = batch_consistency(coupled, x[:, :10])
    assert report.verdict == "coupled"
    assert report.coupled == "in forward of '' between 'fc1' and 'fc2'"


@pytest.mark.parametrize("size", [1e-1, 1e-4, 1e-7, 1e-9])
def test_coupling_below_the_rounding_of_float32_is_found(size: float) -> None:
    # The rounding of float32 is 1e-7: only float64 can tell.
    report = batch_consistency(
        Between(lambda h: h + size * h.sum(0)), torch.randn(5, 10)
    )
    found = report.coupled
    if size > 1e-8:
        assert found == "in forward of '' between 'fc1' and 'fc2'"
    else:
        # Bits are the same where it is far below rounding; then it is not there.
        assert found in (None, "in forward of '' between 'fc1' and 'fc2'")


def test_a_count_of_samples_is_coupling_with_the_batch() -> None:
    report = batch_consistency(Between(lambda h: h / len(h)), torch.randn(5, 10))
    assert report.coupled == "in forward of '' between 'fc1' and 'fc2'"


@pytest.mark.parametrize("floating", [False, True])
def test_a_decision_that_rounding_makes_is_a_branch(floating: bool) -> None:
    layer = nn.Linear(64, 64)
    x = torch.randn(1, 64).expand(8, 64).clone()
    whole, alone = layer(x)[:1].detach(), layer(x[:1]).detach()
    differing = (whole != alone).nonzero()
    if not len(differing):
        pytest.skip("this machine gives the layer's rows the same bits")
    place = int(differing[0, 1])
    limit = torch.maximum(whole, alone)[0, place].item()

    class Decides(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: Tensor) -> Tensor:
            found = self.layer(x)[:, place] >= limit
            return found.float() if floating else found

    report = batch_consistency(Decides(), x)
    assert report.verdict == "branch"
    assert bool(report)
    assert report.rows[0].verdict == "rounding"


# --- coupled ----------------------------------------------------------------------


def mean_between(h: Tensor) -> Tensor:
    return h - h.mean(0)


class Padded(nn.Module):
    """Cuts to the longest of the batch, and attends over what pads the others."""

    def __init__(self, *, masked: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.attend = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 3)
        self.masked = masked

    def forward(self, ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        longest = int(attention_mask.sum(1).max())
        h, mask = self.embed(ids[:, :longest]), attention_mask[:, :longest]
        ignored = mask == 0 if self.masked else None
        h, _ = self.attend(h, h, h, key_padding_mask=ignored, need_weights=False)
        return {"logits": self.head(h[:, 0])}


def padded_batch() -> dict[str, Tensor]:
    mask = torch.ones(4, 6, dtype=torch.long)
    for n, length in enumerate((6, 4, 3, 5)):
        mask[n, length:] = 0
    return {"ids": torch.randint(1, 20, (4, 6)) * mask, "attention_mask": mask}


class IgnoresMask(nn.Module):
    """Takes a mask, as its callers expect, and attends or averages over all steps."""

    def __init__(self, *, pooled: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.attend = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 3)
        self.pooled = pooled

    def forward(self, ids: Tensor, attention_mask: Tensor) -> Tensor:
        h = self.embed(ids)
        if self.pooled:
            return self.head(h.mean(1))
        return self.head(self.attend(h, h, h, need_weights=False)[0])


def flipped(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return a batch that is padded on the left."""
    return {name: value.flip(1) for name, value in batch.items()}


class Half(nn.Module):
    """Computes in float16 inside, as autocast or a hand-written cast does."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(10, 24)

    def forward(self, x: Tensor) -> Tensor:
        h = self.fc(x).half()
        return (h * h.float().norm(dim=1, keepdim=True).half()).float().sum(1)


class Sorted(nn.Module):
    """Sorts samples by their length, and puts them back."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(10, 6)

    def forward(self, x: Tensor) -> Tensor:
        order = x[:, 0].argsort()
        return self.layer(x[order])[order.argsort()]


class Experts(nn.Module):
    """Sends each row to one of its experts."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(10, 3)
        self.experts = nn.ModuleList(nn.Linear(10, 5) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        chosen, out = self.gate(x).argmax(1), x.new_zeros(len(x), 5)
        for i, expert in enumerate(self.experts):
            out[chosen == i] = expert(x[chosen == i])
        return out


def quantise(h: Tensor) -> Tensor:
    scale = h.abs().max() / 127
    return (h / scale).round() * scale


def floats(*shape: int) -> Callable[[], Tensor]:
    return lambda: torch.randn(*shape)


@dataclass(frozen=True)
class Coupled:
    name: str
    model: Callable[[], Any]
    inputs: Callable[[], Any]
    place: str
    sizes: tuple[int, ...] = (1,)


BETWEEN = "in forward of '' between 'fc1' and 'fc2'"


def sequence(layer: nn.Module, width: int = 7) -> nn.Module:
    return nn.Sequential(nn.Linear(10, width), layer, nn.Linear(width, 3))


COUPLED = [
    Coupled("batch norm", lambda: sequence(nn.BatchNorm1d(7)), floats(6, 10),
            "in '1' (BatchNorm1d)", (2,)),
    Coupled("batch norm, alone refused", lambda: sequence(nn.BatchNorm1d(7)),
            floats(6, 10), "in '1' (BatchNorm1d)"),
    Coupled("mean", lambda: Between(mean_between), floats(6, 10), BETWEEN),
    Coupled("softmax over samples", lambda: sequence(nn.Softmax(0)), floats(6, 10),
            "in '1' (Softmax)"),
    Coupled("roll", lambda: Between(lambda h: h + h.roll(1, 0)), floats(6, 10),
            BETWEEN),
    Coupled("shuffled", lambda: Between(lambda h: h.flip(0)), floats(6, 10), BETWEEN),
    Coupled("after a sort that is undone",
            lambda: nn.Sequential(Sorted(), nn.BatchNorm1d(6)), floats(7, 10),
            "in '1' (BatchNorm1d)", (2, 3)),
    Coupled("after experts", lambda: nn.Sequential(Experts(), nn.Softmax(0)),
            floats(9, 10), "in '1' (Softmax)"),
    Coupled("mask ignored", IgnoresMask, padded_batch,
            "in 'attend' (MultiheadAttention)"),
    Coupled("padding of the left", IgnoresMask, lambda: flipped(padded_batch()),
            "in 'attend' (MultiheadAttention)"),
    Coupled("mean over padding", lambda: IgnoresMask(pooled=True), padded_batch,
            "in forward of '' between 'embed' and 'head'"),
    Coupled("largest as scale", lambda: Between(lambda h: h / h.abs().max()),
            floats(6, 10), BETWEEN),
    Coupled("padding attended", lambda: Padded(masked=False).eval(), padded_batch,
            "in 'attend' (MultiheadAttention)"),
    Coupled("sorted", lambda: Between(lambda h: h.sort(0).values), floats(6, 10),
            BETWEEN),
    Coupled("quantised", lambda: Between(quantise), floats(6, 10), BETWEEN),
    Coupled("layer norm of the wrong axis",
            lambda: sequence(Apply(lambda h: F.layer_norm(h.T, h.shape[:1]).T)),
            floats(6, 10), "in '1' (Apply)"),
    Coupled("time-first GRU", lambda: First(nn.GRU(10, 4)), floats(6, 5, 10),
            "in 'layer' (GRU)"),
    Coupled("time-first attention",
            lambda: nn.Sequential(nn.TransformerEncoderLayer(10, 2, 12, 0.0)),
            floats(6, 5, 10), "in '0.self_attn' (MultiheadAttention)"),
    Coupled("instance norm as batch norm",
            lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU()),
            floats(4, 2, 6, 5), "in '1' (BatchNorm2d)"),
    Coupled("at the end", lambda: nn.Sequential(nn.Linear(10, 4),
            Apply(lambda h: h @ h.T @ h)), floats(6, 10), "in '1' (Apply)"),
    Coupled("detached", lambda: Between(lambda h: h - h.mean(0).detach()),
            floats(6, 10), BETWEEN),
]  # fmt: skip


@pytest.mark.parametrize("case", COUPLED, ids=lambda case: case.name)
def test_coupling_is_named(case: Coupled) -> None:
    report = batch_consistency(case.model(), case.inputs(), batch_sizes=case.sizes)
    assert report.verdict == "coupled"
    assert not report
    assert report.coupled is not None
    assert report.coupled.startswith(case.place)
    (source, *_) = [row for row in report.rows if row.is_source]
    assert source.verdict == "coupled"


def test_what_comes_before_the_coupling_is_not_coupled() -> None:
    report = batch_consistency(sequence(nn.BatchNorm1d(7)), torch.randn(6, 10),
                               batch_sizes=(3,))  # fmt: skip
    verdicts = {row.name: row.verdict for row in report.rows}
    assert verdicts["0"] in ("equal", "rounding")
    assert verdicts["1"] == verdicts["2"] == verdicts[""] == "coupled"
    assert {row.name: row.moved > 0 for row in report.rows} == {
        "0": False, "1": True, "2": True, "": True,
    }  # fmt: skip


def test_coupling_through_the_length_of_the_output_is_named() -> None:
    class Cut(nn.Module):
        def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
            return x[:, : int(lengths.max())]

    report = batch_consistency(Cut(), (torch.randn(4, 6), torch.tensor([5, 4, 3, 5])))
    assert report.verdict == "coupled"
    assert "its shape (4, 5) in the batch is" in str(report.rows[-1].note)


# --- honest -----------------------------------------------------------------------


class MaskedPool(nn.Module):
    """Averages over the steps that a mask keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(20, 8), nn.Linear(8, 3)

    def forward(self, ids: Tensor, attention_mask: Tensor) -> Tensor:
        mask = attention_mask[..., None].float()
        return self.head((self.embed(ids) * mask).sum(1) / mask.sum(1))


class Tokens(nn.Module):
    """Flattens samples and steps for a layer, in either order."""

    def __init__(self, *, steps_first: bool) -> None:
        super().__init__()
        self.fc, self.steps_first = nn.Linear(10, 6), steps_first

    def forward(self, x: Tensor) -> Tensor:
        if self.steps_first:
            flat = self.fc(x.transpose(0, 1).reshape(-1, 10))
            return flat.reshape(x.shape[1], len(x), 6).transpose(0, 1)
        return self.fc(x.reshape(-1, 10)).reshape(len(x), -1, 6)


def bert() -> nn.Module:
    config = hf.BertConfig(
        vocab_size=53, hidden_size=24, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=36, max_position_embeddings=12,
    )  # fmt: skip
    return hf.BertForMaskedLM(config).eval()


def llama() -> nn.Module:
    config = hf.LlamaConfig(
        vocab_size=53, hidden_size=24, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=36, max_position_embeddings=12,
        use_cache=False,
    )  # fmt: skip
    return hf.LlamaForCausalLM(config).eval()


def tokens() -> dict[str, Tensor]:
    mask = torch.ones(4, 6, dtype=torch.long)
    mask[1, -2:] = 0
    return {"input_ids": torch.randint(1, 53, (4, 6)), "attention_mask": mask}


def mlp(activation: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(10, 33), activation, nn.Linear(33, 3))


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 5, 3), nn.BatchNorm2d(5), nn.ReLU(inplace=True), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(20, 3),
    ).eval()  # fmt: skip


HONEST: list[tuple[str, Callable[[], Any], Callable[[], Any]]] = [
    ("mlp", lambda: mlp(nn.ReLU()), floats(6, 10)),
    ("silu", lambda: mlp(nn.SiLU()), floats(5, 10)),
    ("gelu", lambda: mlp(nn.GELU()), floats(5, 10)),
    ("softplus", lambda: mlp(nn.Softplus()), floats(7, 10)),
    ("cnn", cnn, floats(5, 2, 6, 7)),
    ("group norm", lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4)),
     floats(4, 2, 5, 6)),
    ("transformer", lambda: nn.TransformerEncoderLayer(
        10, 2, 12, batch_first=True).eval(), floats(4, 5, 10)),
    ("transformer without eval", lambda: nn.TransformerEncoderLayer(
        10, 2, 12, 0.0, batch_first=True), floats(4, 5, 10)),
    ("gru", lambda: First(nn.GRU(10, 4, batch_first=True)), floats(4, 5, 10)),
    ("lstm, time first inside", lambda: Apply(_time_first(nn.LSTM(10, 4))),
     floats(4, 5, 10)),
    ("embedding bag", lambda: nn.Sequential(nn.EmbeddingBag(20, 6), nn.Linear(6, 3)),
     lambda: torch.randint(0, 20, (5, 4))),
    ("bfloat16", lambda: mlp(nn.GELU()).bfloat16(),
     lambda: torch.randn(6, 10).bfloat16()),
    ("bfloat16 conv", lambda: cnn().bfloat16(),
     lambda: torch.randn(5, 2, 6, 7).bfloat16()),
    ("float16 inside", Half, floats(6, 10)),
    ("float32 inside", lambda: Apply(
        lambda x: F.linear(x.float(), torch.eye(64).roll(3, 0) + 0.1).sin()),
     floats(6, 64)),
    ("float16 inside float64", lambda: Half().double(),
     lambda: torch.randn(6, 10, dtype=torch.float64)),
    ("padded, masked", lambda: Padded(masked=True).eval(), padded_batch),
    ("sorted and put back", Sorted, floats(6, 10)),
    ("experts", Experts, floats(9, 10)),
    ("tokens", lambda: Tokens(steps_first=False), floats(4, 5, 10)),
    ("tokens, steps first", lambda: Tokens(steps_first=True), floats(4, 5, 10)),
    ("bert", bert, tokens),
    ("llama, padded on the left", llama, lambda: flipped(tokens())),
    ("masked, padded on the left", lambda: MaskedPool(), lambda: flipped(
        padded_batch())),
    ("llama", llama, tokens),
    ("squeezed", lambda: nn.Sequential(nn.Linear(10, 1), Apply(Tensor.squeeze)),
     floats(4, 10)),
    ("constant", lambda: Apply(lambda x: torch.zeros(len(x), 2)), floats(4, 10)),
    ("float64", lambda: mlp(nn.SiLU()).double(),
     lambda: torch.randn(6, 10, dtype=torch.float64)),
    ("deep", lambda: nn.Sequential(*(m for _ in range(30)
                                     for m in (nn.Linear(10, 10), nn.LayerNorm(10)))),
     floats(6, 10)),
    ("a function", lambda: torch.special.expit, floats(6, 10)),
    ("huge and tiny", lambda: mlp(nn.ReLU()),
     lambda: torch.randn(6, 10) * torch.logspace(-30, 30, 6)[:, None]),
]  # fmt: skip


def _time_first(layer: nn.LSTM) -> Callable[[Tensor], Tensor]:
    return lambda x: layer(x.transpose(0, 1))[0].transpose(0, 1)


@pytest.mark.parametrize(
    ("build", "draw"), [c[1:] for c in HONEST], ids=[c[0] for c in HONEST]
)
def test_honest_models_are_never_coupled(
    build: Callable[[], Any], draw: Callable[[], Any]
) -> None:
    report = batch_consistency(build(), draw(), batch_sizes=(1, 2, 3))
    assert report.verdict in ("equal", "rounding"), str(report)
    assert report.coupled is None
    assert {row.verdict for row in report.rows} <= {"equal", "rounding", "skipped"}


def test_under_autocast() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        report = batch_consistency(mlp(nn.GELU()), torch.randn(6, 10))
        other = batch_consistency(Between(mean_between), torch.randn(6, 10))
    assert report.verdict in ("equal", "rounding")
    assert report.dtype == "bfloat16"
    assert other.coupled == BETWEEN


def test_a_function_and_the_modules_it_refers_to() -> None:
    layer = nn.Linear(10, 4)

    def coupled(x: Tensor) -> Tensor:
        return layer(x) - layer(x).mean(0)

    report = batch_consistency(coupled, torch.randn(6, 10))
    assert report.model == "coupled"
    assert report.coupled == "in forward of '' after 'Linear'"
    assert [(r.name, r.call) for r in report.rows] == [
        ("Linear", 0), ("Linear", 1), ("", 0),
    ]  # fmt: skip


def test_a_model_that_differentiates_inside() -> None:
    def force(x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        return torch.autograd.grad((x**3).sum(), x)[0]

    assert batch_consistency(Apply(force), torch.randn(4, 5)).verdict == "equal"


def test_what_moves_a_row_is_said() -> None:
    by_number = batch_consistency(Apply(lambda x: x / len(x)), torch.randn(4, 3))
    assert by_number.rows[0].moved == 0
    assert "other values in the same places move nothing" in by_number.evidence
    by_value = batch_consistency(Apply(lambda x: x / x.sum()), torch.randn(4, 3))
    assert by_value.rows[0].moved > 0
    assert "other samples move a row" in by_value.evidence


def test_hooks_of_the_caller_run_and_stay() -> None:
    model, seen = nn.Sequential(nn.Linear(10, 4)), []
    model[0].register_forward_hook(lambda m, a, y: seen.append(1) or y - y.mean(0))
    x = torch.randn(4, 10)
    before = Footprint(model)
    report = batch_consistency(model, x)
    before.assert_unchanged()
    assert seen
    # What a hook makes of an output is not the module's own.
    assert report.verdict == "coupled"


def test_float64_that_amplifies_is_told_by_float32() -> None:
    model = nn.Sequential(nn.Linear(64, 64), Apply(lambda h: (1e6 * h).sin())).double()
    report = batch_consistency(model, torch.randn(6, 64, dtype=torch.float64))
    assert report.verdict == "rounding"
    assert report.rows[-1].of_max > 1e-11


def test_a_cast_inside_is_seen() -> None:
    x = torch.randn(6, 10, dtype=torch.float64)
    assert batch_consistency(Half().double(), x).dtype in ("float16", "float64")
    weight = torch.randn(64, 64)
    model = Apply(lambda x: F.linear(x.float(), weight).double())
    report = batch_consistency(model, torch.randn(6, 64, dtype=torch.float64))
    assert (report.verdict, report.dtype) == ("rounding", "float32")


def test_numpy_in_low_precision_is_not_taken_for_coupling() -> None:
    weight = torch.randn(64, 64).numpy()

    def product(h: Tensor) -> Tensor:
        return torch.from_numpy(h.detach().numpy().astype("float32") @ weight)

    report = batch_consistency(nn.Sequential(Apply(product)), torch.randn(6, 64))
    assert report.verdict in ("equal", "rounding", "unresolved")
    if report.rows[0].differing:
        assert "not in float64 throughout: a tensor of float32" in report.notes


def test_coupling_that_reaches_no_output_is_not_the_models() -> None:
    class Aside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.fc = nn.BatchNorm1d(10), nn.Linear(10, 3)

        def forward(self, x: Tensor) -> Tensor:
            self.norm(x)
            return self.fc(x)

    report = batch_consistency(Aside(), torch.randn(6, 10), batch_sizes=(2,))
    assert bool(report)
    assert report.coupled is None
    assert report.rows[0].note == "what couples it reaches no output"
    assert report.rows[0].verdict == "skipped"


# --- what is compared -------------------------------------------------------------


def test_rows_are_told_by_the_axis_that_changes() -> None:
    report = batch_consistency(
        nn.Sequential(Apply(lambda x: x.transpose(0, 1)),
                      Apply(lambda h: h.transpose(0, 1))),
        torch.randn(4, 4, 3),
    )  # fmt: skip
    assert [row.verdict for row in report.rows] == ["equal"] * 3
    assert report.rows[0].shapes == ((4, 4, 3),)


def test_submodules_without_samples_are_skipped_by_name() -> None:
    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(5, 10)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.table(torch.arange(5))

    report = batch_consistency(Positions(), torch.randn(4, 5, 10))
    assert [(r.name, r.verdict) for r in report.rows] == [
        ("table", "skipped"), ("", "equal"),
    ]  # fmt: skip
    assert report.rows[0].note == "no axis follows the number of samples"


def test_a_module_called_twice_has_a_row_for_each_call() -> None:
    layer = nn.Linear(10, 10)
    report = batch_consistency(nn.Sequential(layer, nn.ReLU(), layer),
                               torch.randn(4, 10))  # fmt: skip
    assert [(r.name, r.call) for r in report.rows] == [
        ("0", 0), ("1", 0), ("0", 1), ("", 0),
    ]  # fmt: skip


def test_nested_outputs_and_dataclasses_are_opened() -> None:
    @dataclass
    class Found:
        a: Tensor
        b: dict[str, Any]
        kind: str = "x"

    def forward(x: Tensor) -> tuple[Any, ...]:
        return Found(x * 2, {"c": [x.sum(1), None]}), x.argmax(1)

    report = batch_consistency(nn.Sequential(Apply(forward)), torch.randn(4, 10))
    assert report.rows[0].shapes == ((4, 10), (4,), (4,))
    assert report.rows[0].entries == 48
    assert report.verdict == "equal"


def test_one_coupled_output_of_several_is_enough() -> None:
    model = Apply(lambda x: {"a": x, "b": x * 2, "c": x.cumsum(0)})
    assert batch_consistency(model, torch.randn(4, 3)).verdict == "coupled"


def test_shared_inputs_are_not_cut() -> None:
    model = Apply(lambda x, scale: x * scale)
    x = torch.randn(4, 4)
    assert batch_consistency(model, (x, gk.shared(torch.ones(4)))).verdict == "equal"
    mixes = Apply(lambda x, scale: scale @ x)
    report = batch_consistency(mixes, [x, x])
    assert report.verdict == "coupled"


def test_a_batch_of_one_is_repeated() -> None:
    report = batch_consistency(Between(mean_between), torch.randn(1, 10))
    assert report.samples == 2
    assert report.verdict == "coupled"
    assert report.notes == ("a batch of one: [x, x] is compared with x alone",)
    assert batch_consistency(nn.Linear(10, 10), torch.randn(1, 10))


def test_in_place_changes_do_not_hide_where_it_begins() -> None:
    model = nn.Sequential(nn.Linear(10, 7), Apply(lambda h: h.sub_(h.mean(0))))
    report = batch_consistency(model, torch.randn(6, 10))
    assert report.coupled == "in '1' (Apply)"


# --- derivatives ------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "function",
    [gk.input_gradients, gk.jacobian, gk.per_sample_gradients, gk.parameter_jacobian],
)
def test_rows_of_derivatives(function: Any, dtype: torch.dtype) -> None:
    model, x = mlp(nn.GELU()).to(dtype), torch.randn(5, 10, dtype=dtype)
    labels = torch.tensor([0, 2, 1, 1, 0])
    takes = function in (gk.input_gradients, gk.per_sample_gradients)
    loss = gk.objectives.sample_loss(F.cross_entropy, labels) if takes else None
    report = batch_consistency(
        model, x, derivative=function, objective=loss, batch_sizes=(1, 2)
    )
    assert report.verdict in ("equal", "rounding")
    assert report.derivative == function.__name__
    by_parameters = "param" in function.__name__ or "per_" in function.__name__
    names = (
        ["0.weight", "0.bias", "2.weight", "2.bias"] if by_parameters else ["inputs"]
    )
    assert [r.name for r in report.derivative_rows] == names * 2
    rows = 1 if takes else 3
    assert report.derivative_rows[0].entries == 5 * rows * (
        330 if by_parameters else 10
    )


def test_the_objective_is_called_once_on_the_whole_batch() -> None:
    seen: list[int] = []

    def objective(outputs: Tensor) -> Tensor:
        seen.append(len(outputs))
        return outputs.sum(1)

    batch_consistency(mlp(nn.ReLU()), torch.randn(5, 10), objective=objective,
                      derivative="per_sample_gradients")  # fmt: skip
    assert seen == [5]


def test_a_coupled_objective_is_refused() -> None:
    with pytest.raises(SampleDependenceError, match="batch_consistency: "):
        batch_consistency(nn.Linear(3, 2), torch.randn(4, 3),
                          derivative="input_gradients",
                          objective=lambda y: y.sum(1) / y.sum())  # fmt: skip


def test_no_derivative_of_a_coupled_model() -> None:
    report = batch_consistency(Between(mean_between), torch.randn(4, 10),
                               derivative="jacobian")  # fmt: skip
    assert report.derivative_rows == ()
    assert report.verdict == "coupled"


# --- the report -------------------------------------------------------------------


def report_of_both() -> BatchConsistencyReport:
    return batch_consistency(mlp(nn.GELU()), torch.randn(5, 10), derivative="jacobian",
                             batch_sizes=(1, 2))  # fmt: skip


def test_the_report_prints_an_aligned_table() -> None:
    lines = str(report_of_both()).splitlines()
    assert lines[0].startswith("batch_consistency of Sequential: ")
    table = lines[lines.index("") + 1 :]
    assert table[0].split()[:4] == ["batch", "submodule", "type", "shape"]
    column = table[0].index("verdict")
    assert all(line[column - 2 : column] == "  " for line in table[:8])
    assert any("(model)" in line for line in table)


def test_the_report_as_plain_values_and_pages() -> None:
    report = report_of_both()
    found = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert found["verdict"] == report.verdict
    assert len(found["rows"]) == len(report.rows) == 8
    assert found["rows"][0]["shapes"] == [[5, 33]]
    markdown = report.to_markdown()
    assert markdown.count("| :-- | --: |") == 2
    assert "<table>" in report._repr_html_()
    assert repr(report) == str(report)


# --- no trace, refusals -----------------------------------------------------------


def test_nothing_is_left_behind() -> None:
    model = nn.Sequential(nn.Linear(10, 7), nn.BatchNorm1d(7), nn.ReLU(inplace=True))
    x = torch.randn(6, 10, requires_grad=True)
    model(x).sum().backward()
    before = Footprint(model, tensors={"x": x})
    batch_consistency(model, x, batch_sizes=(1, 2))
    before.assert_unchanged()
    model.eval()
    before = Footprint(model, tensors={"x": x})
    batch_consistency(model, x, derivative="jacobian")
    before.assert_unchanged()


def test_an_error_in_forward_is_the_models_own_and_leaves_nothing() -> None:
    def fails(h: Tensor) -> Tensor:
        raise ZeroDivisionError("mine")

    model, x = Between(fails), torch.randn(6, 10)
    before = Footprint(model, tensors={"x": x})
    with pytest.raises(ZeroDivisionError, match="mine"):
        batch_consistency(model, x)
    before.assert_unchanged()


def test_a_caught_error_inside_does_not_confuse_the_order() -> None:
    def fails(h: Tensor) -> Tensor:
        raise ZeroDivisionError

    class Tries(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bad = nn.Sequential(nn.Linear(10, 10), Apply(fails))
            self.good = nn.Linear(10, 3)

        def forward(self, x: Tensor) -> Tensor:
            with contextlib.suppress(ZeroDivisionError):
                x = self.bad(x)
            return self.good(x - x.mean(0))

    report = batch_consistency(nn.Sequential(Tries()), torch.randn(6, 10))
    assert report.verdict == "coupled"
    assert report.coupled is not None
    assert report.coupled == "in forward of '0' between '0.bad' and '0.good'"


def test_parts_that_the_model_refuses_are_noted() -> None:
    report = batch_consistency(sequence(nn.BatchNorm1d(7)), torch.randn(6, 10))
    assert report.slices[1] == (0, 6)
    assert any("refuses a batch of 1 (ValueError" in note for note in report.notes)


def test_what_cannot_be_told_is_unresolved() -> None:
    class Refuses(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(64, 64)

        def forward(self, x: Tensor) -> Tensor:
            if x.dtype != torch.float32:
                raise TypeError("float32 alone")
            return self.fc(x)

    report = batch_consistency(Refuses(), torch.randn(8, 64))
    assert report.verdict == "unresolved"
    assert bool(report)
    assert any("float32 alone" in note for note in report.notes)


def test_under_no_grad_and_inference_mode() -> None:
    model, x = Between(mean_between), torch.randn(4, 10)
    for mode in (torch.no_grad(), torch.inference_mode()):
        with mode:
            assert not batch_consistency(model, x.clone())


REFUSED: list[tuple[str, Callable[[], Any], str]] = [
    ("draws", lambda: batch_consistency(nn.Dropout(), torch.randn(4, 3)),
     "model must not draw random numbers"),
    ("no samples", lambda: batch_consistency(nn.Linear(3, 2), torch.randn(0, 3)),
     "inputs must hold a sample"),
    ("size 0", lambda: batch_consistency(nn.Linear(3, 2), torch.randn(4, 3),
                                         batch_sizes=(0,)), "batch_sizes must be"),
    ("size N", lambda: batch_consistency(nn.Linear(3, 2), torch.randn(4, 3),
                                         batch_sizes=(4,)), "from 1 to N - 1 = 3"),
    ("no size", lambda: batch_consistency(nn.Linear(3, 2), torch.randn(4, 3),
                                          batch_sizes=()), "batch_sizes must be"),
    ("derivative", lambda: batch_consistency(nn.Linear(3, 2), torch.randn(4, 3),
                                             derivative="hessian"),
     "derivative must be one of input_gradients"),
    ("objective alone", lambda: batch_consistency(nn.Linear(3, 2), torch.randn(4, 3),
                                                  objective=lambda y: y.sum(1)),
     "objective must come with derivative="),
    ("a mean", lambda: batch_consistency(Apply(lambda x: x.mean()), torch.randn(4, 3)),
     "model must return its samples in rows"),
    ("no tensor", lambda: batch_consistency(Apply(lambda x: 1), torch.randn(4, 3)),
     "model must return a tensor"),
    ("two counts", lambda: batch_consistency(Apply(torch.add),
                                             (torch.randn(4, 3), torch.randn(2, 3))),
     "the same number of samples first"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("call", "text"), [c[1:] for c in REFUSED], ids=[c[0] for c in REFUSED]
)
def test_refusals_name_the_argument(call: Callable[[], Any], text: str) -> None:
    with pytest.raises(InputError, match="batch_consistency: ") as caught:
        call()
    assert text in str(caught.value)
    assert caught.value.argument


# --- the parts --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("whole", "part", "found"),
    [
        ((4, 3), (1, 3), [Layout(0)]),
        ((3, 4), (3, 1), [Layout(1)]),
        ((4, 4), (1, 4), [Layout(0)]),
        ((20, 3), (5, 3), [Layout(0, 5), Layout(0, 5, False)]),
        ((4,), (), [Layout(None)]),
        ((3, 3), (3, 3), "no axis follows the number of samples"),
        ((4, 5), (1, 3), [Layout(0)]),
        ((6, 4), (3, 1), [Layout(1)]),
        ((8, 4), (2, 1), [Layout(0, 2), Layout(0, 2, False), Layout(1)]),
        (
            (7, 3),
            (2, 3),
            "its shape (7, 3) in the batch is (2, 3) for 1 of the 4 samples",
        ),
    ],
)
def test_layouts(whole: Any, part: Any, found: Any) -> None:
    assert layouts(torch.Size(whole), torch.Size(part), 4, 1) == found


def difference(gap: float, size: float = 1.0, whole: int = 0) -> Difference:
    differing = whole + (gap > 0)
    return Difference(entries=9, differing=differing, gap=gap, size=size, whole=whole)


@pytest.mark.parametrize(
    ("given", "fine", "options", "word"),
    [
        (0.0, 0.0, {}, "equal"),
        (1e-7, 1e-16, {}, "rounding"),
        (1e-7, 0.0, {}, "rounding"),
        (1e-3, 1e-12, {}, "rounding"),
        (1e-7, 1e-8, {}, "coupled"),
        (1e-1, 1e-1, {}, "coupled"),
        (1e-1, float("inf"), {}, "coupled"),
        (float("inf"), 1e-16, {}, "rounding"),
        (1e-1, 1e-1, {"sound": False}, "unresolved"),
        (1e-1, 1e-1, {"sound": False, "same_shape": True}, "coupled"),
        (1e-1, 1e-16, {"spread": 2.0}, "branch"),
        (1e-1, 1e-12, {"spread": 1e5}, "rounding"),
    ],
)
def test_verdicts(given: float, fine: float, options: Any, word: str) -> None:
    found = difference(given)
    assert judged(found, difference(fine), found, U32, **options) == word


def test_the_limit_is_a_geometric_mean() -> None:
    # Of 2**-9 to 2**-53 it is 2**-22 of the coarse difference.
    given = difference(1e-2)
    assert not stays(difference(1e-2 * 2**-22.5), given, 2.0**-9)
    assert stays(difference(1e-2 * 2**-21.5), given, 2.0**-9)
    # A coarse run that is bit-equal could have rounded once.
    none = difference(0.0)
    assert not stays(difference(2.0**-39), none, U32)
    assert stays(difference(2.0**-38), none, U32)


def test_whole_numbers_are_judged_by_whether_float64_decides_alike() -> None:
    given = difference(0.0, whole=1)
    same, other = difference(0.0), difference(0.0, whole=1)
    assert judged(given, same, given, U32) == "branch"
    assert judged(given, other, given, U32) == "unresolved"
    assert judged(given, other, given, U32, same_shape=True) == "coupled"


def test_differences_of_odd_values() -> None:
    found = Difference()
    nan, inf = float("nan"), float("inf")
    found.add(torch.tensor([nan, inf, 0.0, 1.0]), torch.tensor([nan, inf, -0.0, 1.0]))
    assert (found.entries, found.differing, found.size) == (4, 0, 1.0)
    found.add(torch.tensor([nan, 1.0]), torch.tensor([1.0, 1.5]))
    assert (found.differing, found.gap, found.relative) == (1, inf, inf) or (
        found.differing == 2 and found.gap == inf
    )
