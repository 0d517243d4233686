"""What a store holds and what it depends on, written into the store's metadata.

A store is a Zarr group. The manifest stands among the attributes of the group and of
each of its arrays, so that one damaged file loses nothing.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradkit.errors import InputError
from gradkit.streaming._digest import SIZE, digest_json
from gradkit.streaming._folder import SCRATCH

__all__ = ["CHUNKS", "KEY", "Field", "Manifest", "metadata", "planned", "read_metadata"]

#: The array with one record per chunk.
CHUNKS = "_chunks"
#: The manifest's name among the attributes.
KEY = "gradkit"
_FORMAT = 1
_METADATA = "zarr.json"

# Chunks of about this size are read fast and are few; a store is cut into at least
# so many that processes can share them.
_CHUNK_BYTES = 2**20
_MOST_BATCHES = 256
_LEAST_CHUNKS = 32

#: What holds the values of dtypes that numpy and Zarr do not have.
_WIDER = {torch.bfloat16: torch.float32, torch.complex32: torch.complex64}


@dataclass(frozen=True)
class Field:
    """One array of a store: ``(samples, *shape)`` of a dtype that numpy names."""

    dtype: str
    shape: tuple[int, ...]

    @classmethod
    def of(cls, rows: Tensor) -> Field:
        """Return the field that holds such rows, ``(n, *shape)``."""
        return cls(cls.values(rows[:0]).dtype.name, tuple(rows.shape[1:]))

    @staticmethod
    def values(rows: Tensor) -> np.ndarray[Any, Any]:
        """Return rows as an array on the CPU, in the dtype that is stored."""
        held = rows.to(_WIDER.get(rows.dtype, rows.dtype))
        if held.dtype.is_floating_point and held.dtype.itemsize == 1:
            held = held.to(torch.float32)  # the kinds of float8
        return held.resolve_conj().resolve_neg().cpu().contiguous().numpy()

    @property
    def row_bytes(self) -> int:
        """Bytes of one sample."""
        return np.dtype(self.dtype).itemsize * torch.Size(self.shape).numel()


@dataclass(frozen=True)
class Manifest:
    """What a store holds.

    Attributes:
        fields: The arrays by name.
        single: Whether ``compute`` returns one tensor without a name.
        batch: Samples of every batch but the last.
        per_chunk: Batches of every chunk but the last.
        samples: All of them; ``None`` until the end of a loader that does not say.
        about: What the rows depend on: order, identity, settings.
    """

    fields: dict[str, Field]
    single: bool
    batch: int
    per_chunk: int
    samples: int | None
    about: dict[str, Any]

    @property
    def digest(self) -> bytes:
        """What every chunk carries, to be told from another run's."""
        plain = dataclasses.asdict(self)
        return digest_json({k: v for k, v in plain.items() if k != "samples"})

    @property
    def chunk(self) -> int:
        """Samples of a chunk."""
        return self.batch * self.per_chunk

    @property
    def record_bytes(self) -> int:
        """Bytes of a chunk's record."""
        return SIZE * (2 + self.per_chunk + len(self.fields))

    def to_attributes(self) -> dict[str, Any]:
        """Return what is stored."""
        plain = {"format": _FORMAT, **dataclasses.asdict(self)}
        return {KEY: {"manifest": plain, "digest": digest_json(plain).hex()}}

    @classmethod
    def from_attributes(cls, attributes: Any) -> Manifest:
        """Return what was stored.

        Raises:
            ValueError: It is damaged, or of another version.
        """
        try:
            plain = dict(attributes[KEY]["manifest"])
            told = attributes[KEY]["digest"]
            if digest_json(plain).hex() != told:
                raise ValueError("its digest is another")
            if plain.pop("format") != _FORMAT:
                raise ValueError("another version of gradkit wrote it")
            fields = {
                name: Field(f["dtype"], tuple(f["shape"]))
                for name, f in plain.pop("fields").items()
            }
            return cls(fields=fields, **plain)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError("it is no manifest") from error


