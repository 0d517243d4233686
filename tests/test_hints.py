"""Wrong guesses are answered by the way to what was meant."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gradkit as gk

ANY: Any = gk
X, Y = torch.randn(3, 4), torch.tensor([0, 1, 1])


def model() -> nn.Module:
    return nn.Linear(4, 2)


# -- tokens that are scored at their own positions -------------------------------------


class Tokens(nn.Module):
    """A language model, also of labels that it is given beside."""

    def __init__(self) -> None:
        super().__init__()
        self.embedded, self.head = nn.Embedding(7, 3), nn.Linear(3, 7)

    def forward(self, ids: Tensor, labels: Tensor | None = None) -> Any:
        logits = self.head(self.embedded(ids))
        if labels is None:
            return logits
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return {"loss": loss, "logits": logits}


IDS = torch.tensor([[1, 2, 3], [4, 5, 6]])


@pytest.mark.parametrize("labels", [IDS, IDS.where(IDS > 2, -100)])
def test_own_tokens_as_labels_are_told(labels: Tensor) -> None:
    with pytest.warns(UserWarning, match="token_loss has .* pass shift=True") as caught:
        gk.per_sample_gradients(Tokens(), IDS, gk.objectives.token_loss(labels))
    assert len(caught) == 1


def test_other_tokens_are_not_told() -> None:
    loss, network = gk.objectives.token_loss, Tokens()
    gk.per_sample_gradients(network, IDS, loss(IDS, shift=True))
    gk.per_sample_gradients(network, IDS, loss(IDS.roll(1, 1)))
    gk.per_sample_gradients(network, IDS, loss(IDS.where(IDS < 0, -100)))
    gk.per_sample_gradients(network, torch.ones_like(IDS), loss(torch.ones_like(IDS)))
    both = {"ids": IDS.roll(1, 1), "labels": IDS}
    gk.per_sample_gradients(network, both, loss(IDS), of="logits")


def test_own_tokens_may_be_meant() -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "token_loss has")
        gk.per_sample_gradients(Tokens(), IDS, gk.objectives.token_loss(IDS))


def test_labels_among_the_inputs() -> None:
    both = {"ids": IDS, "labels": IDS}
    with pytest.raises(gk.errors.InputError) as caught:
        gk.per_sample_gradients(Tokens(), both, gk.objectives.output_sum)
    assert 'leave them out, and pass of="logits" with gk.objectives.token_loss' in str(
        caught.value
    )
