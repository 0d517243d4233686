"""The exceptions gradkit raises on purpose.

Every message names the public function, the requirement, what came, where, and
what to do instead. The same facts are attributes of the exception, so that a
program need not parse the text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gradkit._offered import offering

__all__ = [
    "AgreementError",
    "GradkitError",
    "InputError",
    "OutOfMemoryError",
    "ProcessError",
    "SampleDependenceError",
    "StaleError",
    "UnsupportedModelError",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = offering(globals())


class GradkitError(Exception):
    """Base of all errors that gradkit raises on purpose.

    Args:
        message: Requirement, what came, where, what to do instead. The name of
            the public function is put before it by the entry point.
        **facts: What the message says, as values. Each becomes an attribute.

    Attributes:
        message: As above.
        facts: As above, in a mapping.
        function: The public function that raised it, or ``None``.

    Example:
        >>> from gradkit.errors import InputError
        >>> error = InputError("inputs must be floating", dtype="int64")
        >>> error.function = "jacobian"
        >>> print(error)
        jacobian: inputs must be floating
        >>> error.dtype
        'int64'
    """

    def __init__(self, message: str, **facts: Any) -> None:
        super().__init__(message)
        self.message = message
        self.function: str | None = None
        self.facts = facts
        for name, value in facts.items():
            setattr(self, name, value)

    def __str__(self) -> str:
        return f"{self.function}: {self.message}" if self.function else self.message

    def __getattr__(self, name: str) -> Any:
        # Only reached for names that are not set: says which facts there are.
        raise AttributeError(
            f"{type(self).__name__} carries no fact {name!r}"
            f" (it has: {', '.join(self.__dict__.get('facts', ())) or 'none'})"
        )


class InputError(GradkitError, ValueError):
    """An argument is not what the function takes.

    Its ``argument``, where it has one, names the argument.

    Example:
        >>> import torch
        >>> import gradkit as gk
        >>> try:
        ...     gk.jacobian(torch.square, torch.ones(5, 3, dtype=torch.int64))
        ... except ValueError as error:
        ...     print(error.function, error.argument, error.dtype)
        jacobian inputs torch.int64
    """


class SampleDependenceError(GradkitError, ValueError):
    """One sample's output, or objective, depends on another sample.

    Example:
        >>> import torch
        >>> import gradkit as gk
        >>> try:
        ...     gk.jacobian(torch.nn.BatchNorm1d(3), torch.ones(5, 3))
        ... except ValueError as error:
        ...     print(error)
        jacobian: samples must be independent; BatchNorm1d ... is in training mode ...
    """


class UnsupportedModelError(GradkitError, NotImplementedError):
    """The requested method cannot differentiate this model, and says why.

    Its ``reasons``, where it has them, hold the reason of each method, or of each
    parameter.

    Example:
        >>> import torch
        >>> import gradkit as gk
        >>> try:
        ...     gk.jacobian(torch.nn.Linear(3, 2), torch.ones(5, 3), method="rules")
        ... except NotImplementedError as error:
        ...     print(error.reasons["rules"])
        it computes no derivatives with respect to inputs
    """


class OutOfMemoryError(GradkitError, MemoryError):
    """A result is larger than the memory that is free, or a call's work ran out of it.

    An accelerator's own ``torch.OutOfMemoryError`` comes through as it is.

    Example:
        >>> import torch
        >>> import gradkit as gk
        >>> row = torch.ones(1, 1).expand(1, 2_000_000)
        >>> try:
        ...     gk.jacobian(torch.sin, row)
        ... except MemoryError as error:
        ...     print(f"{error.needed:,} bytes")
        16,000,000,000,000 bytes
    """


class AgreementError(GradkitError, AssertionError):
    """Two computations of the same derivative differ by more than rounding.

    ``assert_no_trace`` raises it too, where a call left something behind. The facts
    are those that the docstring of the raising function names.

    Example:
        >>> import torch
        >>> import gradkit as gk
        >>> try:
        ...     gk.testing.assert_gradients_close(torch.ones(3), 2 * torch.ones(3))
        ... except AssertionError as error:
        ...     print(error.difference.hints[0])
        every entry is 1/2 times the right one
    """


class ProcessError(GradkitError, RuntimeError):
    """Another process of the same run has failed, or died.

    ``gk.stream`` and ``gk.reduce`` raise it under ``torchrun``. What was written is
    kept; the same call goes on from there.

    Example:
        >>> from gradkit.errors import ProcessError
        >>> error = ProcessError("rank 1 of 3 failed, and ended the run")
        >>> error.function = "stream"
        >>> isinstance(error, RuntimeError), str(error)
        (True, 'stream: rank 1 of 3 failed, and ended the run')
    """


class StaleError(GradkitError, RuntimeError):
    """A postponed computation can no longer be true for the moment of the call.

    Only rows that did not fit ``max_memory`` are postponed, and only what a model
    reads beside its parameters, buffers, flags, inputs and random numbers makes them
    stale.

    Example:
        >>> import torch
        >>> import gradkit as gk
        >>> factor = [1.0]
        >>> class Scaled(torch.nn.Linear):
        ...     def forward(self, x):
        ...         return super().forward(x) * factor[0]
        >>> x = torch.ones(5, 3)
        >>> J = gk.parameter_jacobian(Scaled(3, 2), x, method="loop", max_memory=64)
        >>> factor[0] = 2.0
        >>> try:
        ...     J.norms()
        ... except RuntimeError as error:
        ...     print(error)
        parameter_jacobian: the model gives other outputs than at the call, ...
    """
