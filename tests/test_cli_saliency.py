"""``gradkit saliency``: what it writes, prints and refuses."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gradkit import saliency
from gradkit.cli import main
from gradkit.cli._saliency_options import baseline
from mnist_run import check_refused

SUBJECTS = """
import torch
import gradkit as gk

torch.manual_seed(0)
CONV = torch.nn.Sequential(
    torch.nn.Conv2d(1, 3, 3), torch.nn.ReLU(), torch.nn.Flatten(),
    torch.nn.Linear(3 * 6 * 7, 4),
)
X = torch.rand(5, 1, 8, 9)
Y = torch.tensor([0, 3, 2, 1, 3])
labelled = gk.Subject(CONV, X, targets=Y)
bare = {"model": CONV, "inputs": X}
table = gk.Subject(torch.nn.Linear(3, 2), torch.rand(4, 3))
lone = gk.Subject(torch.nn.Linear(3, 1), torch.rand(4, 3))
own = gk.Subject(CONV, X, objective=lambda outputs: outputs.square().sum(1))
without = gk.Subject(CONV)
dropout = gk.Subject(torch.nn.Sequential(torch.nn.Dropout(), CONV), X, targets=Y)
dropping = gk.Subject(lambda x: {"scores": CONV(x), "other": x}, X, targets=Y)

class Text(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(6, 5)
        self.out = torch.nn.Linear(5, 3)
    def forward(self, ids):
        return self.out(self.embedding(ids).mean(1).tanh())

text = gk.Subject(Text(), torch.tensor([[1, 2, 3, 4], [5, 0, 1, 2]]))

class Copies(torch.nn.Module):
    # Its scores know nothing of the weights but their mean.
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([1.0, 1.0 + 1e-3]))
    def forward(self, x):
        return x.flatten(1).square().sum(1, keepdim=True) * self.weight.mean()

copies = gk.Subject(Copies(), X)
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("targets") / "subjects_of_saliency.py"
    path.write_text(SUBJECTS)
    return path


def ran(file: Path, name: str, out: Path, *more: str) -> dict[str, np.ndarray]:
    """Return the arrays of a run that is fine."""
    assert main(["saliency", f"{file}:{name}", "--out", str(out), *more]) == 0
    with np.load(out / "maps.npz") as arrays:
        return {key: arrays[key] for key in arrays.files}


def subject(file: Path, name: str) -> Any:
    values: dict[str, Any] = {}
    exec(file.read_text(), values)  # the same seed, the same weights
    return values[name]


