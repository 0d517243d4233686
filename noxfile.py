"""One session per question that a change must answer; `nox -s tests` runs one."""

from __future__ import annotations

import shutil
from pathlib import Path

import nox

nox.options.sessions = ["lint", "types", "tests"]
nox.options.reuse_existing_virtualenvs = True

PYTHONS = ["3.10", "3.11", "3.12", "3.13"]


@nox.session(python=PYTHONS)
def tests(session: nox.Session) -> None:
    """Run the whole suite: doctests, documents and tests."""
    session.install("-e", ".[test]")
    session.run("pytest", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style, format and spelling."""
    session.install("-e", ".[dev]")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("typos")


@nox.session
def types(session: nox.Session) -> None:
    """Check types in src, tests and benchmarks, and that none is left out."""
    session.install("-e", ".[test,dev]")
    session.run("pyright")
    session.run("pyright", "--verifytypes", "gradkit", "--ignoreexternal")


@nox.session
def docs(session: nox.Session) -> None:
    """Build the site and execute every example of its pages."""
    session.install("-e", ".[docs]")
    session.run("mkdocs", "build", "--strict", "--site-dir", session.create_tmp())
    session.run("pytest", "README.md", "README.zh.md", "docs", *session.posargs)


@nox.session(python="3.10")
def lowest(session: nox.Session) -> None:
    """Run the suite on the oldest releases that pyproject.toml allows."""
    environment = Path(session.create_tmp()) / "lowest"
    kept = ["--environment", str(environment)]
    session.run("python", "tests/lowest.py", *kept, "--", *session.posargs)


@nox.session
def wheel(session: nox.Session) -> None:
    """Build the wheel from the source archive; test with src/ out of reach."""
    scratch = Path(session.create_tmp()).resolve()
    dist = scratch / "dist"
    session.install("build", "setuptools>=77")
    # Without options, build makes the wheel from the source archive.
    session.run("python", "-m", "build", "--outdir", str(dist), ".")
    built, source = (max(dist.glob(f"gradkit-*{end}")) for end in (".whl", ".tar.gz"))
    session.install("--force-reinstall", "--no-deps", str(built))
    session.install(f"{built}[test]")
    shutil.unpack_archive(source, scratch)
    inner = scratch / source.name.removesuffix(".tar.gz")
    shutil.rmtree(inner / "src")
    session.chdir(inner)
    session.run("pytest", "tests", "README.md", "docs", *session.posargs)
