"""What one process of several does: ``torchrun --nproc-per-node 3 ... JOB FOLDER``.

Each writes what it found to ``FOLDER/JOB-RANK.json``, for ``test_stream_ranks.py``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import gradkit as gk

SAMPLES = 101
R = gk.reducers


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(SAMPLES, 3, generator=generator)
    return TensorDataset(x, torch.randint(2, (SAMPLES,), generator=generator))


def loader() -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(1)
    return DataLoader(data(), batch_size=4, shuffle=True, generator=generator)


def model() -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def norms() -> Any:
    return gk.quantities.gradient_norm(model())


REDUCERS = {
    "mean": R.Mean(),
    "variance": R.Variance(),
    "top": R.TopK(3),
    "counts": R.Histogram((0.0, 1.0, 2.0)),
    "gram": R.Gram(),
    "noise": R.NoiseScale(),
}


def plain(value: Any) -> Any:
    """Return a result as JSON holds it."""
    if isinstance(value, Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {name: plain(v) for name, v in value.items()}
    if isinstance(value, tuple):
        return [plain(v) for v in value]
    return str(value) if isinstance(value, R.NoiseScaleEstimate) else value


def reduced(folder: Path) -> Any:
    return plain(gk.reduce(norms(), loader(), REDUCERS, progress=False))


def reduced_generator(folder: Path) -> Any:
    batches = (batch for batch in loader())
    return plain(gk.reduce(norms(), batches, REDUCERS, progress=False))


def reduced_gradients(folder: Path) -> Any:
    compute = gk.quantities.gradients(model())
    both = {"mean": R.Mean(), "noise": R.NoiseScale()}
    return plain(gk.reduce(compute, loader(), both, progress=False))


def checkpointed(folder: Path) -> Any:
    """Fail at the third batch of the last rank; go on at the next call."""
    quantity, calls = norms(), 0
    fails = not (folder / "checkpoint").exists()

    class Failing:
        identity = quantity.identity

        def __call__(self, batch: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == 3 and fails and rank() == dist.get_world_size() - 1:
                raise ValueError("the third batch")
            return quantity(batch)

    kept = R.Checkpointed(REDUCERS, folder / "checkpoint", every=1)
    found = plain(gk.reduce(Failing(), loader(), kept, progress=False))
    return {"calls": calls, "found": found}


def streamed(folder: Path) -> Any:
    rows = gk.stream(norms(), loader(), folder / "store", progress=False)
    return plain(rows[:])


def streamed_generator(folder: Path) -> Any:
    batches = (batch for batch in loader())
    rows = gk.stream(norms(), batches, folder / "generated", progress=False)
    return plain(rows[:])


def streamed_in_ddp(folder: Path) -> Any:
    wrapped = DistributedDataParallel(model())
    quantity = gk.quantities.gradient_norm(wrapped)
    rows = gk.stream(quantity, loader(), folder / "store", progress=False)
    return plain(rows[:])


def failing(folder: Path) -> Any:
    """Rank 1 fails; the others are told at their next batch, or at their end."""

    def compute(batch: Any) -> Tensor:
        if rank() == 1:
            raise ValueError("a bad batch")
        return batch[0]

    return gk.stream(compute, loader(), folder / "failed", progress=False)


def unlike(folder: Path) -> Any:
    """Processes whose models differ are refused."""
    network = model()
    with torch.no_grad():
        network[0].bias += rank()  # pyright: ignore
    quantity = gk.quantities.gradient_norm(network)
    return gk.stream(quantity, loader(), folder / "unlike", progress=False)


def sharded(folder: Path) -> Any:
    """A model whose parameters are spread over processes is refused by name."""
    from torch.distributed.fsdp import fully_shard

    network = fully_shard(model())
    quantity = gk.quantities.gradient_norm(network)
    return gk.stream(quantity, loader(), folder / "sharded", progress=False)


def too_few(folder: Path) -> Any:
    """What the first process alone finds at the end ends all."""
    batches = DataLoader(data(), batch_size=50)
    return gk.reduce(norms(), batches, R.NoiseScale(), progress=False)


def rank() -> int:
    return dist.get_rank()


JOBS: dict[str, Callable[[Path], Any]] = {
    job.__name__: job
    for job in (
        reduced, reduced_generator, reduced_gradients, checkpointed, streamed,
        streamed_generator, streamed_in_ddp, failing, unlike, sharded, too_few,
    )
}  # fmt: skip


def main() -> None:
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for name in sys.argv[2:]:
        try:
            found = {"result": JOBS[name](folder)}
        except Exception as error:
            found = {"error": f"{type(error).__name__}: {error}"}
        (folder / f"{name}-{rank()}.json").write_text(json.dumps(found))
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
