"""Pieces that the work of saliency is cut into, and how objectives are called."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gradkit as gk
from case import DEVICE
from gradkit.errors import InputError
from maps_asked import (
    CLASSES,
    LABELS,
    STEPS,
    STEPWISE,
    N,
    images,
    network,
    one_thread,
    tensor_of,
)


@pytest.fixture(autouse=True)
def _on_device():
    with torch.device(DEVICE), one_thread():
        yield


def memory(ask: Any, model: Any, x: Tensor, samples: int, o: Any = LABELS) -> int:
    """Return the bytes that so many samples, over all steps, take at once."""
    with pytest.raises(InputError, match="must hold the model's run on one") as caught:
        ask(model, x, o, max_memory=1)
    return caught.value.needed + (samples - 1) * caught.value.per_sample


#: So many samples at once, over all steps.
PIECES = {"one": 1, "some": 3, "one step": N, "steps": 2 * N + 1, "all": 100 * N}


@pytest.mark.parametrize("name", STEPWISE)
def test_pieces_of_any_size_agree(name):
    net, x, results, widths = network(), images(), {}, {}
    for piece, samples in PIECES.items():
        sizes: list[int] = []

        def model(x, sizes=sizes):
            sizes.append(len(x))
            return net(x)

        found = STEPWISE[name](
            model, x, LABELS, max_memory=memory(STEPWISE[name], model, x, samples)
        )
        results[piece], widths[piece] = tensor_of(found), sizes
    whole = results["all"]
    for piece, found in results.items():
        assert (found - whole).abs().max() <= 1e-12 * whole.abs().max(), piece
    # They were cut, and stacked, as meant.
    assert widths["one"].count(1) >= N * STEPS
    assert widths["some"].count(3) >= STEPS
    assert widths["some"].count(2) >= STEPS
    assert widths["one step"].count(N) >= STEPS
    assert max(widths["one step"]) == N
    assert max(widths["steps"]) == 2 * N
    assert max(widths["all"]) >= STEPS * N


@pytest.mark.parametrize("name", STEPWISE)
def test_pieces_of_any_size_are_equal_bit_for_bit_when_batches_are_invariant(name):
    torch.set_num_threads(2)  # rounding may depend on them
    net, x = network().float(), images(dtype=torch.float32)
    with gk.batch_invariant():
        limits = [memory(STEPWISE[name], net, x, n) for n in PIECES.values()]
        found = [
            tensor_of(STEPWISE[name](net, x, LABELS, max_memory=limit))
            for limit in limits
        ]
    assert found[0].abs().max() > 0
    assert all(torch.equal(found[0], other) for other in found[1:])


COUNTS = dict.fromkeys(STEPWISE, STEPS) | {"occlusion": 2 * 3}


@pytest.mark.parametrize("piece", PIECES)
@pytest.mark.parametrize("name", STEPWISE)
def test_the_objective_is_called_once_per_step_in_order_on_the_whole_batch(name, piece):
    net, x = network(), images()

    def asked(piece: str) -> list[Tensor]:
        calls: list[Tensor] = []

        def objective(outputs):
            calls.append(outputs.detach().clone())
            return outputs[torch.arange(N), LABELS.to(outputs.device)]

        limit = memory(STEPWISE[name], net, x, PIECES[piece], objective)
        calls.clear()
        model = nn.Sequential(*net)  # another one, that nothing is known of
        STEPWISE[name](model, x, objective, max_memory=limit)
        return calls

    calls, expected = asked(piece), asked("one step")
    assert len(calls) == 1 + COUNTS[name]
    assert all(c.shape == (N, CLASSES) for c in calls)
    assert torch.stack(calls).sub(torch.stack(expected)).abs().max() < 1e-12
    assert torch.stack(calls).unique(dim=0).shape[0] > COUNTS[name] - 2


TOO_MANY: list[int] = []


class Limited(nn.Module):
    """Runs out of memory for more than so many samples."""

    def __init__(self, net: nn.Module, most: int) -> None:
        super().__init__()
        self.net, self.most = net, most

    def forward(self, x: Tensor) -> Tensor:
        if len(x) > self.most:
            TOO_MANY.append(len(x))
            raise torch.OutOfMemoryError("out of memory")
        return self.net(x)


@pytest.mark.parametrize("most", [N, 2 * N + 1])
@pytest.mark.parametrize("name", STEPWISE)
def test_a_stack_that_does_not_fit_is_taken_again_in_parts(name, most):
    net, x = network(), images()
    whole = tensor_of(STEPWISE[name](net, x, LABELS))
    TOO_MANY.clear()
    found = tensor_of(STEPWISE[name](Limited(net, most), x, LABELS))
    assert (found - whole).abs().max() <= 1e-12 * whole.abs().max()
    assert TOO_MANY
