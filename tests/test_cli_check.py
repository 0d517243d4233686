"""``gradkit check``: targets, tables, exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gradkit.cli import main

SOURCE = """
import torch
import gradkit as gk
from torch import nn

def subject(width=4, coupled=False):
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(width) if coupled else nn.Tanh()
    model = nn.Sequential(nn.Linear(6, width), norm, nn.Linear(width, 3))
    return gk.Subject(model, torch.randn(5, 6), objective=gk.objectives.output_sum)

def halved():
    class Halved(torch.autograd.Function):
        @staticmethod
        def forward(x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g

        generate_vmap_rule = True

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def jvp(ctx, x):
            return 2 * x

    return {"model": Halved.apply, "inputs": torch.randn(4, 3)}

known = {"model": nn.Linear(3, 2), "inputs": torch.ones(2, 3)}
lacking = {"model": nn.Linear(3, 2)}
odd = {"network": 1}
number = 3

def leaves():
    raise SystemExit(3)

def breaks():
    raise RuntimeError("no data here")
"""


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "experiment.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    return "experiment.py"


@pytest.mark.parametrize(
    "function",
    ["jacobian", "input_gradients", "parameter_jacobian", "per_sample_gradients"],
)
def test_a_fine_model(
    target: str, function: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", f"{target}:subject", "--function", function]) == 0
    out = capsys.readouterr().out
    for title in ("plan\n----", "agreement\n---------", "batch consistency\n"):
        assert title in out
    assert f"{function} by " in out
    assert "beside the float64 referee" in out


def test_a_module_and_settings(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "experiment:subject", "--set", "width=7"]) == 0
    assert "5×7" in capsys.readouterr().out
    assert main(["check", f"{target}:known"]) == 0
    assert capsys.readouterr().out.startswith("plan\n----\njacobian by ")


def test_coupled_samples_are_a_finding(
    target: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    command = ["check", f"{target}:subject", "--set", "coupled=True"]
    assert main([*command, "--json", "found.json"]) == 1
    out = capsys.readouterr().out
    assert "BatchNorm1d (at '1') is in training mode" in out
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["fine"] is False
    assert "independent" in found["coupled"]["text"]


def test_a_mode_that_disagrees_is_a_finding(
    target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", f"{target}:halved", "--json", "-"]) == 1
    found = json.loads(capsys.readouterr().out)
    verdicts = {m["name"]: m["verdict"] for m in found["agreement"]["methods"]}
    assert verdicts["onehot"] == "equal"
    assert verdicts["jacfwd"] == "different"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "the following arguments are required: TARGET"),
        (["experiment.py"], "TARGET must be package.module:name"),
        (["nothing.py:x"], "cannot import nothing.py: there is no such file"),
        (["no_such_module:x"], "cannot import no_such_module: ModuleNotFoundError"),
        (["experiment.py:nix"], "experiment.py has no 'nix' (it has torch, gk, nn"),
        (["experiment.py:lacking"], "must give inputs; it gives model"),
        (["experiment.py:odd"], "its keys are network"),
        (["experiment.py:number"], "it gives a int"),
        (["experiment.py:leaves"], "raised SystemExit: 3"),
        (["experiment.py:breaks"], "raised RuntimeError: no data here"),
        (["experiment.py:subject", "--set", "width"], "--set takes KEY=VALUE"),
        (["experiment.py:subject", "--set", "size=3"], "cannot be called so"),
        (["experiment.py:known", "--set", "size=3"], "--set is for functions"),
        (["experiment.py:known", "--function", "input_gradients"], "objective may"),
        (["experiment.py:subject", "--function", "parameter_jacobian", "--wrt", "0"],
         "--wrt has no meaning for parameter_jacobian"),
        (["experiment.py:subject", "--wrt", "nothing"], "nothing"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_said_in_one_line(
    target: str, arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", *arguments]) == 2
    err = capsys.readouterr().err
    assert text in err
    assert err.count("\n") == 1
