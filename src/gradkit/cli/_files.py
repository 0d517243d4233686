"""Files that appear whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO

from gradkit.cli._command import UsageError

Writer = Callable[[IO[bytes]], object]


def check_writable(file: Path) -> None:
    """Make the folder of ``file`` and prove that ``file`` can be written there.

    Args:
        file: Its folder is made if it is missing; the file itself stays as it is.

    Raises:
        UsageError: It cannot; the text says why.
    """
    if file.exists() and not file.is_file():
        raise UsageError(f"cannot write {file}: it exists and is not a file")
    if file.parent.exists() and not file.parent.is_dir():
        raise UsageError(f"cannot write {file}: {file.parent} is not a folder")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = _partial(file.resolve())
        partial.touch(exist_ok=False)
        partial.unlink()
    except OSError as error:
        raise _unwritable(file, error) from error


def write_whole(writers: Mapping[Path, Writer]) -> None:
    """Write several files, each whole or not at all.

    All are first written beside their place under another name. Only when every
    one of them is complete do they take their names.

    Args:
        writers: For each file a function that writes it to a binary stream.

    Raises:
        UsageError: The system refuses, as it does when the disk is full.
    """
    # A link stays a link: what it points to is replaced.
    places = {file: file.resolve() for file in writers}
    try:
        for file, write in writers.items():
            try:
                with _partial(places[file]).open("xb") as stream:
                    write(stream)
            except OSError as error:
                raise _unwritable(file, error) from error
        for file, place in places.items():
            _take_name(file, place)
    finally:
        for place in places.values():
            _partial(place).unlink(missing_ok=True)


def _take_name(file: Path, place: Path) -> None:
    try:
        _partial(place).replace(place)
    except OSError as error:
        raise _unwritable(file, error) from error


def _partial(place: Path) -> Path:
    # In the same folder, so that taking the name is one step.
    return place.with_name(f".{place.name}.{os.getpid()}.partial")


def _unwritable(file: Path, error: OSError) -> UsageError:
    return UsageError(f"cannot write {file}: {error.strerror or error}")
