"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import IO

from gradkit.cli._command import UsageError

Writer = Callable[[IO[bytes]], object]


def check_writable(file: Path, *, folders: bool = True) -> None:
    """Prove that ``file`` can be written, and leave everything as it was.

    Args:
        file: It may be there already.
        folders: Whether those that are missing may be made, as ``write_whole`` does.

    Raises:
        UsageError: It cannot; the text says why.
    """
    missing: list[Path] = []
    try:
        if file.exists() and not file.is_file():
            raise UsageError(f"cannot write {file}: it exists and is not a file")
        folder = file.parent
        if folder.exists() and not folder.is_dir():
            raise UsageError(f"cannot write {file}: {folder} is not a folder")
        place = file.resolve()
        if not folders and not place.parent.exists():
            raise UsageError(f"cannot write {file}: there is no folder {folder}")
        missing = _missing([place])
        place.parent.mkdir(parents=True, exist_ok=True)
        _partial(place).touch(exist_ok=False)
        _partial(place).unlink()
    except OSError as error:
        raise _unwritable(file, error) from error
    finally:
        _remove_empty(missing)


def write_whole(writers: Mapping[Path, Writer]) -> None:
    """Write several files, each whole or not at all.

    All are first written beside their place under another name. Only when every
    one of them is complete do they take their names. Folders that are missing are
    made; what fails leaves none of them.

    Args:
        writers: For each file a function that writes it to a binary stream.

    Raises:
        UsageError: The system refuses, as it does when the disk is full.
    """
    # A link stays a link: what it points to is replaced.
    places = {file: file.resolve() for file in writers}
    missing = _missing(places.values())
    try:
        for file, write in writers.items():
            try:
                places[file].parent.mkdir(parents=True, exist_ok=True)
                with _partial(places[file]).open("xb") as stream:
                    write(stream)
            except OSError as error:
                raise _unwritable(file, error) from error
        for file, place in places.items():
            _take_name(file, place)
    finally:
        for place in places.values():
            _partial(place).unlink(missing_ok=True)
        _remove_empty(missing)


def _missing(places: Iterable[Path]) -> list[Path]:
    """Return the folders of files that are not there, the deepest first."""
    folders = {folder for place in places for folder in place.parents}
    return sorted(
        (folder for folder in folders if not folder.exists()),
        key=lambda folder: -len(folder.parts),
    )


def _remove_empty(folders: Iterable[Path]) -> None:
    for folder in folders:
        with contextlib.suppress(OSError):
            folder.rmdir()  # which refuses what holds a file


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
