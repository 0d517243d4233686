"""Computing in float64, also where a model asks for less."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from gradkit._dtypes import default_dtype
from gradkit.numerics._operations import name_of

__all__ = ["Promoted", "promoting", "widening"]

#: What is computed in instead.
_WIDER = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex64: torch.complex128,
}
#: Draws differ from dtype to dtype: made as asked for, and widened afterwards.
_DRAWS = frozenset(("rand", "randn", "rand_like", "randn_like", "normal", "bernoulli"))
_DRAWS_IN_PLACE = frozenset(
    ("normal_", "uniform_", "exponential_", "cauchy_", "log_normal_", "geometric_")
)
#: Make numbers that a precision may not hold.
_CONSTANTS = frozenset(
    (
        "full", "full_like", "new_full", "linspace", "logspace", "arange",
        "scalar_tensor", "hann_window", "hamming_window", "blackman_window",
        "bartlett_window", "kaiser_window",
    )
)  # fmt: skip
#: What ``torch.tensor`` and the like end in.
_LIFTED = frozenset(("lift_fresh", "lift_fresh_copy"))
#: Reads bits, which have the width they have.
_OF_BITS = frozenset(("view.dtype",))


class Promoted(TorchDispatchMode):
    """What a promoted computation was seen to do.

    Attributes:
        lower: How often each operation computed a floating result below float64 all
            the same, because it writes to memory that is lower.
        asked: The floating dtypes below float64 that were asked for.
    """

    def __init__(
        self, default: torch.dtype, drawn_in: torch.dtype, *, as_made: bool = False
    ) -> None:
        super().__init__()
        self._default, self._drawn_in = default, drawn_in
        self._as_made = as_made
        self.lower: Counter[str] = Counter()
        self.asked: set[torch.dtype] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if not self._as_made:
            return self._promoted(func, args, kwargs)
        name = name_of(func)
        if name in _CONSTANTS or name in _LIFTED:
            return self._constant(func, name, args, kwargs)
        # Whole numbers are divided in the default dtype.
        with default_dtype(torch.float64):
            return self._promoted(func, args, kwargs)

    def _constant(
        self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Make a constant as the model itself does, and widen it."""
        asked = kwargs.get("dtype")
        like = bool(args) and isinstance(args[0], Tensor)
        like = like and asked is None and args[0].dtype == torch.float64
        if name not in _LIFTED and (like or asked == torch.float64):
            # Of what is promoted here, the dtype was another.
            try:
                result = func(*args, **{**kwargs, "dtype": self._drawn_in})
            except RuntimeError:  # it cannot hold a number such as float64's largest
                result = func(*args, **kwargs)
        else:
            result = func(*args, **kwargs)
        if result.dtype not in _WIDER:
            return result
        if asked in _WIDER:
            self.asked.add(asked)
        return result.to(_WIDER[result.dtype])

    def _promoted(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        name = name_of(func)
        if name in _DRAWS and "dtype" in {a.name for a in func._schema.arguments}:
            like = self._drawn_in if name.endswith("_like") else self._default
            asked = kwargs.get("dtype") or like
            if asked in _WIDER:
                self.asked.add(asked)
                return func(*args, **{**kwargs, "dtype": asked}).to(_WIDER[asked])
        if name in _DRAWS_IN_PLACE and self._drawn_in in _WIDER:
            drawn = torch.empty_like(args[0], dtype=self._drawn_in)
            func(drawn, *args[1:], **kwargs)
            return args[0].copy_(drawn)
        if f"{name}.{func._overloadname}" not in _OF_BITS:
            args, kwargs = self._widened(func, args, kwargs)
        result = func(*args, **kwargs)
        for value in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(value, Tensor) and value.dtype in _WIDER:
                self._note(name, func, args)
        return result

    def _widened(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        # What is written to, or looked at through a view, stays what it is.
        aliased = [a.alias_info is not None for a in func._schema.arguments]

        def wider(value: Any) -> Any:
            if isinstance(value, torch.dtype) and value in _WIDER:
                self.asked.add(value)
                return _WIDER[value]
            if isinstance(value, Tensor) and value.dtype in _WIDER:
                return value.to(_WIDER[value.dtype])
            return value

        names = [a.name for a in func._schema.arguments]
        kept = {n for n, is_aliased in zip(names, aliased, strict=True) if is_aliased}
        args = tuple(
            a if names[i] in kept else tree_map(wider, a) for i, a in enumerate(args)
        )
        kwargs = {
            n: v if n in kept and isinstance(v, Tensor) else tree_map(wider, v)
            for n, v in kwargs.items()
        }
        if "half_to_float" in names:
            place = names.index("half_to_float")
            args = (*args[:place], False, *args[place + 1 :])
        return args, kwargs

    def _note(self, name: str, func: Any, args: tuple[Any, ...]) -> None:
        # Moving and making what is lower computes nothing.
        mutable = func._schema.is_mutable
        if mutable and any(
            isinstance(a, Tensor) and a.dtype in (torch.float64, torch.complex128)
            for a in args
        ):
            self.lower[name] += 1


@contextmanager
def widening(own: torch.dtype) -> Iterator[Promoted]:
    """Compute in float64 what a model computes, but on the very numbers it makes.

    As ``promoting``, for a model whose own precision is known: a constant that it
    makes in a lower one, such as ``torch.linspace`` in the default dtype, is data like
    its parameters, and is widened as it is.

    Args:
        own: What is made or drawn in that takes its dtype from a tensor.
    """
    with Promoted(torch.get_default_dtype(), own, as_made=True) as seen:
        yield seen


@contextmanager
def promoting() -> Iterator[Promoted]:
    """Compute in float64 what is computed inside, whatever a model asks for.

    Many models cast inside (a norm in ``x.float()``, scores in float32, autocast of
    their own), so that ``model.double()`` is not a float64 computation. Inside, casts,
    factories and the default dtype are promoted, and so are lower tensors that an
    operation takes; random numbers are drawn as they were asked for and widened.
    Parameters are not changed: pass copies in float64, or they are widened at use.

    Returns:
        A context manager that yields what was seen: ``lower`` counts the operations
        whose result stayed below float64, because they write to lower memory;
        ``asked`` holds the dtypes that were asked for.

    Cost:
        A Python call for every operation, and float64 arithmetic.

    Example:
        >>> import torch
        >>> import gradkit as gk
        >>> x = torch.tensor([1.0], dtype=torch.float64) / 3
        >>> with gk.numerics.promoting() as seen:
        ...     y = x.float() * 3
        >>> y.dtype, float(y), dict(seen.lower)
        (torch.float64, 1.0, {})
    """
    before = torch.get_default_dtype()
    with default_dtype(torch.float64), Promoted(before, before) as seen:
        yield seen
