"""The pictures of the pages: there, and made by the page's own examples."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"
# Written by `gradkit mnist`, whose own tests draw it.
BY_COMMAND = "figures/mnist.png"


def pictures() -> dict[str, Path]:
    """Return every picture that a page shows, with the page."""
    return {
        picture: page
        for page in sorted(DOCS.glob("*.md"))
        for picture in re.findall(r"!\[[^]]+\]\(([^)]+)\)", page.read_text("utf-8"))
    }


def test_every_picture_is_there_and_shown() -> None:
    kept = {f"figures/{file.name}" for file in (DOCS / "figures").iterdir()}
    assert kept
    assert kept == set(pictures())


def test_a_page_makes_its_pictures() -> None:
    found = pictures()
    assert "gradkit mnist" in found.pop(BY_COMMAND).read_text("utf-8")
    for picture, page in found.items():
        name = Path(picture).stem.removeprefix(f"{page.stem}-")
        text = page.read_text("utf-8")
        assert re.search(rf"^>>> {name} = gk\.plots\.", text, re.MULTILINE), picture
