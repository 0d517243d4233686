"""Token ids with what stands beside them: masks as inputs, and masks closed over."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradkit import saliency
from gradkit.errors import InputError
from refused import refusal

IDS = torch.tensor([[4, 6, 1, 2, 0], [2, 2, 5, 0, 3], [1, 3, 3, 6, 6]])
MASK = torch.tensor([[1.0, 1, 1, 0, 0], [1, 1, 1, 1, 1], [1, 0, 1, 0, 1]])


class Text(nn.Module):
    """Scores of three classes, from the masked mean of embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.out = nn.Embedding(7, 4), nn.Linear(4, 3)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        hidden = self.embedding(ids).tanh() * mask[..., None]
        return self.out(hidden.sum(1) / mask.sum(1, keepdim=True))


class Closed(nn.Module):
    """The same, with the mask of one batch inside: it runs at no other size."""

    def __init__(self, text: Text, mask: Tensor) -> None:
        super().__init__()
        self.text, self.mask = text, mask

    def forward(self, ids: Tensor) -> Tensor:
        return self.text(ids, self.mask)


@pytest.fixture
def text() -> Text:
    torch.manual_seed(3)
    return Text().double()


BESIDE = "inputs[0] holds integers and inputs[1] may be their mask"
NAMED = "an embedding by its name, wrt='embedding', or an entry of inputs (0, 1)"
GRADIENTS: list[tuple[str, dict[str, Any]]] = [
    ("gradient", {}),
    ("gradient_times_input", {}),
    ("guided_backprop", {}),
    ("integrated_gradients", {}),
    ("expected_gradients", {"baselines": (IDS, MASK)}),
    ("smoothgrad", {}),
]


@pytest.mark.parametrize(("name", "options"), GRADIENTS)
def test_a_mask_is_not_explained_unasked(name, options, text):
    method = saliency.METHODS[name]
    given = (IDS, MASK.double())
    wanted = f"{name}: wrt must say what the map is over, since {BESIDE}"
    assert refusal(InputError, lambda: method(text, given, 0, **options)) == (
        f"{wanted}: {NAMED}"
    )


@pytest.mark.parametrize(
    "given",
    [
        (torch.rand(2, 3, 4), torch.ones(2, 3, dtype=torch.long)),  # words' and a mask
        (torch.ones(2, 3, 4), torch.tensor([2, 5])),  # an image, and its time
    ],
)
def test_what_is_no_mask_is_explained(given):
    found, none = saliency.gradient(
        lambda x, kept: x.sum(2).mul(kept.reshape(len(x), -1)).sum(1),
        given,
        None,
    )
    assert none is None
    assert torch.equal(found, given[1].reshape(2, -1, 1).expand(2, 3, 4).float())
    assert saliency.occlusion(
        lambda x, kept: x.sum((1, 2)), given, None, window=(1, 1)
    ).shape == (2, 3, 4)


def test_a_mask_is_explained_if_asked_for(text):
    mask = MASK.double()
    found = saliency.gradient(text, (IDS, mask), 1, wrt=1)
    moved = mask.clone().requires_grad_()
    (wanted,) = torch.autograd.grad(text(IDS, moved)[:, 1].sum(), moved)
    torch.testing.assert_close(found, wanted)


def test_a_mask_is_not_covered_or_made_noisy_unasked(text):
    given = (IDS, MASK.double())
    asks = [
        lambda: saliency.occlusion(text, given, 0, window=1),
        lambda: saliency.deletion_curve(MASK, text, given, 0),
        lambda: saliency.insertion_curve(MASK, text, given, 0),
    ]
    for ask in asks:
        assert (
            "inputs must hold one tensor to change; got inputs[0] (3, 5), inputs[1]"
            " (3, 5). Give a baseline for it alone, in the form of the inputs:"
            " (0, None), or {'name': 0}"
        ) in refusal(InputError, ask)
    settings = {"wrt": "embedding"}
    assert refusal(
        InputError,
        lambda: saliency.sensitivity("gradient", text, given, 0, settings=settings),
    ) == (
        f"sensitivity: noise must name what gets it, since {BESIDE}: give"
        " a tuple or mapping like the inputs, such as (None, 0.02), or {'x': 0.02}"
    )


