"""What saliency functions refuse of single values, and inputs named by a baseline."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from gradkit import saliency
from gradkit.errors import InputError
from refused import NET, X, refusal

BYTES = torch.zeros(3, 4, dtype=torch.uint8)


def counted(x: Tensor) -> Tensor:
    return x.double().sum(1)


REFUSED = [
    (
        lambda: saliency.smoothgrad(NET, X, 0, seed=2**70),
        f"smoothgrad: seed must be a whole number of at most 64 bits; got {2**70}",
    ),
    (
        lambda: saliency.completeness_gap(None, NET, X, 0),
        "completeness_gap: attributions must be tensors shaped like what wrt names,"
        " (5, 4); got none",
    ),
    (
        lambda: saliency.completeness_gap(X.tolist(), NET, X, 0),
        "completeness_gap: attributions must be tensors shaped like what wrt names,"
        f" (5, 4); got {', '.join(['float'] * 20)}",
    ),
    (
        lambda: saliency.completeness_gap(X * 1j, NET, X, 0),
        "completeness_gap: attributions must be real; got complex numbers",
    ),
    (
        lambda: saliency.occlusion(counted, BYTES, None, window=1, baseline=300),
        "occlusion: baseline must be from 0 to 255, as the inputs' torch.uint8 can"
        " hold; got 300",
    ),
    (
        lambda: saliency.expected_gradients(NET, X, 0, baselines=[X[0], X[0, :2]]),
        "expected_gradients: baselines must be samples of one shape; got (4,), (2,)",
    ),
    (
        lambda: saliency.channel_sum(X, axis="a"),  # pyright: ignore
        "channel_sum: axis must be one of maps' axes (5, 4) after the samples; got 'a'",
    ),
]


@pytest.mark.parametrize(("ask", "text"), REFUSED)
def test_wrong_values_are_refused(ask, text):
    assert refusal(InputError, ask) == text


class Masked(nn.Module):
    """Sums the embeddings of token ids where a mask says so."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 3)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        return (self.table(ids) * mask[..., None]).sum((1, 2))


@pytest.mark.parametrize("kind", [torch.float32, torch.long])
@pytest.mark.parametrize("named", [False, True])
def test_a_baseline_names_what_is_covered(kind, named):
    torch.manual_seed(1)
    model = Masked()
    ids = torch.randint(1, 7, (4, 5))
    mask = (torch.rand(4, 5) > 0.3).to(kind)
    inputs = {"ids": ids, "mask": mask} if named else (ids, mask)
    baseline = {"ids": 0} if named else (0, None)
    found = saliency.occlusion(model, inputs, None, window=1, baseline=baseline)
    table = model.table.weight.detach().sum(1)
    wanted = (table[ids] - table[0]) * mask
    assert found.shape == ids.shape
    torch.testing.assert_close(found, wanted, atol=2e-6, rtol=0)
    listed = saliency.occlusion(model, inputs, None, window=1, baseline=[baseline] * 2)
    torch.testing.assert_close(listed, found)
    curve = saliency.deletion_curve(found, model, inputs, None, baseline=baseline)
    whole = model(torch.zeros_like(ids), mask).detach()
    torch.testing.assert_close(curve.values[:, -1], whole)


def test_a_baseline_for_both_or_none_names_nothing():
    ids, mask = torch.ones(2, 3, dtype=torch.long), torch.ones(2, 3, dtype=torch.long)
    for baseline in (0, (0, 0)):
        with pytest.raises(InputError, match=r"inputs must hold one tensor to change;.*"
                           r"\(0, None\), or \{'name': 0\}"):  # fmt: skip
            saliency.occlusion(Masked(), (ids, mask), None, window=1, baseline=baseline)
