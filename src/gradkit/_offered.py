"""What modules and objects offer at a prompt, and what wrong guesses are told."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

__all__ = ["close", "no_attribute", "offering"]

#: Below it words are only somewhat alike, and a guess would lead astray.
_ALIKE = 0.75


def close(name: str, names: Iterable[str]) -> list[str]:
    """Return the name that is nearest to one, if any is near, whatever its case."""
    # Only wrong guesses are compared, and most programs make none.
    import difflib

    own = {n.lower(): n for n in names}
    found = difflib.get_close_matches(name.lower(), sorted(own), 1, _ALIKE)
    return [own[n] for n in found]


def no_attribute(
    owner: Any, where: str, name: str, names: Iterable[str], table: Mapping[str, str]
) -> AttributeError:
    """Return the error that there is no such attribute, with what is meant, if known.

    Args:
        owner: What was asked.
        where: What it is, as Python's own error says it.
        name: What it was asked for.
        names: What it has.
        table: What answers other libraries' names.
    """
    text = f"{where} has no attribute {name!r}"
    # What tools probe for is no guess of a person's.
    if not name.startswith("_"):
        if name in table:
            text += f"; {table[name]}"
        elif alike := close(name, names):
            text += f"; did you mean {alike[0]!r}?"
    return AttributeError(text, name=name, obj=owner)


def offering(
    module: Mapping[str, Any], table: Mapping[str, str] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return a module's ``__getattr__`` and ``__dir__``: what it offers, not imports.

    Args:
        module: Its ``globals()``.
        table: What answers other libraries' names.
    """

    def missing(name: str) -> Any:
        where = module["__name__"]
        owner, text = sys.modules.get(where), f"module {where!r}"
        raise no_attribute(owner, text, name, module["__all__"], table or {})

    def offered() -> list[str]:
        return sorted({*module["__all__"], *(n for n in module if n[:2] == "__")})

    return missing, offered
