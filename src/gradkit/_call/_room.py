"""Results that no memory can hold, refused before any work, and work that ran out."""

from __future__ import annotations

from gradkit._call._open import Call
from gradkit._memory_use import format_bytes, free_memory
from gradkit.errors import OutOfMemoryError

__all__ = ["beyond_memory", "refuse_beyond_memory"]

_WAYS_OUT = {
    "inputs": "fewer samples; of= or an objective for fewer outputs; wrt= for fewer"
    " inputs; or out= a tensor of yours, such as a memory-mapped one",
    "parameters": "fewer samples; of= or an objective for fewer outputs; parameters="
    " for fewer parameters; or norms(), gram() and project() of the result, which form"
    " no rows where rules serve",
}


def refuse_beyond_memory(call: Call, needed: int) -> None:
    """Refuse a result that is larger than what is free.

    A system that promises more memory than it has would end the process in the
    middle of it.

    Args:
        call: The call.
        needed: The bytes of its result.
    """
    free = free_memory(call.guard.devices)
    if needed > free:
        task = call.task
        shape = f"N = {task.samples:,}, K = {task.rows:,}, D = {sum(task.sizes):,}"
        raise OutOfMemoryError(
            f"out of memory: the result ({shape}) takes {format_bytes(needed)}, and"
            f" {format_bytes(free)} are free. {_less(call)}",
            needed=needed,
            free=free,
        )


def beyond_memory(call: Call, reasons: dict[str, str]) -> OutOfMemoryError:
    """Return the error that every method ran out of memory, or cannot serve."""
    each = "; ".join(f"{name!r}: {reason}" for name, reason in reasons.items())
    return OutOfMemoryError(
        f"out of memory. {_less(call)}. max_memory= bounds the work beyond the result"
        f" ({each})",
        reasons=reasons,
    )


def _less(call: Call) -> str:
    return f"Ask for less at once: {_WAYS_OUT[call.task.kind]}"
