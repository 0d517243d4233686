"""Where a computation decides: the sign at a kink, the largest of several, a branch.

A derivative is continuous but where a decision changes. Rounding can change one: then
two right computations differ by far more than rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from gradkit._guards._trace import inside_forward

__all__ = ["Decision", "Decisions", "flips"]


def _sign(x: Tensor, *_: Any) -> Tensor:
    return x.sign()


def _between(x: Tensor, low: Any = None, high: Any = None, *_: Any) -> Tensor:
    found = torch.zeros_like(x, dtype=torch.int8)
    if low is not None:
        found = found + (x > low)
    return found if high is None else found + (x > high)


def _first_is_larger(a: Tensor, b: Tensor) -> Tensor:
    return torch.sign(a - b)


#: What each operation decides by, from its arguments.
_BY_ARGUMENTS: dict[str, Callable[..., Tensor]] = {
    "relu": _sign,
    "relu_": _sign,
    "abs": _sign,
    "sgn": _sign,
    "sign": _sign,
    "leaky_relu": _sign,
    "_prelu_kernel": _sign,
    "threshold": lambda x, at, *_: x > at,
    "hardtanh": lambda x, low=-1, high=1: _between(x, low, high),
    "hardsigmoid": lambda x: _between(x, -3, 3),
    "hardswish": lambda x: _between(x, -3, 3),
    "hardshrink": lambda x, at=0.5: _between(x, -at, at),
    "softshrink": lambda x, at=0.5: _between(x, -at, at),
    "clamp": _between,
    "clamp_min": _between,
    "clamp_max": lambda x, high: _between(x, None, high),
    "maximum": _first_is_larger,
    "minimum": _first_is_larger,
    "amax": lambda x, axes=(), *_: x == x.amax(axes, keepdim=True),
    "amin": lambda x, axes=(), *_: x == x.amin(axes, keepdim=True),
}
#: Operations whose results that are no floats are the decision.
_BY_RESULTS = frozenset(
    {
        "gt", "ge", "lt", "le", "eq", "ne", "argmax", "argmin", "max", "min", "sort",
        "topk", "kthvalue", "median", "mode", "cummax", "cummin", "searchsorted",
        "max_pool2d_with_indices", "max_pool3d_with_indices", "adaptive_max_pool2d",
        "adaptive_max_pool3d", "bucketize", "nonzero",
    }
)  # fmt: skip
#: Operations whose floating result is a step.
_STEPS = frozenset(("floor", "ceil", "round", "trunc", "frac", "heaviside"))
_KINKS = frozenset(("relu", "relu_", "abs", "leaky_relu", "_prelu_kernel"))


@dataclass(frozen=True)
class Decision:
    """What one operation decided.

    Attributes:
        module: The dotted name of the module it ran in.
        operation: The operation.
        taken: The decisions.
        ties: How many stand exactly at the kink, where the derivative is a convention.
    """

    module: str
    operation: str
    taken: Tensor
    ties: int


class _Detaching(TorchFunctionMode):
    """Sees ``detach`` and ``no_grad`` as a model writes them.

    Autograd itself calls the operation too, and turns gradients off in a custom
    Function.
    """

    def __init__(self, decisions: Decisions) -> None:
        super().__init__()
        self._decisions = decisions

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        off = func is torch._C._set_grad_enabled and args[:1] == (False,)
        if inside_forward() and (off or func in _CUTS):
            self._decisions.cut()
        return func(*args, **(kwargs or {}))


#: What ``tensor.data`` calls; a property to Python, a tensor to type checkers.
_DATA: Any = vars(torch._C.TensorBase)["data"].__get__
_CUTS = (Tensor.detach, torch.detach, _DATA)


class Decisions(TorchDispatchMode):
    """Records the decisions of a forward, and what is a convention in it.

    Args:
        root: The model, for its modules' names.

    Attributes:
        found: The decisions, in order.
        conventions: Known forks in what a derivative is, as they are met.
    """

    def __init__(self, root: nn.Module | None) -> None:
        super().__init__()
        names = {} if root is None else {id(m): n for n, m in root.named_modules()}
        self._names, self._within = names, [""]
        self.found: list[Decision] = []
        self.conventions: dict[str, str] = {}
        self._hooks: list[Any] = []
        self._detaching = _Detaching(self)

    def __enter__(self) -> Decisions:
        self._hooks = [
            register_module_forward_pre_hook(self._into),
            register_module_forward_hook(self._out_of, always_call=True),
        ]
        self._detaching.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        self._detaching.__exit__(*exception)
        for hook in self._hooks:
            hook.remove()

    def _into(self, module: nn.Module, _: Any) -> None:
        self._within.append(self._names.get(id(module), self._within[-1]))

    def _out_of(self, *_: Any) -> None:
        if len(self._within) > 1:
            self._within.pop()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = func._schema.name.removeprefix("aten::")
        if not inside_forward() or torch._C._current_graph_task_id() != -1:
            return func(*args, **(kwargs or {}))
        floating = any(isinstance(a, Tensor) and a.is_floating_point() for a in args)
        taken = None
        if floating and name in _BY_ARGUMENTS:
            taken = _BY_ARGUMENTS[name](*args, **(kwargs or {}))
        result = func(*args, **(kwargs or {}))
        if floating and name in _BY_RESULTS:
            several = result if isinstance(result, (tuple, list)) else (result,)
            for value in several:
                if isinstance(value, Tensor) and not value.is_floating_point():
                    taken = value
        elif name in _STEPS:
            taken = result
        if taken is not None:
            self._record(name, taken.detach().clone())
        self._meet(name, args)
        return result

    def _record(self, name: str, taken: Tensor) -> None:
        ties = int((taken == 0).sum()) if name in _KINKS or "imum" in name else 0
        where = self._within[-1]
        self.found.append(Decision(where, name, taken, ties))
        if ties:
            self._convene(
                f"{name} at its kink",
                f"{ties} entries stand exactly where {name} has no derivative",
            )

    def _meet(self, name: str, args: tuple[Any, ...]) -> None:
        if name == "embedding" and len(args) > 2 and args[2] >= 0:
            self._convene(
                "padding_idx",
                "the padding row of an embedding gets no gradient in reverse mode,"
                " and has one in forward mode and in differences",
            )

    def cut(self) -> None:
        """Note that a part of the computation is cut off from gradients."""
        self._convene(
            "no_grad or detach",
            "what a torch.no_grad block or detach computes is a constant in reverse"
            " mode; forward mode sees through no_grad, differences through both",
        )

    def _convene(self, name: str, text: str) -> None:
        where = self._within[-1]
        place = f" (in {where!r})" if where else ""
        self.conventions.setdefault(name, text + place)


def flips(
    first: Sequence[Decision], second: Sequence[Decision], samples: int
) -> tuple[dict[tuple[str, str], int], Tensor]:
    """Return where two runs decided differently: counts, and which samples.

    Returns:
        ``{(module, operation): count}``, and ``(N,)`` whether a sample's differ; all
        of them where decisions do not follow the samples.
    """
    counts: dict[tuple[str, str], int] = {}
    touched = torch.zeros(samples, dtype=torch.bool, device="cpu")
    if len(first) != len(second):
        counts["", "a branch of the program"] = 1
        return counts, ~touched
    for one, other in zip(first, second, strict=True):
        if one.taken.shape != other.taken.shape:
            counts[one.module, one.operation] = 1
            touched[:] = True
            continue
        differ = one.taken != other.taken
        count = int(differ.sum())
        if not count:
            continue
        key = one.module, one.operation
        counts[key] = counts.get(key, 0) + count
        if differ.ndim and differ.shape[0] == samples:
            touched |= differ.reshape(samples, -1).any(1).cpu()
        else:
            touched[:] = True
    return counts, touched
