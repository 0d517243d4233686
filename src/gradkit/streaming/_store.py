"""Rows in chunks that are written whole, checked, and told from another run's.

A chunk's arrays are written first and its record last, so that a chunk with a record
is complete. Until then its batches stand in a journal, one file each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from gradkit.errors import InputError
from gradkit.streaming._digest import SIZE, digest_bytes
from gradkit.streaming._folder import PARTIAL, SCRATCH, Folder
from gradkit.streaming._manifest import (
    CHUNKS,
    Field,
    Manifest,
    metadata,
    read_metadata,
)

__all__ = ["Computed", "Record", "Store", "find_manifest"]


@dataclass(frozen=True)
class Computed:
    """One batch's rows as bytes, by field, with the digest of its inputs."""

    samples: int
    inputs: bytes
    rows: dict[str, bytes]

    @classmethod
    def of(cls, rows: dict[str, Tensor], inputs: bytes) -> Computed:
        """Return rows as they are stored."""
        data = {name: _little(Field.values(value)) for name, value in rows.items()}
        return cls(len(next(iter(rows.values()))), inputs, data)


@dataclass(frozen=True)
class Record:
    """What stands beside a chunk: its samples, its inputs' digests and its rows'."""

    samples: int
    inputs: tuple[bytes, ...]
    fields: tuple[bytes, ...]


def _little(values: np.ndarray[Any, Any]) -> bytes:
    return values.astype(values.dtype.newbyteorder("<"), copy=False).tobytes()


