"""That every block is executed, and that lists in the pages are those of the code."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import gradkit as gk
from gradkit._methods import AUTO
from pages import DOCS, code_blocks, first_cells, links, written_pages

METHODS = DOCS / "methods.md"
COMMANDS = DOCS / "reference" / "command-line.md"
# What is no doctest, how many blocks, and the test that executes them.
EXECUTED_ELSEWHERE = {
    "coming-from.md": 18,  # test_coming_from.py, with the tables below them
    "numerics.md": 1,  # test_testing_example.py
    "streaming.md": 1,  # below
}


def test_every_python_block_is_executed() -> None:
    blocks = [block for page in written_pages() for block in code_blocks(page)]
    python = [block for block in blocks if block.language in ("python", "py", "pycon")]
    others = Counter(b.page.name for b in python if not b.executed_by_doctest)
    assert len(python) > 100
    assert others == EXECUTED_ELSEWHERE


@pytest.mark.slow
def test_the_script_for_several_processes_runs(tmp_path: Path) -> None:
    pytest.importorskip("zarr", reason="Python 3.10 has no zarr 3")
    (script,) = (
        block.text
        for block in code_blocks(DOCS / "streaming.md")
        if block.language == "python" and not block.executed_by_doctest
    )
    before = """
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
data = TensorDataset(torch.randn(11, 3), torch.arange(11) % 2)
model, loader = torch.nn.Linear(3, 2), DataLoader(data, batch_size=4)
"""
    imports, _, rest = script.partition("\n\n")
    file = tmp_path / "norms.py"
    file.write_text(f"{imports}\n{before}\n{rest}", encoding="utf-8")
    subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone",
         "--nproc-per-node", "2", file.name],
        cwd=tmp_path, check=True, capture_output=True,
    )  # fmt: skip
    assert gk.open_rows(tmp_path / "norms")["gradient_norm"][:].shape == (11,)


def test_python_is_marked_as_such() -> None:
    # A block without a language is a command or what it prints.
    blocks = [block for page in written_pages() for block in code_blocks(page)]
    left = [
        f"{block.page.name}:{block.line}"
        for block in blocks
        if not block.language and re.search(r"^(>>>|import |from )", block.text, re.M)
    ]
    assert left == []


def test_the_table_of_methods_is_complete() -> None:
    table = first_cells(METHODS, "| method | how | a good choice for |")
    assert list(table) == list(gk.METHODS)


def test_the_decision_list_is_the_one_in_force() -> None:
    table = first_cells(METHODS, "| | `auto` tries |")
    said = {
        question: tuple(re.findall(r"`(\w+)`", cells[0]))
        for question, cells in table.items()
    }
    assert said == dict(AUTO)


def test_the_table_of_objectives_is_complete() -> None:
    page = DOCS / "questions.md"
    table = first_cells(page, "| objective | one sample's number |")
    named = {n for cell in table for n in re.findall(r"gk\.objectives\.(\w+)", cell)}
    assert named == set(gk.objectives.__all__)


def test_the_table_of_what_rows_answer_names_what_there_is() -> None:
    table = first_cells(DOCS / "questions.md", "| ask | get | |")
    named = {name for cell in table for name in re.findall(r"rows\.(\w+)", cell)}
    assert named
    assert all(hasattr(gk.ParameterJacobian, name) for name in named)


def test_the_reference_has_every_public_name() -> None:
    text = "\n".join(p.read_text("utf-8") for p in (DOCS / "reference").glob("*.md"))
    shown = {name.split(".")[-1] for name in re.findall(r"^::: (\S+)", text, re.M)}
    said = set(re.findall(r"`gk\.(\w+)`", text))
    assert set(gk.__all__) - shown - said == set()


@pytest.mark.parametrize("page", written_pages(), ids=lambda page: page.name)
def test_every_linked_page_exists(page: Path) -> None:
    for link in links(page):
        assert (page.parent / link).is_file(), link


def test_every_page_is_in_the_navigation() -> None:
    listed = set(
        re.findall(r": ([\w/-]+\.md)$", (DOCS.parent / "mkdocs.yml").read_text(), re.M)
    )
    assert listed == {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}


def test_the_helps_are_those_that_the_commands_print() -> None:
    environment = {**os.environ, "COLUMNS": "80", "NO_COLOR": "1"}
    blocks = list(code_blocks(COMMANDS))
    for command, block in zip(
        ([], ["check"], ["mnist"], ["saliency"], ["stream"]), blocks, strict=True
    ):
        printed = subprocess.run(
            [sys.executable, "-m", "gradkit", *command, "--help"],
            capture_output=True,
            text=True,
            check=True,
            env=environment,
        ).stdout
        assert _words(printed) == _words(block.text), command


def _words(text: str) -> list[str]:
    # Where lines break differs from one release of Python to the next.
    return text.replace("gradkit/__main__.py", "gradkit").split()
