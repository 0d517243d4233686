"""Rules of normalisations: their scale acts on normalised values, their bias on all.

The normalised values are computed again by the operation itself, without scale and
bias: what the kernel saved is its own affair and differs between devices.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gradkit._rules._aligned import (
    aligned,
    reduced,
    weighted,
    without_own_samples,
)
from gradkit._rules._rule import Operation, Rows, Rule

__all__ = ["BATCH_NORM", "GROUP_NORM", "INSTANCE_NORM", "LAYER_NORM", "RMS_NORM"]

#: From an operation and its parameter's shape to that shape aligned with the output.
Alignment = Callable[[Operation, tuple[int, ...]], tuple[int, ...]]


def _to_channels(operation: Operation, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Align a vector with the output's axis 1."""
    return (1, *shape, *(1,) * (len(operation.shape) - 2))


def _rows(
    argument: str,
    alignment: Alignment,
    normalised: Callable[[Operation], Tensor] | None,
) -> Rows:
    """Return the rows of a scale, or of a bias where nothing is normalised."""

    def rows(operation: Operation, cotangent: Tensor) -> Tensor:
        shape = operation.parameters[argument]
        place = alignment(operation, shape)
        if normalised is None:
            return reduced(operation, cotangent, shape, place)
        return weighted(operation, cotangent, normalised(operation), shape, place)

    return rows


def _both(
    alignment: Alignment, normalised: Callable[[Operation], Tensor]
) -> dict[str, Rows]:
    return {
        "weight": _rows("weight", alignment, normalised),
        "bias": _rows("bias", alignment, None),
    }


def _refused(alignment: Alignment) -> Callable[[Operation], str | None]:
    """Return the check that no parameter has the samples' axis."""

    def refused(operation: Operation) -> str | None:
        shapes = (
            alignment(operation, operation.parameters[name])
            for name in ("weight", "bias")
            if name in operation.parameters
        )
        return without_own_samples(operation, shapes)

    return refused


def _input(operation: Operation) -> Tensor:
    """Return the input; of half precision in single, as the kernels compute."""
    given = operation.values("input")
    return given.to(torch.promote_types(given.dtype, torch.float32))


def _statistics(operation: Operation, like: Tensor) -> tuple[Tensor, Tensor]:
    mean, variance = (operation.arguments[f"running_{s}"] for s in ("mean", "var"))
    return mean.detach().to(like.dtype), variance.detach().to(like.dtype)


def _eps(operation: Operation) -> float:
    return operation.get("eps", 1e-5)


# -- over the last axes ----------------------------------------------------------------


def _layer_normalised(operation: Operation) -> Tensor:
    shape = operation.arguments["normalized_shape"]
    return torch.layer_norm(_input(operation), shape, eps=_eps(operation))


def _root_mean_normalised(operation: Operation) -> Tensor:
    shape = operation.arguments["normalized_shape"]
    computed = torch.promote_types(operation.dtype, torch.float32)
    eps = operation.get("eps", torch.finfo(computed).eps)
    return torch.rms_norm(_input(operation), shape, eps=eps)


# Normalises over the last axes i: y[t, i] = p[i] z[t, i] + b[i], z = (x - mean) / std.
# Jacobian: dy[t, i] / dp[i] = z[t, i]; dy[t, i] / db[i] = 1.
# Pullback: rows[n, r, i] = sum_t c[n, r, t, i] z[n, t, i], or sum_t c[n, r, t, i].
# Covers any number of last axes, eps, weight or bias left out; refused if the samples
# stand in an axis of its parameters.
# https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.layer_norm.html
LAYER_NORM = Rule(
    "layer_norm",
    (torch.layer_norm,),
    ("input", "normalized_shape", "weight", "bias", "eps", "cudnn_enable"),
    _both(aligned, _layer_normalised),
    _refused(aligned),
)

