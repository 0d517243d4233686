"""One writer at a time on a local folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from gradkit.errors import InputError
from gradkit.streaming._folder import Folder, LocalFolder

__all__ = ["only_writer"]


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
    folder.root.mkdir(parents=True, exist_ok=True)
    held = os.open(folder.root, os.O_RDONLY)
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputError(
                f"store {folder.address} is being written by another run; wait for it,"
                " or name another folder",
                argument="store",
            ) from error
        except OSError:
            pass  # some network file systems have no locks
        yield
    finally:
        os.close(held)
