"""Forwards of the model: on the whole batch, on one sample, or as a function."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gradkit._guards._graph import Graph
from gradkit._guards._hooks import Capture, hooked, keep, placed, record, shifted
from gradkit._guards._lone import straighten
from gradkit._guards._notes import annotate
from gradkit._guards._starts import (
    how_many,
    kernels,
    live_tensor,
    nudged,
    order_of,
    refuse_views,
    some,
)
from gradkit._guards._trace import Untouched
from gradkit._guards._watch import Watch
from gradkit._problem._inputs import Inputs
from gradkit._problem._names import Entry, Selector
from gradkit._problem._outputs import Outputs, read_outputs
from gradkit._problem._parameters import Parameter, place
from gradkit._problem._target import Target
from gradkit.errors import InputError, UnsupportedModelError

__all__ = ["Forwards"]


class Forwards:
    """Runs one model on one set of inputs, for inputs' or parameters' derivatives.

    Args:
        target: The model.
        inputs: Its inputs, read.
        guard: The context that the forwards run in.
        selector: What ``of`` picks.
        entries: What ``wrt`` names; empty where parameters are meant.
        parameters: The parameters; empty where inputs are meant.
        connected: Whether results keep their graph (``create_graph``).
        recorder: Makes what records a forward's use of parameters, for rules.
    """

    def __init__(
        self,
        target: Target,
        inputs: Inputs,
        guard: Untouched,
        selector: Selector,
        *,
        entries: Sequence[Entry] = (),
        parameters: Sequence[Parameter] = (),
        connected: bool = False,
        recorder: Callable[[Sequence[Tensor]], Any] | None = None,
    ) -> None:
        self.target = target
        self.inputs = inputs
        self.guard = guard
        self.recorder = recorder
        self.selector = selector
        self.entries = entries
        self.connected = connected
        self.parameters: tuple[Parameter, ...] = tuple(parameters)
        self._live = [live_tensor(p) for p in parameters]
        self._wanted = {i for e in entries for i in e.positions}
        for module in [e.module for e in entries] + [selector.module]:
            if module is not None:
                guard.adopt(module)
        self.outputs: Outputs | None = None
        self._placed: tuple[Tensor, ...] = ()
        for parameter, live in zip(self.parameters, self._live, strict=True):
            if live is not parameter.tensor:
                refuse_views(guard, parameter)
        self._look_ups = bool(parameters) and any(
            t.role == "sample" and not t.tensor.is_floating_point()
            for t in inputs.tensors
        )

    def only(self, places: Sequence[int]) -> Forwards:
        """Return the same forwards for some of the parameters."""
        part = copy(self)
        part.parameters = tuple(self.parameters[i] for i in places)
        part._live = [self._live[i] for i in places]
        return part

    def at(self, tensors: Sequence[Tensor], placed: Sequence[Tensor] = ()) -> Forwards:
        """Return the same forwards at other inputs, of any number of samples each.

        ``placed`` stand in place of the outputs of the submodules that ``wrt`` names.
        """
        there = copy(self)
        there.inputs = self.inputs.at(tensors)
        there._placed = tuple(placed)
        return there

    # -- the ordinary graph ---------------------------------------------------

    def graph(
        self,
        samples: slice | Tensor | None = None,
        *,
        nudge: float = 0.0,
        rows: Tensor | None = None,
        taped: bool = False,
    ) -> Graph:
        """Run the model on the batch, or on some of its samples.

        With ``nudge`` the floating inputs that are differentiated by (all, where none
        is) are moved by so much of their size, in ``rows`` alone if they are given.
        What a forward does with parameters is recorded where it is ``taped``.
        """
        tensors = [t.tensor for t in self.inputs.tensors]
        if samples is not None and self.inputs.batched:
            tensors = [
                some(t.tensor, samples) if t.role == "sample" else t.tensor
                for t in self.inputs.tensors
            ]
        if nudge:
            tensors = [self._nudged(i, t, nudge, rows) for i, t in enumerate(tensors)]
        leaf = [self._leaf(i, t) for i, t in enumerate(tensors)]
        count = how_many(samples, self.inputs.samples)
        captures = [
            Capture(e.name, "wrt") for e in self.entries if e.module is not None
        ]
        tape = self.recorder(self._live) if taped and self.recorder else None
        with (
            self.guard.forward(),
            kernels(twice=self.connected),
            # Look-ups are met by one of the two.
            self.watch(look_ups=self._look_ups and tape is None) as watch,
            tape or nullcontext(),
        ):
            self._place(self._live)
            make_hook = placed(self._placed) if self._placed else record
            outputs = self._call(leaf, captures, make_hook, tape)
        read = self._read(outputs, count, whole=samples is None)
        if count == 1:
            straighten(read.tensors, leaf)
        if self.parameters:
            sources = tuple(self._live)
            pairs = zip(leaf, self.inputs.tensors, strict=True)
            floating = tuple(t for t, i in pairs if i.differentiable)
            found = tuple(getattr(tape or watch, "found", ()))
            return Graph(read, sources, None, count, floating, found, tape=tape)
        sources = tuple(self._sources(leaf, captures, count))
        lead = count if self.inputs.batched else 1
        return Graph(read, sources, lead, count, sources, connected=self.connected)

    def _leaf(self, index: int, tensor: Tensor) -> Tensor:
        """Return what a graph starts from; the model itself sees a clone of it."""
        differentiable = self.inputs.tensors[index].differentiable
        if self.connected and tensor.requires_grad:
            return tensor.clone()
        if index in self._wanted or (self.parameters and differentiable):
            return tensor.detach().requires_grad_()
        return tensor if self.connected else tensor.detach()

    def _nudged(
        self, index: int, tensor: Tensor, amount: float, rows: Tensor | None
    ) -> Tensor:
        if rows is None:
            moves = index in self._wanted or not self._wanted
        else:
            moves = self.inputs.tensors[index].role == "sample"
        moves = moves and tensor.is_floating_point()
        return nudged(tensor, amount, rows) if moves else tensor

    def _place(self, tensors: Sequence[Tensor]) -> None:
        for parameter, tensor in zip(self.parameters, tensors, strict=True):
            if tensor is not parameter.tensor:
                place(parameter.slots, tensor)

    def _sources(
        self, leaf: list[Tensor], captures: list[Capture], count: int
    ) -> Iterator[Tensor]:
        captured = iter(captures)
        for entry in self.entries:
            if entry.module is None:
                yield from (leaf[i] for i in entry.positions)
                continue
            value = next(captured).only()
            if self.inputs.batched and (value.ndim == 0 or value.shape[0] != count):
                raise InputError(
                    f"wrt={entry.name!r} must return the {count} samples first; it"
                    f" returned shape {tuple(value.shape)}",
                    argument="wrt",
                )
            yield value

    # -- one sample as a function ---------------------------------------------

    def function(self, like: Graph) -> Callable[..., Tensor]:
        """Return ``f(sources, others) -> (K,)`` of one sample, for ``torch.func``.

        A source that is a submodule's output is the difference to it, so that the
        function is evaluated at zero.
        """

        def one_sample(sources: Sequence[Tensor], others: Sequence[Tensor]) -> Tensor:
            given, rest = iter(sources), iter(others)
            tensors = [
                next(given) if i in self._wanted else next(rest)
                for i in range(len(self.inputs.tensors))
            ]
            tensors = [
                t[None] if i.role == "sample" and self.inputs.batched else t
                for t, i in zip(tensors, self.inputs.tensors, strict=True)
            ]
            captures = [
                Capture(e.name, "wrt") for e in self.entries if e.module is not None
            ]
            deltas = list(given)
            with self.guard.forward(), self.watch():
                if self.parameters:
                    self._place(deltas)
                    deltas = []
                outputs = self._call(tensors, captures, shifted(deltas))
            read = self._read(outputs, 1, whole=False, like=like)
            return torch.cat([t.reshape(-1) for t in read.tensors])

        return one_sample

    def arguments(
        self, like: Graph
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...], tuple[int | None, ...]]:
        """Return sources, others and the others' ``in_dims`` for ``function``."""
        tensors = self.inputs.tensors
        if self.parameters:
            sources = tuple(p.detach() for p in self._live)
        else:
            sources = tuple(
                tensors[i].tensor.detach() for i in sorted(self._wanted)
            ) + tuple(
                torch.zeros_like(s)
                for s, e in zip(like.sources, self._by_source(), strict=True)
                if e.module is not None
            )
        rest = [t for i, t in enumerate(tensors) if i not in self._wanted]
        dims = tuple(
            0 if t.role == "sample" and self.inputs.batched else None for t in rest
        )
        return sources, tuple(t.tensor.detach() for t in rest), dims

    def order(self) -> list[int]:
        """Return where each source of a graph stands among those of a function."""
        return order_of(self.entries) or list(range(len(self.parameters)))

    def _by_source(self) -> list[Entry]:
        return [entry for entry in self.entries for _ in range(entry.width)]

    # -- shared ----------------------------------------------------------------

    def _call(
        self,
        tensors: Sequence[Tensor],
        captures: list[Capture],
        make_hook: Callable[[Capture, int], Any],
        tape: Any = None,
    ) -> Any:
        of = Capture(self.selector.name, "of")
        modules = [e.module for e in self.entries if e.module is not None]
        with hooked(modules, [make_hook(c, i) for i, c in enumerate(captures)]):
            last = [m for m in (self.selector.module,) if m is not None]
            with hooked(last, [keep(of)] * len(last)):
                try:
                    # A first layer that works in place would overwrite the caller's.
                    given = [t.clone() for t in tensors]
                    if tape is not None:
                        read = zip(given, self.inputs.tensors, strict=True)
                        tape.mark(t for t, i in read if i.role == "sample")
                    with self.guard.autocast.on():
                        outputs = self.inputs.call(self.target.call, given)
                except Exception as error:
                    annotate(error, self.inputs, self.target)
                    raise
        picked = self.selector.pick(outputs)
        return of.only() if self.selector.module is not None else picked

    def watch(self, *, look_ups: bool = False) -> AbstractContextManager[Any]:
        """Return what watches a forward's operations, where there is need to."""
        pairs = zip(self.parameters, self._live, strict=True)
        replaced = [p for p, live in pairs if live is not p.tensor]
        if not (self.guard.closely or look_ups or replaced):
            return nullcontext()
        return Watch(
            self.guard.state,
            replaced,
            look_ups=look_ups,
            by_parameters=bool(self.parameters),
        )

    def _read(
        self, outputs: Any, count: int, *, whole: bool, like: Graph | None = None
    ) -> Outputs:
        if whole:
            self.outputs = read_outputs(outputs, count, batched=self.inputs.batched)
            return self.outputs
        read = read_outputs(outputs, count, batched=False)
        first = self.outputs if like is None else like.outputs
        assert first is not None, "the whole batch runs first"
        widths = tuple(t.numel() // max(count, 1) for t in read.tensors)
        if widths != first.widths:
            raise UnsupportedModelError(
                "the model must return the same number of outputs for a sample"
                f" whatever the batch; got {first.widths} in a batch of"
                f" {self.inputs.samples} and {widths} in a batch of {count}",
                outputs=widths,
            )
        return replace(first, tensors=read.tensors)
