"""From options and a target to what saliency functions are called with."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gradkit._subject import Subject
from gradkit.cli._command import UsageError
from gradkit.cli._saliency_checks import Asked
from gradkit.saliency._field import opened

__all__ = ["asked_of", "baseline", "outputs_of", "scores_of"]


def baseline(text: str) -> Any:
    """Return a baseline as an option gives it: a number, or one by inputs' places.

    Example:
        >>> baseline("0.5"), baseline("3,"), baseline("0,none"), baseline("ids=3")
        (0.5, (3.0,), (0.0, None), {'ids': 3.0})
    """
    parts = [part.strip() for part in text.removesuffix(",").split(",")]
    try:
        if "=" in text:
            pairs = (part.split("=") for part in parts)
            return {key.strip(): float(value) for key, value in pairs}
        if "," not in text:
            return float(text)
        return tuple(None if p.lower() == "none" else float(p) for p in parts)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither a number nor numbers by the inputs' places, such as"
            " 0,none or ids=0"
        ) from None


def outputs_of(subject: Subject, options: argparse.Namespace) -> Tensor:
    """Return the model's outputs, without a trace."""

    def any_number(outputs: Any) -> Tensor:
        tensor = _tensor(outputs)
        return tensor.reshape(len(tensor), -1).sum(1)

    with opened(
        subject.model, subject.inputs, any_number, of=options.of, values_only=True
    ) as call:
        return _tensor(call.task.graph.outputs.detached())


def scores_of(asked: Asked, options: argparse.Namespace) -> Tensor:
    """Return the objective's values, ``(N,)``."""
    with opened(
        asked.model, asked.inputs, asked.objective, of=options.of, values_only=True
    ) as call:
        assert call.values is not None, "an objective is evaluated"
        return call.values.detach()


def _tensor(outputs: Any) -> Tensor:
    if isinstance(outputs, Tensor):
        return outputs
    raise UsageError(
        f"the model returns a {type(outputs).__name__}; name one output with --of"
    )


def asked_of(
    subject: Subject,
    outputs: Tensor,
    methods: Sequence[str],
    options: argparse.Namespace,
) -> Asked:
    """Return what the maps are to be of."""
    return Asked(
        model=subject.model,
        inputs=subject.inputs,
        objective=_objective(subject, outputs, options.index),
        settings={name: _settings(name, subject, options) for name in methods},
        baseline=options.baseline,
        seed=options.seed,
    )


def _objective(subject: Subject, outputs: Tensor, index: int | None) -> Any:
    if index is not None:
        return index
    if subject.objective is not None:
        return subject.objective
    if subject.targets is not None:
        return subject.targets
    if outputs.ndim == 2 and outputs.shape[1] > 1:
        return outputs.argmax(1)
    if outputs.shape[1:].numel() == 1:
        return None
    raise UsageError(
        f"the model's outputs have shape {tuple(outputs.shape)}; say what is explained"
        " by an objective in the target, or name an output (N, classes) with --of"
    )


def _settings(
    name: str, subject: Subject, options: argparse.Namespace
) -> dict[str, Any]:
    """Return what one method is called with."""
    found: dict[str, Any] = {}
    if name != "grad_cam":
        found["max_memory"] = options.max_memory
    if name == "occlusion":
        found |= {"window": _window(subject, options), "baseline": options.baseline}
        return found | {"of": options.of}
    found |= {key: getattr(options, key) for key in ("wrt", "of")}
    if name == "grad_cam":
        if options.layer is None:
            raise UsageError("grad_cam needs --layer, the submodule that it weights")
        found["wrt"] = options.layer
    elif name == "integrated_gradients":
        found |= {"steps": options.steps, "baseline": options.baseline}
    elif name == "smoothgrad":
        found |= {"draws": options.draws, "seed": options.seed}
    elif name == "expected_gradients":
        # The samples at hand stand for the data.
        found |= {"draws": options.draws, "seed": options.seed}
        found["baselines"] = subject.inputs
    return {key: value for key, value in found.items() if value is not None}


def _window(subject: Subject, options: argparse.Namespace) -> Any:
    """Return the window that is asked for; by default a seventh of a picture."""
    if options.window is not None:
        try:
            sizes = tuple(int(part) for part in options.window.split(","))
        except ValueError:
            raise UsageError(
                f"argument --window: whole numbers, separated by commas; got"
                f" {options.window!r}"
            ) from None
        return sizes if sizes[1:] else int(options.window)
    inputs = subject.inputs
    if isinstance(inputs, Tensor) and inputs.ndim > 2:
        return tuple(max(size // 7, 1) for size in inputs.shape[-2:])
    if isinstance(inputs, Tensor) and not torch.is_floating_point(inputs):
        return 1
    raise UsageError("occlusion needs --window, one size per axis of a sample")
