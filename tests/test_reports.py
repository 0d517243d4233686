"""What a notebook shows of a plan, an agreement and a batch consistency."""

from __future__ import annotations

from collections.abc import Callable
from html.parser import HTMLParser

import pytest
import torch
from torch import nn

import gradkit as gk


class Seen(HTMLParser):
    """Notes the texts of each cell, and that every tag is closed in turn."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.cells: list[str] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)
        if self.open and self.open[-1] in ("td", "th"):
            self.cells[-1] += data


def mixed() -> nn.Module:
    """Return a network of which rules serve one layer and not the other."""
    return nn.Sequential(nn.Linear(4, 3), nn.GRU(3, 2, batch_first=True))


def plan_of_parameters() -> gk.Plan:
    inputs = torch.randn(5, 6, 4)
    return gk.explain(
        gk.per_sample_gradients, mixed(), inputs, gk.objectives.output_sum, of=0
    )


def plan_of_inputs() -> gk.Plan:
    return gk.explain(gk.jacobian, nn.Linear(3, 2), torch.randn(4, 3))


def agreement() -> gk.AgreementReport:
    return gk.compare_methods(gk.jacobian, nn.Linear(3, 2), torch.randn(4, 3))


def consistency() -> gk.BatchConsistencyReport:
    return gk.batch_consistency(
        nn.Linear(3, 2), torch.randn(4, 3), derivative=gk.jacobian
    )


REPORTS: tuple[Callable[[], object], ...] = (
    plan_of_parameters,
    plan_of_inputs,
    agreement,
    consistency,
)
# Headings of a plan's columns stand in HTML alone.
HEADS = {"method", "serves", "parameter", "holds", "cost", "not by rules, because"}


@pytest.mark.parametrize("report", REPORTS)
def test_html_says_what_the_text_says(report):
    made = report()
    seen = Seen(made._repr_html_())
    text = " ".join(str(made).split())
    assert seen.texts[0] == str(made).splitlines()[0]
    for words in seen.texts:
        if words not in HEADS:
            assert set(words.split()) <= set(text.split()) | set(words_of(text)), words


def words_of(text: str) -> list[str]:
    """Return the words of a text without the commas after them."""
    return [word.strip(",") for word in text.split()]


@pytest.mark.parametrize("report", REPORTS)
def test_text_is_what_a_prompt_shows(report):
    made = report()
    assert repr(made) == str(made)


def test_a_plan_names_each_parameter_with_its_detour():
    plan = plan_of_parameters()
    cells = Seen(plan._repr_html_()).cells
    for name, path in plan.paths.items():
        place = cells.index(name)
        assert cells[place + 1] == path.method
        assert cells[place + 4] == (path.reason or "")
    assert any(path.reason for path in plan.paths.values())


def test_a_plan_of_inputs_has_one_table():
    assert plan_of_inputs()._repr_html_().count("<table>") == 1


def test_names_are_escaped():
    class Odd(nn.Module):
        def forward(self, x):
            return 2 * x

    Odd.__name__ = "<script>"
    shown = gk.batch_consistency(Odd(), torch.randn(3, 2))._repr_html_()
    assert "<script>" not in shown
    assert "&lt;script&gt;" in shown
