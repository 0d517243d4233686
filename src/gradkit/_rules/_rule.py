"""What a rule is: one family of operations, and what their parameters' rows are.

Index letters, obeyed by every rule: ``n`` samples, ``r`` rows per sample, ``t``
positions that share a parameter, ``i`` and ``o`` a layer's inputs and outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Size, Tensor

from gradkit._rules._factor import Factor
from gradkit._rules._layout import Layout
from gradkit.errors import InputError

__all__ = ["Operation", "Rule"]


def _covers_all(operation: Operation) -> str | None:
    """Return ``None``: every setting is covered."""
    return None


@dataclass(frozen=True, eq=False)
class Operation:
    """One torch call of a forward, as a rule sees it.

    Args:
        function: The torch function that was called.
        arguments: What it was called with, by the rule's names; what was left out is
            missing.
        parameters: The shape of each argument that is a parameter, or computed from
            parameters alone.
        shape: The output's shape.
        dtype: The output's dtype.
        samples: ``N``.
        layout: Where the samples stand in the output.
        compute: The parameter's dtype, in which rows are computed; ``None``: the
            output's.
        place: Where the parameter stands in an argument that is a list of tensors.
    """

    function: Callable[..., Any]
    arguments: Mapping[str, Any]
    parameters: Mapping[str, Size]
    shape: Size
    dtype: torch.dtype
    samples: int
    layout: Layout
    compute: torch.dtype | None = None
    place: int | None = None

    def get(self, argument: str, default: Any = None) -> Any:
        """Return an argument as it was passed, or ``default``."""
        value = self.arguments.get(argument)
        return default if value is None else value

    def values(self, argument: str) -> Tensor:
        """Return a tensor argument, detached, as the operation computed with it.

        Under autocast an operation casts its arguments; what it multiplied is what
        the derivative needs.
        """
        tensor: Tensor = self.arguments[argument]
        return self.cast(tensor) if tensor.is_floating_point() else tensor.detach()

    @property
    def working(self) -> torch.dtype:
        """The dtype that rows are computed in."""
        return self.compute or self.dtype

    def cast(self, tensor: Tensor) -> Tensor:
        """Return a tensor, detached, as the operation casts it, to compute with."""
        return tensor.detach().to(self.dtype).to(self.working)

    def samples_first(self, argument: str) -> Tensor:
        """Return an argument ``(N, ..)`` that has the output's leading axes."""
        return self.front(self.values(argument))

    def front(self, tensor: Tensor) -> Tensor:
        """Return a tensor with the output's leading axes with the samples first."""
        return self.layout.front(tensor, self.samples)

    def spread(self, argument: str) -> Tensor:
        """Return an argument broadcast to the output's shape, samples first."""
        return self.front(self.values(argument).expand(self.shape))


#: From an operation and its output's cotangent ``(N, R, ..)``, samples first, to the
#: rows of one argument.
Rows = Callable[[Operation, Tensor], "Factor | Tensor"]


@dataclass(frozen=True)
class Rule:
    """How rows with respect to the parameters of one family of operations are made.

    Args:
        name: What ``gk.RULES`` and messages call it.
        functions: The torch functions that it serves, each of them with the same
            arguments: ``torch.mul``, ``torch.Tensor.mul``, ``torch.Tensor.__mul__``.
        arguments: The names of their arguments, in order.
        rows: For each argument that may be a parameter, a function of the
            ``Operation`` and of its output's cotangent ``(N, R, ..)``, samples
            first. It returns the rows ``(N, R, *p)``, or a ``Factor`` from which they
            can be formed.
        unsupported: From an operation to the reason why this rule does not cover its
            exact arguments, or ``None``.

    Example:
        >>> import torch
        >>> import gradkit as gk
        >>> def rows(operation, cotangent):
        ...     return cotangent * operation.samples_first("input")[:, None].cos()
        >>> rule = gk.Rule("outer sum", (torch.outer,), ("input", "vec2"), {})
        >>> rule.name, dict(rule.rows)
        ('outer sum', {})
    """

    name: str
    functions: tuple[Callable[..., Any], ...]
    arguments: tuple[str, ...]
    rows: Mapping[str, Rows]
    unsupported: Callable[[Operation], str | None] = field(default=_covers_all)

    def __repr__(self) -> str:
        return f"Rule({self.name!r}, rows by {', '.join(self.rows)})"

    def __post_init__(self) -> None:
        unknown = [name for name in self.rows if name not in self.arguments]
        if unknown:
            error = InputError(
                f"rows must be given for names among arguments {self.arguments}; got"
                f" {unknown[0]!r}"
            )
            error.function = "Rule"
            raise error

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call by name.

        Args:
            args: Positional arguments; what goes beyond ``arguments`` is left out.
            kwargs: Arguments by name.

        Returns:
            Both in one mapping.
        """
        return dict(zip(self.arguments, args, strict=False)) | dict(kwargs)
