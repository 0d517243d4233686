"""Bytes under names, in a local folder or at an fsspec address.

A write is atomic: a reader sees what was there before or all of what is there after.
Locally that is a file renamed into its place; object stores promise it of a PUT.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import uuid
from pathlib import Path
from typing import Any, Protocol

from gradkit.errors import InputError

__all__ = ["PARTIAL", "SCRATCH", "Folder", "LocalFolder", "open_folder", "unwritable"]

#: What a run keeps while it goes on, and removes at its end.
SCRATCH = "_journal"
#: How the name of a file ends that was not written to its end.
PARTIAL = ".partial"


class Folder(Protocol):
    """Bytes under names; names are parts joined by ``/``."""

    address: str

    def read(self, name: str) -> bytes | None:
        """Return what stands under a name; ``None`` if nothing does."""
        ...

    def write(self, name: str, data: bytes, *, durable: bool = False) -> None:
        """Put ``data`` under a name, whole or not at all.

        ``durable`` waits until it would outlive a loss of power.
        """
        ...

    def append(self, name: str, data: bytes) -> None:
        """Put ``data`` after what stands under a name, maybe in part at a death."""
        ...

    def appended(self, name: str) -> bytes:
        """Return all that was appended to a name, nothing if it is not there."""
        ...

    def delete(self, name: str) -> None:
        """Remove a name, or what was appended to it; not to be there is no error."""
        ...

    def names(self, prefix: str) -> list[str]:
        """Return the names directly below ``prefix``, without it."""
        ...

    def is_bare(self, name: str) -> bool:
        """Whether a name is a folder with nothing in it."""
        ...

    def remove(self, prefix: str) -> None:
        """Remove a name, and all below it."""
        ...


class LocalFolder:
    """A folder of this machine, or one that is mounted."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.address = str(root)
        self._made: set[str] = set()

    def read(self, name: str) -> bytes | None:
        try:
            return (self.root / name).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def write(self, name: str, data: bytes, *, durable: bool = False) -> None:
        # Plain strings: this runs once per batch, and paths take half its time.
        place = f"{self.address}/{name}"
        partial = f"{self.address}/{SCRATCH}/{uuid.uuid4().hex}{PARTIAL}"
        try:
            self._make(os.path.dirname(partial))
            _write_whole(partial, data, os.O_EXCL, durable=durable)
            self._make(os.path.dirname(place))
            os.replace(partial, place)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(partial)
            raise unwritable(error, place) from error

    def append(self, name: str, data: bytes) -> None:
        place = f"{self.address}/{name}"
        try:
            self._make(os.path.dirname(place))
            _write_whole(place, data, os.O_APPEND)
        except OSError as error:
            raise unwritable(error, place) from error

    def appended(self, name: str) -> bytes:
        return self.read(name) or b""

    def _make(self, folder: str) -> None:
        if folder not in self._made:
            os.makedirs(folder, exist_ok=True)
            self._made.add(folder)

    def delete(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            (self.root / name).unlink()

    def names(self, prefix: str) -> list[str]:
        try:
            return sorted(os.listdir(self.root / prefix))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def is_bare(self, name: str) -> bool:
        place = self.root / name
        return place.is_dir() and next(place.iterdir(), None) is None

    def remove(self, prefix: str) -> None:
        place = self.root / prefix
        with contextlib.suppress(FileNotFoundError):
            if place.is_dir():
                shutil.rmtree(place)
            elif place.exists():  # a disk that is read-only minds even if not
                place.unlink()
        self._made.clear()


def _write_whole(path: str, data: bytes, how: int, *, durable: bool = False) -> None:
    stream = os.open(path, os.O_WRONLY | os.O_CREAT | how, 0o666)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(stream, rest) :]
        if durable:
            os.fsync(stream)
    finally:
        os.close(stream)


_ADVICE = {
    errno.ENOSPC: "The disk is full: make room, then call again to go on",
    errno.EDQUOT: "Your share of the disk is full: make room, then call again to go on",
    errno.EACCES: "Name a folder that may be written to",
    errno.EPERM: "Name a folder that may be written to",
    errno.EROFS: "Name a folder that may be written to",
}


def unwritable(error: OSError, place: str) -> OSError:
    """Return the system's error with what it means for the rows."""
    code = error.errno or 0
    advice = _ADVICE.get(code, "Call again to go on")
    text = os.strerror(code) if code else str(error)
    return OSError(
        code,
        f"stream: the store cannot be written ({text}). What was written is kept."
        f" {advice}",
        place,
    )


class RemoteFolder:
    """An address that fsspec knows, such as ``s3://bucket/rows``."""

    def __init__(self, address: str) -> None:
        try:
            import fsspec
        except ImportError as error:
            raise InputError(
                f"store {address!r} is an address, for which fsspec is needed"
                f' ({error}). Run pip install "gradkit[stream]", or name a folder',
                argument="store",
            ) from error
        try:
            files, path = fsspec.core.url_to_fs(address)
        except (ImportError, ValueError) as error:
            raise InputError(
                f"store {address!r} cannot be opened: {error}", argument="store"
            ) from error
        self.address = address
        self._files: Any = files
        self._path = path.rstrip("/")

    def _place(self, name: str) -> str:
        return f"{self._path}/{name}"

    def read(self, name: str) -> bytes | None:
        try:
            return self._files.cat_file(self._place(name))
        except FileNotFoundError:
            return None

    def write(self, name: str, data: bytes, *, durable: bool = False) -> None:
        # What an object store has answered is durable. Only some of fsspec's file
        # systems have folders, which others make as they go.
        place = self._place(name)
        self._files.makedirs(place.rpartition("/")[0], exist_ok=True)
        self._files.pipe_file(place, data)

    def append(self, name: str, data: bytes) -> None:
        # Objects cannot grow: each part is one, in a folder of the name.
        self.write(f"{name}/{len(self.names(name)):09d}", data)

    def appended(self, name: str) -> bytes:
        found = (self.read(f"{name}/{part}") for part in self.names(name))
        return b"".join(part for part in found if part is not None)

    def delete(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._files.rm(self._place(name), recursive=True)

    def names(self, prefix: str) -> list[str]:
        self._files.invalidate_cache()
        try:
            found = self._files.ls(self._place(prefix), detail=False)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(str(path).rstrip("/").rpartition("/")[2] for path in found)

    def is_bare(self, name: str) -> bool:
        return False  # object stores have no folders

    def remove(self, prefix: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._files.rm(self._place(prefix), recursive=True)


def open_folder(store: Any) -> Folder:
    """Return the folder that ``store`` names; nothing is made yet.

    Raises:
        InputError: ``store`` is no path and no address, or a file.
    """
    if not isinstance(store, (str, os.PathLike)) or not str(store):
        raise InputError(
            "store must be a folder's path or an fsspec address such as"
            f" 's3://bucket/rows'; got {store!r}",
            argument="store",
        )
    address = os.fspath(store)
    if isinstance(address, str) and "://" in address:
        if not address.startswith("file://"):
            return RemoteFolder(address)
        address = address.removeprefix("file://")
    # A program may change its folder meanwhile.
    root = Path(os.fsdecode(address)).expanduser().absolute()
    if root.exists() and not root.is_dir():
        raise InputError(
            f"store must be a folder; {root} is a file", argument="store"
        ) from NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(root))
    return LocalFolder(root)
