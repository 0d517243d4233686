"""``assert_no_trace``: what a function left behind, each thing by name."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from torch import Tensor

from gradkit._call._public import public
from gradkit.errors import AgreementError, InputError
from gradkit.testing._footprint import Footprint, graph_tensors, reachable

__all__ = ["assert_no_trace"]

Result = TypeVar("Result")
_MOST = 12


@public
def assert_no_trace(
    function: Callable[[Any, Any], Result], model: Any, inputs: Any
) -> Result:
    """Call ``function(model, inputs)`` and refuse every trace that it leaves.

    Compared before and after, bit by bit and object by object: gradients,
    ``requires_grad``, values and versions of parameters, buffers and inputs; training
    flags, hooks and every other attribute of every module; the random states of torch,
    Python and numpy, and of generators that the model holds; grad, inference, autocast
    and default-dtype modes and torch's global hooks; tensors that stay alive on an
    autograd graph without being part of the result.

    Args:
        function: Anyone's, of a model and inputs.
        model: A module, of inputs of any shape; of another callable only ``inputs`` and
            torch's settings are looked at.
        inputs: A tensor of any shape, or tensors nested as liked.

    Returns:
        What ``function`` returned.

    Raises:
        AgreementError: Something is not as it was. ``changes`` lists it all; where
            ``function`` raised, its exception is the cause.
        InputError: ``function`` is not callable.

    Cost:
        Reads all of ``model`` and ``inputs`` twice, and Python's live objects twice.

    Example:
        >>> import torch
        >>> import gradkit as gk
        >>> from gradkit.testing import assert_no_trace
        >>> model, x = torch.nn.Linear(3, 2), torch.ones(5, 3)
        >>> assert_no_trace(gk.jacobian, model, x).shape
        torch.Size([5, 2, 3])
        >>> try:
        ...     assert_no_trace(lambda m, x: m(x).sum().backward(), model, x)
        ... except AssertionError as error:
        ...     print(error)
        assert_no_trace: <lambda> left 2 traces: the gradient of weight changed (None,
        now float32 (2, 3) sum 30); the gradient of bias changed (None, now float32 (2,)
        sum 10). Work on copies, or put back what was there in a finally block
    """
    if not callable(function):
        raise InputError(
            "function must be callable, as function(model, inputs); got"
            f" {type(function).__name__}",
            argument="function",
        )
    name = getattr(function, "__name__", type(function).__name__)
    alive = {key: weakref.ref(value) for key, value in graph_tensors().items()}
    before = Footprint(model, inputs)
    try:
        result = function(model, inputs)
    except Exception as error:
        changes = before.changes(Footprint(model, inputs))
        if changes:
            raise _error(
                f"{name} raised {type(error).__name__} and", changes
            ) from error
        raise
    changes = before.changes(Footprint(model, inputs))
    changes += _kept(alive, result, inputs)
    if changes:
        raise _error(name, changes)
    return result


def _kept(alive: dict[int, weakref.ref[Tensor]], result: Any, inputs: Any) -> list[str]:
    """Name the tensors on a graph that outlive the call and are not its result."""
    new = _new(alive)
    if new:
        del new
        gc.collect()  # what only cycles hold is no trace; collecting takes a while
        new = _new(alive)
    if not new:
        return []
    known = reachable([result, inputs])
    return [
        f"a tensor of shape {tuple(value.shape)} stays alive on an autograd graph"
        f" ({type(value.grad_fn).__name__})"
        for key, value in new.items()
        if key not in known
    ]


def _new(alive: dict[int, weakref.ref[Tensor]]) -> dict[int, Tensor]:
    return {
        key: value
        for key, value in graph_tensors().items()
        if key not in alive or alive[key]() is not value
    }


def _error(name: str, changes: list[str]) -> AgreementError:
    shown = "; ".join(changes[:_MOST])
    more = len(changes) - _MOST
    rest = f"; and {more} more" if more > 0 else ""
    number = f"{len(changes)} trace{'s' if len(changes) != 1 else ''}"
    return AgreementError(
        f"{name} left {number}: {shown}{rest}. Work on copies, or put back what was"
        " there in a finally block",
        changes=tuple(changes),
    )
