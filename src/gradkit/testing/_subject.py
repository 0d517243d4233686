"""A function under test as a map from a list of tensors to a list of tensors."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

from gradkit._guards._trace import Untouched
from gradkit._problem._target import Target, read_target
from gradkit._problem._tree import flatten, leaves
from gradkit.errors import InputError
from gradkit.testing._variables import (
    Part,
    choose,
    input_variables,
    laid_out,
    parameter_variables,
)

__all__ = ["Subject"]


class Subject:
    """A function, with all that it is differentiated by as arguments.

    A module is copied; the caller's stays as it is. Every evaluation starts from the
    same random state and the same buffers, on inputs that it may write to.

    Args:
        function: A callable or module.
        inputs: What it is called with.
        wrt: What to differentiate by.
        dtype: What floating values are converted to; ``None`` leaves them.
        seed: What ``torch.manual_seed`` gets before every evaluation.
    """

    def __init__(
        self, function: Any, inputs: Any, wrt: Any, dtype: torch.dtype | None, seed: int
    ) -> None:
        self._dtype = dtype
        target = _private(read_target(function), dtype)
        self._call, root = target.call, target.root
        found, self._arrange = flatten(inputs)
        self._starred = "" if isinstance(inputs, Tensor) else _starred(inputs)
        every = input_variables(found, dtype)
        if root is not None:
            every += parameter_variables(root)
        self.variables = tuple(choose(every, wrt))
        self.frozen = tuple(v.name for v in every if v.frozen and wrt is None)
        self._leaves = [self._converted(leaf.value) for leaf in found]
        self.outputs: tuple[Part, ...] = ()
        self.lowest = dtype
        self.written: set[str] = set()
        self.hidden: set[str] = set()
        self.handed: dict[str, Tensor] = {}
        tensors = [v for v in self._leaves if isinstance(v, Tensor)]
        self._untouched = Untouched(target, tensors, seed=seed, batched=False)

    def __enter__(self) -> Subject:
        self._untouched.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._untouched.__exit__(*exception)

    def _converted(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        dtype = self._dtype if value.is_floating_point() else None
        return laid_out(value.detach().to(dtype or value.dtype), value)

    @contextmanager
    def _in_place(self, values: Sequence[Tensor]) -> Iterator[None]:
        """Hold the parameters' values where the module looks for them.

        Not ``functional_call``: a checkpoint runs the module again in the backward.
        """
        pairs = zip(self.variables, values, strict=True)
        slots = [(m, key, value) for v, value in pairs for m, key in v.slots]
        before = [m._parameters[key] for m, key, _ in slots]
        for module, key, value in slots:
            module._parameters[key] = value  # pyright: ignore[reportArgumentType]
        try:
            yield
        finally:
            for (module, key, _), old in zip(slots, before, strict=True):
                module._parameters[key] = old

    def _outputs(self, values: Sequence[Tensor]) -> list[Tensor]:
        given = [v.clone() if isinstance(v, Tensor) else v for v in self._leaves]
        named: dict[str, Tensor] = {}
        for variable, value in zip(self.variables, values, strict=True):
            if variable.leaf is not None:
                given[variable.leaf] = laid_out(value, variable.value)
                named[variable.name] = given[variable.leaf]
        versions = {name: tensor._version for name, tensor in named.items()}
        nodes = {name: tensor.grad_fn for name, tensor in named.items()}
        arguments = self._arrange(given)
        if self._starred == "**":
            result = self._call(**arguments)
        elif self._starred == "*":
            result = self._call(*arguments)
        else:
            result = self._call(arguments)
        written = {n for n, t in named.items() if t._version != versions[n]}
        self.written |= written
        self.handed = named
        # What autograd sees gives the tensor another node.
        self.hidden |= {
            n for n in written
            if nodes[n] is not None and named[n].grad_fn is nodes[n]
        }  # fmt: skip
        return self._read(result)

    def _read(self, result: Any) -> list[Tensor]:
        found = [
            (f"output{leaf.path}", leaf.value)
            for leaf in flatten(result)[0]
            if isinstance(leaf.value, Tensor)
        ]
        for name, value in found:
            if value.is_complex():
                raise InputError(
                    f"function must return real tensors; {name} is complex."
                    " Return torch.view_as_real of it",
                    argument="function",
                )
        floating = [(n, v) for n, v in found if v.is_floating_point()]
        if not floating:
            got = ", ".join(str(v.dtype) for _, v in found) or type(result).__name__
            raise InputError(
                f"function must return a floating tensor; got {got}",
                argument="function",
            )
        self.outputs = tuple(Part(name, value.shape) for name, value in floating)
        return [value for _, value in floating]

    def evaluate(self, values: Sequence[Tensor]) -> list[Tensor]:
        """Return the floating outputs, detached.

        Gradients are recorded, since a function may take another path without.
        """
        points = [v.detach().clone().requires_grad_() for v in values]
        with self._untouched.forward(), self._in_place(points):
            return [v.detach().clone() for v in self._outputs(points)]

    def watched(self, values: Sequence[Tensor]) -> list[Tensor]:
        """Evaluate, and note the lowest precision that was computed in."""
        with _Precision() as seen:
            outputs = self.evaluate(values)
        if self._dtype is not None:
            self.lowest = max((self._dtype, *seen.found), key=_epsilon)
        return outputs

    def pullback(
        self,
        values: Sequence[Tensor],
        cotangents: Sequence[Tensor],
        then: Callable[..., Any] | None = None,
    ) -> Any:
        """Return ``Jᵀ v``, one tensor per variable, ``None`` where nothing arrives.

        With ``then`` a graph is made of it, and ``then(variables, cotangents, result)``
        is returned.
        """
        points = [v.detach().clone().requires_grad_() for v in values]
        further = then is not None
        seeds = [c.detach().clone().requires_grad_(further) for c in cotangents]
        with self._untouched.forward(), self._in_place(points):
            outputs = self._outputs(points)
            pairs = [
                (o, s.to(o)) for o, s in zip(outputs, seeds, strict=True)
                if o.requires_grad
            ]  # fmt: skip
            result: Any = [None] * len(points)
            if pairs:
                result = list(
                    torch.autograd.grad(
                        [o for o, _ in pairs], points, [s for _, s in pairs],
                        create_graph=further, allow_unused=True,
                    )
                )  # fmt: skip
            return result if then is None else then(points, seeds, result)

    @contextmanager
    def recorded(
        self, values: Sequence[Tensor], only: int | None = None
    ) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
        """Give the variables and the outputs with their graph.

        With ``only`` that one variable alone requires grad.
        """
        points = [
            v.detach().clone().requires_grad_(only in (None, i))
            for i, v in enumerate(values)
        ]
        with self._untouched.forward(), self._in_place(points):
            yield points, self._outputs(points)

    def pushforward(
        self, values: Sequence[Tensor], tangents: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[Tensor | None]]:
        """Return outputs and ``J u`` by forward mode, one tensor per output."""
        with self._untouched.forward(), forward_ad.dual_level():
            duals = [
                forward_ad.make_dual(v.detach().clone(), t)
                for v, t in zip(values, tangents, strict=True)
            ]
            with self._in_place(duals):
                outputs = self._outputs(duals)
            pairs = [forward_ad.unpack_dual(o) for o in outputs]
            return [p.primal.detach() for p in pairs], [p.tangent for p in pairs]

    def transformed(
        self, values: Sequence[Tensor], cotangents: Sequence[Tensor]
    ) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        """Return outputs and ``Jᵀ v`` as ``torch.func`` computes them."""

        def pure(*points: Tensor) -> list[Tensor]:
            with self._untouched.forward(), self._in_place(points):
                return self._outputs(points)

        outputs, pull = torch.func.vjp(pure, *values)[:2]
        pairs = zip(cotangents, outputs, strict=True)
        return outputs, pull([c.to(o) for c, o in pairs])


def _starred(inputs: Any) -> str:
    return "**" if isinstance(inputs, Mapping) or hasattr(inputs, "keys") else "*"


def _private(target: Target, dtype: torch.dtype | None) -> Target:
    """Return a target whose modules are copies in another dtype."""
    if target.root is None:
        return target
    try:
        root = copy.deepcopy(target.root)
    except Exception as error:
        raise InputError(
            f"function ({type(target.root).__name__}) must be a module that"
            f" copy.deepcopy takes, so that yours stays as it is; it raised"
            f" {type(error).__name__}: {error}. Pass a function that builds the module",
            argument="function",
        ) from error
    if dtype is not None:
        root.to(dtype)
        for module in root.modules():
            for key, value in vars(module).items():
                # A plain attribute, which Module.to does not see.
                if isinstance(value, Tensor) and value.is_floating_point():
                    vars(module)[key] = value.detach().to(dtype)
    call = root
    if target.call is not target.root:
        call = getattr(root, target.call.__name__)
    return Target(call, root, root)


def _epsilon(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps


class _Precision(TorchDispatchMode):
    """Notes the floating dtypes of what is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[torch.dtype] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self.found |= {
            v.dtype
            for v in leaves(result)
            if isinstance(v, Tensor) and v.is_floating_point() and v.dim()
        }
        return result
