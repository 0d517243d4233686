"""One call of a public function: read, guard, run once, prove."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from gradkit._call._arguments import Arguments, read_arguments
from gradkit._call._objective import evaluate
from gradkit._call._proof import prove, refuse_lost_gradient
from gradkit._call._request import Given, Request
from gradkit._dtypes import coarsest
from gradkit._guards._forward import Forwards
from gradkit._guards._graph import Graph
from gradkit._guards._memory import Known, operations, recall
from gradkit._guards._trace import Untouched
from gradkit._memory_use import budget
from gradkit._methods._method import Method
from gradkit._methods._task import Task
from gradkit._planner import Planner
from gradkit._problem._inputs import Inputs
from gradkit._problem._names import Entry
from gradkit._problem._parameters import Parameter
from gradkit._problem._target import Target
from gradkit._rules._tape import Tape
from gradkit.errors import InputError

__all__ = ["Call", "open_call"]


@dataclass(eq=False)
class Call:
    """A call whose forward has run and whose samples are proved independent."""

    request: Request
    target: Target
    inputs: Inputs
    guard: Untouched
    forwards: Forwards
    task: Task
    planner: Planner
    known: Known
    proof_due: bool
    #: Whether independence could be read anywhere in the graph.
    proved: bool
    #: What may serve it, in order.
    methods: list[Method]
    entries: list[Entry] = field(default_factory=list)
    form: str = "inputs"
    parameters: tuple[Parameter, ...] = ()
    values: Tensor | None = None

    @property
    def parameter_names(self) -> list[str]:
        """The parameters' names, in the order of the rows."""
        return [p.name for p in self.parameters]

    def only(self, places: Sequence[int], methods: Sequence[Method]) -> Call:
        """Return the same call for some of its parameters, and with other methods."""
        forwards = self.forwards.only(places)
        graph = self.task.graph
        sources = tuple(graph.sources[i] for i in places)
        graph = replace(graph, sources=sources)
        return replace(
            self,
            task=replace(self.task, graph=graph, forwards=forwards),
            forwards=forwards,
            parameters=tuple(self.parameters[i] for i in places),
            methods=list(methods),
        )

    @property
    def precision(self) -> torch.dtype:
        """The coarsest floating dtype that the model is seen to compute in."""
        graph = self.task.graph
        tensors = [*graph.outputs.tensors, *graph.sources]
        if self.target.root is not None:
            tensors += list(self.target.root.parameters())
        dtypes = {t.dtype for t in tensors if t.is_floating_point()}
        dtypes.update(dtype for _, dtype in self.guard.autocast.regions)
        return coarsest(dtypes)


@contextmanager
def open_call(request: Request, *, given: Given | None = None) -> Iterator[Call]:
    """Read the request, run the forward once, and prove what it needs."""
    read = read_arguments(request, given)
    guard = _guard(request, read, given)
    with guard:
        looks = recall(read.target.identity, _look_kind(request, read.inputs, guard))
        closely = read.target.root is None or given is not None or request.renew
        guard.look(looks, closely=closely or looks.proof_is_due())
        forwards = Forwards(
            read.target,
            read.inputs,
            guard,
            read.selector,
            entries=read.entries,
            parameters=read.parameters,
            connected=request.create_graph,
            recorder=Tape if any(m.by_rules for m in read.methods) else None,
        )
        graph = forwards.graph(taped=True)
        _refuse_strangers(graph, read.parameters)
        values, cotangent = _objective(request, read, forwards, graph, given)
        guard.observe()
        kind = _kind(request, read.inputs, forwards, graph)
        known = recall(read.target.identity, kind)
        planner = _planner(request, guard, known, given)
        task = Task(
            request.kind, graph, forwards, planner, cotangent, request.create_graph
        )
        due = given is None and _is_due(request, read, known)
        planner.renew = due
        proved = given is not None or _proved(request, task, known, due=due)
        looks.modules = guard.seen() if guard.closely else looks.modules
        looks.passed()
        yield Call(
            request, read.target, read.inputs, guard, forwards, task, planner, known,
            due, proved, read.methods, read.entries, read.form, read.parameters, values,
        )  # fmt: skip


