"""Which version of gradkit this is."""

from __future__ import annotations

__all__ = ["version"]


def version() -> str:
    """Return the version; of sources that were never installed, that it is unknown."""
    # Few programs ask, and it takes time to import.
    import importlib.metadata

    try:
        return importlib.metadata.version("gradkit")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