def test_the_arrays_are_what_the_functions_return(file: Path, tmp_path: Path) -> None:
    methods = [
        "gradient",
        "integrated_gradients",
        "grad_cam",
        "occlusion",
        "smoothgrad",
    ]
    given = ["--methods", ",".join(methods), "--layer", "1", "--window", "2,3"]
    numbers = ["--steps", "7", "--draws", "3", "--seed", "2", "--baseline", "0.5"]
    arrays = ran(file, "labelled", tmp_path / "maps", *given, *numbers)
    assert set(arrays) == {"inputs", "targets", *methods}
    target = subject(file, "labelled")
    model, x, y = target.model, target.inputs, target.targets
    assert np.array_equal(arrays["inputs"], x.numpy())
    expected = {
        "gradient": saliency.gradient(model, x, y),
        "integrated_gradients": saliency.integrated_gradients(
            model, x, y, steps=7, baseline=0.5
        ),
        "grad_cam": saliency.grad_cam(model, x, y, wrt="1"),
        "occlusion": saliency.occlusion(model, x, y, window=(2, 3), baseline=0.5),
        "smoothgrad": saliency.smoothgrad(model, x, y, draws=3, seed=2),
    }
    for name, value in expected.items():
        np.testing.assert_allclose(arrays[name], value.numpy(), rtol=1e-4, atol=1e-6)
    names = sorted(f.name for f in (tmp_path / "maps").iterdir())
    assert names == ["maps.npz", "maps.png", "maps.svg"]
    assert (tmp_path / "maps" / "maps.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert b"<svg" in (tmp_path / "maps" / "maps.svg").read_bytes()


def test_what_is_explained(file: Path, tmp_path: Path) -> None:
    model, x = subject(file, "bare")["model"], subject(file, "bare")["inputs"]
    guesses = model(x).argmax(1)
    cases = [
        ("bare", [], guesses),
        ("bare", ["--class", "2"], 2),
        ("own", [], lambda outputs: outputs.square().sum(1)),
        ("labelled", [], subject(file, "labelled").targets),
        ("labelled", ["--class", "1"], 1),
    ]
    for place, (name, options, objective) in enumerate(cases):
        more = ["--methods", "gradient", *options]
        found = ran(file, name, tmp_path / str(place), *more)["gradient"]
        expected = saliency.gradient(model, x, objective).numpy()
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    assert ran(file, "lone", tmp_path / "lone")["gradient"].shape == (4, 3)


def test_tables_have_arrays_and_no_figure(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ran(file, "table", tmp_path / "out")
    assert [f.name for f in (tmp_path / "out").iterdir()] == ["maps.npz"]
    text = capsys.readouterr().out
    assert text.startswith("No figure of the maps: images must be pictures (N, D) with")
    assert text.endswith(f"Wrote {tmp_path / 'out' / 'maps.npz'}.\n")


def test_words_through_their_embedding(file: Path, tmp_path: Path) -> None:
    methods = ["--methods", "gradient_times_input,integrated_gradients"]
    arrays = ran(file, "text", tmp_path, *methods, "--wrt", "embedding")
    assert arrays["integrated_gradients"].shape == (2, 4, 5)
    assert arrays["inputs"].dtype == np.int64
    covered = ran(file, "text", tmp_path, "--methods", "occlusion")["occlusion"]
    assert covered.shape == (2, 4)


def test_a_pad_id_is_a_baseline(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = subject(file, "text")
    labels = target.model(target.inputs).argmax(1)
    expected = saliency.integrated_gradients(
        target.model, target.inputs, labels, wrt="embedding",
        baseline=torch.full_like(target.inputs, 2),
    ).numpy()  # fmt: skip
    more = ["--methods", "integrated_gradients", "--wrt", "embedding", "--checks"]
    found = ran(file, "text", tmp_path, *more, "--baseline", "2,")
    np.testing.assert_allclose(found["integrated_gradients"], expected, atol=1e-6)
    text = capsys.readouterr().out
    assert text.startswith("No figure of the maps: the inputs are not pictures;")
    assert "–: does not apply" in text
    covered = ran(
        file, "text", tmp_path, "--methods", "occlusion", "--baseline", "2,"
    )["occlusion"]  # fmt: skip
    expected = saliency.occlusion(
        target.model, target.inputs, labels, window=1, baseline=2
    ).numpy()
    np.testing.assert_allclose(covered, expected, atol=1e-6)


@pytest.mark.parametrize("given", ["x", "1,y", "ids=", "=", "1;2"])
def test_no_baselines_are_refused(given: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="neither a number nor"):
        baseline(given)


def test_checks_are_printed_drawn_and_written(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "report.json"
    more = ["--checks", "--methods", "gradient,integrated_gradients"]
    ran(file, "labelled", tmp_path / "out", *more, "--json", str(report))
    names = {f.name for f in (tmp_path / "out").iterdir()}
    figures = ("maps", "deletion", "randomization")
    assert names == {"maps.npz"} | {f"{n}.{k}" for n in figures for k in ("png", "svg")}
    values = json.loads(report.read_text())
    target = subject(file, "labelled")
    given = (target.model, target.inputs, target.targets)
    sensitivity = saliency.sensitivity("gradient", *given)
    median = float(np.median(sensitivity.numpy()))
    checks = values["checks"]
    assert checks["sensitivity"]["gradient"] == pytest.approx(median, rel=1e-4)
    area = saliency.deletion_curve(saliency.gradient(*given), *given).area.mean()
    assert checks["deletion_area"]["gradient"] == pytest.approx(float(area), rel=1e-4)
    check = saliency.randomization_check("gradient", *given)
    assert checks["randomization"]["gradient"]["correlation"] == pytest.approx(
        check.correlation, abs=1e-4
    )
    assert set(checks["completeness"]) == {"integrated_gradients"}
    assert checks["completeness"]["integrated_gradients"] < 1e-2
    assert values["findings"] == []
    text = capsys.readouterr().out
    assert f"  {median:.3f}  " in text
    assert f"  {check.correlation:.2f}  " in text


def test_a_map_that_knows_nothing_of_the_model_is_a_finding(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["saliency", f"{file}:copies", "--out", str(tmp_path), "--checks"]
    assert main([*given, "--methods", "gradient", "--json", "-"]) == 1
    captured = capsys.readouterr()
    assert json.loads(captured.out)["findings"] == ["gradient"]
    assert (
        "Not of the model, but of the input or architecture: gradient." in captured.err
    )


def test_an_output_is_named(file: Path, tmp_path: Path) -> None:
    more = ["--of", "scores", "--methods", "gradient"]
    found = ran(file, "dropping", tmp_path, *more)
    target = subject(file, "dropping")
    expected = saliency.gradient(
        target.model, target.inputs, target.targets, of="scores"
    )
    np.testing.assert_allclose(
        found["gradient"], expected.numpy(), rtol=1e-4, atol=1e-6
    )


NAMES = ", ".join(saliency.METHODS)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "labelled",
            ["--methods", "gradients"],
            "argument --methods: no method 'gradients' (did you mean gradient?); there"
            f" are {NAMES}, separated by commas",
        ),
        (
            "labelled",
            ["--methods", "grad_cam"],
            "grad_cam needs --layer, the submodule that it weights",
        ),
        (
            "table",
            ["--methods", "occlusion"],
            "occlusion needs --window, one size per axis of a sample",
        ),
        (
            "labelled",
            ["--methods", "occlusion", "--window", "a"],
            "argument --window: whole numbers, separated by commas; got 'a'",
        ),
        (
            "without",
            [],
            "{target} must give inputs; it gives model",
        ),
        (
            "dropout",
            [],
            "the model draws random numbers (torch): Dropout at '0' in training mode,"
            " so that its map would be one of a single draw. Call model.eval() first,"
            " and model.train() afterwards",
        ),
        (
            "dropping",
            [],
            "the model returns a dict; name one output with --of",
        ),
        (
            "text",
            [],
            "gradient: inputs must hold a floating tensor to differentiate with respect"
            " to; got inputs torch.int64 (2, 4). Integers have no derivative: name the"
            " embedding that takes them, wrt='embedding'; or, if they are measurements,"
            " convert them with x.float()",
        ),
        (
            "labelled",
            ["--samples", "13"],
            "argument --samples: must be a whole number from 1 to 12; got 13",
        ),
    ],
)
def test_refusals(
    name: str,
    options: list[str],
    message: str,
    file: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"
    target = f"{file}:{name}"
    text = f"gradkit saliency: {message.format(target=target)}"
    check_refused(["saliency", target, "--out", str(out), *options], text, capsys)
    assert not out.exists()
