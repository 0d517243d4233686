"""Every row of docs/coming-from.md, executed beside the library it is about."""

import dataclasses
import re

import pytest
import torch

import coming_from
from coming_from import PAGE, PEERS, Row, rows, run, sections

TEXT = PAGE.read_text(encoding="utf-8")
ROWS = rows(TEXT)
HAS_ROWS = [peer for peer, body in sections(TEXT).items() if "| there |" in body]


@pytest.mark.parametrize("row", ROWS)
def test_a_row(row: Row):
    needed = PEERS[row.peer]
    if needed is not None:
        pytest.importorskip(needed, reason=f"{needed} is not in the extra test")
    row.check()


def test_every_section_with_calls_is_executed():
    silent = "What differs in silence"  # repeats rows in words
    assert [peer for peer in HAS_ROWS if peer != silent] == list(PEERS)


@pytest.mark.parametrize("peer", PEERS)
def test_no_line_and_no_block_is_left_out(peer):
    body = sections(TEXT)[peer]
    lines = [line for line in body.splitlines() if line.startswith("| ")]
    blocks = body.count("```python")
    found = [row for row in ROWS if row.peer == peer]
    assert len(found) == len(lines) - 1 + (blocks - 1) // 2  # a head; the names
    assert len(found) >= 3


def test_rows_of_torch_and_captum_are_always_executed():
    here = [peer for peer, module in PEERS.items() if module in (None, "captum")]
    assert len([row for row in ROWS if row.peer in here]) >= 45


def test_no_two_axes_of_the_page_are_as_long():
    names: dict = {}
    run(coming_from.common(TEXT), names)
    sizes = [names["N"], names["D"], names["K"], names["model"][0].out_features]
    assert len(set(sizes)) == len(sizes)
    assert names["x"].shape == (names["N"], names["D"])
    assert names["x"].dtype == torch.float64


def test_the_page_names_the_versions_it_was_checked_with():
    said = next(line for line in TEXT.splitlines() if line.startswith("Checked with"))
    for peer in ("torch", "captum", "Opacus", "BackPACK", "TRAK", "NNGeometry"):
        assert re.search(rf"\b{peer} \d+\.\d+", said), peer
    assert f"all {len(ROWS)} rows" in said


# A cell's code, or what it says of the two numbers, and a mistake in it.
MISTAKES = [
    ("`vmap(grad(score))(x)`", "`vmap(grad(score))(t)`"),
    ("`gk.input_gradients(model, x, 2)`", "`gk.input_gradients(model, x, 1)`"),
    ("`there == here / N`: the loss", "same: the loss"),
    ("`there == here / N`: the loss", "`there == here / (N + 1)`: the loss"),
    ("`there == here / N`: the loss", "`there != here / N`: the loss"),
    (".movedim(-1, 0)`: there it is", ".movedim(-1, 1)`: there it is"),
    ("`there == here.movedim(0, 1)`: the usual", "same: the usual"),
    ("`there == tuple(here.values())`", "same"),
    ("labels, abs=False)` | `S.gradient", "labels)` | `S.gradient"),
    ('labels, wrt="1")`', 'labels, wrt="0")`'),
    ("`gk.parameter_jacobian(model, x).rmatvec(v)`", "`v`"),
    ("gk.parameter_jacobian(model, x).gram()\n", "gk.jacobian(model, x)\n"),
    ("noise=0.2)`", "noise=0.8)`"),
]


@pytest.mark.parametrize(("right", "wrong"), MISTAKES)
@pytest.mark.filterwarnings("ignore")
def test_a_mistake_on_the_page_is_found(right, wrong):
    assert TEXT.count(right) >= 1
    changed = rows(TEXT.replace(right, wrong))
    found = [new for old, new in zip(ROWS, changed, strict=True) if new != old]
    assert found
    for row in found:
        with pytest.raises(AssertionError):
            row.check()


@pytest.mark.parametrize("relation", ["", "similar", "sameness", "`there = here`"])
def test_a_row_says_how_its_numbers_compare(relation):
    row = dataclasses.replace(ROWS[0], relation=relation)
    with pytest.raises(AssertionError, match="no relation"):
        row.check()
