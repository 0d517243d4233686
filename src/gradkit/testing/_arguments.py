"""What ``check_gradients`` takes, and the texts of what it refuses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from gradkit._dtypes import short
from gradkit.errors import InputError, UnsupportedModelError
from gradkit.testing._subject import Subject

__all__ = [
    "MODES",
    "opened",
    "read_arguments",
    "refuse_unchecked",
    "refuse_unrepeatable",
]

MODES = ("reverse", "forward")
_DTYPES = (torch.float64, torch.float32)


def opened(
    function: Any, inputs: Any, wrt: Any, dtype: torch.dtype, seed: int
) -> Subject:
    """Return the function in ``dtype``, after it was seen to run in it."""
    subject = Subject(function, inputs, wrt, dtype, seed)
    _refuse_nothing(subject, inputs)
    try:
        with Subject(function, inputs, wrt, dtype, seed) as trial:
            trial.watched([v.value for v in trial.variables])
            subject.lowest = trial.lowest
            return subject
    except (InputError, UnsupportedModelError):
        raise
    except Exception as error:
        with Subject(function, inputs, wrt, None, seed) as plain:
            try:
                plain.evaluate([v.value for v in plain.variables])
            except Exception:
                if "is not differentiable with respect to" in str(error):
                    raise InputError(
                        f"{error} Name in wrt= what it may be differentiated by",
                        argument="wrt",
                    ) from error
                raise error from None
        raise UnsupportedModelError(
            f"function runs as it is, but not in {short(dtype)}"
            f" ({type(error).__name__}: {str(error).splitlines()[0][:160]}). Pass"
            " reference=, a plain version of it that runs in float64; for a lambda"
            " around a module pass the module itself, which is converted; or"
            " dtype=torch.float32, which decides to about three digits"
        ) from error


def _refuse_nothing(subject: Subject, inputs: Any) -> None:
    if subject.variables:
        return
    raise InputError(
        "there is nothing to differentiate by: inputs hold no floating tensor, and the"
        " function has no parameter that requires grad. Integers have no derivative:"
        " pass floating values (x.double()), or the module with its parameters",
        argument="inputs",
    )


def refuse_unrepeatable(subject: Subject, values: list[Tensor]) -> None:
    first = [v.double() for v in subject.evaluate(values)]
    shapes = [part.shape for part in subject.outputs]
    second = [v.double() for v in subject.evaluate(values)]
    same = shapes == [part.shape for part in subject.outputs]
    room = 1e3 * torch.finfo(values[0].dtype).eps
    for one, other in zip(first, second, strict=False):
        size = float(one.abs().nan_to_num(0.0).max()) if one.numel() else 0.0
        same = same and bool(
            torch.allclose(one, other, rtol=0.0, atol=room * size, equal_nan=True)
        )
    if not same:
        raise InputError(
            "function must repeat: two evaluations from the same seed, inputs and"
            " buffers gave different values. It keeps a state of its own, or draws from"
            " a generator that it makes or holds. Draw from torch's, random's or"
            " numpy's global generator, which seed= fixes, or pass what it remembers as"
            " an input",
            argument="function",
        )


def read_arguments(
    function: Any, order: Any, modes: Any, dtype: Any, directions: Any
) -> tuple[str, ...]:
    if isinstance(function, type) or not callable(function):
        raise InputError(
            "function must be a callable or a module; got"
            f" {getattr(function, '__name__', type(function).__name__)}."
            " For an autograd.Function pass its .apply",
            argument="function",
        )
    modes = (modes,) if isinstance(modes, str) else tuple(modes)
    for name, good, text in (
        ("order", order in (1, 2), f"1 or 2; got {order!r}"),
        (
            "modes",
            bool(modes) and set(modes) <= set(MODES),
            f"some of {', '.join(map(repr, MODES))}; got {modes!r}",
        ),
        (
            "dtype",
            dtype in _DTYPES,
            f"{' or '.join(map(str, _DTYPES))}; got {dtype!r}. For a kernel of another"
            " dtype pass reference=",
        ),
        (
            "directions",
            isinstance(directions, int) and directions > 0,
            f"a positive whole number; got {directions!r}",
        ),
    ):
        if not good:
            raise InputError(f"{name} must be {text}", argument=name)
    if order == 2 and "reverse" not in modes:
        raise InputError(
            f"order=2 takes derivatives of reverse mode; got modes={modes!r}. Add"
            " 'reverse'",
            argument="modes",
        )
    return modes


def refuse_unchecked(
    modes: tuple[str, ...], order: int, skipped: Mapping[str, str]
) -> None:
    """Refuse to call right what nothing was compared of."""
    if all(mode in skipped for mode in modes):
        listed = "; ".join(f"{mode}: {skipped[mode]}" for mode in modes)
        raise UnsupportedModelError(f"function has no derivative to check: {listed}")
    reason = skipped.get("reverse, order 2") or skipped.get("reverse")
    if order == 2 and reason:
        raise UnsupportedModelError(
            "function has no second derivative to check, though its first is right:"
            f" {reason}. Leave out order=2, or give the backward a derivative"
        )
