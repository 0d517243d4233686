"""What a difference looks like: a constant factor, a transpose, rows out of order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

__all__ = ["hints"]

#: How close a guess must come, as a part of the largest entry: to half the digits.
_CLOSE = 0.5


def _near(found: Tensor, guess: Tensor, eps: float) -> bool:
    """Whether a guess explains what was found, to half the digits."""
    size = max(_largest(found), _largest(guess))
    if not size:
        return False
    return _largest(found - guess) <= eps**_CLOSE * size


def _largest(values: Tensor) -> float:
    return float(values.abs().max()) if values.numel() else 0.0


def hints(
    found: Mapping[str, Tensor],
    right: Mapping[str, Tensor],
    samples: int | None,
    eps: float,
    bounds: Mapping[str, Tensor] | None = None,
) -> list[str]:
    """Return what could explain a difference, in words.

    Args:
        found: Tensors by name, float64.
        right: What they should be, alike.
        samples: ``N``, where the first axis is the samples'; ``None`` where it is not.
        eps: The precision of what was found.
        bounds: What each entry may be off by.
    """
    guesses = [*_of_all(found, right, samples, eps)]
    for name, value in found.items():
        if not guesses:
            guesses += _of_one(value, right[name], samples, eps, name)
    guesses += _only_some(found, right, samples, eps, bounds)
    return guesses


def _of_all(
    found: Mapping[str, Tensor],
    right: Mapping[str, Tensor],
    samples: int | None,
    eps: float,
) -> Iterator[str]:
    """Yield a factor that explains every tensor."""
    a = torch.cat([v.reshape(-1) for v in found.values()])
    b = torch.cat([v.reshape(-1) for v in right.values()])
    a, b = a[a.isfinite() & b.isfinite()], b[a.isfinite() & b.isfinite()]
    square = float(b @ b)
    if not square:
        return
    if not a.any():
        yield "every entry is zero"
        return
    factor = float(a @ b) / square
    off = abs(factor - 1) > 4 * eps
    if off and abs(factor) > eps and _near(a, factor * b, eps):
        yield f"every entry is {_named(factor, samples)} times the right one"


def _named(factor: float, samples: int | None) -> str:
    """Return a factor, as what it probably is."""
    known = {-1.0: "-1", 2.0: "2", 0.5: "1/2", -2.0: "-2"}
    if samples is not None and samples > 1:
        known |= {float(samples): f"N = {samples}", 1 / samples: f"1/N = 1/{samples}"}
    for value, name in known.items():
        if abs(factor - value) <= 1e-3 * abs(value):
            return name
    if abs(factor - 1) < 0.005:
        return f"1 {factor - 1:+.2e}"
    return f"{factor:.6g}"


def _of_one(
    found: Tensor, right: Tensor, samples: int | None, eps: float, name: str
) -> Iterator[str]:
    """Yield what explains one tensor."""
    where = f" of {name!r}" if name else ""
    lead = 1 if samples is not None else 0
    own = right.shape[lead:]
    if len(own) == 2 and found.shape == right.shape and min(own) > 1:
        turned = right.transpose(-1, -2)
        if turned.shape == found.shape and _near(found, turned, eps):
            yield f"the entries{where} are transposed"
        elif _near(found, turned.reshape(found.shape), eps):
            yield f"the entries{where} are those of the transpose, in its order"
    if len(found) > 1 and found.shape == right.shape:
        count = len(found)
        yield from _of_rows(
            found.reshape(count, -1), right.reshape(count, -1), eps, where
        )


def _of_rows(found: Tensor, right: Tensor, eps: float, where: str) -> Iterator[str]:
    """Yield how rows were mixed up."""
    if _near(found, right, eps):
        return
    if _near(found, right.cumsum(0), eps):
        yield f"each row{where} holds the sum of those before it: it accumulates"
    elif _near(found, right.sum(0).expand_as(found), eps):
        yield f"each row{where} is the sum of all rows"
    elif _near(found, right.mean(0).expand_as(found), eps):
        yield f"each row{where} is the mean of all rows"
    elif len(found) <= 2000:
        order = torch.cdist(found, right).argmin(1)
        if len(order.unique()) == len(order) and _near(found, right[order], eps):
            shown = ", ".join(map(str, order[:6].tolist()))
            more = ", ..." if len(order) > 6 else ""
            yield f"the rows{where} are in another order: {shown}{more}"


def _only_some(
    found: Mapping[str, Tensor],
    right: Mapping[str, Tensor],
    samples: int | None,
    eps: float,
    bounds: Mapping[str, Tensor] | None,
) -> Iterator[str]:
    """Yield that some names, or some samples, alone are concerned."""
    wrong: list[str] = []
    rows: set[int] = set()
    for name, value in found.items():
        limit = 64 * eps * _largest(right[name]) if bounds is None else bounds[name]
        same = (value == right[name]) | (value.isnan() & right[name].isnan())
        off = ~(((value - right[name]).abs() <= limit) | same)
        if not bool(off.any()):
            continue
        wrong.append(name)
        if samples is not None:
            rows |= set(off.reshape(samples, -1).any(1).nonzero()[:, 0].tolist())
    if wrong and len(wrong) < len(found):
        yield f"only {_listed([repr(n) for n in wrong])} of {len(found)} differ"
    if samples is not None and rows and len(rows) < samples:
        yield f"only {_listed([*map(str, sorted(rows))])} of {samples} samples differ"


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:4])
    return shown if len(names) <= 4 else f"{shown} and {len(names) - 4} more"
