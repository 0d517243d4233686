"""What a run's rows depend on, as plain values that can be stored and compared.

Modules, tensors and functions become digests of what decides their results. Two runs
whose descriptions are equal give the same rows; where they differ, the difference has
a name.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import os
import types
from collections.abc import Iterator, Mapping, Set
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gradkit._problem._target import unwrap
from gradkit.errors import InputError
from gradkit.streaming._digest import digest_bytes, digest_tensor

__all__ = ["describe", "differences", "settings"]

_PLAIN = (bool, int, str, type(None))
#: Attributes that every module has; what decides results among them is described
#: apart.
_OF_MODULES = frozenset(vars(nn.Module()))


def describe(value: Any, where: str) -> Any:
    """Return JSON values that differ where ``value`` does.

    Args:
        value: Models, tensors, arrays, functions, plain values; nested as one likes.
        where: What to call it in an error.

    Raises:
        InputError: It holds something else, whose values cannot be told.
    """
    return _describe(value, where, ())


def _describe(value: Any, where: str, above: tuple[int, ...]) -> Any:
    if id(value) in above:
        return "itself"
    above = (*above, id(value))
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, float):
        return repr(value)  # JSON has no infinities
    if isinstance(value, nn.Module):
        return _module(unwrap(value), where, above)
    if isinstance(value, Tensor):
        return _tensor(value, where)
    if isinstance(value, (np.ndarray, np.generic)):
        return _tensor(torch.from_numpy(np.array(value)), where)
    if isinstance(value, Mapping):
        return {
            str(k): _describe(v, f"{where}[{k!r}]", above) for k, v in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_describe(v, f"{where}[{i}]", above) for i, v in enumerate(value)]
    if isinstance(value, Set):
        return sorted(str(_describe(v, where, above)) for v in value)
    found = _callable(value, where, above)
    if found is None:
        found = _other(value, where, above)
    if found is None:
        raise InputError(
            f"{where} must be models, tensors, functions or plain values, which can be"
            f" told from others; got {type(value).__name__}. Give what decides its"
            " results, as a mapping of such values",
            argument="identity",
        )
    return found


def _other(value: Any, where: str, above: tuple[int, ...]) -> Any:
    if isinstance(value, (torch.dtype, torch.device, torch.Size, complex, bytes)):
        return repr(value)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, torch.Generator):
        return _tensor(value.get_state(), where)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        return {"type": _name(type(value)), **_describe(fields, where, above)}
    return None


def _name(value: Any) -> str:
    module = getattr(value, "__module__", None)
    return f"{module or ''}.{getattr(value, '__qualname__', repr(value))}".lstrip(".")


def _tensor(value: Tensor, where: str) -> str:
    if value.is_meta or type(value).__name__ == "DTensor":
        raise InputError(
            f"{where} is a {'meta' if value.is_meta else 'distributed'} tensor, whose"
            " values cannot be read here",
            argument="identity",
        )
    dtype = str(value.dtype).removeprefix("torch.")
    place = "" if value.device.type == "cpu" else f" on {value.device.type}"
    return f"{dtype}{list(value.shape)}{place} {digest_tensor(value).hex()}"


# -- functions ------------------------------------------------------------------------


def _callable(value: Any, where: str, above: tuple[int, ...]) -> Any:
    """Describe a function by its name, code, and what it closes over."""
    if isinstance(value, functools.partial):
        parts = {"function": value.func, "args": value.args, "kwargs": value.keywords}
        return _describe(parts, where, above)
    if isinstance(value, types.MethodType):
        parts = {"method": value.__func__, "of": value.__self__}
        return _describe(parts, where, above)
    if isinstance(value, types.FunctionType):
        cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
        parts = {f"{name} (closed over)": cell.cell_contents for name, cell in cells}
        parts |= {"defaults": value.__defaults__} if value.__defaults__ else {}
        parts |= {"keywords": value.__kwdefaults__} if value.__kwdefaults__ else {}
        described = _describe(parts, f"{where}: {value.__qualname__}", above)
        code = digest_bytes(*_code(value.__code__)).hex()
        return {"function": _name(value), "code": code, **described}
    if isinstance(value, (type, types.BuiltinFunctionType)):
        return _name(value)
    return None


def _code(code: types.CodeType) -> Iterator[bytes]:
    """Yield what decides what code does; line numbers do not."""
    yield code.co_code
    yield repr((code.co_names, code.co_varnames)).encode()
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _code(constant)
        elif isinstance(constant, frozenset):
            # Printed in an order that differs from one process to the next.
            yield repr(sorted(map(repr, constant))).encode()
        else:
            yield repr(constant).encode()


# -- modules --------------------------------------------------------------------------


def _module(model: nn.Module, where: str, above: tuple[int, ...]) -> dict[str, Any]:
    """Describe a module by its tensors, flags, plain attributes and own code."""
    tensors = {
        **{
            f"parameter {name}": value for name, value in _named(model.named_parameters)
        },
        **{f"buffer {name}": value for name, value in _named(model.named_buffers)},
    }
    parts: dict[str, Any] = {
        "type": _name(type(model)),
        **{name: _tensor(value, f"{where}: {name}") for name, value in tensors.items()},
    }
    for name, module in model.named_modules():
        at = f"module {name}" if name else "module"
        parts[at] = {"type": _name(type(module)), "training": module.training}
        parts[at] |= _attributes(module)
        if not _name(type(module)).startswith("torch."):
            forward = digest_bytes(*_forward(type(module))).hex()
            parts[at]["code of forward"] = forward
    frozen = [name for name, p in model.named_parameters() if not p.requires_grad]
    parts["frozen"] = frozen
    return parts


def _named(walk: Any) -> list[tuple[str, Tensor]]:
    return [(name, value) for name, value in walk() if value is not None]


def _forward(kind: type) -> Iterator[bytes]:
    code = getattr(getattr(kind, "forward", None), "__code__", None)
    return _code(code) if code is not None else iter(())


def _attributes(module: nn.Module) -> dict[str, Any]:
    """Return the attributes of a module that are plain values, or tensors."""
    found = {}
    for name, value in vars(module).items():
        if name in _OF_MODULES:
            continue
        plain = _plain(value)
        if plain is not None:
            found[name] = plain
    return found


def _plain(value: Any) -> Any:
    """Return plain values and tensors as JSON, ``None`` for all else."""
    if isinstance(value, Tensor):
        return _tensor(value, "an attribute")
    if isinstance(value, (bool, int, str, float, torch.dtype, torch.device)):
        return repr(value)
    if isinstance(value, (list, tuple)) and not any(_plain(v) is None for v in value):
        return [_plain(v) for v in value]
    return None


# -- the process ----------------------------------------------------------------------


def settings() -> dict[str, Any]:
    """Return what else decides the bits of a result, in this process."""
    return {
        "torch": str(torch.__version__),
        "gradkit": importlib.metadata.version("gradkit"),
        "threads": torch.get_num_threads(),
        "default dtype": str(torch.get_default_dtype()),
        "matmul precision": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "cudnn": [
            torch.backends.cudnn.enabled,
            torch.backends.cudnn.benchmark,
            torch.backends.cudnn.deterministic,
        ],
        "denormals": float(torch.tensor(1e-40) * 1) != 0.0,
        "autocast": [
            f"{kind} {torch.get_autocast_dtype(kind)}"
            for kind in ("cpu", "cuda")
            if torch.is_autocast_enabled(kind)
        ],
    }


def differences(before: Any, after: Any, where: str = "") -> list[str]:
    """Return where two descriptions differ, as ``place: was A, is B``.

    Example:
        >>> differences({"threads": 2, "seed": 0}, {"threads": 1, "seed": 0})
        ['threads: was 2, is 1']
    """
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        found = []
        for key in dict.fromkeys([*before, *after]):
            place = f"{where}, {key}" if where else str(key)
            if key not in before:
                found.append(f"{place}: is new")
            elif key not in after:
                found.append(f"{place}: is gone")
            else:
                found += differences(before[key], after[key], place)
        return found
    if before == after:
        return []
    return [f"{where}: was {_short(before)}, is {_short(after)}"]


def _short(value: Any) -> str:
    text = str(value) if isinstance(value, str) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
