"""The exceptions gradkit raises on purpose.

Every message names the public function, the requirement, what came, where, and
what to do instead. The same facts are attributes of the exception, so that a
program need not parse the text.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "AgreementError",
    "GradkitError",
    "InputError",
    "ProcessError",
    "SampleDependenceError",
    "StaleError",
    "UnsupportedModelError",
]


class GradkitError(Exception):
    """Base of all errors that gradkit raises on purpose.

    Args:
        message: Requirement, what came, where, what to do instead. The name of
            the public function is put before it by the entry point.
        **facts: What the message says, as values. Each becomes an attribute.

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
    """An argument is not what the function takes."""


class SampleDependenceError(GradkitError, ValueError):
    """One sample's output, or objective, depends on another sample."""


class UnsupportedModelError(GradkitError, NotImplementedError):
    """The requested method cannot differentiate this model, and says why."""


class AgreementError(GradkitError, AssertionError):
    """Two computations of the same derivative differ by more than rounding."""


class ProcessError(GradkitError, RuntimeError):
    """Another process of the same run has failed, or died."""


class StaleError(GradkitError, RuntimeError):
    """A postponed computation can no longer be true for the moment of the call."""
