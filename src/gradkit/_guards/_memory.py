"""What is remembered of a model between calls: proofs, and bytes per row."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary, ref

from torch import Tensor

from gradkit._guards._walk import nodes_below

__all__ = ["Known", "operations", "recall"]


@dataclass
class Known:
    """What is known of one model on inputs of one kind."""

    calls: int = 0
    bytes_per_unit: dict[str, int] = field(default_factory=dict)
    #: Modules that the model was seen to call although its own list lacks them.
    modules: list[ref[Any]] = field(default_factory=list)
    #: What rules found out about the model's operations.
    rules: Any = None
    #: Whether several batches may be run as one; ``None`` is not known.
    stacks: bool | None = None
    #: Whether sums of gradients may be pulled back in two stages.
    merges: bool | None = None
    #: Whether a batch may be run in pieces.
    divides: bool | None = None
    #: Whether images may lie otherwise in the model's forward.
    lies_anywhere: bool | None = None

    def proof_is_due(self) -> bool:
        """Whether the call about to be made is the 1st, 2nd, 4th, 8th, …."""
        return (self.calls + 1) & self.calls == 0

    def passed(self) -> None:
        """Count a call whose proof held; one that failed must be tried again."""
        self.calls += 1


_MEMORY: WeakKeyDictionary[Any, dict[Hashable, Known]] = WeakKeyDictionary()

# A model called with ever new shapes must not make the memory grow without end.
_MOST_KINDS = 256


def recall(identity: Any, kind: Hashable) -> Known:
    """Return what is known of ``identity`` on this ``kind`` of call.

    An object that cannot be a weak key, or has no hash, is not remembered.
    """
    try:
        kinds = _MEMORY.setdefault(identity, {})
    except TypeError:
        return Known()
    if len(kinds) >= _MOST_KINDS:
        kinds.clear()
    return kinds.setdefault(kind, Known())


def operations(outputs: Sequence[Tensor]) -> int:
    """Return a fingerprint of the operations in the graph of ``outputs``."""
    return hash(
        tuple(
            (node.name(), len(node.next_functions))
            for node in nodes_below(t.grad_fn for t in outputs)
        )
    )
