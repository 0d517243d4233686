"""The tensors that a map has alive at once, beyond what was there before.

``max_memory`` promises to bound those beyond result and the forward's own graph; both
are counted with the rest, and shown beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from benchmarks import saliency_peers, timing
from benchmarks.problems import Problem
from gradkit._memory_use import TensorBytes
from gradkit.errors import InputError

BUDGETS = {None: None, "32MB": 32_000_000, "8MB": 8_000_000}
MAPS = {
    "smoothgrad": saliency_peers.smoothgrad,
    "integrated": saliency_peers.integrated,
}


def report(name: str, problem: Problem) -> str:
    """Count the bytes of every kind of map, and return a table."""
    graph, result = _graph(problem), problem.inputs.nbytes
    rows = []
    for kind, method in saliency_peers.METHODS.items():
        for limit, size in BUDGETS.items():
            mine = partial(MAPS[kind], max_memory=limit)
            label = f"{method.ours.name}, " + (limit or "no `max_memory`")
            try:
                first, later = _peaks(lambda p, mine=mine: lambda: mine(p), problem)
            except InputError as error:
                # A budget too small is an answer; anything else is a mistake.
                if getattr(error, "argument", None) != "max_memory":
                    raise
                needed = f"refused: needs {_megabytes(error.facts['needed'])} MB"
                rows.append((label, "–", "–", "–", "–", needed))
                continue
            beyond = [peak - graph - result for peak in (first, later)]
            kept = "–" if size is None else "kept" if max(beyond) <= size else "PASSED"
            figures = (first, later, *beyond)
            rows.append((label, *map(_megabytes, figures), kept))
        theirs = method.captum(None)
        if not theirs.missing:
            first, later = _peaks(lambda p, e=theirs: e.build(p).call, problem)
            label = f"{theirs.name}, {method.title.partition(',')[0]}"
            rows.append((label, *map(_megabytes, (first, later)), "–", "–", "–"))
    header = (
        "work", "first call MB", "later MB", "first, beyond graph and result MB",
        "later, beyond these MB", "limit",
    )  # fmt: skip
    return (
        f"### Peak of tensors alive, {name}, N = {len(problem.inputs)}; the forward's"
        f" graph has {_megabytes(graph)} MB, the result {_megabytes(result)} MB\n\n"
        f"{timing.table(header, rows)}"
    )


def _graph(problem: Problem) -> int:
    """Return the bytes that one forward pass leaves for its backward."""
    points = problem.inputs.clone().requires_grad_()
    with TensorBytes() as count:
        outputs = problem.model(points)
    alive = count.now
    del outputs
    return alive


def _peaks(
    make: Callable[[Problem], Callable[[], object]], problem: Problem
) -> tuple[int, int]:
    """Return the peaks of the first call with a model, and of a later one."""
    call = make(problem.copy())
    found = []
    # gradkit proves anew at the second call; the third is like most later ones.
    for _ in range(3):
        with TensorBytes() as count:
            call()
        found.append(count.peak)
    return found[0], found[2]


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f}"