def _guard(request: Request, read: Arguments, given: Given | None) -> Untouched:
    """Return what keeps the caller's things as they are, not yet entered."""
    return Untouched(
        read.target,
        [t.tensor for t in read.inputs.tensors],
        seed=request.seed,
        batched=read.inputs.batched,
        parameters=[p.tensor for p in read.parameters],
        objects=read.inputs.objects,
        mapping={} if given is None else given.mapping,
        start=None if given is None else given.start,
    )


def _objective(
    request: Request,
    read: Arguments,
    forwards: Forwards,
    graph: Graph,
    given: Given | None,
) -> tuple[Tensor | None, Tensor | None]:
    """Return the objective's values ``(N,)`` and its cotangent ``(N, K)``, if any."""
    if not read.evaluates:
        return None, None if given is None else given.cotangent
    with forwards.watch():
        return evaluate(
            read.objective,
            graph,
            forwards.guard.autocast,
            batched=read.inputs.batched,
            renew=forwards.guard.closely,
            known=given is not None,
            values_only=request.values_only,
        )


def _planner(
    request: Request, guard: Untouched, known: Known, given: Given | None
) -> Planner:
    if given is not None:
        return given.planner
    size, strict = budget(request.max_memory, guard.devices)
    return Planner(size, known, strict=strict)


def _is_due(request: Request, read: Arguments, known: Known) -> bool:
    """Whether proofs are to be made again at this call."""
    # What a function of the outputs picks today it may not pick tomorrow.
    unnamed = request.of is not None and read.selector.name is None
    # Nor is it seen what a plain function reads from around it.
    unnamed = unnamed or read.target.root is None
    return known.proof_is_due() or request.renew or unnamed


def _proved(request: Request, task: Task, known: Known, *, due: bool) -> bool:
    """Prove what the call needs; return whether that could be read anywhere."""
    if not request.values_only:
        refuse_lost_gradient(task, due=due)
    if not task.batched:
        return True
    proved = prove(task, due=due)
    known.passed()
    return proved


def _refuse_strangers(graph: Graph, parameters: Sequence[Parameter]) -> None:
    """Refuse a computed tensor as a parameter where the outputs do not use it itself.

    A leaf that is not used has derivative zero; ``layer.weight[0]`` made for the call
    is a new tensor, and would always have.
    """
    computed = [p for p in parameters if not p.slots and p.tensor.grad_fn is not None]
    if not computed:
        return
    nodes = set(graph.nodes())
    for parameter in computed:
        if parameter.tensor.grad_fn not in nodes:
            raise InputError(
                f"parameter {parameter.name!r} is computed from others, and the outputs"
                " are not computed from it; name the parameter itself, and take a part"
                " of the result",
                argument="parameters",
            )


def _hooks(guard: Untouched) -> Iterator[int]:
    """Yield what the modules' hooks are; one may change what a backward does."""
    for module in guard.modules():
        for hooks in (
            module._forward_hooks,
            module._forward_pre_hooks,
            module._backward_hooks,
        ):
            yield from map(id, hooks.values())


def _look_kind(request: Request, inputs: Inputs, guard: Untouched) -> Hashable:
    """Return what a close look at a forward holds for, before it has run."""
    return (
        request.function,
        tuple((t.tensor.shape, t.tensor.dtype, t.role) for t in inputs.tensors),
        tuple(getattr(m, "training", False) for m in guard.modules()),
        tuple(guard.state.settings),
    )


def _kind(
    request: Request, inputs: Inputs, forwards: Forwards, graph: Graph
) -> tuple[Any, ...]:
    """Return what a proof holds for: operations, shapes, dtypes, flags, sources."""
    return (
        request.function,
        operations(graph.outputs.tensors),
        tuple(
            (t.tensor.shape, t.tensor.dtype, t.tensor.device, t.role)
            for t in inputs.tensors
        ),
        tuple((t.shape, t.dtype) for t in graph.outputs.tensors),
        tuple(getattr(m, "training", False) for m in forwards.guard.modules()),
        tuple(forwards.guard.state.settings),
        tuple((s.shape, s.dtype) for s in graph.sources),
        tuple(p.name for p in forwards.parameters),
        tuple(_hooks(forwards.guard)),
        tuple(e.positions or e.name for e in forwards.entries),
        forwards.selector.name,
    )
