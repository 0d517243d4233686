"""Saliency maps and those of captum, on the same models and inputs.

Agreement with a peer is the weakest evidence; what the maps are by definition stands
in ``test_saliency_values.py``. Where the two differ, a test says in what.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import captum.attr as ca
import pytest
import torch
import transformers as hf
from torch import Tensor, nn

import gradkit as gk
from case import DEVICE
from gradkit import saliency

NEAR = 1e-8  # of the largest magnitude
RULES = {rule: rule for rule in ("riemann_left", "riemann_middle", "riemann_right")}
RULES["gauss_legendre"] = "gausslegendre"
PAD, MASK_ID = 0, 1


@pytest.fixture(autouse=True)
def _on_device():
    with torch.device(DEVICE):
        yield


def assert_near(found: Any, expected: Any):
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype == torch.float64
    size = expected.abs().max()
    assert size > 1e-4
    assert (found - expected).abs().max() <= NEAR * size


@contextlib.contextmanager
def in_float64() -> Iterator[None]:
    """Let captum keep nodes, weights and windows in float64, not cast to float32."""
    default = torch.get_default_dtype()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tensor, "float", Tensor.double)
        torch.set_default_dtype(torch.float64)
        try:
            yield
        finally:
            torch.set_default_dtype(default)


def theirs(way: Any, x: Tensor, *args: Any, **options: Any) -> Any:
    """Return what captum finds for a copy of the inputs."""
    x = x.clone().requires_grad_() if x.is_floating_point() else x
    with in_float64():
        return way.attribute(x, *args, **options).detach()


class Text(nn.Module):
    """Scores of sequences of ids; a second input marks what is padding."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(11, 6, padding_idx=PAD)
        self.gru = nn.GRU(6, 5, batch_first=True)
        self.attention = nn.Linear(5, 1)
        self.head = nn.Linear(5, 3)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        states = self.gru(self.tokens(ids))[0]
        scores = self.attention(states).squeeze(2).masked_fill(mask == 0, -torch.inf)
        pooled = (scores.softmax(1)[:, :, None] * states).sum(1)
        return self.head(torch.tanh(pooled))


def mlp() -> nn.Module:
    layers = [nn.Linear(7, 9), nn.ReLU(), nn.Linear(9, 8), nn.ReLU(), nn.Linear(8, 4)]
    return nn.Sequential(*layers).double()


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 6, (2, 3)),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(6 * 3 * 3, 5),
    ).double()


def mlp_asked():
    x = torch.randn(5, 7, dtype=torch.float64)
    return mlp(), x, torch.tensor([3, 0, 2, 1, 2])


def cnn_asked():
    x = torch.randn(2, 3, 8, 10, dtype=torch.float64)
    return cnn(), x, torch.tensor([4, 1])


def text_asked():
    ids = torch.randint(2, 11, (4, 7))
    mask = torch.ones(4, 7, dtype=torch.int64)
    for n, length in enumerate((7, 4, 6, 2)):
        ids[n, length:] = PAD
        mask[n, length:] = 0
    return Text().double(), (ids, mask), torch.tensor([2, 0, 1, 2])


def bert_asked():
    config = hf.BertConfig(
        vocab_size=13, hidden_size=8, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=12, max_position_embeddings=9, initializer_range=0.5,
    )  # fmt: skip
    config.num_labels = 3
    model = hf.BertForSequenceClassification(config).double().eval()
    ids = torch.randint(2, 13, (2, 5))
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    ids[1, 3:] = PAD
    return model, {"input_ids": ids, "attention_mask": mask}, torch.tensor([1, 2])


ASKED = {"mlp": mlp_asked, "cnn": cnn_asked}


@pytest.fixture(params=ASKED)
def asked(request):
    return ASKED[request.param]()


def test_gradient(asked):
    model, x, labels = asked
    expected = theirs(ca.Saliency(model), x, labels, abs=False)
    assert_near(saliency.gradient(model, x, labels), expected)
    magnitudes = theirs(ca.Saliency(model), x, labels)
    assert_near(saliency.absolute(saliency.gradient(model, x, labels)), magnitudes)


def test_gradient_times_input(asked):
    model, x, labels = asked
    expected = theirs(ca.InputXGradient(model), x, labels)
    assert_near(saliency.gradient_times_input(model, x, labels), expected)


@pytest.mark.parametrize("steps", [2, 9])
@pytest.mark.parametrize("rule", RULES)
def test_integrated_gradients(asked, rule, steps):
    model, x, labels = asked
    base = torch.randn_like(x[:1])
    expected = theirs(
        ca.IntegratedGradients(model), x, base, labels,
        n_steps=steps, method=RULES[rule],
    )  # fmt: skip
    found = saliency.integrated_gradients(
        model, x, labels, baseline=base, rule=rule, steps=steps
    )
    assert_near(found, expected)


def test_integrated_gradients_from_zero_with_captums_own_weights(asked):
    # A 16th is the same in float32.
    model, x, labels = asked
    x.requires_grad_()
    expected = ca.IntegratedGradients(model).attribute(
        x, target=labels, n_steps=16, method="riemann_middle"
    )
    found = saliency.integrated_gradients(
        model, x, labels, rule="riemann_middle", steps=16
    )
    assert_near(found, expected)


@pytest.mark.parametrize("steps", [2, 5, 16])
def test_weights_of_the_trapezoid_sum_to_one_here_and_not_in_captum(steps):
    layer, x = nn.Linear(7, 4).double(), torch.randn(5, 7, dtype=torch.float64)
    exact = x * layer.weight[2].detach()
    others = theirs(
        ca.IntegratedGradients(layer), x,
        target=2, n_steps=steps, method="riemann_trapezoid",
    )  # fmt: skip
    found = saliency.integrated_gradients(layer, x, 2, rule="trapezoid", steps=steps)
    assert_near(found, exact)
    assert_near(others, exact * (steps - 1) / steps)


