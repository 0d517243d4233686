"""The rows of one call with respect to parameters, held or to be computed again."""

from __future__ import annotations

import torch
from torch import Tensor

from gradkit._call._open import Call, open_call
from gradkit._call._request import Request
from gradkit._call._solve import reason_for, solve
from gradkit._memory_use import format_bytes
from gradkit._parameter_jacobian._by_rules import by_rules
from gradkit._parameter_jacobian._columns import Column
from gradkit._parameter_jacobian._entries import Entry, Held
from gradkit._parameter_jacobian._mapping import ParameterJacobian
from gradkit._parameter_jacobian._replay import Recipe, Replayed, first_that_serves
from gradkit._problem._inputs import read_inputs
from gradkit._problem._parameters import Parameter, read_parameters
from gradkit._problem._result import Rows
from gradkit._problem._target import read_target
from gradkit.errors import InputError

__all__ = ["collect"]


def collect(request: Request) -> ParameterJacobian:
    """Return the derivatives that ``request`` asks for, on memory of their own."""
    found = _collected(request)
    for entry in found._entries:
        entry.make_private()
    return found


def _collected(request: Request) -> ParameterJacobian:
    if request.takes_objective and not _count(request):
        return _none(request)
    with open_call(request) as call:
        graph = call.task.graph
        lead = (call.task.samples,)
        if not request.takes_objective:
            lead = (*lead, *_only_size(call))
        values = None if call.values is None else call.values.detach().clone()
        outputs = graph.outputs.detached()
        return ParameterJacobian(
            _entries(call), _columns(call.parameters), lead, outputs, values
        )


def _count(request: Request) -> int:
    return read_inputs(request.inputs, True).samples


def _only_size(call: Call) -> tuple[int, ...]:
    sizes = call.task.graph.outputs.sizes
    if len(sizes) != 1:
        raise InputError(
            f"the model must give one output; it gives {len(sizes)}. Choose one with"
            " of= (a key, a position, an attribute or a function of the outputs)",
            argument="of",
        )
    return tuple(sizes[0])


def _columns(parameters: tuple[Parameter, ...]) -> list[Column]:
    return [
        Column(p.name, p.aliases, p.tensor.shape, p.tensor.dtype, p.tensor.device)
        for p in parameters
    ]


def _none(request: Request) -> ParameterJacobian:
    """Return the rows of no samples; the model is not run."""
    parameters = read_parameters(read_target(request.model), request.parameters)
    first = parameters[0].tensor
    values = torch.zeros(0, dtype=first.dtype, device=first.device)
    return ParameterJacobian(
        [_held(parameters, _zeros(parameters, 0, 1))],
        _columns(parameters),
        (0,),
        None,
        values,
    )


def _zeros(parameters: tuple[Parameter, ...], samples: int, rows: int) -> list[Tensor]:
    return [
        p.tensor.detach().new_zeros(samples, rows, p.tensor.numel()) for p in parameters
    ]


def _held(parameters: tuple[Parameter, ...], flat: list[Tensor]) -> Held:
    shapes = {p.name: p.tensor.shape for p in parameters}
    return Held(shapes, dict(zip(shapes, flat, strict=True)))


def _entries(call: Call) -> list[Entry]:
    """Return the rows: factors of what rules serve, the others' as they are."""
    task = call.task
    if not task.samples * task.rows:
        return [_entry(call)]
    first, *further = call.methods
    if not first.by_rules or reason_for(call, first) is not None:
        return [_entry(call)]
    served = by_rules(call, first)
    rest = sorted(served.engine.service.reasons)
    if rest and not further:
        raise served.refusal(call)
    entries: list[Entry] = [] if served.entry is None else [served.entry]
    return [*entries, _entry(call.only(rest, further))] if rest else entries


def _entry(call: Call) -> Entry:
    """Return all rows: held where they fit the budget, else computed again."""
    task = call.task
    if not task.samples * task.rows:
        return _held(call.parameters, _zeros(call.parameters, task.samples, task.rows))
    like = [(s.shape, s.dtype, s.device) for s in task.graph.sources]
    size = sum(s.numel() * s.element_size() for s in task.graph.sources)
    needed = size * task.samples * task.rows
    if needed <= call.planner.budget:
        flat, _ = solve(call, lambda: Rows(task.samples, task.rows, like))
        return _held(call.parameters, [f.detach() for f in flat])
    return _replayed(call, needed)


def _replayed(call: Call, needed: int) -> Replayed:
    if call.target.root is None:
        raise InputError(
            f"max_memory must hold the rows of a function, which take"
            f" {format_bytes(needed)}; got {format_bytes(call.planner.budget)}."
            " What a function refers to cannot be copied, so its rows cannot be"
            " computed later: raise max_memory, take fewer samples, or pass an"
            " nn.Module",
            argument="max_memory",
            needed=needed,
        )
    method, task = first_that_serves(call), call.task
    return Replayed(
        Recipe.of(call, method),
        {p.name: p.tensor.shape for p in call.parameters},
        task.rows,
        {p.name: p.tensor.detach().new_empty(0) for p in call.parameters},
        torch.arange(task.samples, device="cpu"),
    )
