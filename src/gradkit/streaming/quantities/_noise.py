"""The gradient noise scale of a model on a data set."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F

from gradkit._call._public import public_pass
from gradkit._methods._method import Method
from gradkit.streaming._reduce import reduce
from gradkit.streaming.quantities._batch import Split
from gradkit.streaming.quantities._gradients import gradients
from gradkit.streaming.reducers._noise import NoiseScale, NoiseScaleEstimate

__all__ = ["noise_scale"]


@public_pass
def noise_scale(
    model: Any,
    loader: Any,
    criterion: Callable[..., Any] = F.cross_entropy,
    *,
    objective: Callable[[Any], Any] | None = None,
    of: Any = None,
    parameters: Any = None,
    split: Split | None = None,
    seed: int | None = None,
    method: str | Method = "auto",
    max_memory: int | str | None = None,
    groups: int = 32,
    level: float = 0.95,
    progress: bool = True,
) -> NoiseScaleEstimate:
    """Return the batch size at which noise and gradient of a loss are even.

    It is ``gk.reduce(gradients(model, ...), loader, gk.reducers.NoiseScale(...))``.

    Args:
        model: As in ``loss``.
        loader: Batches, as in ``gk.reduce``; at least 8 of them, better ``groups``.
        criterion: As in ``loss``.
        objective: As in ``loss``.
        of: As in ``loss``.
        parameters: As in ``gk.per_sample_gradients``.
        split: As in ``loss``.
        seed: As in ``loss``.
        method: As in ``gk.per_sample_gradients``.
        max_memory: As in ``gk.per_sample_gradients``.
        groups: As in ``gk.reducers.NoiseScale``.
        level: As in ``gk.reducers.NoiseScale``.
        progress: As in ``gk.reduce``.

    Returns:
        A ``NoiseScaleEstimate``: ``scale``, ``interval``, ``noise``, ``signal``.

    Raises:
        InputError: As in ``gradients``, ``gk.reduce`` and
            ``gk.reducers.NoiseScale``.
        SampleDependenceError: As in ``gradients``.
        UnsupportedModelError: As in ``gradients``.
        ProcessError: As in ``gk.reduce``.

    Cost:
        That of ``gk.per_sample_gradients`` per batch; ``groups`` gradients in float64
        are kept, and no row is formed.

    Example:
        >>> import torch
        >>> from gradkit.streaming import quantities
        >>> generator = torch.Generator().manual_seed(0)
        >>> x = torch.randn(400, 3, generator=generator)
        >>> y = x.sum(1, keepdim=True) + torch.randn(400, 1, generator=generator)
        >>> data = torch.utils.data.TensorDataset(x, y)
        >>> loader = torch.utils.data.DataLoader(data, batch_size=10)
        >>> layer = torch.nn.Linear(3, 1, bias=False)
        >>> _ = layer.weight.data.fill_(0.5)
        >>> loss = torch.nn.functional.mse_loss
        >>> print(quantities.noise_scale(layer, loader, loss, progress=False))
        noise scale ...

    Source:
        McCandlish et al. (2018), as in ``gk.reducers.NoiseScale``.
    """
    rows = gradients(
        model, criterion, objective=objective, of=of, parameters=parameters,
        split=split, seed=seed, method=method, max_memory=max_memory,
    )  # fmt: skip
    scale = NoiseScale(groups=groups, level=level)
    return reduce(rows, loader, scale, progress=progress)
