"""Places inside a forward where it can be read whose sample is whose."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from gradkit._problem._parameters import Parameter
from gradkit._problem._tree import leaves
from gradkit.errors import UnsupportedModelError

__all__ = ["Points", "UseOfOriginal"]


_LOOK_UPS = (
    F.embedding,
    F.embedding_bag,
    torch.embedding,
    torch.embedding_bag,
    torch.index_select,
    Tensor.index_select,
    Tensor.__getitem__,
)


class Points(TorchFunctionMode):
    """Collects what is looked up by integers.

    Token ids have no derivative, so independence is read where they first become
    numbers that have one.
    """

    def __init__(self, *, watch: bool) -> None:
        super().__init__()
        self.watch = watch
        self.found: list[Tensor] = []

    def __enter__(self) -> Points:
        # A mode costs a call per operation, so it is entered only where needed.
        return super().__enter__() if self.watch else self

    def __exit__(self, *exception: Any) -> None:
        if self.watch:
            super().__exit__(*exception)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func not in _LOOK_UPS or not _has_integers((args, kwargs)):
            return result
        tensor = result[0] if isinstance(result, tuple) else result
        if tensor.requires_grad and tensor.ndim:
            # The model goes on with a clone, which it may change in place.
            self.found.append(tensor)
            return tensor.clone() if tensor is result else result
        return result


def _has_integers(arguments: Any) -> bool:
    return any(
        isinstance(value, Tensor) and not value.is_floating_point()
        for value in leaves(arguments)
    )


class UseOfOriginal(TorchFunctionMode):
    """Refuses a use of a parameter that a private copy stands in for."""

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        super().__init__()
        self.originals = {id(p.tensor): p for p in parameters}

    def __enter__(self) -> UseOfOriginal:
        # A mode costs a call per operation, so it is entered only where needed.
        return super().__enter__() if self.originals else self

    def __exit__(self, *exception: Any) -> None:
        if self.originals:
            super().__exit__(*exception)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        for value in leaves((args, kwargs)):
            parameter = self.originals.get(id(value))
            if parameter is not None and getattr(func, "__name__", "") != "__get__":
                raise UnsupportedModelError(
                    f"parameter {parameter.name!r} is frozen or has hooks, and is"
                    " used from outside the module attribute it is registered"
                    " under, where its private copy is not seen; register it"
                    " there, or let it require grad",
                    parameter=parameter.name,
                )
        return func(*args, **kwargs)
