"""``gradkit stream``, and ``gradkit mnist --stream``: what they store and say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import gradkit as gk
from gradkit import mnist
from gradkit.cli import main
from mnist_run import SAMPLES, TEST_COUNT, TRAIN_COUNT, check_refused, write_digits
from stream_kills import contents

pytest.importorskip("zarr")

MINE = """\
import torch
import gradkit as gk
from torch.utils.data import DataLoader, TensorDataset

def trained(n=57, shuffle=False, objective=None):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(),
                                torch.nn.Linear(5, 3))
    x, y = torch.randn(n, 6), torch.randint(3, (n,))
    loader = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=shuffle)
    return gk.Subject(model, loader=loader, objective=objective)

def scored():
    return trained(objective=gk.objectives.class_score)

def without():
    return gk.Subject(torch.nn.Linear(3, 2))

def broken():
    return gk.Subject(torch.nn.Linear(4, 3), loader=trained().loader)
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("stream") / "mine.py"
    path.write_text(MINE)
    return path


def subject(file: Path, name: str = "trained") -> gk.Subject:
    space: dict[str, object] = {}
    exec(file.read_text(), space)
    return space[name]()  # pyright: ignore


def test_a_store_and_its_summary(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, report = tmp_path / "store", tmp_path / "report.json"
    arguments = ["stream", f"{file}:trained", "--quantity", "gradient_norm"]
    assert main([*arguments, "--store", str(store), "--json", str(report)]) == 0
    given = subject(file)
    rows = gk.open_rows(store)
    x, y = given.loader.dataset.tensors
    expected = gk.per_sample_gradients(
        given.model, x, gk.objectives.sample_loss(F.cross_entropy, y)
    ).norms()
    torch.testing.assert_close(rows["gradient_norm"][:], expected)
    values, samples = expected.topk(5)
    fields = json.loads(report.read_text())["fields"]
    assert fields["gradient_norm"]["samples"] == samples.tolist()
    assert fields["gradient_norm"]["largest"] == pytest.approx(values.tolist())
    assert fields["gradient_norm"]["mean"] == pytest.approx(float(expected.mean()))
    text = capsys.readouterr().out
    assert "gradient_norm of 57 samples in" in text
    assert f"{values[0]:.4g} ({samples[0]})" in text


def test_json_alone_and_options(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["stream", f"{file}:trained", "--quantity", "projected_gradients"]
    more = ["--option", "size=4", "--store", str(tmp_path), "--json", "-"]
    assert main([*arguments, *more, "--set", "n=21"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["samples"] == 21
    assert report["fields"] == {"rows": {"dtype": "float32", "shape": [21, 4]}}


def test_a_criterion_and_an_objective(file: Path, tmp_path: Path) -> None:
    given = subject(file)
    x, y = given.loader.dataset.tensors
    arguments = ["stream", "--quantity", "loss", "--store"]
    assert main([*arguments, str(tmp_path / "scores"), f"{file}:scored"]) == 0
    scores = given.model(x).gather(1, y[:, None])[:, 0].detach()
    torch.testing.assert_close(gk.open_rows(tmp_path / "scores")[:], scores)
    more = ["--criterion", "multi_margin_loss"]
    assert main([*arguments, str(tmp_path / "margin"), f"{file}:trained", *more]) == 0
    margin = F.multi_margin_loss(given.model(x), y, reduction="none").detach()
    torch.testing.assert_close(gk.open_rows(tmp_path / "margin")[:], margin)


@pytest.mark.slow
def test_processes_of_torchrun_share_the_work(file: Path, tmp_path: Path) -> None:
    command = [
        *("-m", "gradkit", "stream", f"{file}:trained", "--quantity", "el2n"),
        *("--store",),
    ]
    run = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    run += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for start, name in (([sys.executable], "one"), (run, "two")):
        done = subprocess.run(
            [*start, *command, str(tmp_path / name)],
            capture_output=True, text=True, env=environment, check=True, timeout=120,
        )  # fmt: skip
        assert done.stdout.count("el2n of 57 samples") == 1
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


REFUSED = {
    "no loader": (
        "without", ["loss"], "{file}:without must give loader; it gives model",
    ),
    "shuffled": (
        "trained", ["loss", "--set", "shuffle=True"],
        "loader shuffles without a seeded generator, so that no later run could go on"
        " in its order (RandomSampler). Pass shuffle=False, or"
        " generator=torch.Generator().manual_seed(0)",
    ),
    "no size": (
        "trained", ["projected_gradients"],
        "projected_gradients() missing 1 required positional argument: 'size'; give its"
        " arguments by --option KEY=VALUE",
    ),
    "no such option": (
        "trained", ["loss", "--option", "sied=3"],
        "loss() got an unexpected keyword argument 'sied'; here it is 'seed'; give its"
        " arguments by --option KEY=VALUE",
    ),
    "no pair": (
        "trained", ["loss", "--option", "seed"], "--option takes KEY=VALUE; got 'seed'",
    ),
    "no loss": (
        "trained", ["loss", "--criterion", "cross_entrpy"],
        "--criterion: no loss 'cross_entrpy' (did you mean cross_entropy?)",
    ),
    "no criterion": (
        "trained", ["el2n", "--criterion", "mse_loss"], "--criterion: el2n has none",
    ),
    "a device": (
        "trained", ["loss", "--device", "cuda:99"],
        None,
    ),
    "a model that fails": (
        "broken", ["loss"], None,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("name", "more", "text"), REFUSED.values(), ids=REFUSED)
def test_refusals(
    file: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    more: list[str],
    text: str | None,
) -> None:
    quantity, *rest = more
    arguments = ["stream", f"{file}:{name}", "--quantity", quantity, *rest]
    arguments += ["--store", str(tmp_path / "store")]
    if text is not None:
        text = text.replace("{file}", str(file))
        check_refused(arguments, f"gradkit stream: {text}", capsys)
    else:
        assert main(arguments) == 2
        assert capsys.readouterr().err.count("\n") == 1
    assert not list(tmp_path.glob("store/*"))


def test_a_store_of_another_model_is_refused(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["stream", f"{file}:trained", "--store", str(tmp_path), "--quantity"]
    assert main([*arguments, "loss"]) == 0
    capsys.readouterr()
    assert main([*arguments, "el2n"]) == 2
    error = capsys.readouterr().err
    assert "holds rows of another run: identity, quantity: was loss, is el2n" in error


def test_the_norms_of_all_digits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out, store = tmp_path / "data", tmp_path / "out", tmp_path / "store"
    folder.mkdir()
    write_digits(folder)
    arguments = ["mnist", "--data", str(folder), "--out", str(out), "--epochs", "3"]
    arguments += ["--samples", str(SAMPLES), "--seed", "4", "--stream", str(store)]
    assert main(arguments) == 0
    assert "Stored the gradients' norms of 73 digits" in capsys.readouterr().out
    network = mnist.network(seed=4)
    network.load_state_dict(torch.load(out / "model.pt"))
    digits = mnist.digits(folder, seed=4)
    images = torch.cat([digits.train_images, digits.test_images])
    labels = torch.cat([digits.train_labels, digits.test_labels])
    loss = gk.objectives.sample_loss(F.cross_entropy, labels)
    expected = gk.per_sample_gradients(network, images, loss).norms()
    found = gk.open_rows(store)["gradient_norm"][:]
    assert len(found) == TRAIN_COUNT + TEST_COUNT
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    for kind in ("png", "svg"):
        assert (out / f"largest_gradients.{kind}").stat().st_size > 1000
    # The same run goes on with its store, another seed's does not.
    assert main(arguments) == 0
    capsys.readouterr()
    arguments[arguments.index("4")] = "5"
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert "argument --stream: stream: store" in error
    assert "holds rows of another run" in error
