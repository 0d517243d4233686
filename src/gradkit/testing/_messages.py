"""The texts of refusals and mismatches."""

from __future__ import annotations

import math
import re

import torch

from gradkit.errors import AgreementError, InputError
from gradkit.testing._entry import Entry
from gradkit.testing._hints import Around, hint_of

__all__ = ["jump", "mismatch", "not_offered", "raised", "unpinned"]

# What torch and custom functions say of a derivative that they do not have.
_ABSENT = re.compile(
    "not (been )?(yet )?(implement|support|compatib)|doesn't (implement|support)"
    "|does not (implement|support|have)|once_differentiable|setup_context"
    "|generate_vmap_rule|not differentiable|must implement|unsupported|data-dependent",
    re.IGNORECASE,
)


def not_offered(error: BaseException) -> str | None:
    """Return the reason, where an error says that a derivative does not exist."""
    first = str(error).strip().partition("\n")[0].partition(". ")[0]
    if isinstance(error, NotImplementedError) or _ABSENT.search(str(error)):
        return f"{type(error).__name__}: {first[:200]}"
    return None


def raised(mode: str, order: int, error: BaseException) -> AgreementError:
    """Return the error for a derivative that cannot even be computed."""
    return AgreementError(
        f"{mode} mode raised {type(error).__name__} (order {order}): {error}",
        mode=mode,
        order=order,
    )


def jump(names: list[str], every: list[str]) -> InputError:
    """Return the refusal of variables that a function compares with values."""
    rest = [name for name in every if name not in names]
    return InputError(
        f"function must be continuous in what it is differentiated by; it jumps at the"
        f" given values of {', '.join(names)}, as targets compared by == make it."
        f" Leave them out: wrt={rest!r}",
        argument="wrt",
        names=names,
    )


def mismatch(
    entry: Entry,
    mode: str,
    order: int,
    compared_with: str,
    *,
    moved: bool = False,
    around: Around | None = None,
) -> AgreementError:
    """Return the error for one entry, with what those around it hint at."""
    hint = hint_of(entry, around)
    where = " (at values moved off a kink)" if moved else ""
    sides = ""
    if entry.sides is not None:
        low, high = sorted(entry.sides)
        sides = f"; on the two sides it is {low:.10g} and {high:.10g}"
    room = "" if math.isinf(entry.tolerance) else f", ± {entry.tolerance:.1e}"
    return AgreementError(
        f"{mode} mode is wrong (order {order}): {entry.text} is {entry.analytic:.10g}"
        f" against {entry.numerical:.10g} ({compared_with}{room}{sides}){where}"
        + (f". Hint: {hint}" if hint else ""),
        mode=mode,
        order=order,
        variable=entry.variable,
        index=entry.index,
        output=entry.output,
        output_index=entry.output_index,
        analytic=entry.analytic,
        numerical=entry.numerical,
        tolerance=entry.tolerance,
        hint=hint,
    )


def unpinned(
    names: list[str], mode: str, order: int, compared_with: str, numbers: torch.Tensor
) -> AgreementError:
    """Return the error for a direction whose entries agree one by one."""
    analytic, numerical, tolerance = numbers.tolist()
    return AgreementError(
        f"{mode} mode is wrong (order {order}): along a random direction of"
        f" {', '.join(names)} the derivative is {analytic:.10g} against"
        f" {numerical:.10g} ({compared_with}, ± {tolerance:.1e}), though its entries"
        " agree one by one: the derivative is not linear",
        mode=mode,
        order=order,
        variable=names,
        analytic=analytic,
        numerical=numerical,
        tolerance=tolerance,
    )
