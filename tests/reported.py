"""What the tests of publicly reported faults share: every method, plain references."""

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import torch

import gradkit as gk
from gradkit.errors import GradkitError, UnsupportedModelError

# These compute all of a sample's rows at once, so an objective is not for them.
_WHOLE_JACOBIANS = ("jacrev", "jacfwd")


def answers(
    question: Callable[..., Any],
    *arguments: Any,
    refused: Mapping[str, str] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Return ``{method: answer}``; a method in ``refused`` must say why, as stated."""
    refused = refused or {}
    answered = {}
    for method in methods_of(question):
        if method in refused:
            with pytest.raises(UnsupportedModelError, match=refused[method]):
                question(*arguments, method=method, **options)
        else:
            answered[method] = question(*arguments, method=method, **options)
    return answered


def right_or_refused(
    question: Callable[..., Any], *arguments: Any, reason: str, **options: Any
) -> dict[str, Any]:
    """Return the answers there are; ``"auto"`` answers, others may give a reason.

    For models whose support by a method depends on the version of torch.
    """
    answered = {"auto": question(*arguments, **options)}
    for method in methods_of(question):
        with or_refused(reason):
            answered[method] = question(*arguments, method=method, **options)
    return answered


@contextlib.contextmanager
def or_refused(reason: str) -> Iterator[None]:
    """Let the block end early with a refusal, if that says why, as stated."""
    try:
        yield
    except GradkitError as error:
        if not re.search(reason, str(error)):
            raise AssertionError(f"refused without saying {reason!r}") from error


def methods_of(question: Callable[..., Any]) -> tuple[str, ...]:
    """Return ``"auto"`` and the names of the methods that answer ``question``."""
    about_parameters = question in (gk.parameter_jacobian, gk.per_sample_gradients)
    about_objectives = question in (gk.input_gradients, gk.per_sample_gradients)
    kind = "parameters" if about_parameters else "inputs"
    serving = [name for name, method in gk.METHODS.items() if getattr(method, kind)]
    if about_objectives:
        serving = [name for name in serving if name not in _WHOLE_JACOBIANS]
    return ("auto", *serving)


def rows_of(answered: Mapping[str, Any], name: str) -> dict[str, torch.Tensor]:
    """Return every method's rows of one parameter."""
    return {method: found[name] for method, found in answered.items()}


def assert_all_equal(answered: Mapping[str, torch.Tensor], expected: Any) -> None:
    """Raise unless every method's answer is ``expected``, to rounding."""
    assert "auto" in answered
    for method, answer in answered.items():
        expected = torch.as_tensor(expected, dtype=answer.dtype, device=answer.device)
        torch.testing.assert_close(
            answer,
            expected,
            equal_nan=True,
            msg=lambda text, method=method: f"method {method!r}: {text}",
        )


def loop_rows(outputs: torch.Tensor, wrt: torch.Tensor) -> torch.Tensor:
    """Return ``(*outputs, *wrt)``, one ``torch.autograd.grad`` for each output."""
    rows = [
        torch.autograd.grad(
            entry, wrt, retain_graph=True, allow_unused=True, materialize_grads=True
        )[0]
        for entry in outputs.reshape(-1)
    ]
    return torch.stack(rows).reshape(*outputs.shape, *wrt.shape)


def own_rows(outputs: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
    """Return ``(N, *out, *in)``: of ``loop_rows``, those of each sample's own input."""
    rows = loop_rows(outputs, inputs)
    return torch.stack(
        [rows[n].select(outputs.dim() - 1, n) for n in range(len(inputs))]
    )


def central_differences(
    model: Callable[[torch.Tensor], torch.Tensor],
    inputs: torch.Tensor,
    step: float = 1e-6,
) -> torch.Tensor:
    """Return ``(N, *out, *in)`` by differences, all samples moved at once."""
    columns = []
    with torch.no_grad():
        for direction in torch.eye(inputs[0].numel(), dtype=inputs.dtype):
            move = step * direction.to(inputs.device).reshape(inputs.shape[1:])
            columns.append((model(inputs + move) - model(inputs - move)) / (2 * step))
    stacked = torch.stack(columns, -1)
    return stacked.reshape(*stacked.shape[:-1], *inputs.shape[1:])
