"""The order of the modules, their size, and that no method is left out."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import gradkit

PACKAGE = Path(gradkit.__file__).parent
MOST_LINES = 320

# Imports go down this list only. Names on one line must not import one another.
LAYERS = (
    ("__main__",),
    ("cli",),
    ("__init__",),
    ("plots",),
    ("mnist",),
    ("_mnist_data",),
    ("streaming",),
    ("saliency", "testing"),
    ("numerics",),
    ("_explain",),
    ("_gradients",),
    ("_jacobian",),
    ("_parameter_jacobian",),
    ("_call",),
    ("_plan", "_planner"),
    ("_methods",),
    ("_rules",),
    ("_guards",),
    ("_memory_use",),
    ("_quick",),
    ("_pools",),
    ("_layouts",),
    ("_products",),
    ("_problem",),
    ("objectives",),
    ("_hints",),
    ("errors", "_subject", "_dtypes", "_tables"),
    ("_offered", "_version"),
)
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}


def modules(package: Path) -> Iterator[tuple[str, ast.Module]]:
    """Yield the dotted name below the package and the tree of each of its files."""
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        yield ".".join(parts), ast.parse(path.read_text(encoding="utf-8"))


def top(name: str) -> str:
    """Return the entry of ``LAYERS`` that a dotted name below the package is in."""
    return name.split(".")[0]


def imported(name: str, tree: ast.Module) -> Iterator[str]:
    """Yield the dotted names below gradkit that a module imports, anywhere in it."""
    package = name.split(".")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "gradkit":
                    # `import gradkit` gives every public name: the top of the list.
                    yield alias.name.partition(".")[2] or "__init__"
        elif isinstance(node, ast.ImportFrom):
            yield from _imported_from(package, node)


def _imported_from(package: list[str], node: ast.ImportFrom) -> Iterator[str]:
    module = node.module.split(".") if node.module else []
    if node.level == 0:
        if module[0] != "gradkit":
            return
        base = module[1:]
    else:
        base = package[: len(package) - node.level + 1] + module
    if base:
        yield ".".join(base)
    else:
        # `from gradkit import errors` names modules; other names are `__init__`'s.
        for alias in node.names:
            yield alias.name if alias.name in RANK else "__init__"


def upward_imports(package: Path) -> list[str]:
    """Return each import that does not go down the list, as ``"file -> module"``."""
    return [
        f"{name} -> {target}"
        for name, tree in modules(package)
        for target in imported(name, tree)
        if top(target) != top(name)
        and RANK.get(top(target), -1) <= RANK.get(top(name), -1)
    ]


def test_every_module_has_a_place_in_the_list() -> None:
    places = {top(name) for name, _ in modules(PACKAGE)}
    assert places - set(RANK) == set()


def test_imports_go_down_the_list() -> None:
    assert upward_imports(PACKAGE) == []


@pytest.mark.parametrize(
    ("file", "source", "found"),
    [
        ("_problem.py", "from gradkit._guards import x", "_problem -> _guards"),
        ("_problem.py", "from ._guards import x", "_problem -> _guards"),
        ("_problem.py", "from . import _guards", "_problem -> _guards"),
        ("_problem.py", "import gradkit._guards.deep", "_problem -> _guards.deep"),
        ("_problem.py", "import gradkit as gk", "_problem -> __init__"),
        ("_problem.py", "from gradkit import jacobian", "_problem -> __init__"),
        ("_problem.py", "from gradkit import numerics", "_problem -> numerics"),
        ("__init__.py", "from . import cli", "__init__ -> cli"),
        ("errors.py", "def f():\n    from .cli import main", "errors -> cli"),
        ("_guards/deep.py", "from .._planner import x", "_guards.deep -> _planner"),
        ("_guards/__init__.py", "from .. import cli", "_guards.__init__ -> cli"),
        ("_jacobian.py", "from . import _gradients", "_jacobian -> _gradients"),
        ("testing.py", "from . import saliency", "testing -> saliency"),
    ],
)
def test_a_planted_upward_import_is_found(
    tmp_path: Path, file: str, source: str, found: str
) -> None:
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    path.write_text(source, encoding="utf-8")
    assert upward_imports(tmp_path) == [found]


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("_guards/deep.py", "from ._other import x\nfrom .._problem import y"),
        ("_guards/__init__.py", "from ._other import x\nfrom . import _third"),
        ("_jacobian.py", "from ._methods import METHODS\nimport torch\nimport os.path"),
        ("cli/__main__.py", "from .. import jacobian, numerics\nimport gradkit"),
    ],
)
def test_imports_that_go_down_pass(tmp_path: Path, file: str, source: str) -> None:
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    path.write_text(source, encoding="utf-8")
    assert upward_imports(tmp_path) == []


def test_files_stay_short() -> None:
    lengths = {
        str(path.relative_to(PACKAGE)): len(path.read_text("utf-8").splitlines())
        for path in PACKAGE.rglob("*.py")
    }
    assert lengths
    assert {file: n for file, n in lengths.items() if n > MOST_LINES} == {}


def test_every_method_file_is_in_methods() -> None:
    # A method file is one that makes a Method, under the name it gives it.
    declared = [
        _name_given(node)
        for name, tree in modules(PACKAGE)
        if name.startswith("_methods.")
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and _called(node) == "Method"
    ]
    assert sorted(declared) == sorted(gradkit.METHODS)
    assert all(name == method.name for name, method in gradkit.METHODS.items())


def _called(call: ast.Call) -> str:
    return ast.unparse(call.func).split(".")[-1]


def _name_given(call: ast.Call) -> str:
    named = {k.arg: k.value for k in call.keywords}
    name = named.get("name") or call.args[0]
    # `rules` is made by a function that others' rules go through too.
    return str(name.value) if isinstance(name, ast.Constant) else "rules"