@pytest.mark.parametrize("name", ASKED)
@pytest.mark.filterwarnings("ignore:Setting backward hooks on ReLU activations")
def test_guided_backprop(name):
    model, x, labels = ASKED[name]()
    expected = theirs(ca.GuidedBackprop(model), x, labels)
    found = saliency.guided_backprop(model, x, labels)
    assert_near(found, expected)
    plain = saliency.gradient(model, x, labels)
    assert (found - plain).abs().max() > 1e-3 * plain.abs().max()


@pytest.mark.parametrize("layer", ["0", "1", "2", "3", "4"])
def test_grad_cam(layer):
    model, x, labels = cnn_asked()
    peer = ca.LayerGradCam(model, model.get_submodule(layer))
    expected = theirs(peer, x, labels, relu_attributions=False)
    assert_near(saliency.grad_cam(model, x, labels, wrt=layer), expected)


@pytest.mark.parametrize("layer", ["1", "3"])
def test_gradient_times_the_activation_of_a_layer(asked, layer):
    model, x, labels = asked
    peer = ca.LayerGradientXActivation(model, model.get_submodule(layer))
    expected = theirs(peer, x, labels)
    found = saliency.gradient_times_input(model, x, labels, wrt=layer)
    assert_near(found, expected)


@pytest.mark.parametrize(
    ("window", "stride"),
    [
        ((3, 4, 5), (3, 4, 5)),
        ((2, 3, 3), (1, 2, 2)),  # overlap, and the last ones are cut
        ((1, 3, 4), (1, 3, 4)),  # the last ones are cut
        ((3, 3, 7), (3, 2, 3)),
        ((2, 8, 3), (2, 8, 1)),
    ],
)
def test_occlusion_of_images(window, stride):
    model, x, labels = cnn_asked()
    base = torch.randn(3, 1, 1, dtype=torch.float64)
    covers = base.expand(1, 3, 8, 10)
    expected = theirs(ca.Occlusion(model), x, window, stride, covers, labels)
    found = saliency.occlusion(
        model, x, labels, window=window, stride=stride, baseline=base
    )
    assert_near(found, expected)


@pytest.mark.parametrize(("window", "stride"), [(1, 1), (2, 2), (3, 2), (4, 1)])
def test_occlusion_of_features(window, stride):
    model, x, labels = mlp_asked()
    expected = theirs(ca.Occlusion(model), x, (window,), stride, 0.5, labels)
    found = saliency.occlusion(
        model, x, labels, window=window, stride=stride, baseline=0.5
    )
    assert_near(found, expected)


@pytest.mark.parametrize(("window", "stride"), [(1, 1), (2, 2), (3, 1)])
def test_occlusion_of_ids(window, stride):
    text, (ids, _), labels = text_asked()

    def model(ids):
        return text(ids, ids != PAD)

    expected = theirs(ca.Occlusion(model), ids, (window,), stride, MASK_ID, labels)
    found = saliency.occlusion(
        model, ids, labels, window=window, stride=stride, baseline=MASK_ID
    )
    assert_near(found, expected)


@pytest.mark.parametrize("rule", RULES)
def test_integrated_gradients_of_an_embedding_from_padding(rule):
    model, (ids, mask), labels = text_asked()
    blank = torch.full_like(ids, PAD)
    expected = theirs(
        ca.LayerIntegratedGradients(model, model.tokens), ids, blank, labels, (mask,),
        n_steps=9, method=RULES[rule],
    )  # fmt: skip
    found = saliency.integrated_gradients(
        model, (ids, mask), labels,
        wrt="tokens", baseline=(blank, None), rule=rule, steps=9,
    )  # fmt: skip
    assert_near(found, expected)
    assert found[1, 4:].abs().max() == 0


def test_gradient_times_the_output_of_an_embedding():
    model, (ids, mask), labels = text_asked()
    peer = ca.LayerGradientXActivation(model, model.tokens)
    expected = theirs(peer, ids, labels, (mask,))
    found = saliency.gradient_times_input(model, (ids, mask), labels, wrt="tokens")
    assert_near(found, expected)


@pytest.mark.parametrize("wrt", ["bert.embeddings", "bert.embeddings.word_embeddings"])
def test_integrated_gradients_of_a_transformer(wrt):
    model, inputs, labels = bert_asked()
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    blank = torch.full_like(ids, PAD)

    def logits(ids, mask):
        return model(ids, attention_mask=mask).logits

    peer = ca.LayerIntegratedGradients(logits, model.get_submodule(wrt))
    expected = theirs(peer, ids, blank, labels, (mask,), n_steps=8)
    found = saliency.integrated_gradients(
        model, inputs, labels,
        wrt=wrt, of="logits", baseline={"input_ids": blank}, steps=8,
    )  # fmt: skip
    assert_near(found, expected)


def test_gradient_times_the_embeddings_of_a_transformer():
    model, inputs, labels = bert_asked()
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    peer = ca.LayerGradientXActivation(
        lambda ids, mask: model(ids, attention_mask=mask).logits, model.bert.embeddings
    )
    found = saliency.gradient_times_input(
        model, inputs, gk.objectives.class_score(labels),
        wrt="bert.embeddings", of="logits",
    )  # fmt: skip
    assert_near(found, theirs(peer, ids, labels, (mask,)))
