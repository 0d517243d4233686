"""Runs that are killed, and what the next run makes of their stores.

``python tests/stream_kills.py --kills 50 --ranks 1 2 3`` prints one line per number of
processes. Each trial starts a run on a new store, kills one of its processes (all of
them, where it is one) at a random moment, goes on with another number of processes, and
compares the store, byte by byte, with that of a run that nobody killed.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import gradkit as gk

SAMPLES, BATCH = 437, 3


def model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 4))


def loader() -> DataLoader[tuple[torch.Tensor, ...]]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(SAMPLES, 5, generator=generator)
    y = torch.randint(4, (SAMPLES,), generator=generator)
    data = TensorDataset(x, y)
    seeded = torch.Generator().manual_seed(2)
    return DataLoader(data, batch_size=BATCH, shuffle=True, generator=seeded)


def stream(store: Path, begun: Path | None = None) -> None:
    network = model()

    def compute(batch: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        if begun is not None:
            begun.touch()
        x, y = batch
        loss = gk.objectives.sample_loss(F.cross_entropy, y)
        rows = gk.per_sample_gradients(network, x, loss)
        values = rows.objective_values
        assert values is not None, "there is an objective"
        return {"loss": values, "gradient": rows.flat()}

    gk.stream(compute, loader(), store, identity={"model": network}, progress=False)


def run(store: Path, rank: int, count: int, meeting: str) -> None:
    """Run one process of a run; it exits with 3 where another one has died."""
    torch.set_num_threads(1)
    try:
        if count > 1:
            torch.distributed.init_process_group(
                "gloo", init_method=f"file://{meeting}", rank=rank, world_size=count
            )
        stream(store, Path(f"{meeting}-{rank}"))
    except gk.errors.GradkitError as error:
        known = "has died" in str(error) or "ended the run" in str(error)
        os._exit(3 if known else 4)
    except BaseException as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        os._exit(5)
    os._exit(0)


def start(store: Path, count: int, *, met: bool = False) -> list[int]:
    """Start a run in processes of its own, and let them meet before this returns."""
    meeting = tempfile.mktemp(prefix="gradkit-meeting-")
    children = []
    for rank in range(count):
        child = os.fork()
        if not child:
            run(store, rank, count, meeting)
        children.append(child)
    # Before they have met, a death is for whoever starts them to see.
    begun = [Path(f"{meeting}-{rank}") for rank in range(count) if met and count > 1]
    while not all(path.exists() for path in begun):
        time.sleep(0.001)
    return children


def wait(children: list[int], *, within: float = 60.0) -> list[int]:
    """Return the exit codes; those that do not end are killed, and count as 124."""
    codes, end = {}, time.monotonic() + within
    while len(codes) < len(children):
        for child in children:
            if child not in codes:
                ended, status = os.waitpid(child, os.WNOHANG)
                if ended:
                    codes[child] = os.waitstatus_to_exitcode(status)
                elif time.monotonic() > end:
                    os.kill(child, signal.SIGKILL)
                    os.waitpid(child, 0)
                    codes[child] = 124
        time.sleep(0.002)
    return [codes[child] for child in children]


def contents(store: Path) -> dict[str, str]:
    """Return a digest of every file below a folder."""
    return {
        str(path.relative_to(store)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(store.rglob("*"))
        if path.is_file()
    }


def trial(
    folder: Path, count: int, then: int, delay: float, expected: dict[str, str]
) -> tuple[int, str]:
    """Kill one run and go on; return the chunks that were kept, and what is wrong."""
    store = folder / "store"
    children = start(store, count, met=True)
    time.sleep(delay)
    with contextlib.suppress(ProcessLookupError):
        os.kill(children[random.randrange(count)], signal.SIGKILL)
    codes = wait(children)
    kept = len(list(store.glob("_chunks/c/*")))
    if not set(codes) <= {0, 3, -signal.SIGKILL}:
        return kept, f"the others ended with {codes}"
    after = wait(start(store, then))
    if any(after):
        return kept, f"going on ended with {after}"
    found = contents(store)
    if found != expected:
        names = sorted(
            n for n in {*found, *expected} if found.get(n) != expected.get(n)
        )
        return kept, f"the store differs at {names[:5]}"
    return kept, ""


def trials(kills: int, count: int, seed: int) -> dict[str, object]:
    """Return what ``kills`` trials of runs of ``count`` processes came to."""
    random.seed(seed)
    with tempfile.TemporaryDirectory() as name:
        begin = time.monotonic()
        codes = wait(start(Path(name) / "whole", count))
        whole = time.monotonic() - begin
        assert not any(codes), codes
        expected = contents(Path(name) / "whole")
        kept, wrong = [], []
        for number in range(kills):
            with tempfile.TemporaryDirectory() as folder:
                then, delay = random.choice([1, 2, 3]), random.uniform(0, whole)
                chunks, fault = trial(Path(folder), count, then, delay, expected)
                kept.append(chunks)
                wrong += [f"kill {number} at {delay:.3f} s: {fault}"] if fault else []
    return {
        "ranks": count,
        "kills": kills,
        "seconds of a whole run": round(whole, 2),
        "chunks": sum("_chunks/c/" in n for n in expected),
        "kept": sorted(kept),
        "wrong": wrong,
        "digest": hashlib.sha256(repr(sorted(expected.items())).encode()).hexdigest(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        stream(Path(folder))  # what it imports is imported once, before the forks
    results = [trials(options.kills, c, options.seed) for c in options.ranks]
    for result in results:
        sys.stdout.write(f"{result}\n")
    if any(r["wrong"] for r in results) or len({r["digest"] for r in results}) > 1:
        sys.exit(1)


if __name__ == "__main__":
    main()
