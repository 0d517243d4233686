"""Run the suite on the lowest releases that pyproject.toml allows, and record it.

Makes a virtual environment for the running Python, with the lowest torch, numpy and
tqdm of ``dependencies``, and the extra ``test`` beside them, which must not lift
them. Needs a package index; torch may be some gigabytes. Run in the checkout as::

    python tests/lowest.py                       # the suite; other arguments: pytest's
    python tests/lowest.py --record docs/lowest.md -- -m "not slow"
    python tests/lowest.py --instead numpy==2.1.0   # where the lowest has no build

A folder given as ``--environment`` is kept and used again; another is removed.
"""

from __future__ import annotations

import argparse
import ast
import datetime
import os
import platform
import re
import shlex
import subprocess
import sys
import tempfile
import venv
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
COLUMNS = (
    "Python", "torch", "numpy", "tqdm", "pytest", "passed", "failed", "skipped",
    "date", "machine",
)  # fmt: skip
# Versions of the extra that decide what a test can ask.
BESIDE = ("transformers", "captum", "zarr", "mlxtend")


def pins(pyproject: str) -> dict[str, str]:
    """Return the lowest version of each dependency of the package.

    Example:
        >>> pins('dependencies = ["torch>=2.6", "tqdm>=4.60"]')
        {'torch': '2.6.0', 'tqdm': '4.60.0'}
    """
    # Python 3.10 has no tomllib.
    found = re.search(
        r"^dependencies = (\[.*?\])$", pyproject, re.MULTILINE | re.DOTALL
    )
    if found is None:
        raise ValueError("pyproject.toml has no dependencies")
    lowest = {}
    for requirement in ast.literal_eval(found[1]):
        name, bound, version = requirement.partition(">=")
        if not bound or not re.fullmatch(r"\d+(\.\d+)*", version):
            raise ValueError(f"{requirement!r} states no lowest version alone")
        parts = version.split(".")
        lowest[name] = ".".join(parts + ["0"] * (3 - len(parts)))
    return lowest


def prepare(
    folder: Path, lowest: Mapping[str, str], without: Iterable[str]
) -> tuple[Path, dict[str, str]]:
    """Return the environment's Python, and the versions in it."""
    windows = os.name == "nt"
    python = folder / ("Scripts" if windows else "bin") / "python"
    if not folder.exists():
        venv.create(folder, with_pip=True, symlinks=not windows)
    pip = [python, "-m", "pip", "install", "--quiet"]
    exact = [f"{name}=={version}" for name, version in lowest.items()]
    subprocess.run([*pip, *exact], check=True)
    kept = folder / "constraints.txt"
    kept.write_text("\n".join(exact) + "\n", encoding="utf-8")
    subprocess.run(
        [*pip, "--constraint", kept, "--editable", f"{ROOT}[test]"], check=True
    )
    for name in without:
        subprocess.run(
            [python, "-m", "pip", "uninstall", "--quiet", "--yes", name], check=True
        )
    return python, versions(python, [*lowest, *BESIDE])


def versions(python: Path, names: Sequence[str]) -> dict[str, str]:
    """Return the versions that are installed, of those distributions that are."""
    program = (
        "import sys; from importlib import metadata\n"
        "for name in sys.argv[1:]:\n"
        "    for found in metadata.distributions(name=name):\n"
        "        print(name, found.version)\n"
        "        break"
    )
    printed = subprocess.run(
        [python, "-c", program, *names], capture_output=True, text=True, check=True
    ).stdout
    return dict(line.split() for line in printed.splitlines())


def counts(report: Path) -> dict[str, int]:
    """Return passed, failed and skipped of a report that pytest wrote."""
    total = dict.fromkeys(("tests", "failures", "errors", "skipped"), 0)
    for suite in ET.parse(report).getroot().iter("testsuite"):
        for name in total:
            total[name] += int(suite.get(name, 0))
    failed = total["failures"] + total["errors"]
    passed = total["tests"] - failed - total["skipped"]
    return {"passed": passed, "failed": failed, "skipped": total["skipped"]}


def machine() -> str:
    """Return the processor, its cores and the system."""
    name = platform.processor() or platform.machine()
    described = Path("/proc/cpuinfo")
    if described.exists():
        text = described.read_text(encoding="utf-8")
        model = re.search(r"^model name\s*: (.*)$", text, re.MULTILINE)
        name = model[1].strip() if model else name
    return f"{name}, {os.cpu_count()} cores, {platform.system()}"


def row(values: Mapping[str, object]) -> str:
    """Return a line of the record."""
    return f"| {' | '.join(str(values[name]) for name in COLUMNS)} |"


def recorded(text: str, line: str) -> str:
    """Return a record with a line added, in place of one with the same beginning."""
    key = line.split("|")[1:6]
    lines = [old for old in text.splitlines() if old.split("|")[1:6] != key]
    return "\n".join([*lines, line]) + "\n"


def head() -> str:
    """Return a record that has no line yet."""
    rule = [
        "---" if name in {"pytest", "date", "machine"} else "--:" for name in COLUMNS
    ]
    return "\n".join(
        [
            "# The lowest versions",
            "",
            "Written by `python tests/lowest.py --record docs/lowest.md`.",
            "It runs the suite on the lowest releases that `pyproject.toml` allows.",
            "",
            f"| {' | '.join(COLUMNS)} |",
            f"| {' | '.join(rule)} |",
            "",
        ]
    )


def main() -> int:
    """Prepare, run, record; return pytest's exit status."""
    options, rest = _options()
    lowest = pins((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    for given in options.instead:
        name, _, version = given.partition("==")
        lowest[name] = version
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.environment or Path(scratch) / "environment"
        python, installed = prepare(folder, lowest, options.without)
        report = Path(scratch) / "report.xml"
        run = subprocess.run(
            [python, "-m", "pytest", f"--junitxml={report}", *rest],
            cwd=ROOT,
            check=False,
        )
        found = counts(report)
    values = {
        "Python": platform.python_version(),
        **installed,
        "pytest": f"`{shlex.join(rest)}`" if rest else "all",
        **found,
        "date": datetime.datetime.now(datetime.timezone.utc).date(),
        "machine": machine(),
    }
    beside = [f"{name} {installed.get(name, 'left out')}" for name in BESIDE]
    sys.stdout.write(f"Beside: {', '.join(beside)}.\n\n{head()}{row(values)}\n")
    if options.record:
        record = options.record
        text = record.read_text(encoding="utf-8") if record.exists() else head()
        record.write_text(recorded(text, row(values)), encoding="utf-8")
    return run.returncode


def _options() -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--environment", type=Path, help="a folder to make or reuse")
    parser.add_argument("--record", type=Path, help="a Markdown file to write to")
    parser.add_argument(
        "--instead", action="append", default=[], metavar="NAME==VERSION"
    )
    parser.add_argument("--without", action="append", default=[], metavar="NAME")
    parser.add_argument("pytest", nargs="*", help="after --: arguments of pytest")
    options = parser.parse_args()
    return options, options.pytest


if __name__ == "__main__":
    sys.exit(main())
