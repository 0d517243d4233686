"""The rows of docs/coming-from.md, taken from the page itself and executed.

A row has two pieces of code, *there* and *here*, and begins its third cell with how
their values compare: ``same``, or a comparison of ``there`` with ``here``. A long row
has its pieces in two code blocks, and its third cell in the line below them.
"""

from __future__ import annotations

import ast
import dataclasses
import re
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

PAGE = Path(__file__).parents[1] / "docs" / "coming-from.md"
# What a section needs beside torch.
PEERS = {
    "torch.func": None,
    "functorch": None,
    "torch.autograd.functional": None,
    "captum": "captum",
    "Opacus": "opacus",
    "BackPACK": "backpack",
    "TRAK": "trak",
    "nngeometry": "nngeometry",
}
CLOSE = 1e-9  # of the largest number; in float64, unless a row says else
APART = 1e-2  # by more than this differ those that are said to differ

FENCE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`([^`]+)`")
RELATION = re.compile(
    r"(?:[Ss]ame|`(here|there) (==|!=) ([^`]+)`)(?: to ([0-9.e-]*[0-9]))?(?!\w)"
)


@dataclasses.dataclass(frozen=True)
class Row:
    """Two pieces of code and how their values compare."""

    peer: str
    number: int
    setup: str
    there: str
    here: str
    relation: str

    @property
    def name(self) -> str:
        """Return what the row is called among the tests."""
        return f"{self.peer}-{self.number}"

    def check(self) -> None:
        """Execute both pieces, and compare."""
        names: dict[str, Any] = {}
        with warnings.catch_warnings():
            # What a peer warns of is not ours.
            warnings.simplefilter("ignore")
            run(self.setup, names)
            there = plain(run(self.there, dict(names)))
        here = plain(run(self.here, dict(names)))
        relation = RELATION.match(self.relation)
        assert relation, f"no relation: {self.relation}"
        side, sign, equation, tolerance = relation.groups()
        left, right = (here, there) if side == "here" else (there, here)
        if equation:
            right = plain(run(equation, names | {"there": there, "here": here}))
        share = difference(left, right)
        if sign == "!=":
            assert share > APART, f"they differ by {share} of the largest alone"
        else:
            bound = float(tolerance or CLOSE)
            assert share <= bound, f"they differ by {share} of the largest"


def run(code: str, names: dict[str, Any]) -> Any:
    """Execute ``code`` and return the value of its last expression."""
    body = ast.parse(code.strip()).body
    last = body.pop() if isinstance(body[-1], ast.Expr) else None
    exec(compile(ast.Module(body, []), str(PAGE), "exec"), names)
    if last is None:
        return None
    assert isinstance(last, ast.Expr)
    return eval(compile(ast.Expression(last.value), str(PAGE), "eval"), names)


def plain(value: Any) -> Any:
    """Return ``value`` with mappings as dictionaries and tensors detached."""
    if isinstance(value, Mapping):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, (tuple, list)):
        return tuple(map(plain, value))
    return value.detach()


def difference(found: Any, expected: Any) -> float:
    """Return by how much numbers differ, as a share of the largest of their tensor."""
    assert type(found) is type(expected)
    if isinstance(found, torch.Tensor):
        assert found.shape == expected.shape
        assert found.dtype == expected.dtype
        assert expected.abs().max() > 0
        return ((found - expected).abs().max() / expected.abs().max()).item()
    keys = expected if isinstance(expected, dict) else range(len(expected))
    assert keys
    assert set(keys) == set(found if isinstance(found, dict) else range(len(found)))
    return max(difference(found[key], expected[key]) for key in keys)


def sections(text: str) -> dict[str, str]:
    """Return what stands below each heading of the second level."""
    parts = re.split(r"^## (.+)$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def common(text: str) -> str:
    """Return the code of the examples that all sections build on."""
    prompt = re.compile(r"^(?:>>>|\.\.\.) ?(.*)$", re.MULTILINE)
    return "\n".join(prompt.findall(sections(text)["Names"]))


def rows(text: str) -> list[Row]:
    """Return the rows of all sections of the page."""
    found = []
    for peer, body in sections(text).items():
        if peer not in PEERS:
            continue
        blocks = [match for match in FENCE.finditer(body) if ">>>" not in match[1]]
        setup = common(text) + "\n" + blocks[0][1]
        parts = [*table_rows(body), *long_rows(body, blocks[1:])]
        found += [Row(peer, n, setup, *part) for n, part in enumerate(parts, 1)]
    return found


def table_rows(body: str) -> Iterator[tuple[str, str, str]]:
    """Yield the code and the relation of the rows of a section's tables."""
    columns: list[str] = []
    for line in body.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        if not line.startswith("|"):
            columns = []
        elif not columns:
            columns = cells
        elif "there" in columns and not line.startswith("|--"):
            row = dict(zip(columns, cells, strict=True))
            there, here = CODE.fullmatch(row["there"]), CODE.fullmatch(row["here"])
            assert there, line
            assert here, line
            yield there[1], here[1], row["what differs"]


def long_rows(body: str, blocks: list[re.Match[str]]) -> Iterator[tuple[str, str, str]]:
    """Yield the code and the relation of a section's pairs of code blocks."""
    for there, here in zip(blocks[::2], blocks[1::2], strict=True):
        assert body[: there.start()].rstrip().endswith("There:")
        assert body[there.end() : here.start()].strip() == "Here:"
        yield there[1], here[1], body[here.end() :].strip().splitlines()[0]