class Store:
    """The chunks of one run in a folder."""

    def __init__(self, folder: Folder, manifest: Manifest) -> None:
        self.folder = folder
        self.manifest = manifest
        self._digest = manifest.digest
        #: The group's metadata, as they were seen to be this run's.
        self._own: bytes | None = None

    # -- the whole ----------------------------------------------------------------

    def write_metadata(self) -> None:
        """Make the folder a Zarr group, or mend what is damaged of it."""
        for name, data in metadata(self.manifest).items():
            if self.folder.read(name) != data:
                self.folder.write(name, data, durable=True)

    def remove(self) -> None:
        """Remove arrays without a record, and nothing that is not this store's."""
        for name in (*self.manifest.fields, CHUNKS):
            if read_metadata(self.folder.read(f"{name}/zarr.json"), name) is not None:
                self.folder.remove(name)
        if read_metadata(self.folder.read("zarr.json")) is not None:
            self.folder.remove("zarr.json")

    def tidy(self) -> None:
        """Remove what no run needs once all chunks are there."""
        self.folder.remove(SCRATCH)

    def remove_partial(self) -> None:
        """Remove files that a run which died did not write to their end."""
        for name in self.folder.names(SCRATCH):
            if name.endswith(PARTIAL):
                self.folder.delete(f"{SCRATCH}/{name}")

    def _check_owner(self) -> None:
        """Refuse to write where another run has put its manifest meanwhile."""
        data = self.folder.read("zarr.json")
        if data is not None and data == self._own:
            return
        found = read_metadata(data)
        if found is None:
            raise InputError(
                f"store {self.folder.address} has been removed or damaged meanwhile;"
                " call again to go on with what is left",
                argument="store",
            )
        if found.digest != self._digest:
            raise InputError(
                f"store {self.folder.address} has become another run's meanwhile; give"
                " every run a folder of its own",
                argument="store",
            )
        self._own = data

    # -- chunks -------------------------------------------------------------------

    def recorded(self) -> list[int]:
        """Return the numbers of the chunks that have a record."""
        return sorted(int(n) for n in self.folder.names(f"{CHUNKS}/c") if n.isdecimal())

    def record(self, chunk: int) -> Record | None:
        """Return a chunk's record; ``None`` if it is damaged or another run's."""
        data = _checked(self.folder.read(_record_name(chunk)))
        if data is None or len(data) != self.manifest.record_bytes:
            return None
        parts = [data[i : i + SIZE] for i in range(0, len(data), SIZE)]
        if parts[0] != self._digest:
            return None
        middle = 2 + self.manifest.per_chunk
        samples = int.from_bytes(parts[1], "little")
        batches = -(-samples // self.manifest.batch)
        return Record(samples, tuple(parts[2 : 2 + batches]), tuple(parts[middle:]))

    def is_whole(self, chunk: int) -> bool:
        """Whether a chunk is complete and as it was written."""
        record = self.record(chunk)
        if record is None:
            return False
        fields = self.manifest.fields
        return all(self._rows(chunk, name, record) is not None for name in fields)

    def rows(self, chunk: int, field: str) -> bytes | None:
        """Return a field's rows in a chunk; ``None`` if they are not as written."""
        record = self.record(chunk)
        return None if record is None else self._rows(chunk, field, record)

    def _rows(self, chunk: int, field: str, record: Record) -> bytes | None:
        data = _checked(self.folder.read(self._name(field, chunk)))
        if data is None:
            return None
        told = record.fields[list(self.manifest.fields).index(field)]
        size = record.samples * self.manifest.fields[field].row_bytes
        return data[:size] if digest_bytes(data) == told else None

    def write(self, chunk: int, batches: list[Computed]) -> None:
        """Write a chunk, then its record, then forget its journal."""
        self._check_owner()
        digests = []
        for field, kind in self.manifest.fields.items():
            size = kind.row_bytes * self.manifest.chunk
            data = b"".join(b.rows[field] for b in batches).ljust(size, b"\0")
            digests.append(digest_bytes(data))
            self.folder.write(self._name(field, chunk), _with_crc(data), durable=True)
        self._check_owner()
        samples = sum(b.samples for b in batches).to_bytes(SIZE, "little")
        inputs = [b.inputs for b in batches]
        inputs += [bytes(SIZE)] * (self.manifest.per_chunk - len(batches))
        record = b"".join([self._digest, samples, *inputs, *digests])
        self.folder.write(_record_name(chunk), _with_crc(record), durable=True)
        if self.manifest.per_chunk > 1:
            self.folder.delete(_journal_name(chunk))

    def _name(self, field: str, chunk: int) -> str:
        places = [str(chunk), *("0" for _ in self.manifest.fields[field].shape)]
        return "/".join([field, "c", *places])

    # -- the journal --------------------------------------------------------------

    def noted(self, chunk: int) -> dict[int, Computed]:
        """Return the batches of a chunk that a run kept before it died, by number."""
        found: dict[int, Computed] = {}
        rest = memoryview(self.folder.appended(_journal_name(chunk)))
        while (entry := self._entry(rest)) is not None:
            number, batch, size = entry
            found[number] = batch
            rest = rest[size:]
        if rest:  # what was not written to its end; nothing may come after it
            self.folder.delete(_journal_name(chunk))
            for number, batch in found.items():
                self.note(number, batch)
        return found

    def note(self, number: int, batch: Computed) -> None:
        """Keep a batch until its chunk is complete."""
        data = b"".join([
            self._digest,
            number.to_bytes(SIZE, "little"),
            batch.samples.to_bytes(SIZE, "little"),
            batch.inputs,
            *batch.rows.values(),
        ])  # fmt: skip
        name = _journal_name(number // self.manifest.per_chunk)
        self.folder.append(name, data + digest_bytes(data))

    def journalled(self) -> list[int]:
        """Return the numbers of the chunks that have a journal."""
        names = self.folder.names(SCRATCH)
        return sorted(int(name) for name in names if name.isdecimal())

    def _entry(self, data: memoryview) -> tuple[int, Computed, int] | None:
        """Return the batch that a journal begins with, and the bytes it takes."""
        if len(data) < 5 * SIZE or data[:SIZE] != self._digest:
            return None
        number = int.from_bytes(data[SIZE : 2 * SIZE], "little")
        samples = int.from_bytes(data[2 * SIZE : 3 * SIZE], "little")
        inputs, rows, at = bytes(data[3 * SIZE : 4 * SIZE]), {}, 4 * SIZE
        for name, field in self.manifest.fields.items():
            size = samples * field.row_bytes
            rows[name] = bytes(data[at : at + size])
            at += size
        if digest_bytes(data[:at]) != data[at : at + SIZE]:
            return None
        return number, Computed(samples, inputs, rows), at + SIZE


def find_manifest(folder: Folder) -> Manifest | None:
    """Return a folder's manifest, from whichever file still has it.

    Raises:
        InputError: The folder holds something else, or none that can be read.
    """
    # What begins with a dot is a file manager's; a folder with nothing in it was made
    # for a file that was not written any more.
    names = [n for n in folder.names("") if n != SCRATCH and not n.startswith(".")]
    names = [n for n in names if not folder.is_bare(n)]
    found = [read_metadata(folder.read("zarr.json"))]
    found += [read_metadata(folder.read(f"{n}/zarr.json"), n) for n in names]
    for manifest in found:
        if manifest is not None:
            return manifest
    if not names:
        return None
    if "zarr.json" in names or CHUNKS in names:
        raise InputError(
            f"store {folder.address} has no manifest that can be read, so that nobody"
            " knows what its rows are. Remove it, or name another folder",
            argument="store",
        )
    raise InputError(
        f"store {folder.address} holds other things ({', '.join(names[:3])}); name a"
        " folder that is new or empty",
        argument="store",
    )


def _record_name(chunk: int) -> str:
    return f"{CHUNKS}/c/{chunk}/0"


def _journal_name(chunk: int) -> str:
    return f"{SCRATCH}/{chunk}"


def _with_crc(data: bytes) -> bytes:
    """Return what Zarr's ``bytes`` and ``crc32c`` codecs make of a chunk."""
    import google_crc32c

    return data + google_crc32c.value(data).to_bytes(4, "little")


def _checked(data: bytes | None) -> bytes | None:
    """Return a chunk without its checksum; ``None`` if that is another."""
    if data is None or len(data) < 4 or _with_crc(data[:-4]) != data:
        return None
    return data[:-4]
