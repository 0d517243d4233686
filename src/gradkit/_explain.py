"""What would serve a call, why, and at what cost, before the derivative is computed."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from gradkit._call._open import Call, open_call
from gradkit._call._request import Request, named
from gradkit._call._solve import reason_for, refusal, serve
from gradkit._gradients import input_gradients, per_sample_gradients
from gradkit._guards._independence import random_cotangent
from gradkit._hints import in_order
from gradkit._jacobian import jacobian, parameter_jacobian
from gradkit._methods import METHODS
from gradkit._methods._method import Method
from gradkit._methods._rules import refusal as no_rule
from gradkit._parameter_jacobian._by_rules import by_rules
from gradkit._plan import Path, Plan
from gradkit._planner import Probe
from gradkit.errors import InputError

__all__ = ["asked_function", "explain", "request_of", "sizes_by_name"]


def is_model(value: Any) -> bool:
    """Whether a value is a model, which no function of gradkit is."""
    return isinstance(value, nn.Module)


_FUNCTIONS = (input_gradients, jacobian, per_sample_gradients, parameter_jacobian)


@in_order(is_model, "write gk.explain(gk.jacobian, model, inputs)")
def explain(
    function: Callable[..., Any] | str,
    model: Any,
    inputs: Any,
    *args: Any,
    **kwargs: Any,
) -> Plan:
    """Return what serves a call, why, and at what cost; ``print`` it.

    The forward runs, and independence is proved anew. No derivative is computed but
    one row, whose memory is measured.

    Args:
        function: One of the four functions, or its name.
        model: As in the call: maps ``(N, *in)`` to ``(N, *out)``.
        inputs: As in the call: a tensor ``(N, *in)``, a sequence or a mapping.
        *args: As in the call.
        **kwargs: As in the call.

    Returns:
        A ``Plan``: the method that ``method="auto"`` (or the given one) takes, the
        reason for each that cannot serve, sizes, bytes and passes. A method that
        transforms the model can still turn out not to serve it when it is run.

    Raises:
        InputError: ``function`` is none of the four, or the call itself is refused.
        SampleDependenceError: ``model`` or the objective couples samples.
        UnsupportedModelError: No method can serve the call.

    Cost:
        One forward pass, the proof that samples are independent (up to seven more),
        and one row.

    Example:
        >>> import torch
        >>> import gradkit as gk
        >>> plan = gk.explain(gk.jacobian, torch.nn.Linear(3, 2), torch.zeros(5, 3))
        >>> plan.method, plan.samples, plan.outputs, plan.passes
        ('vmap', 5, 2, 1)
    """
    with named("explain"):
        chosen = asked_function(function)
    name = chosen.__name__
    with named(name):
        request = request_of(chosen, name, model, inputs, args, kwargs)
        with open_call(request) as call:
            return _plan(call)


def asked_function(function: Any) -> Callable[..., Any]:
    for known in _FUNCTIONS:
        if function is known or function == known.__name__:
            return known
    names = ", ".join(f.__name__ for f in _FUNCTIONS)
    raise InputError(
        f"function must be one of {names}; got"
        f" {getattr(function, '__name__', repr(function))}",
        argument="function",
    )


def request_of(
    function: Callable[..., Any],
    name: str,
    model: Any,
    inputs: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Request:
    bound = inspect.signature(function).bind(model, inputs, *args, **kwargs)
    # Where a result goes, and what comes with it, changes nothing in the plan.
    given = {k: v for k, v in bound.arguments.items() if k not in _UNPLANNED}
    return Request(name, renew=True, **given)


_UNPLANNED = ("out", "with_values")


def _plan(call: Call) -> Plan:
    task, request = call.task, call.request
    reasons = {m.name: reason_for(call, m) for m in METHODS.values()}
    paths: dict[str, Path] = {}
    why: dict[int, str] = {}
    rest, further = list(range(len(call.parameters))), call.methods
    if call.methods[0].by_rules and reason_for(call, call.methods[0]) is None:
        paths, why, reasons[call.methods[0].name] = _by_rules(call)
        rest, further = sorted(why), call.methods[1:]
    passes = 1
    serving = call.methods[0]
    if rest or not call.parameters:
        probe, serving = _probed(call.only(rest, further) if paths else call, further)
        passes = probe.passes + bool(paths)
        paths |= {
            call.parameter_names[i]: _formed(call, i, serving, probe, why.get(i))
            for i in rest
        }
    if serving is not call.methods[0] or not paths:
        reasons[serving.name] = None
    sources = task.graph.sources
    width = sum(s.element_size() * n for s, n in zip(sources, task.sizes, strict=True))
    total = task.samples * task.rows
    return Plan(
        function=request.function,
        method=" + ".join(dict.fromkeys(p.method for p in paths.values()))
        or serving.name,
        reasons=reasons,
        samples=task.samples,
        outputs=task.outputs,
        sizes=sizes_by_name(call),
        result_bytes=width * total,
        budget=call.planner.budget,
        unit_bytes=call.known.bytes_per_unit.get(serving.name),
        chunk=-(-total // max(passes, 1)),
        passes=passes,
        paths=paths,
        notes=tuple(_notes(call)),
    )


def _probed(call: Call, methods: Sequence[Method]) -> tuple[Probe, Method]:
    """Return the passes that the first method that serves takes, and the method."""

    def attempt(method: Method) -> tuple[Probe, str | None]:
        probe = Probe(call.planner)
        for _ in method.run(replace(call.task, planner=probe)):
            break  # a method of others that cuts its own work
        return probe, None

    return serve(replace(call, methods=list(methods)), attempt)


def _by_rules(call: Call) -> tuple[dict[str, Path], dict[int, str], str | None]:
    """Return the path of each parameter that rules serve, and why not of the others.

    And that of the first of them in a sentence.
    """
    first = call.methods[0]
    rows = call.task.rows
    like = torch.empty((), dtype=call.task.graph.dtype, device=call.task.graph.device)
    shape = (call.task.samples, call.task.outputs)
    # One row of each sample, since there may be many.
    one = replace(call.task, cotangent=random_cotangent(shape, like))
    engine = by_rules(replace(call, task=one), first).engine
    engine.limit(rows, call.planner.budget)
    held = {i: engine.factor_bytes(i, rows) for i in engine.service.uses}
    backward = "one backward" if rows == 1 else f"{rows:,} outputs pulled back at once"
    paths = {
        call.parameter_names[i]: Path(first.name, "factors", nbytes, backward)
        for i, nbytes in held.items()
    }
    why = dict(engine.service.reasons)
    if not why:
        return paths, why, None
    error = no_rule(engine, call.parameter_names, call.planner.budget)
    if len(call.methods) == 1:
        raise refusal({first.name: error.message})
    return paths, why, error.message


def _formed(
    call: Call, place: int, method: Method, probe: Probe, reason: str | None
) -> Path:
    """Return the path of a parameter whose rows are formed."""
    task = call.task
    source = task.graph.sources[place]
    nbytes = source.numel() * source.element_size() * task.samples * task.rows
    passes = f"{probe.passes:,} pass{'es' if probe.passes != 1 else ''}"
    return Path(method.name, "rows", nbytes, passes, reason)


def sizes_by_name(call: Call) -> dict[str, int]:
    """Return the entries of each thing differentiated with respect to, by name."""
    if call.parameters:
        names = call.parameter_names
    else:
        names = [
            str(entry.name)
            if entry.module is not None or call.form != "inputs"
            else f"inputs{call.inputs.tensors[position].path}"
            for entry in call.entries
            for position in entry.positions or (0,)
        ]
    return dict(zip(names, call.task.sizes, strict=True))


def _notes(call: Call) -> Iterator[str]:
    guard = call.guard
    if not call.inputs.batched:
        yield "no sample axis is assumed"
    elif call.task.samples < 2:
        yield "one sample: nothing to prove independent"
    elif call.proved:
        yield "samples proved independent by a weighted pull-back"
    else:
        yield "independence can be read nowhere; rows are checked against the batch"
    if guard.drew:
        yield f"the forward draws random numbers ({', '.join(guard.drew)}), seeded"
    if guard.moved:
        yield f"the forward moves buffers ({', '.join(guard.moved)}), put back after"
