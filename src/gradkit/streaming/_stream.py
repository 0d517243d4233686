"""``stream``: what ``compute`` says of every sample of a loader, in a store."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

from gradkit._call._public import public_pass
from gradkit.errors import InputError
from gradkit.streaming._about import (
    about_run,
    check_compute,
    listed,
    refuse_unlike,
)
from gradkit.streaming._bar import Bar
from gradkit.streaming._batches import one_by_one
from gradkit.streaming._folder import Folder, open_folder
from gradkit.streaming._loader import read_loader
from gradkit.streaming._lock import only_writer
from gradkit.streaming._manifest import Manifest, planned, require_zarr
from gradkit.streaming._open import Rows, open_rows
from gradkit.streaming._ranks import together
from gradkit.streaming._rows import Alone, read_rows
from gradkit.streaming._settings import differences
from gradkit.streaming._store import Store, find_manifest
from gradkit.streaming._work import Work

__all__ = ["stream"]


@public_pass
def stream(
    compute: Callable[[Any], Any],
    loader: Any,
    store: Any,
    *,
    identity: Mapping[str, Any] | None = None,
    resume: bool = True,
    progress: bool = True,
) -> Rows:
    """Store what ``compute`` returns for every sample of a data set.

    Batch ``k`` holds samples ``k B`` to ``(k + 1) B - 1`` of the loader's order,
    whichever process takes it and wherever a run began. A run that dies, at whatever
    moment, loses the batch it was at; the next call with the same arguments goes on
    where the store ends, and the store is then the same, byte for byte, as that of a
    run that never died, at the same number of threads per process.

    Under ``torchrun``, with ``torch.distributed`` initialised, the processes share
    the chunks. Their number may differ from one call to the next.

    Args:
        compute: From a batch to a tensor, or a mapping, dataclass or sequence of
            tensors, each with the batch's samples first: ``(n, *row)``. One of
            ``gk.quantities``, or a function of yours that calls gradkit. It must not
            draw random numbers: give gradkit's functions a ``seed``.
        loader: Batches of one size (the last may be smaller): a ``DataLoader``, a
            sequence of batches, or another iterable of them. One that shuffles needs
            ``generator=torch.Generator().manual_seed(…)``.
        store: A folder's path, or an address that fsspec knows (``"s3://…"``). It
            becomes a Zarr group with one array per tensor that ``compute`` returns.
        identity: What the rows depend on beside data and settings: models, tensors,
            functions and plain values by name. ``gk.quantities`` say it themselves,
            other functions need it to go on with a store that has rows.
        resume: Whether to go on with a store that is there. If not, one that holds
            anything is refused; nothing is ever overwritten.
        progress: Whether to show a bar, on the first process.

    Returns:
        The rows, as ``gk.open_rows(store)`` gives them: read when asked for.

    Raises:
        InputError: ``compute``, ``loader`` or ``store`` is not what is needed, or the
            store was made by another model, setting or order, which is named.
        SampleDependenceError: ``compute`` asks gradkit of a batch, whose samples the
            model or the objective couples.
        UnsupportedModelError: ``compute`` asks gradkit of a model that it cannot serve.
        ProcessError: Under ``torchrun``, another process has failed or died.
        OSError: The store cannot be written; what was written is kept.

    Cost:
        ``compute`` once per batch, reading and digesting its inputs, and a file per
        batch and array. Memory does not depend on the number of samples. Before a
        store is gone on with, all of it is read and checked.

    Example:
        >>> import tempfile, torch
        >>> import gradkit as gk
        >>> model = torch.nn.Linear(3, 2)
        >>> data = torch.utils.data.TensorDataset(
        ...     torch.randn(25, 3), torch.arange(25) % 2
        ... )
        >>> loader = torch.utils.data.DataLoader(data, batch_size=10)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     rows = gk.stream(
        ...         gk.quantities.gradient_norm(model), loader, folder, progress=False
        ...     )
        ...     print(rows)
        ...     worst = rows["gradient_norm"][:].argmax()
        Rows(25 samples; loss float32 () a sample, gradient_norm float32 () a sample)
    """
    check_compute(compute)
    require_zarr()
    batches = read_loader(loader)
    folder = open_folder(store)
    with together() as ranks:
        with ranks.agreed():
            about = about_run(compute, batches, identity)
        with ranks.agreed():
            refuse_unlike(ranks.gather(about))
        with ExitStack() as stack, one_by_one(compute, batches, read_rows) as computed:
            manifest = None
            with ranks.agreed():
                if ranks.first:
                    stack.enter_context(only_writer(folder))
                    manifest = _manifest(folder, computed, about, resume)
            held = Store(folder, ranks.share(manifest))
            bar = Bar(ranks, shown=progress)
            Work(held, computed, ranks, bar).run()
    return open_rows(folder.address)


# -- the store ------------------------------------------------------------------------


def _manifest(
    folder: Folder, computed: Any, about: dict[str, Any], resume: bool
) -> Manifest:
    """Return the manifest to go on with, or write that of a new store."""
    found = find_manifest(folder)
    if found is not None and not _has_rows(folder, found):
        Store(folder, found).remove()
        found = None
    if found is None:
        first = computed.first()
        found = planned(
            first,
            single=isinstance(first, Alone),
            total=computed.total,
            samples=computed.count(len(next(iter(first.values())))),
            about=about,
        )
    else:
        _refuse_other(folder, found, about, resume)
    store = Store(folder, found)
    store.remove_partial()
    store.write_metadata()
    return found


def _has_rows(folder: Folder, manifest: Manifest) -> bool:
    store = Store(folder, manifest)
    return bool(store.recorded() or store.journalled())


def _refuse_other(
    folder: Folder, found: Manifest, about: dict[str, Any], resume: bool
) -> None:
    if not resume:
        raise InputError(
            f"store {folder.address} holds rows already, and resume=False; remove it,"
            " or name another folder",
            argument="store",
        )
    if about["identity"] is None or found.about["identity"] is None:
        which = "compute" if about["identity"] is None else "what wrote it"
        raise InputError(
            f"store {folder.address} holds rows already, and {which} does not say what"
            " its rows depend on, so that they may be another model's. Pass"
            " identity={'model': model, ...} from the first call on, or name another"
            " folder",
            argument="identity",
        )
    # A store knows the order as JSON gives it back.
    unlike = differences(found.about, json.loads(json.dumps(about)))
    if unlike:
        raise InputError(
            f"store {folder.address} holds rows of another run: {listed(unlike)}. Make"
            " these as they were to go on, or name another folder",
            argument="store",
            differences=unlike,
        )
