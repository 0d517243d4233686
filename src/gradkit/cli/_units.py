"""Numbers with their units, as plain text."""

from __future__ import annotations


def milliseconds(seconds: float) -> str:
    """Return a time with three digits.

    Example:
        >>> milliseconds(0.0123456), milliseconds(1.5)
        ('12.3 ms', '1,500 ms')
    """
    value = 1000 * seconds
    return f"{value:,.0f} ms" if value >= 100 else f"{value:.3g} ms"


def megabytes(number: int) -> str:
    """Return a number of bytes in millions.

    Example:
        >>> megabytes(3_136_000)
        '3.1 MB'
    """
    return f"{number / 1e6:,.1f} MB"


def relative(number: float) -> str:
    """Return a small ratio; nothing at all is a plain zero.

    Example:
        >>> relative(1.234e-7), relative(0.0)
        ('1.2e-07', '0')
    """
    return f"{number:.1e}" if number else "0"


def counted(number: int, noun: str) -> str:
    """Return a number and its noun, which takes an s if there are several.

    Example:
        >>> counted(1, "digit"), counted(1000, "digit"), counted(0, "digit")
        ('1 digit', '1,000 digits', '0 digits')
    """
    return f"{number:,} {noun if number == 1 else f'{noun}s'}"
