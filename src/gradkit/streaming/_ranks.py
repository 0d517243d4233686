"""The processes that share one run, as ``torch.distributed`` knows them.

Nothing is scheduled here: which process does what follows from its rank alone, and
who dies ends the run. What is done meanwhile is kept, and the rest is done by the
next run.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from gradkit.errors import InputError, ProcessError

__all__ = ["Ranks", "together"]

# A rank may wait for the others' last batches. One that has died closes its
# connection, which ends the wait; time has no part in it.
_PATIENCE = timedelta(days=30)
#: Seconds between two looks at whether another process has failed.
_EVERY = 1.0
_FAILED = "failed"


class Ranks:
    """This process among those of a run; alone, it is rank 0 of 1."""

    def __init__(self, group: Any = None, board: Any = None) -> None:
        self._group = group
        self._board = board
        self._asked = 0.0
        self.rank = dist.get_rank(group) if group is not None else 0
        self.count = dist.get_world_size(group) if group is not None else 1

    @property
    def first(self) -> bool:
        """Whether this is the process that prepares, reports and tidies up."""
        return self.rank == 0

    def gather(self, value: Any) -> list[Any]:
        """Return every process's value, in the order of ranks."""
        if self._group is None:
            return [value]
        found: list[Any] = [None] * self.count
        with _lost():
            dist.all_gather_object(found, value, group=self._group)
        return found

    def share(self, value: Any) -> Any:
        """Return the first process's value."""
        if self._group is None:
            return value
        held = [value]
        with _lost():
            dist.broadcast_object_list(held, group_src=0, group=self._group)
        return held[0]

    def pass_on(self, value: Any, source: int) -> Any:
        """Bring one process's value to the first; others get ``None``."""
        if source == 0 or self.rank not in (0, source):
            return value if self.first else None
        held = [value]
        with _lost():
            if self.rank == source:
                dist.send_object_list(held, group_dst=0, group=self._group)
                return None
            dist.recv_object_list(held, group_src=source, group=self._group)
        return held[0]

    # -- failures -----------------------------------------------------------------

    @contextmanager
    def agreed(self) -> Iterator[None]:
        """Raise on every process, each at its end, what one of them raised inside.

        Without it those that are well would wait for the one that has failed.
        """
        error: Exception | None = None
        try:
            yield
        except Exception as caught:
            error = caught
        # Who was told of a failure has none of its own to tell.
        own = error is not None and not isinstance(error, ProcessError)
        told = f"{type(error).__name__}: {error}" if own else None
        if error is not None:
            # Who reads this raises as well; what failed here comes first.
            with suppress(ProcessError):
                if told is not None:
                    self._say(told)
                self.gather(told)
            raise error
        failed = {r: e for r, e in enumerate(self.gather(told)) if e is not None}
        if failed:
            raise self._failure(*next(iter(failed.items())))

    def check(self) -> None:
        """Raise if another process has said that it failed; ask once a second."""
        if self._board is None or time.monotonic() < self._asked + _EVERY:
            return
        self._asked = time.monotonic()
        with _lost():
            there = self._board.check([_FAILED])
            told = self._board.get(_FAILED).decode() if there else None
        if told is not None:
            rank, _, text = told.partition(" ")
            raise self._failure(int(rank), text)

    def _say(self, text: str) -> None:
        if self._board is not None:
            with _lost():
                self._board.set(_FAILED, f"{self.rank} {text}")

    def _failure(self, rank: int, text: str) -> ProcessError:
        return ProcessError(
            f"rank {rank} of {self.count} failed, and ended the run: {text}"
        )


@contextmanager
def _lost() -> Iterator[None]:
    """Say what a broken connection to another process means."""
    try:
        yield
    except (RuntimeError, dist.DistError) as error:
        text = str(error).partition("\n")[0]
        raise ProcessError(
            "another process of the run has died. What was written is kept; start the"
            f" run again, with as many processes as you like, to go on ({text})"
        ) from error


@contextmanager
def together() -> Iterator[Ranks]:
    """Give the processes of a run, and let go of their connection at the end.

    Raises:
        InputError: There are several, and they are not connected yet.
    """
    if not (dist.is_available() and dist.is_initialized()):
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise InputError(
                "this is one of several processes (WORLD_SIZE is"
                f" {os.environ['WORLD_SIZE']}), and torch.distributed is not"
                " initialised, so that each would do all of the work. Call"
                ' torch.distributed.init_process_group("gloo") first',
                argument="loader",
            )
        yield Ranks()
        return
    if dist.get_world_size() == 1:
        yield Ranks()
        return
    # A group of its own: what is said here is never mixed with what the caller's
    # code says, and plain objects need a backend that lives on the CPU.
    group: Any = dist.new_group(backend="gloo")
    # Once they have met, a connection that breaks says that one has died.
    dist.distributed_c10d._set_pg_timeout(_PATIENCE, group)
    try:
        yield Ranks(group, _board(group))
    finally:
        dist.destroy_process_group(group)


def _board(group: Any) -> Any:
    """Return where the processes of a run leave word for one another."""
    # The number of groups made so far is the same on all, and new at every call.
    shared = dist.distributed_c10d._get_default_store()
    return dist.distributed_c10d.PrefixStore(f"gradkit/{group.group_name}", shared)
