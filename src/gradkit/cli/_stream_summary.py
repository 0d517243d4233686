"""What a store holds, in a few lines."""

from __future__ import annotations

from typing import Any

from gradkit import reducers
from gradkit._tables import table
from gradkit.streaming._open import Column, Rows
from gradkit.streaming.reducers import Place

__all__ = ["summary", "summary_text", "top"]

_SHOWN = 5


def top(column: Column, count: int) -> reducers.Top:
    """Return the samples with the largest numbers, a chunk at a time."""
    return _folded(reducers.TopK(count), column)


def summary(rows: Rows, seconds: float, quantity: str) -> dict[str, Any]:
    """Return what a store holds; of one number per sample also which are largest."""
    fields: dict[str, Any] = {}
    for name in rows.names:
        column = rows[name]
        dtype = str(column.dtype).removeprefix("torch.")
        fields[name] = {"dtype": dtype, "shape": list(column.shape)}
        if len(column.shape) == 1 and column.dtype.is_floating_point:
            fields[name] |= _numbers(column)
    return {
        "quantity": quantity,
        "store": rows.address,
        "samples": len(rows),
        "seconds": seconds,
        "fields": fields,
    }


def _numbers(column: Column) -> dict[str, Any]:
    mean = _folded(reducers.Mean(), column)
    bad = _folded(reducers.Histogram((0.0, 1.0)), column).not_a_number
    found: dict[str, Any] = {"mean": float(mean), "not_a_number": int(bad)}
    if not bad:
        values, samples = top(column, _SHOWN)
        found |= {"largest": values.tolist(), "samples": samples.tolist()}
    return found


def _folded(reducer: reducers.Reducer, column: Column) -> Any:
    state, first = reducer.start(), 0
    for batch, rows in enumerate(column.chunks()):
        state = reducer.add(state, rows, Place(batch, first))
        first += len(rows)
    return reducer.result(state)


def summary_text(values: dict[str, Any]) -> str:
    """Return a summary as people read it."""
    seconds = values["seconds"]
    rate = values["samples"] / seconds if seconds else 0.0
    head = (
        f"{values['quantity']} of {values['samples']:,} samples in {values['store']}"
        f" ({seconds:.1f} s, {rate:,.0f} rows per second)"
    )
    lines = []
    for name, field in values["fields"].items():
        largest = field.get("largest", [])
        samples = field.get("samples", [])
        worst = [f"{v:.4g} ({s})" for v, s in zip(largest, samples, strict=True)]
        if field.get("not_a_number"):
            worst = [f"{field['not_a_number']} are NaN"]
        shape = "×".join(map(str, field["shape"]))
        mean = f"{field['mean']:.4g}" if "mean" in field else "–"
        lines.append([name, f"{field['dtype']} {shape}", mean, ", ".join(worst) or "–"])
    columns = ["array", "numbers", "mean", "largest (sample)"]
    return f"{head}\n\n{table(columns, lines)}"
