"""How the lowest versions are read, counted and recorded; the run itself is apart."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import lowest

ROOT = Path(__file__).parents[1]


def test_pins_are_the_lower_bounds_of_pyproject() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    pins = lowest.pins(text)
    assert list(pins) == ["torch", "numpy", "tqdm"]
    for name, version in pins.items():
        bound = re.search(rf'"{name}>=([\d.]+)"', text)
        assert bound
        assert version.startswith(bound[1])
        assert version.count(".") == 2


@pytest.mark.parametrize("requirement", ["torch", "torch>2", "torch>=2,<3", "a>=1; b"])
def test_a_requirement_without_a_plain_lower_bound_is_refused(requirement: str) -> None:
    with pytest.raises(ValueError, match="lowest version"):
        lowest.pins(f'dependencies = ["{requirement}"]')


def test_counts_are_those_of_the_report(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(
        '<testsuites><testsuite tests="9" failures="1" errors="2" skipped="3"/>'
        "</testsuites>",
        encoding="utf-8",
    )
    assert lowest.counts(report) == {"passed": 3, "failed": 3, "skipped": 3}


def test_a_line_takes_the_place_of_its_like_alone() -> None:
    values = {str(name): "1" for name in lowest.COLUMNS}
    first = lowest.row(values)
    other = lowest.row(values | {"Python": "2"})
    again = lowest.row(values | {"passed": "7"})
    text = lowest.recorded(lowest.recorded(lowest.head(), first), other)
    assert lowest.recorded(text, again) == f"{lowest.head()}{other}\n{again}\n"
