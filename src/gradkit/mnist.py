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
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm import tqdm

from gradkit._mnist_data import CLASSES, PIXELS, Digits, digits
from gradkit._offered import offering
from gradkit.errors import InputError

__all__ = ["Digits", "History", "accuracy", "digits", "network", "train"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = offering(globals())


@dataclasses.dataclass(frozen=True)
class History:
    """What happened while a network was trained, one entry per epoch.

    Attributes:
        losses: Mean cross entropy of the training samples, each taken at the
            step that learned from it.
        accuracies: Share of them that were right at that step.
        seconds: Time of each epoch.

    Example:
        >>> import torch
        >>> import gradkit as gk
        >>> layer, x = torch.nn.Linear(3, 2), torch.ones(5, 3)
        >>> labels = torch.tensor([0, 1, 1, 0, 1])
        >>> history = gk.mnist.train(layer, x, labels, epochs=4, progress=False)
        >>> len(history.losses), len(history.accuracies), len(history.seconds)
        (4, 4, 4)
    """

    losses: tuple[float, ...]
    accuracies: tuple[float, ...]
    seconds: tuple[float, ...]


def network(*, seed: int = 0) -> nn.Sequential:
    """Return the untrained 784-500-10 network, with layers fc1, relu and fc2.

    Args:
        seed: The parameters are the ones that ``torch.manual_seed(seed)`` and
            torch's own initialisation give. The caller's random state is as
            before.

    Returns:
        Maps images ``(N, 784)`` to ten class scores ``(N, 10)``; float32, on the
        CPU, 397,510 parameters.

    Raises:
        RuntimeError: ``seed`` is no whole number; torch's own error.

    Cost:
        397,510 numbers are drawn, 1.6 MB.

    Example:
        >>> import gradkit as gk
        >>> sum(p.numel() for p in gk.mnist.network(seed=1).parameters())
        397510
    """
    options = {"device": "cpu", "dtype": torch.float32}
    with _own_randomness(seed, torch.device("cpu")):
        fc1 = nn.Linear(PIXELS, 500, **options)
        fc2 = nn.Linear(500, CLASSES, **options)
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

    Cost:
        ``epochs`` forward and backward passes over all samples. Adam keeps two more
        numbers for each parameter.

    Example:
        >>> import torch
        >>> import gradkit as gk
        >>> images = torch.eye(3, 4)[[0, 1, 2, 0, 1, 2]]
        >>> layer = torch.nn.Linear(4, 3)
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
    _refuse("train", [_network_check(network, isinstance(network, nn.Module))])
    _refuse("train", _data_checks(images, labels, batch_size))
    _refuse("train", _training_checks(images, labels, epochs, learning_rate))
    modes = {module: module.training for module in network.modules()}
    optimizer = torch.optim.Adam(network.parameters(), lr=learning_rate)
    order = torch.Generator().manual_seed(seed)
    losses, accuracies, seconds = [], [], []
    total = epochs * math.ceil(len(images) / batch_size)
    hidden = None if progress is None else not progress
    bar = tqdm(total=total, desc="training", unit="step", disable=hidden)
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

    Raises:
        InputError: ``network`` returns no class scores, ``batch_size`` is out of
            range, or images and labels do not belong together.

    Cost:
        One forward pass over all samples, without a graph.

    Example:
        >>> import torch
        >>> import gradkit as gk
        >>> scores = torch.tensor([[2.0, 1.0], [0.0, 3.0], [5.0, 4.0], [1.0, 0.0]])
        >>> gk.mnist.accuracy(torch.nn.Identity(), scores, torch.tensor([0, 1, 1, 0]))
        0.75
    """
    _refuse("accuracy", [_network_check(network, callable(network))])
    _refuse("accuracy", _data_checks(images, labels, batch_size))
    with torch.no_grad():
        right = sum(
            int((_classes(network(some), len(true)) == true).sum())
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


_Check = tuple[bool, str]  # whether something is right, and what to say if not


def _classes(scores: Any, count: int) -> Tensor:
    """Return the class of the highest score; other outputs would broadcast."""
    shape = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
    right = isinstance(scores, Tensor) and scores.dim() == 2 and len(scores) == count
    problem = f"network must return class scores (N, classes); got {shape}"
    _refuse("accuracy", [(right, problem)])
    return scores.argmax(1)


def _network_check(network: Any, right: bool) -> _Check:
    return right, f"network must be a module; got {type(network).__name__}"


def _data_checks(images: Any, labels: Any, batch_size: Any) -> Iterator[_Check]:
    # One by one: the later ones need what the earlier ones have seen.
    for name, value in (("images", images), ("labels", labels)):
        given = type(value).__name__
        yield (
            isinstance(value, Tensor),
            f"{name} must be a tensor; got {given}. Pass torch.as_tensor({name})",
        )
    yield (
        images.dim() > 0 and labels.shape == images.shape[:1],
        "images and labels must be (N, *in) and (N,), one label for each image;"
        f" got {tuple(images.shape)} and {tuple(labels.shape)}",
    )
    right = isinstance(batch_size, int) and batch_size >= 1
    yield right, f"batch_size must be at least 1; got {batch_size}"


def _training_checks(
    images: Tensor, labels: Tensor, epochs: int, rate: float
) -> Iterator[_Check]:
    yield epochs >= 0, f"epochs must be at least 0; got {epochs}"
    right = 0 < rate < math.inf
    yield right, f"learning_rate must be above 0 and finite; got {rate}"
    yield (
        images.is_floating_point(),
        f"images must be floating; got {images.dtype}."
        " Pass images.float() / 255 for bytes",
    )
    yield len(images) > 0, "images must have at least 1 sample; got none"
    yield (
        labels.dtype == torch.int64,
        f"labels must be int64 class numbers; got {labels.dtype}. Pass labels.long()",
    )


def _refuse(function: str, checks: Iterable[_Check]) -> None:
    for right, problem in checks:
        if not right:
            error = InputError(problem)
            error.function = f"mnist.{function}"
            raise error


@contextmanager
def _own_randomness(seed: int, device: torch.device) -> Iterator[None]:
    # torch.manual_seed would also seed the generators of every other device.
    devices = [] if device.type == "cpu" else [device.index or 0]
    kind = device.type if devices else "cuda"
    with torch.random.fork_rng(devices=devices, device_type=kind):
        torch.default_generator.manual_seed(seed)
        for index in devices:
            with torch.get_device_module(device).device(index):
                torch.get_device_module(device).manual_seed(seed)
        yield
