"""``TARGET``: a name in a module or in a file, and what it gives."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from gradkit._subject import Subject
from gradkit.cli._command import UsageError, did_you_mean

__all__ = ["HELP", "load", "read_settings"]

HELP = "package.module:name, or path/to/file.py:name, of a gk.Subject, of a dict with"
HELP += " its fields, or of a function that returns one"

_WAY_OUT = "name a gk.Subject(model, inputs), which says what it is called with"


def load(target: str, settings: Sequence[str], needed: Sequence[str]) -> Subject:
    """Return what a target names.

    Args:
        target: ``package.module:name`` or ``path/to/file.py:name``.
        settings: ``KEY=VALUE``, passed to the function that the name is of.
        needed: The fields that must be there.

    Raises:
        UsageError: It cannot be found or run, or lacks a field.
    """
    where, colon, name = target.rpartition(":")
    if not colon or not where or not name:
        raise UsageError(
            "TARGET must be package.module:name or path/to/file.py:name; got"
            f" {target!r}"
        )
    value = _attribute(_module(where), where, name)
    subject = _subject(_called(value, target, read_settings(settings)), target)
    missing = [field for field in needed if getattr(subject, field) is None]
    if missing:
        raise UsageError(
            f"{target} must give {' and '.join(missing)}; it gives"
            f" {', '.join(f.name for f in fields(Subject) if _has(subject, f.name))}"
        )
    return subject


def _has(subject: Subject, name: str) -> bool:
    return getattr(subject, name) is not None


def _module(where: str) -> ModuleType:
    # As with `python -m`, what lies in the working directory can be imported.
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        if where.endswith(".py"):
            return _from_file(Path(where))
        return importlib.import_module(where)
    except UsageError:
        raise
    except (Exception, SystemExit) as error:
        raise UsageError(
            f"cannot import {where}: {type(error).__name__}: {error}"
        ) from error


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise UsageError(f"cannot import {path}: there is no such file")
    # A file called json.py must not stand in for the module of that name.
    name = path.stem if path.stem not in sys.modules else f"gradkit_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None, "it ends in .py"
    assert spec.loader is not None, "it ends in .py"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _attribute(module: ModuleType, where: str, name: str) -> Any:
    value: Any = module
    for part in name.split("."):
        if not hasattr(value, part):
            raise UsageError(f"{where} has no {name!r} ({_names(module, name)})")
        value = getattr(value, part)
    return value


def _names(module: ModuleType, name: str) -> str:
    """Return what a module has, what it defines itself first."""
    public = [n for n in vars(module) if not n.startswith("_")]
    own = [n for n in public if not _imported(module, vars(module)[n])]
    shown = [*own, *(n for n in public if n not in own)]
    hint = did_you_mean(name, own)
    return f"{hint}{' ' if hint else ''}it has {', '.join(shown[:8]) or 'nothing'}"


def _imported(module: ModuleType, value: Any) -> bool:
    if isinstance(value, ModuleType):
        return True
    named = isinstance(value, type) or inspect.isroutine(value)
    return named and getattr(value, "__module__", None) != module.__name__


def read_settings(settings: Sequence[str], option: str = "--set") -> dict[str, Any]:
    """Return settings; a value that is a Python literal is one, others are texts."""
    found: dict[str, Any] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals or not key.isidentifier():
            raise UsageError(f"{option} takes KEY=VALUE; got {setting!r}")
        try:
            found[key] = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            found[key] = text
    return found


def _called(value: Any, target: str, settings: dict[str, Any]) -> Any:
    # A module can be called too, but with inputs.
    if not callable(value) or isinstance(value, (Subject, Mapping, nn.Module)):
        if settings:
            raise UsageError(f"--set is for functions; {target} is none")
        return value
    try:
        inspect.signature(value).bind(**settings)
    except ValueError:
        pass  # a builtin, which has no signature
    except TypeError as error:
        raise UsageError(
            f"{target} cannot be called so: {error}. Give its arguments by --set; where"
            f" it is the model itself, {_WAY_OUT}"
        ) from error
    try:
        return value(**settings)
    except (Exception, SystemExit) as error:
        raise UsageError(f"{target} raised {type(error).__name__}: {error}") from error


def _subject(value: Any, target: str) -> Subject:
    if isinstance(value, Subject):
        return value
    names = [f.name for f in fields(Subject)]
    if isinstance(value, Mapping):
        unknown = [str(k) for k in value if k not in names]
        if unknown or "model" not in value:
            raise UsageError(
                f"{target} must give a gk.Subject or a dict with model and any of"
                f" {', '.join(names[1:])}; its keys are"
                f" {', '.join(map(str, value)) or 'none'}"
            )
        return Subject(**value)
    if isinstance(value, nn.Module):
        raise UsageError(
            f"{target} gives the module {type(value).__name__} without inputs;"
            f" {_WAY_OUT}"
        )
    raise UsageError(
        f"{target} must give a gk.Subject or a dict with its fields"
        f" ({', '.join(names)}); it gives a {type(value).__name__}"
    )
