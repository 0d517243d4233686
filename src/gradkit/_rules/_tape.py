"""The tape: what a forward does with parameters, operation by operation.

Modules are not asked. A parameter used functionally, tied, padded by its module or
passed by keyword is seen like any other, because what is recorded is the torch call
that takes the tensor itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import (  # pyright: ignore[reportMissingModuleSource]
    peek_interpreter_stack,
)
from torch.overrides import TorchFunctionMode

from gradkit._guards._watch import looked_up
from gradkit._rules._arguments import Path, tensors_in
from gradkit._rules._opened import opened
from gradkit._rules._recorded import (
    Edge,
    Geometry,
    Recorded,
    Source,
    Step,
    edge_of,
    name_of,
)

__all__ = ["Tape"]


class Tape(TorchFunctionMode):
    """Records what one forward does with ``parameters``.

    Args:
        parameters: The tensors that the model uses as its parameters.
        samples: Tensors of the samples that have no gradient, such as token ids.
    """

    def __init__(
        self, parameters: Sequence[Tensor], samples: Iterable[Tensor] = ()
    ) -> None:
        super().__init__()
        self.sources = [Source(p, edge_of(p), p._version) for p in parameters]
        self.recorded: list[Recorded] = []
        #: Parameters that were used where gradients are off.
        self.hidden: set[int] = set()
        #: What integers of the samples look up, where independence can be read.
        self.found: list[Tensor] = []
        #: Why parameters that were seen to be used are not followed.
        self.notes: dict[int, str] = {}
        #: Where a hook of the model's may change a cotangent after it is read.
        self.hooked: set[Edge] = set()
        self.count = len(parameters)
        self._known = {id(p): i for i, p in enumerate(parameters)}
        self._of_samples = {id(t): t for t in samples}

    def mark(self, tensors: Iterable[Tensor]) -> None:
        """Note further tensors of the samples that have no gradient."""
        self._of_samples.update((id(t), t) for t in tensors if not t.requires_grad)

    # -- what torch calls -----------------------------------------------------------

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func is Tensor.register_hook and args[0].requires_grad:
            self.hooked.add(edge_of(args[0]))
        places: dict[Path, int] = {}
        sampled: set[Path] = set()
        for path, tensor in tensors_in(args, kwargs):
            source = self._known.get(id(tensor))
            if source is not None and self.sources[source].is_current():
                places[path] = source
            elif (
                tensor.requires_grad or id(tensor) in self._of_samples
            ) and not _only_asked(func, path):
                sampled.add(path)
        if not places or peek_interpreter_stack() is not None:
            # Inside torch.func a tensor is a wrapper, of which nothing can be told.
            result = self._met(func, args, kwargs)
            if sampled:
                self._spread(result)
            return result
        if not torch.is_grad_enabled():
            self.hidden.update(self._parameters_of(places.values()))
            return func(*args, **kwargs)
        body = opened(func)
        if body is not None:
            with self:
                return body(*args, **kwargs)
        return self._used(func, args, kwargs, places, sampled)

    def _met(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call a function, and collect what integers of the samples look up."""
        result = func(*args, **kwargs)
        if self._of_samples:
            result, found = looked_up(func, args, kwargs, result)
            self.found += [] if found is None else [found]
        return result

    def _spread(self, result: Any) -> None:
        """Note that what is computed from samples without a gradient is of them."""
        for tensor in _tensors(result):
            if not tensor.requires_grad:
                self._of_samples[id(tensor)] = tensor

    def _used(
        self,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        places: dict[Path, int],
        sampled: set[Path],
    ) -> Any:
        others = [t for p, t in tensors_in(args, kwargs) if p not in places]
        inputs = {edge_of(t) for t in others if t.requires_grad}
        versions = [(t, t._version) for t in others if not t.is_inference()]
        in_place = {id(t) for t in others if t._is_view()}
        result = self._met(func, args, kwargs)
        outputs = [t for t in _tensors(result) if t.requires_grad]
        if sampled:
            self._spread(result)
        if not outputs:
            return result
        if not sampled:
            self._derive(result, Step(func, args, kwargs, places, versions))
            return result
        if len(outputs) == 1 and id(outputs[0]) not in in_place:
            (output,) = outputs
            edge, geometry = _output_edge(output, others)
            # What an operation in place was called with is gone.
            versions = [(t, v) for t, v in versions if t is not output]
            self.recorded.append(
                Recorded(
                    func, args, kwargs, places, versions, inputs, edge, geometry,
                    output.dtype, frozenset(sampled),
                )
            )  # fmt: skip
            return result
        several = len(outputs) > 1
        what = "gives several outputs at once" if several else "writes to a view"
        for parameter in self._parameters_of(places.values()):
            self.notes[parameter] = f"{name_of(func)} takes it and {what}"
        return result

    def _derive(self, result: Any, step: Step) -> None:
        """Note that what is computed from sources alone is a source."""
        parents = tuple(dict.fromkeys(step.places.values()))
        several = isinstance(result, (tuple, list))
        for i, tensor in enumerate(result if several else [result]):
            if not isinstance(tensor, Tensor) or not tensor.requires_grad:
                continue
            if id(tensor) in self._known:
                continue  # the same object again: `.float()` of what is one
            own = replace(step, output=i) if several else step
            self._known[id(tensor)] = len(self.sources)
            self.sources.append(
                Source(tensor, edge_of(tensor), tensor._version, parents, own)
            )

    # -- what follows from it ---------------------------------------------------------

    def _parameters_of(self, sources: Iterable[int]) -> Iterator[int]:
        """Yield the parameters that sources are computed from."""
        waiting = list(sources)
        while waiting:
            i = waiting.pop()
            if i < self.count:
                yield i
            waiting += self.sources[i].parents

    def parameters_of(self, source: int) -> set[int]:
        """Return the parameters that a source is computed from, or is."""
        return set(self._parameters_of([source]))

    def signature(self) -> tuple[Any, ...]:
        """Return what was recorded, as far as it can be compared between forwards."""
        recorded = tuple(
            (r.function, r.geometry, tuple(r.places.items()), *r.settings())
            for r in self.recorded
        )
        derived = tuple(
            (s.parents, s.step.function, s.step.output, *s.step.settings())
            for s in self.sources[self.count :]
            if s.step is not None
        )
        return recorded, derived


