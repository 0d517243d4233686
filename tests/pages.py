"""The written pages: their code blocks, links and tables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


class Block(NamedTuple):
    """A fenced block: where it begins, its language, and its text."""

    page: Path
    line: int
    language: str
    text: str

    @property
    def executed_by_doctest(self) -> bool:
        """Whether every statement in it is an example that doctest runs."""
        return self.text.startswith(">>> ")


def written_pages() -> list[Path]:
    """Return every page that people read."""
    return [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]


def code_blocks(page: Path) -> Iterator[Block]:
    """Yield the fenced blocks of a page."""
    text = page.read_text(encoding="utf-8")
    for found in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        line = text.count("\n", 0, found.start()) + 1
        yield Block(page, line, found[1], found[2])


def links(page: Path) -> list[str]:
    """Return what a page links to or shows beside it, without anchors."""
    text = re.sub(r"`[^`\n]*`", "", page.read_text(encoding="utf-8"))
    found = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text)
    return [link for link in found if "://" not in link]


def first_cells(page: Path, header: str) -> dict[str, list[str]]:
    """Return ``{first cell: the other cells}`` of the table below ``header``."""
    lines = page.read_text(encoding="utf-8").splitlines()
    rows: dict[str, list[str]] = {}
    for line in lines[lines.index(header) + 2 :]:
        if not line.startswith("|"):
            break
        first, *others = (cell.strip() for cell in line.strip("|").split("|"))
        rows[first.strip("`")] = others
    return rows
