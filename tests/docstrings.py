"""The public surface, and what its docstrings owe."""

from __future__ import annotations

import ast
import builtins
import dataclasses
import doctest
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch

import gradkit
from gradkit.streaming._open import Column, Rows

Function = Callable[..., object]

SECTIONS = (
    "Args",
    "Attributes",
    "Returns",
    "Yields",
    "Raises",
    "Warns",
    "Cost",
    "Example",
    "Source",
)
#: What public functions return and no public name gives.
RETURNED = {"open_rows.Rows": Rows, "open_rows.Column": Column}
#: The letters of shapes: sizes of a call, of a layer's or a picture's axes, of a
#: result's own axes. A star stands for several axes.
LETTERS = {
    "N", "M", "n", "K", "R", "r", "D", "P", "S", "L", "T", "V", "E", "C", "H", "W", "w",
    "k'", "size", "bins", "bins+1", "S+1", "L+1", "classes",
    "*in", "*out", "*p", "*row", "*pic", "*space", "*lead", "*",
}  # fmt: skip
#: Arguments that hold tensors, whatever their annotation says.
SHAPED = {"model", "inputs", "attributions", "out", "tensor", "maps"}
#: What refuses nothing: contexts without arguments, and what authors of methods and
#: rules are handed, whose arguments come from gradkit.
WELCOMING = {
    "batch_invariant", "numerics.promoting",
    "Block.covers", "Method.reason", "Rule.bind",
    "Task.cotangents", "Task.part", "Task.weighted",
}  # fmt: skip
#: Methods whose cost is no reading of what is there.
COSTLY = {
    "ParameterJacobian": {
        "clipped_sum", "flat", "gram", "matvec", "mean", "norms", "project", "rmatvec",
        "samples", "second_moment", "select", "sum", "to_dict",
    },
    "open_rows.Rows": {"check", "missing"},
    "open_rows.Column": {"chunks"},
    "reducers.Reducer": {"add", "add_parameters", "merge", "result"},
    "quantities.Quantity": {"__call__"},
    "Method": {"run"},
}  # fmt: skip
_ROLE = re.compile(r":(?:func|class|meth|attr|mod|data|exc|obj):`")
_SHAPE = re.compile(r"``\(([\w*'+, -]*)\)``")
_ANY_SHAPE = re.compile(r"``(?:[^`]*[^`\w])?\([*\w'+, ]*\)|any shape")
_NAMED = re.compile(r"\b[Aa]s (?:in |those of |that of )?``([A-Za-z_][\w.]*)``")


# --- the surface ------------------------------------------------------------------


def public_names() -> Iterator[tuple[str, Any]]:
    """Yield every public value, those of the public modules by dotted name."""
    for name in gradkit.__all__:
        value = getattr(gradkit, name)
        if isinstance(value, ModuleType):
            for inner in value.__all__:
                yield f"{name}.{inner}", getattr(value, inner)
        else:
            yield name, value
    yield from RETURNED.items()


def public_modules() -> dict[str, ModuleType]:
    found = {n: getattr(gradkit, n) for n in gradkit.__all__}
    modules = {n: v for n, v in found.items() if isinstance(v, ModuleType)}
    return {"gradkit": gradkit, **modules}


def public_functions() -> dict[str, Function]:
    return {n: v for n, v in public_names() if inspect.isfunction(v)}


def public_classes() -> dict[str, type]:
    return {n: v for n, v in public_names() if inspect.isclass(v)}


def members(kind: type) -> dict[str, tuple[Function, bool]]:
    """Return a class's public methods and properties: a function, and which it is."""
    found = {}
    for name in dir(kind):
        value = inspect.getattr_static(kind, name)
        is_property = isinstance(value, property)
        function = value.fget if is_property else getattr(value, "__func__", value)
        own = inspect.isfunction(function) and function.__module__.startswith("gradkit")
        # A field whose default is a function is no method.
        if not own or name in fields(kind):
            continue
        if not name.startswith("_") or (name == "__call__" and kind.__doc__):
            found[name] = function, is_property
    return found


def public_members() -> dict[str, tuple[type, str, Function, bool]]:
    return {
        f"{owner}.{name}": (kind, name, function, is_property)
        for owner, kind in public_classes().items()
        for name, (function, is_property) in members(kind).items()
    }


