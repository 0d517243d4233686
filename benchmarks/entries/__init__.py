"""What a table compares: gradkit, what bounds it, and other libraries at their best."""

from benchmarks.entries._entry import Entry, Result, Work

__all__ = ["Entry", "Result", "Work"]
