"""What README.md says of methods and commands, compared with the code."""

import inspect
import re
from pathlib import Path

import pytest

import gradkit as gk
from gradkit._methods import AUTO

README = Path(__file__).parents[1] / "README.md"


@pytest.fixture(scope="module")
def lines():
    return README.read_text(encoding="utf-8").splitlines()


def first_cells(lines, header):
    """Return ``{first cell: the other cells}`` of the table below ``header``."""
    start = lines.index(header) + 2
    rows = {}
    for line in lines[start:]:
        if not line.startswith("|"):
            return rows
        first, *others = (cell.strip() for cell in line.strip("|").split("|"))
        rows[first.strip("`")] = others
    return rows


def test_is_short(lines):
    assert len(lines) <= 120


def test_gives_both_commands(lines):
    assert 'pip install -e ".[mnist]" && gradkit mnist' in lines
    assert 'pip install -e ".[test]" && pytest' in lines


def test_its_table_of_methods_is_complete(lines):
    table = first_cells(lines, "| method | how | a good choice for |")
    assert list(table) == list(gk.METHODS)


def test_its_decision_list_is_the_one_in_force(lines):
    table = first_cells(lines, "| | `auto` tries |")
    said = {
        question: tuple(re.findall(r"`(\w+)`", cells[0]))
        for question, cells in table.items()
    }
    assert said == dict(AUTO)


def test_every_linked_page_exists():
    links = re.findall(r"\]\(([^)#]+)", README.read_text(encoding="utf-8"))
    assert links
    for link in links:
        assert (README.parent / link).is_file(), link


def test_its_table_of_arguments_names_what_there_is(lines):
    table = first_cells(lines, "| to say | write |")
    said = " ".join(cells[0] for cells in table.values())
    objectives = table["what each sample's number is"][0]
    assert set(re.findall(r"`(\w+)`", objectives)) == set(gk.objectives.__all__)
    taken = {
        name
        for function in (gk.input_gradients, gk.per_sample_gradients)
        for name in inspect.signature(function).parameters
    }
    named = set(re.findall(r"`(\w+)=", said))
    assert named == {"wrt", "of", "parameters", "with_values"}
    assert named <= taken
    assert "`gk.shared(" in said
