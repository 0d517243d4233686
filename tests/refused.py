"""Models and inputs that are refused, and the exception that refuses them."""

import pytest
import torch
from torch import nn

torch.manual_seed(0)
NET = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
BATCH_NORM = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
X, Y = torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1])
IDS = torch.tensor([[1, 2], [3, 4], [5, 6]])


def refusal(kind, call, *args):
    """Return the text of the exception, of exactly this kind, that a call raises."""
    with pytest.raises(kind) as caught:
        call(*args)
    assert type(caught.value) is kind
    return str(caught.value)


class TokenNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.head = nn.Embedding(7, 4), nn.Linear(4, 3)

    def forward(self, ids):
        return self.head(self.tokens(ids).mean(1))


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        hidden = self.layer(x)
        return hidden, hidden.exp()


class Named(Pair):
    def forward(self, x):
        logits, hidden = super().forward(x)
        return {"logits": logits, "hidden": hidden}


class Odd(nn.Module):
    """A submodule called twice, one never, one on the sum over samples."""

    def __init__(self):
        super().__init__()
        self.twice, self.never = nn.Linear(4, 4), nn.Linear(4, 4)
        self.total = nn.Linear(4, 4)

    def forward(self, x):
        return self.twice(torch.tanh(self.twice(x))) + self.total(x.sum(0))


class TimeFirst(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(4, 3)

    def forward(self, x):
        return self.gru(x)[0]


class Hidden(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(4, 3)

    def forward(self, hidden):
        return self.hidden(hidden)


def inference_layer():
    with torch.inference_mode():
        return nn.Sequential(nn.Linear(4, 3))


def of_net(function):
    """Return a module that applies a function to the outputs of ``NET``."""

    class Applied(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = NET

        def forward(self, x):
            return function(self.net(x))

    return Applied()


def frozen():
    return nn.Linear(4, 3).requires_grad_(False)
