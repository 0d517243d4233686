"""One writer at a time on a local folder."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from gradkit.errors import InputError
from gradkit.streaming._folder import Folder, LocalFolder, unwritable

__all__ = ["only_writer"]

#: Seconds in which the workers of a loader end whose process was killed.
_PATIENCE = 3.0


@contextmanager
def only_writer(folder: Folder) -> Iterator[None]:
    """Hold a folder against other runs; the system lets go of it when a run dies.

    At an address there is no such lock: every chunk carries its run's digest, so that
    two runs there never mix, though both may do the same work.

    Raises:
        InputError: Another run holds it.
    """
    if not isinstance(folder, LocalFolder):
        yield
        return
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    try:
        folder.root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(error, folder.address) from error
    held = os.open(folder.root, os.O_RDONLY)
    try:
        _lock(held, folder.address)
        yield
    finally:
        with contextlib.suppress(OSError):
            # Processes that were forked meanwhile would go on to hold it.
            fcntl.flock(held, fcntl.LOCK_UN)
        os.close(held)


def _lock(held: int, address: str) -> None:
    import fcntl

    end = time.monotonic() + _PATIENCE
    while True:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError as error:
            if time.monotonic() > end:
                raise InputError(
                    f"store {address} is being written by another run; wait for it, or"
                    " name another folder",
                    argument="store",
                ) from error
            time.sleep(0.05)
        except OSError:
            return  # some network file systems have no locks