def fields(kind: type) -> list[str]:
    """Return what a class is made of: fields, or what its errors are told."""
    if dataclasses.is_dataclass(kind):
        return [f.name for f in dataclasses.fields(kind) if f.name[0] != "_"]
    if issubclass(kind, tuple):
        return list(getattr(kind, "_fields", ()))
    if "__init__" in vars(kind) and issubclass(kind, BaseException):
        return [*inspect.signature(kind).parameters]
    return []


# --- reading a docstring ------------------------------------------------------------


def sections(docstring: str) -> dict[str, str]:
    """Split a Google-style docstring into its sections, in the order they come in."""
    parts = re.split(r"^([A-Z][a-z]+):$", docstring, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def items(section: str) -> dict[str, str]:
    """Return the entries of a section such as ``Args``, by name, each on one line."""
    parts = re.split(r"^    \*{0,2}(\w+): ?", section, flags=re.MULTILINE)
    texts = [" ".join(part.split()) for part in parts[2::2]]
    return dict(zip(parts[1::2], texts, strict=True))


# --- faults that any docstring may have ---------------------------------------------


def common_faults(docstring: str) -> Iterator[str]:
    lines = docstring.splitlines()
    if not lines or not lines[0].endswith(".") or (lines[1:] and lines[1].strip()):
        yield "no summary in one line"
    found = list(sections(docstring))
    unknown = [name for name in found if name not in SECTIONS]
    if unknown:
        yield f"unknown sections {unknown}"
    elif found != [section for section in SECTIONS if section in found]:
        yield f"sections come as {found}"
    for section, text in sections(docstring).items():
        if not text.strip():
            yield f"{section} is empty"
    if _ROLE.search(docstring):
        yield "a role, which is printed as it is"
    yield from _shape_faults(docstring)


def _shape_faults(docstring: str) -> Iterator[str]:
    found = sections(docstring)
    for name in ("Args", "Attributes", "Returns", "Yields"):
        for shape in _SHAPE.findall(found.get(name, "")):
            axes = [axis.replace(" ", "") for axis in shape.split(",")]
            odd = [a for a in axes if a and a not in LETTERS and not a.isdigit()]
            # Such as ``(inputs, targets)``, which is no shape.
            meant = any(a in LETTERS or len(a) == 1 for a in axes if not a.isdigit())
            if odd and meant:
                yield f"{name} has a shape ({shape}) with {odd}"


def example_faults(docstring: str) -> Iterator[str]:
    """Yield what an example lacks: it must run, and show what could be wrong."""
    text = sections(docstring).get("Example", "")
    examples = doctest.DocTestParser().get_examples(textwrap.dedent(text))
    if not examples:
        yield "no Example that runs"
    elif not any(e.want.strip() not in ("", "...") for e in examples):
        yield "Example shows no value"


def reference_faults(docstring: str, module: str) -> Iterator[str]:
    """Yield what a docstring refers to and is nowhere."""
    known = items(sections(docstring).get("Args", ""))
    for name in _NAMED.findall(docstring):
        if name not in {*known, *LETTERS} and not any(
            _is_there(place, name) for place in _places(module)
        ):
            yield f"refers to {name}, which is nowhere"


def _places(module: str) -> Iterator[object]:
    """Yield where a name may be looked up: the package, its neighbours, its kind."""
    place = sys.modules[module]
    yield from (place, sys.modules[place.__package__ or module])
    yield from (gradkit, gradkit.ParameterJacobian)
    yield {"gk": gradkit, "torch": torch}


def _is_there(place: object, name: str) -> bool:
    for part in name.split("."):
        if isinstance(place, dict):
            place = place.get(part)
        elif not hasattr(place, part):
            return False
        else:
            place = getattr(place, part)
    return place is not None


# --- what functions, classes and methods owe ---------------------------------------


def module_faults(module: ModuleType) -> list[str]:
    """Return what a public module's docstring owes and does not have."""
    return [*common_faults(module.__doc__ or "")]


def function_faults(function: Function, *, refuses: bool = True) -> list[str]:
    """Return what a public function's docstring owes and does not have."""
    docstring = inspect.getdoc(function) or ""
    faults = [*common_faults(docstring), *_signature_faults(function, docstring)]
    needed = ("Raises", "Cost") if refuses else ("Cost",)
    faults += [f"no {s}" for s in needed if s not in sections(docstring)]
    faults += [*example_faults(docstring), *_raise_faults(function, docstring)]
    return [*faults, *reference_faults(docstring, function.__module__)]


def class_faults(kind: type) -> list[str]:
    """Return what a public class's docstring owes and does not have."""
    docstring = vars(kind).get("__doc__") or ""
    docstring = inspect.cleandoc(docstring)
    faults = [*common_faults(docstring), *example_faults(docstring)]
    found = sections(docstring)
    described = items(found.get("Args", "") + found.get("Attributes", ""))
    for name in fields(kind):
        if name not in described:
            faults.append(f"{name} is not described")
        elif _is_tensor(kind.__annotations__.get(name)) and not _has_shape(
            described[name]
        ):
            faults.append(f"{name} has no shape")
    return [*faults, *reference_faults(docstring, kind.__module__)]


def member_faults(
    function: Function,
    *,
    is_property: bool = False,
    costly: bool = False,
    refuses: bool = True,
) -> list[str]:
    """Return what a public method's or property's docstring owes and does not have."""
    docstring = inspect.getdoc(function) or ""
    faults = [*common_faults(docstring), *_raise_faults(function, docstring)]
    found = sections(docstring)
    if is_property:
        returned = inspect.signature(function).return_annotation
        if _is_tensor(returned) and not _has_shape(docstring):
            faults.append("no shape")
    else:
        faults += _signature_faults(function, docstring)
        takes = [p for p in inspect.signature(function).parameters if p != "self"]
        if takes and refuses and "Raises" not in found:
            faults.append("no Raises")
    if costly and "Cost" not in found:
        faults.append("no Cost")
    if "Example" in found:
        faults += example_faults(docstring)
    return [*faults, *reference_faults(docstring, function.__module__)]


def _signature_faults(function: Function, docstring: str) -> Iterator[str]:
    found = sections(docstring)
    signature = inspect.signature(function)
    described = items(found.get("Args", ""))
    taken = [name for name in signature.parameters if name != "self"]
    if list(described) != taken:
        yield f"Args describes {list(described)}"
    for name, text in described.items():
        parameter = signature.parameters.get(name)
        is_tensor = parameter and _is_tensor(parameter.annotation)
        if (is_tensor or name in SHAPED) and not _has_shape(text):
            yield f"{name} has no shape"
        if not text.endswith((".", ":")):
            yield f"{name} is described by no sentence"
    returned = signature.return_annotation
    if returned not in (None, "None"):
        told = found.get("Returns", found.get("Yields", ""))
        if not told:
            yield "no Returns"
        elif (_is_tensor(returned) or returned == "Any") and not _has_shape(told):
            yield "Returns has no shape"


def _is_tensor(annotation: object) -> bool:
    return bool(re.search(r"\bTensor\b", str(annotation))) and not re.search(
        r"Callable|Mapping\[str, \w+Jacobian", str(annotation)
    )


def _has_shape(text: str) -> bool:
    return bool(_ANY_SHAPE.search(text) or re.search(r"\bAs (?:\w+ )*``", text))


def _raise_faults(function: Function, docstring: str) -> Iterator[str]:
    named = items(sections(docstring).get("Raises", ""))
    known = {**vars(builtins), **vars(gradkit.errors)}
    for name in named:
        error = known.get(name)
        if not (inspect.isclass(error) and issubclass(error, Exception)):
            yield f"Raises names {name}, which is no error"
    for name in sorted(_raised(function) & set(known)):
        if name not in named:
            yield f"Raises lacks {name}"


def _raised(function: Function) -> set[str]:
    """Return the names of the errors that the function's own lines make."""
    source = textwrap.dedent(inspect.getsource(inspect.unwrap(function)))
    made = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func).rpartition(".")[2]
            if name.endswith(("Error", "Exception")) or name == "refusal":
                made.add("InputError" if name == "refusal" else name)
    return made
