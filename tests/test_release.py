"""What is released: its versions, its files, and that the wheel works by itself."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# What a build must not see: its results, and what tools leave behind.
SCRATCH = shutil.ignore_patterns(
    ".git", ".hypothesis", ".nox", ".*_cache", "__pycache__", "*.egg-info", ".venv",
    "build", "dist", "site", "gradkit-*",
)  # fmt: skip
# A quick part of the suite that needs no other modules of it.
PART = ("test_products.py", "test_pools.py")


def version_in(file: str, pattern: str) -> str:
    found = re.search(pattern, (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE)
    assert found, f"{file} has no version"
    return found[1]


def test_the_version_is_one() -> None:
    version = version_in("pyproject.toml", r'^version = "(.+)"$')
    assert version_in("CITATION.cff", r"^version: (.+)$") == version
    assert version_in("CHANGELOG.md", r"^## (\S+) ") == version


def build(kind: str, source: Path, folder: Path) -> Path:
    """Build in a checkout, without an index, and return the file."""
    call = f"from setuptools.build_meta import build_{kind} as b; print(b(r'{folder}'))"
    printed = subprocess.run(
        [sys.executable, "-c", call],
        cwd=source,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return folder / printed.split()[-1]


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    shutil.copytree(ROOT, folder / "checkout", ignore=SCRATCH)
    return build("sdist", folder / "checkout", folder)


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    with tarfile.open(sdist) as archive:
        if hasattr(tarfile, "data_filter"):
            # From Python 3.12 on, leaving it out warns.
            archive.extractall(folder, filter="data")
        else:
            archive.extractall(folder)
    (source,) = (entry for entry in folder.iterdir() if entry.is_dir())
    return build("wheel", source, folder)


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder that holds the wheel's files alone, ``src`` out of reach."""
    folder = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def alone(
    installed: Path, *command: str, cwd: Path
) -> subprocess.CompletedProcess[str]:
    """Run Python with the wheel's files before all others."""
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    return subprocess.run(
        [sys.executable, *command],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_sdist_can_be_built_and_tested_from(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for file in ("pyproject.toml", "README.md", "LICENSE", "tests/conftest.py",
                 "tests/pages.py", "docs/index.md", "benchmarks/timing.py",
                 "mkdocs.yml"):  # fmt: skip
        assert file in names, file


def test_the_wheel_holds_the_package_alone(wheel: Path) -> None:
    files = set(zipfile.ZipFile(wheel).namelist())
    package = ROOT / "src" / "gradkit"
    modules = {str(p.relative_to(package.parent)) for p in package.rglob("*.py")}
    assert {name for name in files if name.endswith(".py")} == modules
    assert "gradkit/py.typed" in files
    assert any(name.endswith("/licenses/LICENSE") for name in files)
    assert {name.split("/")[0].split("-")[0] for name in files} == {"gradkit"}


def test_the_wheel_answers_by_itself(installed: Path, tmp_path: Path) -> None:
    script = """
import gradkit, torch
print(gradkit.__file__)
model, x = torch.nn.Linear(3, 2), torch.randn(5, 3)
total = gradkit.objectives.output_sum
print(tuple(gradkit.input_gradients(model, x, total).shape))
print(tuple(gradkit.jacobian(model, x).shape))
print(tuple(gradkit.per_sample_gradients(model, x, total)["bias"].shape))
print(tuple(gradkit.parameter_jacobian(model, x)["weight"].shape))
"""
    run = alone(installed, "-c", script, cwd=tmp_path)
    assert run.stderr == ""
    file, *shapes = run.stdout.splitlines()
    assert Path(file).is_relative_to(installed)
    assert shapes == ["(5, 3)", "(5, 2, 3)", "(5, 2)", "(5, 2, 2, 3)"]


def test_the_wheel_has_the_command(installed: Path, tmp_path: Path) -> None:
    run = alone(installed, "-m", "gradkit", "--help", cwd=tmp_path)
    assert (run.returncode, run.stdout[:14]) == (0, "usage: gradkit")
    (points,) = installed.glob("*.dist-info/entry_points.txt")
    assert "gradkit = gradkit.cli:main" in points.read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_wheel_passes_tests(installed: Path, tmp_path: Path) -> None:
    tests = tmp_path / "tests"
    shutil.copytree(ROOT / "tests", tests, ignore=SCRATCH)
    run = alone(
        installed, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o",
        "pythonpath=tests", "--import-mode=importlib",
        *(f"tests/{name}" for name in PART),
        cwd=tmp_path,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout
    assert " passed" in run.stdout
