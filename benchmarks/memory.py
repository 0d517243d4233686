"""The memory that a Jacobian takes under ``max_memory``, counted from outside.

``max_memory`` promises to bound the tensor bytes alive at once beyond model, inputs,
result and the forward's own graph. Here a dispatch mode of this file's own counts
them, once without a limit to see what the Jacobian would need, then with a tenth of
that. Resident memory is read in a fresh process for each. Run as::

    python -m benchmarks.memory
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import gradkit as gk
from benchmarks import timing

# The activations of a row are 64 times as large as the row itself.
SAMPLES, INPUTS, HIDDEN, OUTPUTS = 8, 64, 4096, 160
UNLIMITED = 2**50


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of the storages that are made, and still alive, while it is on.

    A storage is known by a weak reference, so counting keeps nothing alive.

    Args:
        before: Tensors that were there before; their storages do not count.
    """

    def __init__(self, before: list[Tensor]) -> None:
        super().__init__()
        self.known = {t.untyped_storage()._cdata: t.untyped_storage() for t in before}
        self.alive: dict[int, tuple[StorageWeakRef, int]] = {}
        self.peak = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        results = func(*args, **(kwargs or {}))
        for leaf in pytree.tree_leaves(results):
            if isinstance(leaf, Tensor) and leaf.layout is torch.strided:
                self._add(leaf.untyped_storage())
        self.peak = max(self.peak, self.now())
        return results

    def _add(self, storage: torch.UntypedStorage) -> None:
        if storage._cdata not in self.known:
            self.alive[storage._cdata] = StorageWeakRef(storage), storage.nbytes()

    def now(self) -> int:
        """Return the bytes alive at this moment."""
        self.alive = {k: v for k, v in self.alive.items() if not v[0].expired()}
        return sum(size for _, size in self.alive.values())


def problem() -> tuple[nn.Sequential, Tensor]:
    """Return a model whose activations outweigh its inputs and outputs, and a batch."""
    torch.manual_seed(0)
    layers = nn.Linear(INPUTS, HIDDEN), nn.Tanh(), nn.LayerNorm(HIDDEN), nn.GELU()
    model = nn.Sequential(*layers, nn.Linear(HIDDEN, OUTPUTS))
    return model, torch.randn(SAMPLES, INPUTS)


def counted(max_memory: int) -> int:
    """Return the peak beyond model, inputs, result and the forward's own graph."""
    model, inputs = problem()
    before = [inputs, *model.parameters()]
    with LiveBytes(before) as forward:
        outputs = model(inputs.clone().requires_grad_())
        graph = forward.now()
    del outputs
    with LiveBytes(before) as call:
        jacobian = gk.jacobian(model, inputs, method="vmap", max_memory=max_memory)
    return call.peak - graph - jacobian.untyped_storage().nbytes()


def resident(max_memory: int) -> int:
    """Return by how much a call raises a fresh process's peak of resident bytes."""
    command = [sys.executable, "-m", "benchmarks.memory", "--resident", str(max_memory)]
    return json.loads(subprocess.check_output(command, text=True))


def _print_resident(max_memory: int) -> None:
    model, inputs = problem()
    # One small call first, so that code and thread pools are in memory.
    gk.jacobian(nn.Linear(3, 2), torch.randn(2, 3))
    model(inputs)
    before = resident_peak()
    gk.jacobian(model, inputs, method="vmap", max_memory=max_memory)
    print(resident_peak(start_anew=False) - before)


def resident_peak(start_anew: bool = True) -> int:
    """Return the process's peak of resident bytes; on Linux since it was set anew."""
    status = Path("/proc/self/status")
    if not status.exists():
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    if start_anew:
        # Importing torch peaks far above what stays, which would hide the call's.
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    (line,) = (row for row in status.open() if row.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def main() -> int:
    """Measure and print; return 1 if the limit was passed."""
    parser = argparse.ArgumentParser(description="Measure a call's memory.")
    parser.add_argument("--resident", type=int, metavar="BYTES", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.resident is not None:
        _print_resident(options.resident)
        return 0

    need = counted(UNLIMITED)
    limit = need // 10
    within = counted(limit)
    rows = [
        ("no limit", "–", *map(_megabytes, (need, resident(UNLIMITED)))),
        ("a tenth", *map(_megabytes, (limit, within, resident(limit)))),
    ]
    size = SAMPLES * OUTPUTS * INPUTS * 4
    print(
        f"`gk.jacobian(method='vmap')` of {INPUTS}-{HIDDEN}-{OUTPUTS}, N = {SAMPLES},"
        f" float32; result {_megabytes(size)} MB.\n"
        f"{timing.machine(torch.device('cpu'))}\n"
    )
    header = ("", "`max_memory` MB", "tensors' peak MB", "resident peak's rise MB")
    print(timing.table(header, rows))
    print(f"\nThe limit was {'kept' if within <= limit else 'PASSED'}.")
    return int(within > limit)


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f}"


if __name__ == "__main__":
    sys.exit(main())
