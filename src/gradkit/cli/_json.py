"""Values for JSON, which has no number for NaN and infinities."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any


def finite(value: Any, instead: Callable[[float], Any]) -> Any:
    """Return a value with something else for each number that is not finite.

    Args:
        value: Numbers, texts and the like, in mappings, lists and tuples.
        instead: From such a number to what stands for it.
    """
    if isinstance(value, float) and not math.isfinite(value):
        return instead(value)
    if isinstance(value, Mapping):
        return {key: finite(entry, instead) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(entry, instead) for entry in value]
    return value


def document(
    value: Any, instead: Callable[[float], Any] = lambda _: None, **options: Any
) -> str:
    """Return a whole JSON file; by default ``null`` is what is not finite.

    Args:
        value: As in ``finite``.
        instead: As in ``finite``.
        **options: More of ``json.dumps``.
    """
    text = json.dumps(finite(value, instead), indent=2, allow_nan=False, **options)
    return f"{text}\n"
