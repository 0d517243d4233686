"""An objective near one batch: its gradient and its values at many points."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from gradkit._call._open import Call, open_call
from gradkit._call._request import Request
from gradkit._guards._walk import nodes_below
from gradkit._jacobian import arrange, run
from gradkit._problem._inputs import Inputs, InputTensor
from gradkit._problem._tree import leaves, pairs
from gradkit.errors import InputError
from gradkit.saliency._passes import Passes
from gradkit.saliency._points import Point
from gradkit.saliency._runs import Runs

__all__ = ["Field", "ids_beside", "open_field", "open_values", "opened"]


@contextmanager
def open_field(
    model: Any, inputs: Any, objective: Any, **given: Any
) -> Iterator[Field]:
    """Run the model once on the inputs, prove what it needs, and stay there."""
    with opened(model, inputs, objective, **given) as call:
        if given.get("wrt") is None:
            _refuse_beside_ids(call)
        yield Field(call)


@contextmanager
def open_values(
    model: Any,
    inputs: Any,
    objective: Any,
    baseline: Any,
    *,
    of: Any = None,
    max_memory: Any = None,
) -> Iterator[Field]:
    """Do the same where no derivative is asked for.

    Points are in place of the one floating tensor, or the only one, with the samples
    first; or of the one for which ``baseline``, in the form of the inputs, has a value.
    Beside token ids it must have one.
    """
    with opened(
        model, inputs, objective, of=of, max_memory=max_memory, values_only=True
    ) as call:
        yield Field(call, baseline)


@contextmanager
def opened(
    model: Any,
    inputs: Any,
    objective: Any,
    *,
    wrt: Any = None,
    of: Any = None,
    max_memory: Any = None,
    values_only: bool = False,
) -> Iterator[Call]:
    """Open a call as all saliency does.

    With ``values_only`` no derivative is asked for, so that inputs may be integers.
    """
    # The name makes proofs common to all saliency, and to input_gradients itself.
    request = Request(
        "input_gradients", model, inputs, objective, wrt=wrt, of=of,
        max_memory=max_memory, values_only=values_only,
    )  # fmt: skip
    try:
        with open_call(request) as call:
            yield call
    except InputError as error:
        if "drew" not in error.facts or error.facts["argument"] != "seed":
            raise
        raise _drawing(model, error) from None


def _drawing(model: Any, error: InputError) -> InputError:
    """Return the refusal of a forward that draws, for functions without a seed."""
    modules = model.named_modules() if isinstance(model, nn.Module) else ()
    dropouts = [
        f"{type(m).__name__} at {name!r}" if name else type(m).__name__
        for name, m in modules
        if isinstance(m, nn.modules.dropout._DropoutNd) and m.training
    ]
    where = f": {', '.join(dropouts[:3])} in training mode" if dropouts else ""
    drew = error.facts["drew"]
    return InputError(
        f"the model draws random numbers ({', '.join(drew)}){where}, so that its map"
        " would be one of a single draw. Call model.eval() first, and model.train()"
        " afterwards",
        argument="model",
        drew=drew,
    )


def ids_beside(inputs: Inputs) -> tuple[InputTensor, InputTensor] | None:
    """Return integers as token ids are, and their mask in floating numbers, if any.

    Of a mask, which has two values at most, hardly anybody means to see a map.
    """
    sampled = [t for t in inputs.tensors if t.role == "sample"]
    ids = [
        t for t in sampled
        if t.tensor.ndim > 1 and not t.differentiable and t.tensor.dtype != torch.bool
    ]  # fmt: skip
    if not ids:  # the usual case, in which nobody need look at the values
        return None
    masks = [t for t in sampled if t.differentiable and _has_two_values(t.tensor)]
    return (ids[0], masks[0]) if masks else None


def _has_two_values(values: Tensor) -> bool:
    if not values.numel():
        return False
    values = values.detach()
    return bool(((values == values.min()) | (values == values.max())).all())


def _refuse_beside_ids(call: Call) -> None:
    found = ids_beside(call.inputs)
    if found is not None:
        raise InputError(
            f"wrt must say what the map is over, since inputs{found[0].path} holds"
            f" integers and inputs{found[1].path} may be their mask: an embedding by"
            f" its name, wrt='embedding', or an entry of inputs"
            f" ({', '.join(map(repr, call.inputs.keys))})",
            argument="wrt",
        )


def _names(given: Any) -> list[int | str]:
    """Return the places for which a structure like the inputs has values."""
    first = given[0] if isinstance(given, list) and given else given
    if not isinstance(first, (tuple, Mapping)):
        return []
    return [key for key, value in pairs(first) if value is not None]


class Field:
    """One objective of one model at points near one batch.

    A *point* is a list with one tensor ``(N, *)`` per source: what the model is given
    in place of what ``wrt`` names.
    """

    def __init__(self, call: Call, baseline: Any = None) -> None:
        self.call = call
        #: For each source its place among the inputs' tensors; ``None``: a submodule's.
        self.places: list[int | None] = []
        for entry in call.entries:
            self.places += [None] if entry.module is not None else entry.positions
        #: The values at the inputs themselves.
        self.sources: Point = [s.detach() for s in call.task.graph.sources]
        if call.request.values_only:
            place = self._only_place(_names(baseline))
            self.places = [place]
            self.sources = [call.inputs.tensors[place].tensor.detach()]
        elif self.has_submodules:
            self._refuse_nested()
        self._passes = Passes(Runs(call, self.sources, self.places))

    @property
    def samples(self) -> int:
        """``N``."""
        return self.call.inputs.samples

    @property
    def values(self) -> Tensor:
        """The objective at the inputs themselves, ``(N,)``."""
        assert self.call.values is not None, "saliency has an objective"
        return self.call.values.detach()

    @property
    def has_submodules(self) -> bool:
        """Whether ``wrt`` names a submodule."""
        return None in self.places

    def _only_place(self, names: list[int | str]) -> int:
        """Return which of the inputs' tensors is changed where ``wrt`` names none.

        The one that ``names`` names, if any; others, such as masks, stay as they are.
        """
        tensors = self.call.inputs.tensors
        every = [i for i, t in enumerate(tensors) if t.role == "sample"]
        named = [i for n in names for i in self.call.inputs.keys.get(n, ())]
        floating = [i for i in every if tensors[i].differentiable]
        usual = every if ids_beside(self.call.inputs) else floating or every
        chosen = [i for i in every if i in named] if names else usual
        if len(chosen) != 1:
            shapes = ", ".join(
                f"inputs{tensors[i].path} {tuple(tensors[i].tensor.shape)}"
                for i in chosen
            )
            raise InputError(
                f"inputs must hold one tensor to change; got {shapes or 'none'}. Give a"
                " baseline for it alone, in the form of the inputs: (0, None), or"
                " {'name': 0}",
                argument="inputs",
            )
        return chosen[0]

    def _refuse_nested(self) -> None:
        """Refuse submodules of which one computes another's output.

        A point replaces both, so that the first would seem to be without effect.
        """
        sources = self.call.task.graph.sources
        for source in sources:
            below = set(nodes_below([source.grad_fn]))
            variables = {id(getattr(node, "variable", None)) for node in below}
            for other in sources:
                inside = other.grad_fn in below or id(other) in variables
                if other is not source and inside:
                    raise InputError(
                        "wrt must name things that do not depend on one another; one"
                        f" of {[e.name for e in self.call.entries]} is computed from"
                        " another. Ask for one at a time",
                        argument="wrt",
                    )

    def sources_of(self, tensors: Sequence[Tensor]) -> Point:
        """Return what ``wrt`` names at other inputs, of any number of samples.

        They are run in batches of at most ``N``, which the memory is known to hold.
        """
        roles = [t.role for t in self.call.inputs.tensors]
        count = max(
            len(t) for t, r in zip(tensors, roles, strict=True) if r == "sample"
        )
        found = []
        for start in range(0, max(count, 1), max(self.samples, 1)):
            rows = slice(start, start + max(self.samples, 1))
            part = [
                t[rows] if r == "sample" else t
                for t, r in zip(tensors, roles, strict=True)
            ]
            with torch.no_grad():
                graph = self.call.forwards.at(part).graph()
            self.call.guard.observe()
            found.append([s.detach().clone() for s in graph.sources])
        return [torch.cat(group) for group in zip(*found, strict=True)]

    def arranged(self, values: Sequence[Tensor]) -> Any:
        """Return one value per source in the form that ``wrt`` asked for."""
        return arrange(self.call, list(values))

    def given(self, values: Any, name: str) -> Point:
        """Return what the caller gives per source, in the form of the result."""
        found = [v for v in leaves(values) if v is not None]
        shapes = [tuple(s.shape) for s in self.sources]
        got = [
            tuple(v.shape) if isinstance(v, Tensor) else type(v).__name__ for v in found
        ]
        if got != shapes:
            raise InputError(
                f"{name} must be tensors shaped like what wrt names,"
                f" {', '.join(map(str, shapes))}; got"
                f" {', '.join(map(str, got)) or 'none'}",
                argument=name,
            )
        if any(v.is_complex() for v in found):
            raise InputError(f"{name} must be real; got complex numbers", argument=name)
        return [v.detach() for v in found]

    def gradient(self) -> Point:
        """Return the gradient at the inputs themselves."""
        flat = run(self.call)
        return [f.reshape(s.shape) for f, s in zip(flat, self.sources, strict=True)]

    def gradients(self, points: Iterable[Point], count: int) -> Iterator[Point]:
        """Yield the gradient at each of ``count`` points, in order."""
        if not self.samples:
            return ([torch.zeros_like(s) for s in self.sources] for _ in points)
        return self._passes.gradients(points, count)

    def summed(self, points: Iterable[Point], weights: Sequence[float]) -> Point:
        """Return the sum of the gradients at points, each times its weight."""
        if not self.samples:
            return [torch.zeros_like(s) for s in self.sources]
        return self._passes.summed(points, weights)

    def values_at(self, points: Iterable[Point], count: int) -> Iterator[Tensor]:
        """Yield the objective's values ``(N,)`` at each of ``count`` points."""
        if not self.samples:
            return (self.values for _ in points)
        return self._passes.values(points, count)
