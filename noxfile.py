"""One session per question that a change must answer; `nox -s tests` runs one."""

from __future__ import annotations

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
    session.run("python", "tests/lowest.py", *session.posargs)


@nox.session
def wheel(session: nox.Session) -> None:
    """Build the wheel and run the tests against it, with src/ out of reach."""
    dist = session.create_tmp()
    session.run("pip", "wheel", "--no-deps", "--wheel-dir", dist, ".")
    (built,) = Path(dist).glob("gradkit-*.whl")
    session.install(f"{built}[test]")
    session.run("pytest", "tests", *session.posargs)