def planned(
    rows: dict[str, Tensor],
    *,
    single: bool,
    total: int | None,
    samples: int | None,
    about: Any,
) -> Manifest:
    """Return the manifest of a store whose first batch has these rows.

    Raises:
        InputError: A name or shape cannot be stored.
    """
    batch = len(next(iter(rows.values())))
    if not batch:
        raise InputError("loader's first batch is empty", argument="loader")
    fields = {}
    for name, value in rows.items():
        _check_name(name)
        if not value[:1].numel():
            raise InputError(
                f"compute returned rows of shape {tuple(value.shape[1:])} at {name!r},"
                " which have no entries to store",
                argument="compute",
            )
        fields[name] = Field.of(value)
    widest = max(field.row_bytes for field in fields.values()) * batch
    most = (
        _MOST_BATCHES if total is None else min(_MOST_BATCHES, total // _LEAST_CHUNKS)
    )
    wanted = max(1, min(most, _CHUNK_BYTES // widest))
    per_chunk = 2 ** (wanted.bit_length() - 1)
    return Manifest(fields, single, batch, per_chunk, samples, about)


def _check_name(name: str) -> None:
    taken = (CHUNKS, SCRATCH, _METADATA)
    if name in taken or not name.strip(".") or "/" in name or name.startswith("__"):
        raise InputError(
            f"compute returned a field called {name!r}, which cannot name an array of"
            f" a store: '/', '__...' and {', '.join(taken)} are taken",
            argument="compute",
        )


# -- metadata -------------------------------------------------------------------------


def metadata(manifest: Manifest) -> dict[str, bytes]:
    """Return the files that make a folder the Zarr group of a manifest.

    The group's own comes last: once it is there, all are.
    """
    zarr = require_zarr()
    held: dict[str, Any] = {}
    store = zarr.storage.MemoryStore(held)
    attributes = manifest.to_attributes()
    group = zarr.create_group(store, attributes=attributes, zarr_format=3)
    samples = manifest.samples or 0
    chunks = -(-samples // manifest.chunk)
    for name, field in manifest.fields.items():
        _create(
            group, name, field.dtype, samples, manifest.chunk, field.shape, attributes
        )
    record = (manifest.record_bytes,)
    _create(group, CHUNKS, "uint8", chunks, 1, record, attributes)
    found = {name: buffer.to_bytes() for name, buffer in held.items()}
    return {
        name: found[name] for name in sorted(found, key=lambda n: (n == _METADATA, n))
    }


def _create(
    group: Any,
    name: str,
    dtype: str,
    length: int,
    chunk: int,
    row: tuple[int, ...],
    attributes: dict[str, Any],
) -> None:
    from zarr.codecs import Crc32cCodec

    group.create_array(
        name,
        shape=(length, *row),
        chunks=(chunk, *row),
        dtype=dtype,
        # Gradients hardly shrink; what is stored is what was computed, and checked.
        compressors=[Crc32cCodec()],
        fill_value=0,
        attributes=attributes,
    )


def read_metadata(data: bytes | None, array: str | None = None) -> Manifest | None:
    """Return the manifest in a metadata file; ``None`` where it cannot be had.

    Args:
        data: The file.
        array: The name of the array whose file it must be; by default the group's.
    """
    if data is None:
        return None
    try:
        document = json.loads(data)
        manifest = Manifest.from_attributes(document.get("attributes"))
    except (ValueError, AttributeError):
        return None
    # A store may lie in the folder of another; its metadata are of its own arrays.
    if array is None:
        return manifest if document.get("node_type") == "group" else None
    own = array in (*manifest.fields, CHUNKS)
    return manifest if own and document.get("node_type") == "array" else None


def require_zarr() -> Any:
    """Return the package, or say how it is installed."""
    try:
        import zarr
    except ImportError as error:
        raise InputError(
            f"stores are Zarr groups, for which zarr 3 is needed ({error}). Run pip"
            ' install "gradkit[stream]", with Python 3.11 or later',
            argument="store",
        ) from error
    if int(zarr.__version__.split(".")[0]) < 3:
        raise InputError(
            f"stores are groups of Zarr 3; found zarr {zarr.__version__}. Run pip"
            ' install "gradkit[stream]", with Python 3.11 or later',
            argument="store",
        )
    return zarr
