"""Functions and classes by what they do: their code, and what it reads."""

from __future__ import annotations

import dis
import functools
import sysconfig
import types
from collections.abc import Iterator
from typing import Any

from gradkit.streaming._digest import digest_bytes

__all__ = ["code_of", "code_of_callable", "describe_function"]

#: Where libraries lie, whose functions are known by their names.
_LIBRARIES = tuple({sysconfig.get_paths()[k] for k in ("stdlib", "purelib", "platlib")})


#: What a function reads by value; other things may change without changing it.
_PLAIN = (bool, int, float, complex, str, bytes, type(None))


def describe_function(function: types.FunctionType) -> tuple[dict[str, Any], Any]:
    """Return a function's name and code, and the values that it reads, by name."""
    name = f"{function.__module__}.{function.__qualname__}"
    code = digest_bytes(*_bytes(function.__code__)).hex()
    return {"function": name, "code": code}, _reads(function)


def _reads(function: types.FunctionType) -> dict[str, Any]:
    """Return the values that a function reads, by name.

    Of a library's function those that it closes over, and its defaults, suffice.
    """
    reads: dict[str, Any] = {}
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    for name, cell in cells:
        try:
            reads[f"{name} (closed over)"] = cell.cell_contents
        except ValueError:  # nothing was put there yet
            continue
    reads |= {"defaults": function.__defaults__} if function.__defaults__ else {}
    reads |= {"keywords": function.__kwdefaults__} if function.__kwdefaults__ else {}
    if not _is_library(function.__code__):
        reads |= _globals(function)
    return reads


def code_of_callable(value: Any) -> str:
    """Return a digest of what a callable does, as far as code and plain values say.

    Functions that it reads are followed; what tensors, models and containers hold is
    left to the caller's identity.
    """
    return digest_bytes(*_done_by(value, set())).hex()


def _done_by(value: Any, met: set[int]) -> Iterator[bytes]:
    if isinstance(value, _PLAIN):
        yield repr(value).encode()
    if id(value) in met:
        return
    met.add(id(value))
    if isinstance(value, functools.partial):
        for part in (value.func, *value.args, *value.keywords.values()):
            yield from _done_by(part, met)
    elif isinstance(value, types.MethodType):
        yield from _done_by(value.__func__, met)
        yield from code_of(type(value.__self__))
    elif isinstance(value, types.FunctionType):
        yield from _bytes(value.__code__)
        written = _written(value.__code__)
        for name, read in _reads(value).items():
            if name.partition(" (")[0] not in written:
                yield name.encode()
                yield from _done_by(read, met)
    elif isinstance(value, tuple):
        for part in value:
            yield from _done_by(part, met)
    elif callable(value):
        yield from code_of(value if isinstance(value, type) else type(value))


def code_of(kind: type) -> list[bytes]:
    """Return the code of a class's own methods, and of its bases' outside libraries."""
    found: list[bytes] = []
    for base in kind.__mro__:
        for name, value in sorted(vars(base).items()):
            function = getattr(value, "__func__", value)
            function = getattr(function, "fget", function)
            code = getattr(function, "__code__", None)
            if isinstance(code, types.CodeType) and not _is_library(code):
                found += [name.encode(), *_bytes(code)]
    return found


def _globals(function: types.FunctionType) -> dict[str, Any]:
    """Return the global values that a function reads, other than modules."""
    names = {
        str(i.argval)
        for code in _nested(function.__code__)
        for i in dis.get_instructions(code)
        if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")
    }
    around = function.__globals__
    held = {name: around[name] for name in sorted(names) if name in around}
    return {
        f"{name} (global)": value
        for name, value in held.items()
        if not isinstance(value, types.ModuleType)
    }


def _written(code: types.CodeType) -> set[str]:
    """Return the outer variables that code assigns to, such as counters."""
    stores = ("STORE_DEREF", "STORE_GLOBAL")
    return {
        str(i.argval)
        for part in _nested(code)
        for i in dis.get_instructions(part)
        if i.opname in stores
    }


def _is_library(code: types.CodeType) -> bool:
    return code.co_filename.startswith(_LIBRARIES)


def _nested(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _nested(constant)


def _bytes(code: types.CodeType) -> Iterator[bytes]:
    """Yield what decides what code does; line numbers do not."""
    yield code.co_code
    yield repr((code.co_names, code.co_varnames)).encode()
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _bytes(constant)
        elif isinstance(constant, frozenset):
            # Printed in an order that differs from one process to the next.
            yield repr(sorted(map(repr, constant))).encode()
        else:
            yield repr(constant).encode()
