"""Which parameters rules serve in one forward, by which uses, and why not others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Size

from gradkit._rules._arguments import Path
from gradkit._rules._generic import generic_reason
from gradkit._rules._layout import Layout
from gradkit._rules._proofs import has_python_nodes, is_whole, unseen_uses
from gradkit._rules._recorded import Edge, Geometry, Recorded, Source
from gradkit._rules._rule import Operation, Rule
from gradkit._rules._tape import Tape

__all__ = ["Service", "Table", "Use", "survey"]

#: The rule for each torch function.
Table = Mapping[Callable[..., Any], Rule]

#: From operations to where the samples stand in the output of each, or ``None``.
Find = Callable[[Sequence[Recorded]], Sequence["Layout | None"]]

_UNSEEN = (
    "the tape did not see every use of it (a write into a tensor, TorchScript, another"
    " thread, a custom Function, a hook on a tensor, or a derivative taken inside"
    " forward)"
)
_HIDDEN = (
    "it is used where gradients are off, as in a re-entrant checkpoint, and the graph"
    " cannot show what becomes of it"
)


@dataclass(frozen=True)
class Use:
    """One argument of one operation that is a parameter, or computed from it.

    ``rule`` is ``None`` where the generic rule serves it.
    """

    operation: int
    path: Path
    source: int
    rule: Rule | None


@dataclass
class Service:
    """What the rules serve.

    ``reasons`` says of each parameter, by position, why they do not.
    """

    recorded: list[Recorded]
    layouts: list[Layout | None]
    uses: dict[int, list[Use]]
    reasons: dict[int, str] = field(default_factory=dict)
    promoted: frozenset[int] = frozenset()
    unseen: dict[int, str] = field(default_factory=dict)
    #: Which of the operations on the tape are reached from the outputs.
    reached: tuple[int, ...] = ()

    def is_current(self) -> bool:
        """Whether the operations still hold what they computed with."""
        return len(self.recorded) == len(self.layouts) and all(
            self.recorded[i].is_current() for i in self.needed
        )

    @property
    def needed(self) -> list[int]:
        """The operations whose cotangents are needed."""
        return sorted({u.operation for uses in self.uses.values() for u in uses})


def survey(
    tape: Tape,
    table: Table,
    outputs: Sequence[Edge],
    samples: int,
    find: Find,
    known: Service | None = None,
) -> Service:
    """Return what the rules serve of one forward.

    Args:
        tape: What was recorded.
        table: The rules.
        outputs: Where the outputs' cotangents arrive.
        samples: ``N``.
        find: Tells where the samples stand; asked for what is needed alone.
        known: What was found of a forward that was recorded alike. That the tape is
            complete is proved anew.
    """
    if known is not None:
        seen = _seen(tape, outputs, known.promoted)
        again = replace(known, recorded=seen.recorded, uses=dict(known.uses))
        alike = (seen.unseen, seen.reached) == (known.unseen, known.reached)
        if alike and again.is_current():
            return again
    promoted: frozenset[int] = frozenset()
    said: dict[int, str] = {}
    while True:
        seen = _seen(tape, outputs, promoted)
        service, further = _uses(tape, table, seen, samples, find, promoted)
        said = {**service.reasons, **said}
        if not further - promoted:
            # Why a second attempt failed says less than why there was one.
            reasons = {i: said[i] for i in service.reasons}
            return replace(service, reasons=reasons)
        promoted |= further


@dataclass(frozen=True)
class _Seen:
    """The operations that are crossed, and the uses that no operation explains."""

    recorded: list[Recorded]
    unseen: dict[int, str]
    reached: tuple[int, ...]


def _seen(tape: Tape, outputs: Sequence[Edge], promoted: frozenset[int]) -> _Seen:
    every = _effective(tape, promoted)
    recorded = _sound(every, tape.sources)
    # A cotangent is read before the hooks of its tensor have run.
    recorded = [r for r in recorded if r.edge not in tape.hooked]
    parameters = tape.sources[: tape.count]
    outside, reached = unseen_uses(outputs, recorded, parameters)
    unseen = {i: tape.notes.get(i, _UNSEEN) for i in sorted(outside)}
    for i in tape.hidden if tape.hidden and has_python_nodes(outputs) else ():
        unseen[i] = _HIDDEN
    crossed = [recorded[i] for i in sorted(reached)]
    place = {id(r): i for i, r in enumerate(every)}
    return _Seen(crossed, unseen, tuple(place[id(r)] for r in crossed))


def _uses(
    tape: Tape,
    table: Table,
    seen: _Seen,
    samples: int,
    find: Find,
    promoted: frozenset[int],
) -> tuple[Service, frozenset[int]]:
    """Return the service, and further values that have samples of their own."""
    layouts = list(find(seen.recorded))
    reasons = dict(seen.unseen)
    uses: dict[int, list[Use]] = {}
    further: set[int] = set()
    for i, (operation, layout) in enumerate(zip(seen.recorded, layouts, strict=True)):
        for path, place in operation.places.items():
            source = tape.sources[place]
            rule = rule_of(table, operation)
            reason = _refusal(rule, operation, path, layout, samples)
            own = source.step is not None and _has_samples(source, layout, samples)
            if reason is not None and not own:
                rule, reason = None, _by_generic(operation, layout, samples, reason)
            if reason is not None and source.step is not None:
                further.add(place)
            for parameter in tape.parameters_of(place):
                if reason is not None:
                    reasons.setdefault(parameter, reason)
                uses.setdefault(parameter, []).append(Use(i, path, place, rule))
    uses = {i: uses.get(i, []) for i in range(tape.count) if i not in reasons}
    service = Service(
        seen.recorded, layouts, uses, reasons, promoted, seen.unseen, seen.reached
    )
    return service, frozenset(further)


def _effective(tape: Tape, promoted: frozenset[int]) -> list[Recorded]:
    """Return the operations, where promoted values are of the samples.

    A value that is computed from parameters alone can still have a row per sample,
    as token types that are all zero do. What computed it then is an operation.
    """
    recorded = list(tape.recorded)
    for i in promoted:
        source, step = tape.sources[i], tape.sources[i].step
        assert step is not None, "parameters are never promoted"

        recorded.append(
            Recorded(
                step.function, step.args, step.kwargs, step.places, step.versions,
                set(), source.edge, Geometry(tuple(source.tensor.shape)),
                source.tensor.dtype, frozenset(),
            )
        )  # fmt: skip
    found = []
    for operation in recorded:
        lifted = {s for s in operation.places.values() if s in promoted}
        places = {p: s for p, s in operation.places.items() if s not in promoted}
        if not places:
            continue
        inputs = operation.inputs | {tape.sources[s].edge for s in lifted}
        sampled = operation.sampled | (operation.places.keys() - places.keys())
        found.append(replace(operation, places=places, inputs=inputs, sampled=sampled))
    return found


def _sound(recorded: Sequence[Recorded], sources: Sequence[Source]) -> list[Recorded]:
    """Return the operations whose part of the graph holds what was seen, and no more.

    What is left out is not crossed, so that its parameters are found unseen.
    """
    whole = {
        i: s.step is None or is_whole(s.edge, (), [sources[p].edge for p in s.parents])
        for i, s in enumerate(sources)
    }
    counts: dict[Edge, int] = {}
    for operation in recorded:
        counts[operation.edge] = counts.get(operation.edge, 0) + 1
    return [
        r
        for r in recorded
        if counts[r.edge] == 1
        and all(whole[s] for s in r.places.values())
        and is_whole(r.edge, r.inputs, [sources[s].edge for s in r.places.values()])
    ]


def rule_of(table: Table, operation: Recorded) -> Rule | None:
    """Return the rule for an operation, if there is one."""
    try:
        return table.get(operation.function)
    except TypeError:  # a function that cannot be hashed
        return None


def _refusal(
    rule: Rule | None,
    operation: Recorded,
    path: Path,
    layout: Layout | None,
    samples: int,
) -> str | None:
    """Return why a rule does not serve one argument of an operation."""
    name = operation.name
    if layout is None:
        return f"{name} takes it where samples do not stand on an axis of their own"
    if not operation.is_current():
        return f"{name} takes it beside a tensor that was written to afterwards"
    if rule is None:
        return f"{name} takes it, and has no rule"
    argument = argument_at(rule, path)
    if argument not in rule.rows:
        return f"rule {rule.name!r} does not cover it as {argument!r} of {name}"
    return rule.unsupported(as_rule_sees(rule, operation, path, layout, samples))


def _has_samples(source: Source, layout: Layout | None, samples: int) -> bool:
    """Whether a computed value may have a samples axis, as the output has it."""
    return layout is not None and layout.fits(tuple(source.tensor.shape), samples)


def _by_generic(
    operation: Recorded, layout: Layout | None, samples: int, reason: str
) -> str | None:
    """Return why the generic rule does not serve it either."""
    if layout is None or not operation.is_current():
        return reason
    further = generic_reason(operation, layout, samples)
    return None if further is None else f"{reason}; {further}"


def argument_at(rule: Rule, path: Path) -> str | None:
    """Return the rule's name for the argument at ``path``."""
    key = path[0]
    if isinstance(key, str):
        return key
    return rule.arguments[key] if key < len(rule.arguments) else None


def as_rule_sees(
    rule: Rule, operation: Recorded, path: Path, layout: Layout, samples: int
) -> Operation:
    """Return an operation as its rule sees it, for the argument at ``path``."""
    parameters: dict[str, Size] = {}
    compute = operation.dtype
    for where, tensor in operation.tensors():
        argument = argument_at(rule, where)
        if where not in operation.places or argument is None:
            continue
        # Of a list, the one that is asked about.
        if where == path:
            compute = torch.promote_types(tensor.dtype, torch.float32)
        if where == path or argument not in parameters:
            parameters[argument] = tensor.shape
    return Operation(
        function=operation.function,
        arguments=rule.bind(operation.args, operation.kwargs),
        parameters=parameters,
        shape=Size(operation.geometry.shape),
        dtype=operation.dtype,
        samples=samples,
        layout=layout,
        compute=compute,
        place=path[1],
    )
