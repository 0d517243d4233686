"""What a forward does that its graph does not show, seen as its operations run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from gradkit._guards._modules import ModuleState
from gradkit._problem._parameters import Parameter
from gradkit._problem._target import module_name
from gradkit._problem._tree import leaves
from gradkit.errors import SampleDependenceError, UnsupportedModelError

__all__ = ["Watch", "looked_up"]

_EMBEDDINGS = (F.embedding, F.embedding_bag, torch.embedding, torch.embedding_bag)
_SELECTIONS = (torch.index_select, Tensor.index_select, Tensor.__getitem__)


class Watch(TorchFunctionMode):
    """Watches the operations of one forward.

    It refuses, before it happens, a write to a parameter (a caller's value that no
    graph protects), and a use of a parameter that a private copy stands in for. It
    collects what integers look up: token ids have no derivative, so independence is
    read where they first become numbers that have one.

    Args:
        state: What is known of the modules.
        replaced: Parameters that private copies stand in for.
        look_ups: Whether look-ups are collected.
        by_parameters: Whether derivatives with respect to parameters are meant.
    """

    def __init__(
        self,
        state: ModuleState,
        replaced: Iterable[Parameter] = (),
        *,
        look_ups: bool = False,
        by_parameters: bool = False,
    ) -> None:
        super().__init__()
        self.found: list[Tensor] = []
        self._state = state
        self._replaced = {id(p.tensor): p for p in replaced}
        self._look_ups, self._by_parameters = look_ups, by_parameters
        self._memory: tuple[int, set[int]] = (-1, set())

    def _addresses(self) -> set[int]:
        """Return where values lie that have no stand-in, of what is known by now.

        Addresses, since ``.data`` and views are other tensors on the same memory.
        """
        held = self._state.bare()
        if self._memory[0] != len(held):
            found = {t.untyped_storage().data_ptr() for t in held if t.numel()}
            self._memory = (len(held), found)
        return self._memory[1]

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        for written in _written(func, args, kwargs):
            self._refuse_write(func, written)
        if self._replaced:
            self._refuse_original(func, args, kwargs)
        if self._by_parameters:
            _refuse_counts(func, args, kwargs)
        result = func(*args, **kwargs)
        if not self._look_ups:
            return result
        result, found = looked_up(func, args, kwargs, result)
        if found is not None:
            self.found.append(found)
        return result

    def _refuse_write(self, func: Any, written: Any) -> None:
        if not isinstance(written, Tensor) or torch.compiler.is_compiling():
            return
        try:
            address = written.untyped_storage().data_ptr()
        except (NotImplementedError, RuntimeError):
            return  # a wrapper of torch.func has no memory of its own
        if address not in self._addresses():
            return
        name = self._name_at(address)
        by_name = getattr(func, "__name__", "").startswith("embedding_renorm")
        if by_name or func in (F.embedding, F.embedding_bag):
            raise UnsupportedModelError(
                f"an embedding with max_norm overwrites its own weight, {name};"
                " renormalise the weight once under torch.no_grad() and leave"
                " max_norm out",
                parameter=name,
            )
        raise UnsupportedModelError(
            f"the model's forward writes to {name} (by"
            f" {getattr(func, '__name__', func)!r}), which would change the caller's"
            " model. Write to it after the optimiser's step instead, or register the"
            " constraint with torch.nn.utils.parametrize",
            parameter=name,
        )

    def _name_at(self, address: int) -> str:
        modules = list(self._state.modules())
        for module in modules:
            for key, p in module._parameters.items():
                if p is not None and p.untyped_storage().data_ptr() == address:
                    where = module_name(modules[0], module)
                    return f"parameter {key!r} of {type(module).__name__} ({where})"
        return "a tensor that requires grad, held outside its parameters"

    def _refuse_original(self, func: Any, args: Any, kwargs: Any) -> None:
        # Reading a property (a shape, a device) is not a use of the values.
        if getattr(func, "__name__", "") == "__get__":
            return
        for value in leaves((args, kwargs)):
            parameter = self._replaced.get(id(value))
            if parameter is not None:
                raise UnsupportedModelError(
                    f"parameter {parameter.name!r} is frozen or has hooks, and is"
                    " used from outside the module attribute it is registered"
                    " under, where its private copy is not seen; register it"
                    " there, or let it require grad",
                    parameter=parameter.name,
                )


def looked_up(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
) -> tuple[Any, Tensor | None]:
    """Return what an operation gives the model, and what integers looked up in it."""
    if not _looks_up(func, args):
        return result, None
    tensor = result[0] if isinstance(result, tuple) else result
    integers = any(
        isinstance(v, Tensor) and not v.is_floating_point()
        for v in leaves((args, kwargs))
    )
    if not integers or not tensor.requires_grad or not tensor.ndim:
        return result, None
    if tensor._is_view():
        return result, None  # what is written to it must reach its base
    # The model goes on with a clone, which it may change in place.
    return (tensor.clone() if tensor is result else result), tensor


def _argument(args: tuple[Any, ...], kwargs: Any, place: int, name: str) -> Any:
    return args[place] if len(args) > place else kwargs.get(name)


# Where each function takes the setting by position.
_SCALES = {
    F.embedding: 5,
    F.embedding_bag: 5,
    torch.embedding: 3,
    torch.embedding_bag: 3,
}


def _refuse_counts(func: Any, args: tuple[Any, ...], kwargs: Any) -> None:
    """Refuse a look-up whose gradient is divided by counts over the batch."""
    place = _SCALES.get(func)
    if place is None or not _argument(args, kwargs, place, "scale_grad_by_freq"):
        return
    raise SampleDependenceError(
        "samples must be independent; an embedding with scale_grad_by_freq=True"
        " divides the gradient by how often an index occurs in the whole batch."
        " Set scale_grad_by_freq=False"
    )


def _looks_up(func: Any, args: tuple[Any, ...]) -> bool:
    """Whether integers look something up in a parameter, not in samples."""
    if func in _EMBEDDINGS:
        return True
    return func in _SELECTIONS and bool(args) and isinstance(args[0], nn.Parameter)


_IN_PLACE = ("__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__")


def _sets_values(func: Any, name: str) -> bool:
    """Whether this is ``tensor.data = other``."""
    return name == "__set__" and getattr(func.__self__, "__name__", "") == "data"


def _written(func: Any, args: tuple[Any, ...], kwargs: Any) -> Iterator[Any]:
    """Yield the arguments that an operation writes to."""
    name = getattr(func, "__name__", "").partition(".")[0]  # torch.ops.aten.mul_.Scalar
    in_place = name.endswith("_") and not name.endswith("__")
    if name in ("requires_grad_", "retains_grad_"):
        return  # a flag, which is put back
    if in_place or name in _IN_PLACE or _sets_values(func, name):
        first = args[0] if args else None
        yield from first if isinstance(first, (list, tuple)) else (first,)
        yield from (kwargs[n] for n in ("tensor", "input", "self") if n in kwargs)
    if "out" in kwargs:
        yield from leaves(kwargs["out"])
    if func in (F.embedding, F.embedding_bag) and (
        _argument(args, kwargs, 3, "max_norm") is not None
    ):
        yield _argument(args, kwargs, 1, "weight")
