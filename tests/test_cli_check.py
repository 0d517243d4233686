"""``gradkit check``: targets, tables, exit codes."""

from __future__ import annotations

import functools
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

import gradkit as gk
from gradkit.cli import main

SOURCE = """
import torch
import gradkit as gk
from torch import nn
import functools

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

partial = functools.partial(subject, width=7)
cached = functools.cache(subject)

class Factory:
    def __init__(self, width):
        self.width = width

    def __call__(self, more=0):
        return subject(self.width + more)

factory = Factory(7)
bound = factory.__call__
network = nn.Linear(3, 2)

def function_of_inputs(x):
    return x

def makes_network():
    return nn.Linear(3, 2)

def noisy():
    print("loading data")
    class Noisy(nn.Linear):
        def forward(self, x):
            print("forward")
            return super().forward(x)
    return gk.Subject(Noisy(3, 2), torch.ones(2, 3))

def overflows():
    return gk.Subject(lambda x: (x * 1e30) ** 2, torch.ones(2, 3))

def fails_late():
    def model(x):
        raise RuntimeError("no weights")
    return gk.Subject(model, torch.ones(2, 3))

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
        (["experiment.py:nix"], "experiment.py has no 'nix' (it has subject, halved"),
        (["experiment.py:lacking"], "must give inputs; it gives model"),
        (["experiment.py:odd"], "its keys are network"),
        (["experiment.py:number"], "it gives a int"),
        (["experiment.py:network"], "gives the module Linear without inputs; name a"
         " gk.Subject(model, inputs), which says what it is called with"),
        (["experiment.py:network", "--set", "size=3"], "--set is for functions"),
        (["experiment.py:makes_network"], "gives the module Linear without inputs"),
        (["experiment.py:function_of_inputs"], "a required argument: 'x'. Give its"
         " arguments by --set; where it is the model itself, name a gk.Subject(model,"),
        (["experiment.py:partial", "--set", "size=3"], "cannot be called so"),
        (["experiment.py:leaves"], "raised SystemExit: 3"),
        (["experiment.py:breaks"], "raised RuntimeError: no data here"),
        (["experiment.py:subject", "--set", "width"], "--set takes KEY=VALUE"),
        (["experiment.py:subject", "--set", "size=3"], "cannot be called so"),
        (["experiment.py:known", "--set", "size=3"], "--set is for functions"),
        (["experiment.py:known", "--function", "input_gradients"], "objective may"),
        (["experiment.py:subject", "--function", "parameter_jacobian", "--wrt", "0"],
         "gradkit check: --wrt has no meaning for parameter_jacobian"),
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


@pytest.mark.parametrize(
    ("name", "settings", "width"),
    [
        ("partial", [], 7),
        ("partial", ["--set", "width=8"], 8),
        ("cached", ["--set", "width=8"], 8),
        ("factory", [], 7),
        ("factory", ["--set", "more=2"], 9),
        ("bound", [], 7),
    ],
)
def test_whatever_returns_a_subject_is_a_factory(
    target: str,
    name: str,
    settings: list[str],
    width: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = ["check", f"{target}:{name}", "--function", "parameter_jacobian"]
    assert main([*command, *settings]) == 0
    assert f"entries = {10 * width + 3};" in capsys.readouterr().out


def test_a_file_does_not_stand_in_for_a_module_of_its_name(
    target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("json.py").write_text(Path(target).read_text())
    assert main(["check", "json.py:known"]) == 0
    assert sys.modules["json"] is json
    assert capsys.readouterr().out.startswith("plan\n")


class TestJson:
    """What ``--json`` writes is JSON, whole or not at all."""

    @staticmethod
    def read(text: str) -> dict[str, Any]:
        def refuse(name: str) -> None:
            pytest.fail(f"{name} is no JSON")

        return json.loads(text, parse_constant=refuse)

    @pytest.mark.parametrize("to", ["-", "found.json"])
    def test_holds_no_nan_or_infinity(
        self, target: str, to: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        main(["check", f"{target}:overflows", "--json", to])
        out = capsys.readouterr().out
        text = out if to == "-" else Path(to).read_text()
        assert self.read(text)["function"] == "jacobian"

    def test_says_which_number_is_not_finite(
        self,
        target: str,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        numbers = {"a": [float("nan"), (1.5, float("inf"))], "b": {"c": -float("inf")}}
        compare = gk.compare_methods

        def planted(*args: Any, **kwargs: Any) -> Any:
            found = compare(*args, **kwargs)
            object.__setattr__(found, "branches", numbers)
            return found

        monkeypatch.setattr(gk, "compare_methods", functools.partial(planted))
        main(["check", f"{target}:known", "--json", "-"])
        found = self.read(capsys.readouterr().out)["agreement"]["branches"]
        expected = {"a": ["NaN", [1.5, "Infinity"]], "b": {"c": "-Infinity"}}
        assert found == expected

    def test_is_all_of_stdout(
        self, target: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["check", f"{target}:noisy", "--json", "-"]) == 0
        captured = capsys.readouterr()
        assert self.read(captured.out)["fine"] is True
        assert captured.err.startswith("loading data\nforward\n")

    def test_in_a_folder_that_is_missing_is_refused_first(
        self, target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        before = sorted(tmp_path.iterdir())
        command = ["check", "nothing.py:x", "--json", "new/deep/found.json"]
        assert main(command) == 2
        assert capsys.readouterr().err == (
            "gradkit check: cannot write new/deep/found.json: there is no folder"
            " new/deep\n"
        )
        assert sorted(tmp_path.iterdir()) == before
        Path("link.json").symlink_to(tmp_path / "gone" / "found.json")
        assert main(["check", "nothing.py:x", "--json", "link.json"]) == 2
        assert "there is no folder" in capsys.readouterr().err
        assert not (tmp_path / "gone").exists()

    @pytest.mark.parametrize("name", ["breaks", "fails_late", "nix"])
    def test_is_not_written_after_a_failure(
        self, target: str, name: str, tmp_path: Path
    ) -> None:
        command = ["check", f"{target}:{name}", "--json", "found.json"]
        assert main(command) == 2
        assert sorted(path.suffix for path in tmp_path.iterdir()) in (
            [".py"], ["", ".py"],
        )  # fmt: skip

    @pytest.mark.parametrize("name", ["x" * 300, "x" * 300 + "/x.json"])
    def test_of_a_name_that_is_too_long(
        self, target: str, name: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["check", f"{target}:known", "--json", name]) == 2
        assert capsys.readouterr().err.endswith("File name too long\n")


def test_a_reader_that_leaves_is_not_the_models_fault(
    target: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as closed:
        monkeypatch.setattr(sys, "stdout", closed)
        assert main(["check", f"{target}:known"]) == 141
    assert capsys.readouterr().err == ""
