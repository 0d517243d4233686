"""What README.md and README.zh.md say, compared with the code and with each other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pages import code_blocks, links

ROOT = Path(__file__).parents[1]
README, CHINESE = ROOT / "README.md", ROOT / "README.zh.md"
BOTH = pytest.mark.parametrize("page", [README, CHINESE], ids=lambda page: page.name)


def lines(page: Path) -> list[str]:
    return page.read_text(encoding="utf-8").splitlines()


@BOTH
def test_is_short(page: Path) -> None:
    assert len(lines(page)) <= 120


@BOTH
def test_gives_both_commands(page: Path) -> None:
    assert 'pip install -e ".[mnist]" && gradkit mnist' in lines(page)
    assert 'pip install -e ".[test]" && pytest' in lines(page)


@BOTH
def test_every_linked_page_exists(page: Path) -> None:
    found = links(page)
    assert found
    for link in found:
        assert (page.parent / link).is_file(), link


def test_both_languages_link_to_the_same() -> None:
    here = {link for link in links(README) if link != "README.zh.md"}
    assert {link for link in links(CHINESE) if link != "README.md"} == here


def test_both_languages_have_the_same_code() -> None:
    # Comments are translated.
    english, chinese = (
        [re.sub(r"  # .*", "", block.text) for block in code_blocks(page)]
        for page in (README, CHINESE)
    )
    assert len(english) > 2
    assert english == chinese


def test_both_languages_have_the_same_figures() -> None:
    def numbers(page: Path) -> list[str]:
        tables = [line for line in lines(page) if line.startswith("|")]
        return re.findall(r"\d+(?:\.\d+)?", "\n".join(tables))

    assert numbers(README)
    assert numbers(README) == numbers(CHINESE)
    headings = [
        sum(line.startswith("#") for line in lines(p)) for p in (README, CHINESE)
    ]
    assert headings[0] == headings[1]


def test_the_four_questions_are_its_first_table() -> None:
    table = [line for line in lines(README) if line.startswith("|")][:4]
    asked = re.findall(r"`(\w+)` →", "\n".join(table))
    assert asked == [
        "input_gradients",
        "jacobian",
        "per_sample_gradients",
        "parameter_jacobian",
    ]
