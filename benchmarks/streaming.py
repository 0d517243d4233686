"""What it costs to store the gradients' norms of a whole data set.

Beside one epoch of plain training with the same batches; over ten and a hundred times
the data, in processes of their own, with the memory they take; and by two processes
instead of one. Run as::

    python -m benchmarks.streaming
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import gradkit as gk
from benchmarks import timing
from benchmarks.timing import Contender

BATCH = 100
EPOCH = 60_000
#: Sizes of data for time and memory.
SIZES = (6_000, 60_000, 600_000)
#: Times a plain training epoch, that storing norms is to stay below.
AIM = 1.3


class Repeated(Dataset[tuple[Tensor, Tensor]]):
    """The real digits, again and again, up to any number; they take no more memory."""

    def __init__(self, count: int) -> None:
        digits = gk.mnist.digits()
        self._images = torch.cat([digits.train_images, digits.test_images])
        self._labels = torch.cat([digits.train_labels, digits.test_labels])
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        place = index % len(self._labels)
        return self._images[place], self._labels[place]


def loader(count: int) -> DataLoader[tuple[Tensor, Tensor]]:
    """Return the digits in batches."""
    return DataLoader(Repeated(count), batch_size=BATCH)


def epoch(network: nn.Module, batches: DataLoader[tuple[Tensor, Tensor]]) -> None:
    """Train for one epoch, as one does without gradkit."""
    optimizer = torch.optim.Adam(network.parameters(), lr=0.001)
    for images, labels in batches:
        optimizer.zero_grad()
        F.cross_entropy(network(images), labels).backward()
        optimizer.step()


def norms(network: nn.Module, batches: DataLoader[tuple[Tensor, Tensor]]) -> None:
    """Store every sample's loss and gradient norm."""
    with tempfile.TemporaryDirectory() as folder:
        quantity = gk.quantities.gradient_norm(network)
        gk.stream(quantity, batches, folder, progress=False)


def computed(network: nn.Module, batches: DataLoader[tuple[Tensor, Tensor]]) -> None:
    """Compute the same, and keep nothing."""
    quantity = gk.quantities.gradient_norm(network)
    for batch in batches:
        quantity(batch)


def beside_training(rounds: int) -> str:
    """Return the table of one data set of MNIST's size."""
    network, batches = gk.mnist.network(), loader(EPOCH)
    contenders = [
        Contender("one epoch of training", lambda _: epoch(network, batches)),
        Contender("norms, computed alone", lambda _: computed(network, batches)),
        Contender("norms, `gk.stream`", lambda _: norms(network, batches)),
    ]
    timing.measure(contenders, rounds=rounds, warmup=1, device=torch.device("cpu"))
    plain = contenders[0].median
    rows = [[c.name, f"{c.median:.2f}", f"{c.median / plain:.2f}"] for c in contenders]
    title = f"### {EPOCH:,} digits, batches of {BATCH} (aim: {AIM} at most)"
    return f"{title}\n\n{timing.table(['', 'seconds', '× training'], rows)}"


def lone(count: int) -> dict[str, float]:
    """Stream so many digits in this process; return the time and the memory."""
    network, batches = gk.mnist.network(), loader(count)
    norms(network, loader(10 * BATCH))  # what is imported and proved at first
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin = time.perf_counter()
    norms(network, batches)
    seconds = time.perf_counter() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"seconds": seconds, "peak": peak / 1024, "more": (peak - before) / 1024}


def over_sizes() -> str:
    """Return the table over sizes of data, each in a fresh process."""
    rows = []
    for count in SIZES:
        found = _asked("--lone", str(count))
        rate = count / found["seconds"]
        cells = [f"{found['seconds']:.1f}", f"{rate:,.0f}", f"{found['peak']:.0f}"]
        rows.append([f"{count:,}", *cells, f"{found['more']:+.1f}"])
    header = ["digits", "seconds", "rows per second", "peak MiB", "more than at 1,000"]
    return f"### Time and memory\n\n{timing.table(header, rows)}"


def shared(count: int) -> dict[str, float]:
    """Stream so many digits in this process of several; return the time."""
    torch.set_num_threads(1)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        torch.distributed.init_process_group("gloo")
    network, batches = gk.mnist.network(), loader(count)
    store = os.environ["GRADKIT_STORE"]
    quantity = gk.quantities.gradient_norm(network)
    gk.stream(quantity, loader(10 * BATCH), f"{store}-first", progress=False)
    begin = time.perf_counter()
    gk.stream(quantity, batches, store, progress=False)
    return {"seconds": time.perf_counter() - begin}


def two_processes(rounds: int) -> str:
    """Return the speed-up of two processes over one, with one thread each."""
    seconds: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(rounds):
        for processes, found in seconds.items():
            found.append(_asked("--shared", str(EPOCH), processes=processes)["seconds"])
    one, two = (sorted(found)[len(found) // 2] for found in seconds.values())
    rows = [["1", f"{one:.2f}", "1.00"], ["2", f"{two:.2f}", f"{one / two:.2f}"]]
    title = f"### {EPOCH:,} digits by processes of one thread"
    return f"{title}\n\n{timing.table(['processes', 'seconds', 'speed-up'], rows)}"


def _asked(*arguments: str, processes: int = 1) -> dict[str, float]:
    """Return what this file prints in a process of its own, or in several."""
    start = [sys.executable, "-m"]
    if processes > 1:
        start += ["torch.distributed.run", "--nproc-per-node", str(processes)]
        start += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "-m"]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [*start, "benchmarks.streaming", *arguments],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "GRADKIT_STORE": f"{folder}/rows"},
        )
    return json.loads(done.stdout.strip().splitlines()[-1])


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--lone", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--shared", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.lone or options.shared:
        found = lone(options.lone) if options.lone else shared(options.shared)
        if os.environ.get("RANK", "0") == "0":
            print(json.dumps(found))
        return 0
    print(f"{timing.machine(torch.device('cpu'))}\n")
    for part in (
        lambda: beside_training(options.rounds),
        over_sizes,
        lambda: two_processes(max(1, options.rounds // 2)),
    ):
        print(f"{part()}\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
