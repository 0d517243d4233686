"""What stands beside a model's own error: how its inputs were read."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import nn

import gradkit as gk

NOTED = {
    "an image without a batch": (
        lambda: gk.jacobian(
            nn.Sequential(nn.Flatten(), nn.Linear(12, 2)), torch.ones(1, 2, 2)
        ),
        "gradkit: the first axis counts samples: inputs (1, 2, 2) was read as 1 sample;"
        " one sample of this shape is inputs[None]",
    ),
    "a batch of a loader": (
        lambda: gk.jacobian(nn.Linear(3, 2), [torch.ones(5, 3), torch.zeros(5)]),
        "gradkit: the model was called as model(*inputs) with 5 samples: inputs[0] (5,"
        " 3), inputs[1] (5,); targets are no inputs, and go into the objective",
    ),
    "a mapping of a loader": (
        lambda: gk.jacobian(
            nn.Linear(3, 2), {"image": torch.ones(5, 3), "label": torch.zeros(5)}
        ),
        "gradkit: the model was called as model(**inputs) with 5 samples:"
        " inputs['image'] (5, 3), inputs['label'] (5,); targets are no inputs, and go"
        " into the objective",
    ),
    "without a sample axis": (
        lambda: gk.jacobian(nn.Linear(3, 2), torch.ones(4), batched=False),
        "gradkit: the model was called without a sample axis: inputs (4,)",
    ),
    "bytes": (
        lambda: gk.parameter_jacobian(
            nn.Linear(3, 2), torch.ones(5, 3, dtype=torch.uint8)
        ),
        "gradkit: inputs are torch.uint8 and the model's parameters torch.float32;"
        " convert measurements, inputs.to(torch.float32)",
    ),
}


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exceptions have no notes")
@pytest.mark.parametrize("name", NOTED)
def test_the_models_own_error_says_how_its_inputs_were_read(name):
    call, note = NOTED[name]
    with pytest.raises((RuntimeError, TypeError)) as caught:
        call()
    assert vars(caught.value)["__notes__"] == [note]


def test_a_refusal_has_no_note() -> None:
    with pytest.raises(gk.errors.SampleDependenceError) as caught:
        gk.jacobian(nn.BatchNorm1d(3), torch.rand(5, 3))
    assert "__notes__" not in vars(caught.value)
