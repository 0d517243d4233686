"""A model that draws random numbers only where the baseline is near is refused."""

import pytest
import torch
from torch import nn

from gradkit import saliency
from gradkit.errors import InputError

N, D, C = 5, 4, 3


class DrawsFarAway(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(D, C)

    def forward(self, x):
        y = self.layer(x)
        return y * torch.rand_like(y) if x.detach().abs().max() > 50 else y


ASKED = {
    "integrated_gradients": lambda m, x: saliency.integrated_gradients(
        m, x, 0, baseline=100.0, steps=6
    ),
    "insertion_curve": lambda m, x: saliency.insertion_curve(
        x, m, x, 0, baseline=100.0
    ),
    "deletion_curve": lambda m, x: saliency.deletion_curve(x, m, x, 0, baseline=100.0),
    "occlusion": lambda m, x: saliency.occlusion(m, x, 0, window=2, baseline=100.0),
    "expected_gradients": lambda m, x: saliency.expected_gradients(
        m, x, 0, baselines=x + 100, draws=6
    ),
    "completeness_gap": lambda m, x: saliency.completeness_gap(
        x, m, x, 0, baseline=100.0
    ),
}


@pytest.mark.parametrize("name", ASKED)
def test_a_model_that_draws_at_other_points_is_refused(name):
    with pytest.raises(InputError) as caught:
        ASKED[name](DrawsFarAway(), torch.randn(N, D))
    assert str(caught.value) == (
        f"{name}: the model draws random numbers (torch), so that its map would be one"
        " of a single draw. Call model.eval() first, and model.train() afterwards"
    )