def test_named_noise_falls_on_what_is_named_alone():
    torch.manual_seed(4)
    first, second = torch.rand(3, 4).double(), torch.rand(3, 2).double()

    def model(a: Tensor, b: Tensor) -> Tensor:
        return (a**2).sum(1) + (b**3).sum(1)

    def moves(noise: Any, wrt: int) -> Tensor:
        return saliency.sensitivity(
            "gradient", model, (first, second), None, noise=noise, settings={"wrt": wrt}
        )

    assert (moves((0.1, None), 0) > 0).all()
    assert (moves((0.1, None), 1) == 0).all()
    assert (moves((None, 0.1), 0) == 0).all()
    assert (moves((None, 0.1), 1) > 0).all()
    # 2 a moves by 2 da: the share is |da| / |a|, of at most a tenth of the range.
    most = 0.1 * (first.amax(1) - first.amin(1)) * 2 / first.norm(dim=1)
    assert (moves((0.1, None), 0) <= most).all()
    assert refusal(InputError, lambda: moves((0.1, None, 0.1), 0)) == (
        "sensitivity: noise[2] must be the place of one floating tensor in the inputs;"
        " those are at [0], [1]"
    )


@pytest.mark.parametrize(
    ("name", "options"),
    [g for g in GRADIENTS if g[0] not in ("expected_gradients", "guided_backprop")]
    + [("smoothgrad", {"statistic": "variance"})],
)
def test_a_mask_closed_over_gives_the_map_of_one_given(name, options, text):
    mask = MASK.double()
    method = saliency.METHODS[name]
    wanted = method(text, (IDS, mask), 2, wrt="embedding", **options)
    closed = Closed(text, mask)
    for _ in range(3):  # proofs are renewed in some calls alone
        found = method(closed, IDS, 2, wrt="text.embedding", **options)
        torch.testing.assert_close(found, wanted, atol=1e-12, rtol=0)


def test_words_are_covered_beside_a_mask_closed_over(text):
    mask = MASK.double()
    wanted = saliency.occlusion(text, (IDS, mask), 1, window=2, baseline=(0, None))
    closed = Closed(text, mask)
    found = saliency.occlusion(closed, IDS, 1, window=2)
    torch.testing.assert_close(found, wanted, atol=1e-12, rtol=0)


def test_a_budget_for_one_sample_does_not_do_for_a_batch_that_cannot_be_cut(text):
    closed = Closed(text, MASK.double())

    def ask(budget: int) -> Tensor:
        return saliency.smoothgrad(
            closed, IDS, 0, wrt="text.embedding", max_memory=budget
        )

    with pytest.raises(InputError, match=(
        r"max_memory must hold the model's run on all 3 samples, since it runs at no"
        r" other number of them; got 2,000 bytes, and it needs [\d,]+"
    )) as refused:  # fmt: skip
        ask(2000)
    assert ask(refused.value.facts["needed"]).shape == (3, 5, 4)


@pytest.mark.parametrize(
    "count",
    [
        lambda outputs: (outputs > 0).sum(1),
        lambda outputs: (outputs > 0).sum(1).to(torch.uint8),
        lambda outputs: outputs.argmax(1) == outputs.sum(1).gt(0).long(),
    ],
)
def test_counts_are_followed(count):
    torch.manual_seed(5)
    model, x = nn.Linear(4, 6), torch.randn(9, 4)
    found = saliency.occlusion(model, x, count, window=1)
    covered = x.repeat(4, 1, 1)
    for entry in range(4):
        covered[entry, :, entry] = 0
    wanted = torch.stack([count(model(x)).float() - count(model(c)).float()
                          for c in covered], 1)  # fmt: skip
    assert found.dtype == torch.float32
    assert found.abs().sum() > 0
    assert torch.equal(found, wanted)
    curve = saliency.deletion_curve(found, model, x, count, steps=4)
    assert torch.equal(curve.values[:, 0], count(model(x)).float())
    with pytest.raises(InputError, match="objective must"):
        saliency.gradient(model, x, count)


