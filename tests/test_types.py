"""What ``typed_surface.py`` declares comes, and it leaves no public function out."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

import gradkit
import typed_surface

SOURCE = Path(typed_surface.__file__).read_text("utf-8")
CALLED = {
    name: function
    for name, function in vars(typed_surface).items()
    if inspect.isfunction(function)
    and function.__module__ == typed_surface.__name__
    and not inspect.signature(function).parameters
}


@pytest.mark.parametrize("name", sorted(CALLED))
def test_what_is_declared_comes(name: str) -> None:
    if name == "streams":
        pytest.importorskip("zarr")
    CALLED[name]()


def test_another_type_is_found() -> None:
    check: Callable[..., object] = vars(typed_surface)["assert_type"]
    with pytest.raises(AssertionError):
        check({"x": typed_surface.X}, typed_surface.Tensor)
    with pytest.raises(AssertionError):
        check(typed_surface.X, dict[str, typed_surface.Tensor])
    with pytest.raises(AssertionError):
        check(1, typed_surface.Tensor | None)


def public_functions() -> Iterator[str]:
    """Yield the functions of the package and of its modules, as they are written."""
    for name in gradkit.__all__:
        value = getattr(gradkit, name)
        if inspect.isfunction(value):
            yield f"gk.{name}"
        elif isinstance(value, ModuleType):
            inner = ((n, getattr(value, n)) for n in value.__all__)
            yield from (f"{name}.{n}" for n, v in inner if inspect.isfunction(v))


def test_every_public_function_is_declared() -> None:
    tree = ast.parse(SOURCE)
    called = {ast.unparse(n.func) for n in ast.walk(tree) if isinstance(n, ast.Call)}
    names = set(public_functions())
    assert names >= {"gk.jacobian", "saliency.gradient", "quantities.loss"}
    assert names - called == set()
