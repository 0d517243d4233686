"""What a method is: an interchangeable way to compute the same rows."""

# Arguments are checked whatever their declared types say.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from gradkit._methods._reasons import no_second_derivative
from gradkit._methods._task import Task
from gradkit._problem._block import Block
from gradkit.errors import InputError

__all__ = ["Method"]

Kind = Literal["inputs", "parameters"]


def _no_reason(task: Task) -> str | None:
    """Return ``None``: what is not known to fail is tried."""
    return None


def _refusal(message: str) -> InputError:
    error = InputError(message)
    error.function = "Method"
    return error


@dataclass(frozen=True)
class Method:
    """An interchangeable way to pull cotangents back; a value, not a class to derive.

    A method speaks flat matrices. It is given a ``Task`` and yields blocks
    ``(samples, rows, values)``, where ``values`` holds one ``(n, r, size)`` tensor
    per thing differentiated with respect to. Which rows there are, and how they
    become tensors of the caller's shapes, is not its business.

    Args:
        name: What ``method=`` and messages call it.
        mode: ``"reverse"`` or ``"forward"``.
        summary: One line: how it works and when it is a good choice.
        inputs: Rows with respect to inputs, or ``None`` where it has none.
        parameters: Rows with respect to parameters, or ``None``.
        unsupported: From a task to the reason why it cannot serve it, or ``None``.
        through_graph: The kinds (``"inputs"``, ``"parameters"``) for which it pulls
            back through the one realised forward (``task.graph``), and is trusted.
            Results of any other kind are checked against that forward before they
            are returned.

    Example:
        >>> import torch
        >>> import gradkit as gk
        >>> from gradkit import Method
        >>> def rows(task):
        ...     for r in range(task.rows):
        ...         pulled = task.graph.pull(task.cotangents(slice(r, r + 1))[0])
        ...         values = tuple(p[:, None] for p in pulled)
        ...         yield gk.Block(slice(0, task.samples), slice(r, r + 1), values)
        >>> mine = Method("mine", "reverse", "one backward per output", inputs=rows)
        >>> layer = torch.nn.Linear(3, 2)
        >>> J = gk.jacobian(layer, torch.ones(4, 3), method=mine)
        >>> torch.equal(J[0], layer.weight)
        True
    """

    name: str
    mode: Literal["reverse", "forward"]
    summary: str
    inputs: Callable[[Task], Iterator[Block]] | None = None
    parameters: Callable[[Task], Iterator[Block]] | None = None
    unsupported: Callable[[Task], str | None] = _no_reason
    through_graph: tuple[Kind, ...] = ()

    def __repr__(self) -> str:
        return f"Method({self.name!r}, {self.mode}: {self.summary})"

    def __post_init__(self) -> None:
        modes = ("reverse", "forward")
        if self.mode not in modes:
            raise _refusal(f"mode must be one of {modes}; got {self.mode!r}")
        if self.name == "auto" or not isinstance(self.name, str) or not self.name:
            raise _refusal(f"name must be a text other than 'auto'; got {self.name!r}")
        if self.inputs is None and self.parameters is None:
            raise _refusal("inputs or parameters must be a function of a task")
        kinds = ("inputs", "parameters")
        if not isinstance(self.through_graph, tuple) or not all(
            kind in kinds for kind in self.through_graph
        ):
            raise _refusal(
                f"through_graph must be a tuple of {kinds}; got {self.through_graph!r}"
            )

    @property
    def by_rules(self) -> bool:
        """Whether it needs the forward's operations recorded."""
        return getattr(self.parameters, "rules", None) is not None

    def run(self, task: Task) -> Iterator[Block]:
        """Yield the blocks of ``task``.

        Args:
            task: What to differentiate, which ``reason`` has nothing against.

        Yields:
            ``gk.Block`` by ``gk.Block``, each as soon as it is computed.

        Raises:
            InputError: A function of others' yields something else.

        Cost:
            That of the method: its ``summary``.
        """
        rows = self.inputs if task.kind == "inputs" else self.parameters
        assert rows is not None, "reason() is asked first"
        for block in rows(task):
            if not isinstance(block, Block):
                raise InputError(
                    f"method {self.name!r} must yield gk.Block(samples, rows, values);"
                    f" it yielded a {type(block).__name__}",
                    argument="method",
                )
            yield block

    def reason(self, task: Task) -> str | None:
        """Return why this method cannot serve ``task``, or ``None``.

        Args:
            task: What to differentiate.

        Returns:
            A sentence without its full stop, or ``None`` where nothing is known to
            be in the way; the method can still turn out to fail when it is run.
        """
        rows = self.inputs if task.kind == "inputs" else self.parameters
        if rows is None:
            return f"it computes no derivatives with respect to {task.kind}"
        if task.connected:
            lost = no_second_derivative(task)
            if lost is not None:
                return lost
        if task.forwards.guard.drew and task.kind not in self.through_graph:
            return (
                "the forward draws random numbers, and it would run the model again"
                " on other batches, which draws others"
            )
        if task.forwards.guard.moved and task.kind not in self.through_graph:
            moved = ", ".join(map(repr, task.forwards.guard.moved[:3]))
            return (
                f"the forward moves buffers ({moved}), and it would run the model"
                " again on other batches, which moves them otherwise"
            )
        return self.unsupported(task)