class Conv1D(nn.Module):
    """As GPT-2 has it: a linear layer of the last axis."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


class Sequence(nn.Module):
    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.embedding, self.out = nn.Embedding(7, 4), nn.Linear(4, 2)
        self.block = block

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.block(self.embedding(ids)).mean(1))


@pytest.mark.parametrize(
    ("block", "last"),
    [
        (nn.Identity(), "Embedding"),
        (nn.Linear(4, 4), "Linear"),
        (nn.Sequential(nn.Linear(4, 4), nn.ReLU(), Conv1D()), "Conv1D"),
        (nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True), ""),
    ],
)
def test_positions_are_not_taken_for_channels(block, last):
    model = Sequence(block)
    wrt = "embedding" if last == "Embedding" else "block"
    text = refusal(InputError, lambda: saliency.grad_cam(model, IDS, 0, wrt=wrt))
    assert text.startswith(
        f"grad_cam: wrt='{wrt}' must return (N, C, *space); it returned (3, 5, 4),"
        f" which {last}"
    )
    assert text.endswith(
        "makes with the features last. For one number per position take"
        " channel_sum(gradient_times_input(model, inputs, objective,"
        f" wrt='{wrt}'), axis=-1)"
    )


def test_maps_of_convolutions_are_weighted_whatever_else_is_in_them():
    torch.manual_seed(6)
    block = nn.Sequential(nn.Conv1d(2, 4, 3), nn.LayerNorm(7))
    model = nn.Sequential(block, nn.ReLU(), nn.Flatten(), nn.Linear(28, 2))
    assert saliency.grad_cam(model, torch.rand(3, 2, 9), 0, wrt="0").shape == (3, 1, 7)


def test_baselines_that_are_run_need_a_mask_of_their_own(text):
    given = (IDS, MASK.double())
    zeros = torch.zeros(2, 5, dtype=torch.long)
    assert refusal(
        InputError,
        lambda: saliency.expected_gradients(
            text, given, 0, baselines=(zeros, None), wrt="embedding"
        ),
    ) == (
        "expected_gradients: baselines[1] must be given: the baselines are run through"
        " the model up to wrt, and need samples (M, ...) for inputs[1] too, such as a"
        " mask of ones"
    )
    found = saliency.expected_gradients(
        text, given, 0, baselines=(zeros, torch.ones(2, 5).double()), wrt="embedding"
    )
    assert found.shape == (3, 5, 4)


def test_other_libraries_names_are_answered_with_the_names_here():
    model, x = nn.Linear(4, 2), torch.rand(3, 4)
    asks: list[tuple[str, str, str]] = [
        ("gradient", "target", "pass objective=3"),
        ("integrated_gradients", "n_steps", "here it is 'steps'"),
        ("integrated_gradients", "baselines", "here it is 'baseline'"),
        ("expected_gradients", "baseline", "here it is 'baselines'"),
        ("smoothgrad", "nt_samples", "here it is 'draws'"),
        ("occlusion", "sliding_window_shapes", "here it is 'window'"),
        ("grad_cam", "layer", "here it is 'wrt'"),
        ("gradient", "max_memori", "here it is 'max_memory'"),
    ]
    for name, theirs, ours in asks:
        with pytest.raises(TypeError) as refused:
            saliency.METHODS[name](model, x, 0, **{theirs: 1})
        assert str(refused.value).startswith(
            f"{name}() got an unexpected keyword argument {theirs!r}; {ours}"
        )
    with pytest.raises(TypeError, match=r"gradient\(\) got an .* argument 'xyz'$"):
        saliency.gradient(model, x, 0, xyz=1)  # pyright: ignore


def test_the_way_out_is_said():
    image = torch.rand(2, 1, 8, 8)
    flat = nn.Sequential(nn.Flatten(), nn.Linear(64, 2))
    assert "such as window=(1, 4, 4); got 4" in refusal(
        InputError, lambda: saliency.occlusion(flat, image, 0, window=4)
    )
    stacked = torch.rand(3, 2, 1, 8, 8)
    assert refusal(
        InputError,
        lambda: saliency.completeness_gap(image, flat, image, 0, baseline=stacked),
    ) == (
        "completeness_gap: baseline must broadcast to shape (2, 1, 8, 8); got"
        " (3, 2, 1, 8, 8); for several baselines give a list, list(b)"
    )
