"""Tables as plain text, as Markdown and as HTML, the same cells in each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["Table", "html_report", "markdown", "table"]

#: Headings, and the texts of each line.
Table = tuple[Sequence[str], Sequence[Sequence[str]]]


def table(
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    left: int = 1,
    *,
    ruled: bool = True,
    tail: bool = False,
) -> str:
    """Return an aligned table; the first ``left`` columns are flush left.

    Args:
        heads: A heading for each column.
        rows: A text for each cell.
        left: How many columns are flush left; the others are flush right.
        ruled: Whether a line stands below the headings.
        tail: Whether the last column holds sentences, flush left and as long as they
            are.

    Returns:
        Lines without trailing spaces.

    Example:
        >>> print(table(["method", "time"], [["onehot", "9 ms"], ["loop", "1310 ms"]]))
          method     time
          ------  -------
          onehot     9 ms
          loop    1310 ms
    """
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    flush = {*range(left)}
    if tail:
        widths[-1] = len(heads[-1])
        flush.add(len(heads) - 1)
    rule = [["-" * width for width in widths]] if ruled else []
    return "\n".join(
        "  "
        + "  ".join(
            cell.ljust(width) if place in flush else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in (heads, *rule, *rows)
    )


def markdown(
    heads: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1
) -> list[str]:
    r"""Return the lines of a Markdown table.

    Example:
        >>> print(*markdown(["method", "time"], [["a|b", "9 ms"]]), sep="\n")
        | method | time |
        | :-- | --: |
        | a\|b | 9 ms |
    """
    rule = [":--" if place < left else "--:" for place in range(len(heads))]
    return [
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |"
        for line in (heads, rule, *rows)
    ]


def html_report(title: str, notes: Iterable[str], *tables: Table) -> str:
    """Return a title, notes and tables as HTML, for notebooks.

    Example:
        >>> html_report("a < b", ["seen"])
        '<p><b>a &lt; b</b></p><ul><li>seen</li></ul>'
        >>> html_report("t", [], (["n"], [["1"]])).removeprefix("<p><b>t</b></p>")
        '<table><tr><th>n</th></tr><tr><td>1</td></tr></table>'
    """
    # Only notebooks need it.
    from html import escape

    listed = "".join(f"<li>{escape(note)}</li>" for note in notes)
    parts = [f"<p><b>{escape(title)}</b></p>", f"<ul>{listed}</ul>" if listed else ""]
    for heads, rows in tables:
        lines = [
            f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"
            for tag, cells in (("th", heads), *(("td", row) for row in rows))
        ]
        parts.append(f"<table>{''.join(lines)}</table>")
    return "".join(parts)