# Divides by the root of the mean square over the last axes i: y[t, i] = p[i] z[t, i].
# Jacobian: dy[t, i] / dp[i] = z[t, i].
# Pullback: rows[n, r, i] = sum_t c[n, r, t, i] z[n, t, i].
# Covers any number of last axes, eps; refused if the samples stand in an axis of its
# parameter.
# https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.rms_norm.html
RMS_NORM = Rule(
    "rms_norm",
    (torch.rms_norm,),
    ("input", "normalized_shape", "weight", "eps"),
    {"weight": _rows("weight", aligned, _root_mean_normalised)},
    _refused(aligned),
)


# -- over positions, for each channel or group of channels -----------------------------


def _group_normalised(operation: Operation) -> Tensor:
    groups = operation.arguments["num_groups"]
    return torch.group_norm(_input(operation), groups, eps=_eps(operation))


def _instance_normalised(operation: Operation) -> Tensor:
    given = _input(operation)
    of_input = operation.get("use_input_stats", True)
    # Statistics that are not used would be updated.
    mean, variance = (None, None) if of_input else _statistics(operation, given)
    cudnn = torch.backends.cudnn.enabled
    return torch.instance_norm(
        given, None, None, mean, variance, of_input, 0.0, _eps(operation), cudnn
    )


def _batch_normalised(operation: Operation) -> Tensor:
    given = _input(operation)
    mean, variance = _statistics(operation, given)
    cudnn = torch.backends.cudnn.enabled
    return torch.batch_norm(
        given, None, None, mean, variance, False, 0.0, _eps(operation), cudnn
    )


# Normalises over groups of channels i and positions t: y[i, t] = p[i] z[i, t] + b[i].
# Jacobian: dy[i, t] / dp[i] = z[i, t]; dy[i, t] / db[i] = 1.
# Pullback: rows[n, r, i] = sum_t c[n, r, i, t] z[n, i, t], or sum_t c[n, r, i, t].
# Covers any number of groups and positions, eps, weight or bias left out; refused if
# the samples stand in the channels' axis.
# https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.group_norm.html
GROUP_NORM = Rule(
    "group_norm",
    (torch.group_norm,),
    ("input", "num_groups", "weight", "bias", "eps", "cudnn_enabled"),
    _both(_to_channels, _group_normalised),
    _refused(_to_channels),
)

# Normalises each channel i over positions t: y[i, t] = p[i] z[i, t] + b[i].
# Jacobian: dy[i, t] / dp[i] = z[i, t]; dy[i, t] / db[i] = 1.
# Pullback: rows[n, r, i] = sum_t c[n, r, i, t] z[n, i, t], or sum_t c[n, r, i, t].
# Covers statistics of the input and running ones, eps; refused if the samples stand in
# the channels' axis.
# https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.instance_norm.html
INSTANCE_NORM = Rule(
    "instance_norm",
    (torch.instance_norm,),
    (
        *("input", "weight", "bias", "running_mean", "running_var"),
        *("use_input_stats", "momentum", "eps", "cudnn_enabled"),
    ),
    _both(_to_channels, _instance_normalised),
    _refused(_to_channels),
)


def _refused_batch_norm(operation: Operation) -> str | None:
    if operation.get("training", False):
        return "in training mode it normalises over the samples"
    if operation.get("running_mean") is None or operation.get("running_var") is None:
        return "without running statistics it normalises over the samples"
    return _refused(_to_channels)(operation)


# Normalises each channel i by running statistics: y[i, t] = p[i] z[i, t] + b[i].
# Jacobian: dy[i, t] / dp[i] = z[i, t]; dy[i, t] / db[i] = 1.
# Pullback: rows[n, r, i] = sum_t c[n, r, i, t] z[n, i, t], or sum_t c[n, r, i, t].
# Covers evaluation mode with running statistics, eps, any number of positions;
# refuses training mode.
# https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.batch_norm.html
BATCH_NORM = Rule(
    "batch_norm",
    (torch.batch_norm,),
    (
        *("input", "weight", "bias", "running_mean", "running_var"),
        *("training", "momentum", "eps", "cudnn_enabled"),
    ),
    _both(_to_channels, _batch_normalised),
    _refused_batch_norm,
)
