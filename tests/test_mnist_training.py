"""A training that learns, can be repeated, and leaves no trace."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn

from gradkit import mnist


@pytest.fixture(scope="module")
def data() -> mnist.Digits:
    """Return the bundled digits."""
    return mnist.digits()


def random_state() -> tuple[object, ...]:
    # As text, numpy's state compares.
    numpy_state = repr(np.random.get_state(legacy=False))
    return torch.get_rng_state().tolist(), random.getstate(), numpy_state


def noisy() -> nn.Sequential:
    """Return a small network that draws numbers while it is trained."""
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.4), nn.Linear(8, 3))


def easy(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return 23 samples of three classes, which a line can part."""
    labels = torch.arange(23) % 3
    images = nn.functional.one_hot(labels, 6) + 0.1 * torch.randn(23, 6)
    return images.to(device), labels.to(device)


def test_training_reaches_an_accuracy(data: mnist.Digits) -> None:
    network = mnist.network()
    history = mnist.train(
        network, data.train_images, data.train_labels, epochs=2, progress=False
    )
    assert mnist.accuracy(network, data.test_images, data.test_labels) > 0.85
    assert history.losses[1] < history.losses[0]
    assert history.accuracies[1] > history.accuracies[0]
    assert [len(entries) for entries in vars(history).values()] == [2, 2, 2]


def test_training_is_reproducible(device: torch.device) -> None:
    images, labels = easy(device)
    states, histories = [], []
    for seed in (4, 4, 5):
        network = noisy().to(device)
        torch.rand(seed + len(states))  # the caller's random state is another
        histories.append(
            mnist.train(
                network, images, labels, batch_size=5, seed=seed, progress=False
            )
        )
        states.append(torch.cat([p.flatten() for p in network.parameters()]))
    assert torch.equal(states[0], states[1])
    assert histories[0].losses == histories[1].losses
    assert not torch.equal(states[0], states[2])


def test_training_is_adam_on_the_mean_loss(device: torch.device) -> None:
    # One batch holds all samples, so their order does not matter but for rounding.
    images, labels = easy(device)
    network, twin = noisy()[:1].to(device), noisy()[:1].to(device)
    history = mnist.train(
        network, images, labels, epochs=3, learning_rate=0.02, progress=False
    )
    optimizer = torch.optim.Adam(twin.parameters(), lr=0.02)
    for loss in history.losses:
        optimizer.zero_grad()
        expected = nn.functional.cross_entropy(twin(images), labels)
        expected.backward()
        optimizer.step()
        assert loss == pytest.approx(expected.item(), rel=1e-5)
    for got, right in zip(network.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(got, right, rtol=1e-5, atol=1e-6)


def test_training_learns_from_every_sample_once_an_epoch(device: torch.device) -> None:
    images, labels = easy(device)
    network = noisy().to(device)
    seen: list[torch.Tensor] = []
    network.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    mnist.train(network, images, labels, epochs=2, batch_size=5, progress=False)
    assert [len(batch) for batch in seen] == [5, 5, 5, 5, 3] * 2
    first, second = torch.cat(seen[:5]), torch.cat(seen[5:])
    assert not torch.equal(first, second)
    for epoch in (first, second):
        assert torch.equal(epoch[epoch[:, 0].argsort()], images[images[:, 0].argsort()])


def test_the_order_does_not_depend_on_what_the_network_draws(
    device: torch.device,
) -> None:
    images, labels = easy(device)
    orders = []
    for network in (noisy(), noisy()[:1]):
        network.to(device).register_forward_pre_hook(
            lambda _, inputs: orders.append(inputs[0])
        )
        mnist.train(network, images, labels, epochs=2, batch_size=23, progress=False)
    assert torch.equal(torch.stack(orders[:2]), torch.stack(orders[2:]))


def test_random_state_is_left_alone(device: torch.device) -> None:
    images, labels = easy(device)
    network = noisy().to(device)
    before = random_state()
    mnist.train(network, images, labels, batch_size=5, progress=False)
    mnist.network(seed=8)
    mnist.digits(seed=9)
    assert random_state() == before


def test_flags_and_gradients_after_training(device: torch.device) -> None:
    images, labels = easy(device)
    network = noisy().to(device).eval()
    network[0].train()
    during: list[bool] = []
    network[1].register_forward_hook(lambda layer, *_: during.append(layer.training))
    with torch.no_grad():
        mnist.train(network, images, labels, batch_size=9, epochs=1, progress=False)
    assert during == [True] * 3
    assert [m.training for m in network.modules()] == [False, True, False, False]
    assert all(p.grad is None for p in network.parameters())


def test_an_exception_leaves_flags_and_random_state(device: torch.device) -> None:
    images, labels = easy(device)
    network = noisy().to(device).eval()

    def interrupt(*_: object) -> None:
        torch.rand(3)
        raise KeyboardInterrupt

    network[2].register_forward_hook(interrupt)
    before = random_state()
    with pytest.raises(KeyboardInterrupt):
        mnist.train(network, images, labels, progress=False)
    assert random_state() == before
    assert not any(m.training for m in network.modules())


def test_no_epoch_leaves_the_network(device: torch.device) -> None:
    images, labels = easy(device)
    network = noisy().to(device)
    before = [p.clone() for p in network.parameters()]
    history = mnist.train(network, images, labels, epochs=0, progress=False)
    assert history == mnist.History((), (), ())
    for was, now in zip(before, network.parameters(), strict=True):
        assert torch.equal(was, now)


def test_the_progress_bar_is_optional(
    device: torch.device, capsys: pytest.CaptureFixture[str]
) -> None:
    images, labels = easy(device)
    # What is captured is no terminal.
    for progress, shown in ((True, True), (False, False), (None, False)):
        mnist.train(noisy().to(device), images, labels, epochs=1, progress=progress)
        captured = capsys.readouterr()
        assert ("training" in captured.err) is shown
        assert captured.out == ""
