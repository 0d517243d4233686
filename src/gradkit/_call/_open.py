"""One call of a public function: read, guard, run once, prove."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradkit._call._objective import evaluate, warn_of_own_tokens
from gradkit._call._proof import prove, refuse_lost_gradient
from gradkit._call._request import Given, Request
from gradkit._dtypes import coarsest
from gradkit._guards._forward import Forwards
from gradkit._guards._graph import Graph
from gradkit._guards._memory import Known, operations, recall
from gradkit._guards._trace import Untouched, inside_forward
from gradkit._memory_use import budget
from gradkit._methods import read_method
from gradkit._methods._method import Method
from gradkit._methods._task import Task
from gradkit._planner import Planner
from gradkit._problem._inputs import Inputs, read_inputs
from gradkit._problem._names import Entry, read_of, read_wrt
from gradkit._problem._parameters import Parameter, read_parameters
from gradkit._problem._target import Target, read_target
from gradkit._rules._tape import Tape
from gradkit.errors import InputError, UnsupportedModelError
from gradkit.objectives import as_objective

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
    methods = read_method(request.function, request.method)
    target = read_target(request.model)
    inputs = read_inputs(request.inputs, _batched(request))
    objective = None
    evaluates = request.takes_objective and (given is None or given.objective)
    if evaluates:
        labels = request.kind == "inputs"
        objective = as_objective(request.objective, labels_mean_class_score=labels)
    if given is None:
        warn_of_own_tokens(objective, inputs.tensors)
    selector = read_of(target, request.of)
    entries, form, parameters = [], "inputs", ()
    mapping = {} if given is None else given.mapping
    if request.kind == "inputs":
        if not request.values_only:
            entries, form = read_wrt(target, inputs, request.wrt)
    elif given is None:
        parameters = read_parameters(target, request.parameters)
    else:
        parameters = tuple(_mapped(p, mapping) for p in given.parameters)
    _refuse_lost_graph(request, inputs, parameters)
    tensors = [t.tensor for t in inputs.tensors]
    guard = Untouched(
        target,
        tensors,
        seed=request.seed,
        batched=inputs.batched,
        parameters=[p.tensor for p in parameters],
        objects=inputs.objects,
        mapping=mapping,
        start=None if given is None else given.start,
    )
    with guard:
        looks = recall(target.identity, _look_kind(request, inputs, guard))
        closely = target.root is None or given is not None or request.renew
        guard.look(looks, closely=closely or looks.proof_is_due())
        forwards = Forwards(
            target,
            inputs,
            guard,
            selector,
            entries=entries,
            parameters=parameters,
            connected=request.create_graph,
            recorder=Tape if any(m.by_rules for m in methods) else None,
        )
        graph = forwards.graph(taped=True)
        _refuse_strangers(graph, parameters)
        values = cotangent = None
        if given is not None and not evaluates:
            cotangent = given.cotangent
        if evaluates:
            with forwards.watch():
                values, cotangent = evaluate(
                    objective,
                    graph,
                    guard.autocast,
                    batched=inputs.batched,
                    renew=guard.closely,
                    known=given is not None,
                    values_only=request.values_only,
                )
        guard.observe()
        known = recall(target.identity, _kind(request, inputs, forwards, graph))
        if given is None:
            size, strict = budget(request.max_memory, guard.devices)
            planner = Planner(size, known, strict=strict)
        else:
            planner = given.planner
        task = Task(
            request.kind, graph, forwards, planner, cotangent, request.create_graph
        )
        # What a function of the outputs picks today it may not pick tomorrow.
        unnamed = request.of is not None and selector.name is None
        # Nor is it seen what a plain function reads from around it.
        unnamed = unnamed or target.root is None
        due = known.proof_is_due() or request.renew or unnamed
        due = due and given is None
        planner.renew = due
        if given is None and not request.values_only:
            refuse_lost_gradient(task, due=due)
        proved = True
        if inputs.batched and given is None:
            proved = prove(task, due=due)
            known.passed()
        looks.modules = guard.seen() if guard.closely else looks.modules
        looks.passed()
        yield Call(
            request, target, inputs, guard, forwards, task, planner, known, due,
            proved, methods, entries, form, parameters, values,
        )  # fmt: skip


def _batched(request: Request) -> bool | None:
    """Return ``batched`` as ``read_inputs`` takes it."""
    if request.kind == "parameters":
        return True  # one number per sample is a common input of such models
    if request.batched is None:
        return None
    if isinstance(request.batched, (bool, np.bool_)):
        return bool(request.batched)
    raise InputError(
        f"batched must be True, False or None; got {request.batched!r}",
        argument="batched",
    )


def _mapped(parameter: Parameter, mapping: dict[int, Tensor]) -> Parameter:
    tensor = mapping.get(id(parameter.tensor), parameter.tensor)
    return Parameter(parameter.name, parameter.aliases, tensor, parameter.slots)


def _refuse_lost_graph(
    request: Request, inputs: Inputs, parameters: Sequence[Parameter]
) -> None:
    """Refuse a detached result inside a forward that is itself differentiated."""
    if request.create_graph or not inside_forward() or not torch.is_grad_enabled():
        return
    if parameters:
        raise UnsupportedModelError(
            "it is called inside a model that gradkit differentiates, and its result"
            " has no graph, so its part of the derivative would be lost. Call it"
            " under torch.no_grad() if that is meant"
        )
    if any(t.tensor.requires_grad for t in inputs.tensors):
        raise InputError(
            "create_graph must be True inside a model that gradkit differentiates,"
            " or this call's part of the derivative would be lost. Pass"
            " create_graph=True, or detach the inputs if that is meant",
            argument="create_graph",
        )


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
        tuple(m.training for m in guard.modules()),
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
        tuple(m.training for m in forwards.guard.modules()),
        tuple(forwards.guard.state.settings),
        tuple((s.shape, s.dtype) for s in graph.sources),
        tuple(p.name for p in forwards.parameters),
        tuple(_hooks(forwards.guard)),
        tuple(e.positions or e.name for e in forwards.entries),
        forwards.selector.name,
    )
