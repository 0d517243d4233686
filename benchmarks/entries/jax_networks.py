"""The measured networks in JAX, for one sample, with torch's names and layouts."""

# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from torch import nn

from benchmarks.problems import Block, Transformer

Parameters = Mapping[str, Any]
Network = Callable[[Parameters, Any], Any]


def network(model: nn.Module) -> Network:
    """Return ``(parameters, input) -> (10,)``, the same function of one sample."""
    if isinstance(model, Transformer):
        return _transformer(model)
    assert isinstance(model, nn.Sequential)
    layers = [(str(i), layer) for i, layer in enumerate(model)]

    def forward(parameters: Parameters, x: Any) -> Any:
        for name, layer in layers:
            x = LAYERS[type(layer)](parameters, name, x)
        return x

    return forward


def _linear(parameters: Parameters, name: str, x: Any) -> Any:
    return x @ parameters[f"{name}.weight"].T + parameters[f"{name}.bias"]


def _convolution(parameters: Parameters, name: str, x: Any) -> Any:
    names = ("NCHW", "OIHW", "NCHW")
    weight = parameters[f"{name}.weight"]
    result = jax.lax.conv_general_dilated(
        x[None], weight, (1, 1), "SAME", dimension_numbers=names
    )
    return result[0] + parameters[f"{name}.bias"][:, None, None]


def _pool(parameters: Parameters, name: str, x: Any) -> Any:
    size = (1, 2, 2)
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, size, size, "VALID")


# Of each layer of a sequence: (parameters, name, x) -> x.
LAYERS: dict[type[nn.Module], Callable[[Parameters, str, Any], Any]] = {
    nn.Linear: _linear,
    nn.Conv2d: _convolution,
    nn.MaxPool2d: _pool,
    nn.ReLU: lambda parameters, name, x: jax.nn.relu(x),
    nn.Flatten: lambda parameters, name, x: x.ravel(),
}


def _transformer(model: Transformer) -> Network:
    blocks = [(f"blocks.{i}", block) for i, block in enumerate(model.blocks)]

    def forward(parameters: Parameters, words: Any) -> Any:
        hidden = parameters["words.weight"][words] + parameters["places.weight"]
        for name, block in blocks:
            assert isinstance(block, Block)
            hidden = _block(parameters, name, hidden, block.heads)
        pooled = _norm(parameters, "norm", hidden).mean(axis=0)
        return _linear(parameters, "classify", pooled)

    return forward


def _block(parameters: Parameters, name: str, hidden: Any, heads: int) -> Any:
    normal = _norm(parameters, f"{name}.norm1", hidden)
    q, k, v = (
        _linear(parameters, f"{name}.{part}", normal).reshape(len(normal), heads, -1)
        for part in ("queries", "keys", "values")
    )
    scores = jnp.einsum("thd,shd->hts", q, k) / q.shape[-1] ** 0.5
    read = jnp.einsum("hts,shd->thd", jax.nn.softmax(scores), v)
    mixed = _linear(parameters, f"{name}.mix", read.reshape(hidden.shape))
    hidden = hidden + mixed
    wide = _linear(
        parameters, f"{name}.widen", _norm(parameters, f"{name}.norm2", hidden)
    )
    active = jax.nn.gelu(wide, approximate=False)
    return hidden + _linear(parameters, f"{name}.narrow", active)


def _norm(parameters: Parameters, name: str, x: Any, epsilon: float = 1e-5) -> Any:
    centred = x - x.mean(axis=-1, keepdims=True)
    variance = (centred**2).mean(axis=-1, keepdims=True)
    scaled = centred / jnp.sqrt(variance + epsilon)
    return scaled * parameters[f"{name}.weight"] + parameters[f"{name}.bias"]