#: Methods that ask a tensor for its shape, dtype or device alone; the first argument
#: of some is read.
_LIKE = ("zeros_like", "ones_like", "full_like", "empty_like", "rand_like")
_NEW = ("new_zeros", "new_ones", "new_full", "new_empty", "new_tensor")
_AS = ("to", "type_as", "expand_as", "view_as", "reshape_as")


def _only_asked(func: Callable[..., Any], path: Path) -> bool:
    """Whether a function does not read the values of an argument."""
    name = getattr(func, "__name__", "")
    return name in _LIKE or name in _NEW or (name in _AS and path[0] != 0)


def _tensors(result: Any) -> Iterator[Tensor]:
    if isinstance(result, Tensor):
        yield result
    elif isinstance(result, (list, tuple)):
        for part in result:
            yield from _tensors(part)


def _output_edge(output: Tensor, others: Sequence[Tensor]) -> tuple[Edge, Geometry]:
    """Return where an output's cotangent arrives, also after a write to it.

    What is written in place to a view changes the graph of its base: the view's own
    edge is then on no path. ``F.linear`` of three axes gives such a view.
    """
    shape = tuple(output.shape)
    base = output._base if output._is_view() else None
    if base is None or base.numel() != output.numel() or not base.requires_grad:
        return edge_of(output), Geometry(shape)
    if not base.is_contiguous() or any(base is t or base is t._base for t in others):
        return edge_of(output), Geometry(shape)
    offset = int(output.storage_offset()) - int(base.storage_offset())
    return edge_of(base), Geometry(shape, output.stride(), offset)
