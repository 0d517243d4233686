"""From one recorded forward to factors: survey, pull back once, ask the rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import torch
from torch import Tensor

from gradkit._dtypes import coarsest
from gradkit._guards._graph import Graph
from gradkit._guards._independence import random_cotangent
from gradkit._memory_use import format_bytes
from gradkit._rules._derived import Derivation, Pulled
from gradkit._rules._factor import Dense, Factor, Owned
from gradkit._rules._generic import generic
from gradkit._rules._layout import Layout
from gradkit._rules._movements import movements
from gradkit._rules._ownership import find_layouts
from gradkit._rules._pieces import in_pieces, stacked
from gradkit._rules._recorded import Recorded, edge_of
from gradkit._rules._service import (
    Service,
    Table,
    Use,
    argument_at,
    as_rule_sees,
    survey,
)
from gradkit._rules._tape import Tape

__all__ = ["Engine", "Remembered"]


@dataclass
class Remembered:
    """What was found of a forward, for one that is recorded alike; no tensors."""

    signature: Any
    table: Table
    service: Service
    #: Whose rows have passed their check.
    checked: set[int] = field(default_factory=set)
    #: What turned out wrong by it.
    wrong: dict[int, str] = field(default_factory=dict)


class Engine:
    """The rules' part in one call.

    Args:
        graph: The realised forward, with its tape.
        table: The rules.
        remembered: What is known of a forward that is recorded alike.
        fewer: Runs and records the model on one sample fewer; ``None`` where it
            cannot, because it draws random numbers.
    """

    def __init__(
        self,
        graph: Graph,
        table: Table,
        remembered: Remembered | None,
        fewer: Callable[[], Graph | None],
    ) -> None:
        assert isinstance(graph.tape, Tape)
        self.graph, self.tape, self.table = graph, graph.tape, table
        self._fewer = fewer
        #: The bytes that the budget lacks room for, if it does.
        self.needed = 0
        self._cotangents: dict[int, Tensor] = {}
        self._derivations: dict[int, Derivation] = {}
        outputs = [edge_of(t) for t in graph.outputs.tensors if t.requires_grad]
        moves, by_values = movements(outputs)
        signature = self.tape.signature(), moves
        alike = (
            remembered is not None
            and remembered.signature == signature
            and remembered.table is table
        )
        known = remembered if alike else None
        #: Whether samples were looked for anew.
        self.proved = False
        self.service = survey(
            self.tape, table, outputs, graph.samples, self._prove_layouts,
            known.service if known and not by_values else None,
        )  # fmt: skip
        wrong = dict(known.wrong) if known else {}
        kept = replace(self.service, recorded=[], uses=dict(self.service.uses))
        checked = set(known.checked) if known else set()
        self.remembered = Remembered(signature, table, kept, checked, wrong)
        for parameter, reason in wrong.items():
            self.refuse(parameter, reason)

    # -- where samples stand --------------------------------------------------------

    def _prove_layouts(self, recorded: Sequence[Recorded]) -> list[Layout | None]:
        self.proved = True
        graph = self.graph
        like = torch.empty((), dtype=graph.dtype, device=graph.device)
        cotangent = random_cotangent((graph.samples, graph.outputs.width), like)
        base = self._pull(recorded, cotangent, several=False)
        alive = {i: g for i, g in enumerate(base) if g is not None}
        chosen = [recorded[i] for i in alive]

        def pull(given: Tensor) -> list[Tensor]:
            found = self._pull(chosen, given, several=False)
            return [g for g in found if g is not None]

        def other_shapes() -> list[tuple[int, ...]] | None:
            other = self._fewer()
            if other is None or len(other.tape.recorded) != len(self.tape.recorded):
                return None
            own = {r.edge: o for r, o in zip(self.tape.recorded, other.tape.recorded,
                                             strict=True)}  # fmt: skip
            twins = [own.get(r.edge) for r in chosen]
            return [t.geometry.shape if t else () for t in twins]

        layouts: list[Layout | None] = [None] * len(recorded)
        if chosen:
            found = find_layouts(pull, cotangent, [*alive.values()], other_shapes)
            for i, layout in zip(alive, found, strict=True):
                layouts[i] = layout
        return layouts

    def _pull(
        self, recorded: Sequence[Recorded], cotangents: Tensor, *, several: bool
    ) -> list[Tensor | None]:
        edges = [r.edge for r in recorded]
        entries = sum(prod(r.geometry.shape) for r in recorded)
        found = self.graph.pull_to_edges(
            edges, cotangents, several=several, entries=entries
        )
        return [
            None if g is None else r.geometry.of(g, int(several))
            for g, r in zip(found, recorded, strict=True)
        ]

    # -- factors ----------------------------------------------------------------------

    def row_bytes(self) -> int:
        """Return the bytes of one row's cotangents at all operations."""
        return sum(self.service.recorded[i].nbytes for i in self.service.needed)

    def precision(self, parameter: int, least: torch.dtype) -> torch.dtype:
        """Return the coarsest dtype that one parameter's rows are computed in."""
        found = {least}
        for use in self.service.uses[parameter]:
            found.add(self.service.recorded[use.operation].dtype)
            found.add(self.tape.sources[use.source].tensor.dtype)
        return coarsest(found)

    def factor_bytes(self, parameter: int, rows: int) -> int:
        """Return the bytes of what one parameter's factors are made of."""
        total = 0
        for i in {u.operation for u in self.service.uses[parameter]}:
            recorded = self.service.recorded[i]
            total += rows * recorded.nbytes
            for path, tensor in recorded.tensors():
                if path not in recorded.places:
                    total += tensor.numel() * tensor.element_size()
        return total

    def limit(self, rows: int, budget: int) -> None:
        """Serve nothing where the cotangents of ``rows`` rows do not fit ``budget``."""
        needed = self.row_bytes() * rows
        if needed <= budget:
            return
        self.needed = needed
        reason = (
            f"the cotangents of its operations take {format_bytes(needed)}, more than"
            f" the budget of {format_bytes(budget)}"
        )
        self.service.reasons.update(dict.fromkeys(self.service.uses, reason))
        self.service.uses.clear()

    def cotangents(
        self, of_rows: Callable[[slice], Tensor], rows: int, budget: int | None
    ) -> None:
        """Pull back to all operations that are needed.

        Args:
            of_rows: From some rows to their cotangents ``(r, N, K)``.
            rows: ``R``.
            budget: Bytes; how many rows are pulled back at once. ``None``: there is
                one row, an objective's.
        """
        needed = self.service.needed
        recorded = [self.service.recorded[i] for i in needed]
        if budget is None:
            found = self._pull(recorded, of_rows(slice(0, 1))[0], several=False)
            whole = [None if g is None else g[None] for g in found]
        else:
            whole = self._in_pieces(recorded, of_rows, rows, budget)
        for i, g, r in zip(needed, whole, recorded, strict=True):
            layout = self.service.layouts[i]
            assert layout is not None, "what is needed has one"
            if g is None:
                self._refuse(i, r)  # never taken for a zero
                continue
            samples_first = layout.front(g.detach(), self.graph.samples, 1)
            self._cotangents[i] = samples_first.transpose(0, 1)

    def _refuse(self, operation: int, recorded: Recorded) -> None:
        """Serve no parameter that an operation without a cotangent takes."""
        for parameter, uses in list(self.service.uses.items()):
            if any(u.operation == operation for u in uses):
                del self.service.uses[parameter]
                self.service.reasons[parameter] = (
                    f"no gradient arrives at {recorded.name}, which takes it"
                )

    def refuse(self, parameter: int, reason: str) -> None:
        """Serve a parameter no more, now and in calls that are recorded alike."""
        self.service.uses.pop(parameter, None)
        self.service.reasons[parameter] = reason
        self.remembered.wrong[parameter] = reason

    def _in_pieces(
        self,
        recorded: Sequence[Recorded],
        of_rows: Callable[[slice], Tensor],
        rows: int,
        budget: int,
    ) -> list[Tensor | None]:
        """Return what all rows pull back, as many at once as fit ``budget``."""
        several = max(min(rows, budget // max(4 * self.row_bytes(), 1)), 1)

        def pull(part: slice) -> list[Tensor | None]:
            cotangents = of_rows(part)
            try:
                return self._pull(recorded, cotangents, several=True)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError:  # torch cannot vmap it
                each = [self._pull(recorded, row, several=False) for row in cotangents]
                return [stacked(rows) for rows in zip(*each, strict=True)]

        return in_pieces(pull, len(recorded), rows, several)

    def factors(self, parameter: int, rows: int, owned: Owned) -> list[Factor]:
        """Return the factors of one parameter's uses; none where it is not used."""
        found = []
        for use in self.service.uses[parameter]:
            factors = self._factor(use, parameter, rows, owned)
            derived = self.tape.sources[use.source].step is not None
            if self.proved and (use.rule is None or derived):
                for factor in factors:
                    factor.dense(slice(0, 1))  # whether torch can vmap it
            found += factors
        return found

    def _factor(
        self, use: Use, parameter: int, rows: int, owned: Owned
    ) -> list[Factor]:
        recorded = self.service.recorded[use.operation]
        layout = self.service.layouts[use.operation]
        cotangent = self._cotangents[use.operation]
        samples = self.graph.samples
        source = self.tape.sources[use.source]
        shape = source.tensor.shape
        assert layout is not None, "what is served has one"
        with torch.no_grad():
            if use.rule is None:
                factor: Any = generic(
                    recorded, use.path, cotangent, layout, samples, owned
                )
            else:
                operation = as_rule_sees(use.rule, recorded, use.path, layout, samples)
                argument = argument_at(use.rule, use.path)
                factor = use.rule.rows[str(argument)](
                    operation, cotangent.to(operation.working)
                )
        if isinstance(factor, Tensor):
            factor = Dense(factor, shape)
        factor.own(owned)
        if source.step is None:
            return [factor]
        derivation = self._derivation(use.source, owned)
        if parameter not in derivation.parameters:
            return []
        return [Pulled(factor, derivation, parameter)]

    def _derivation(self, source: int, owned: Owned) -> Derivation:
        if source not in self._derivations:
            step = self.tape.sources[source].step
            if step is not None and not step.is_current():
                raise NotImplementedError("a constant it is computed from has changed")
            found = Derivation(self.tape.sources, source, self.tape.count, owned)
            if not found.repeats(self.tape.sources[source].tensor):
                raise NotImplementedError("what it is computed from is drawn at random")
            self._derivations[source] = found
        return self._derivations[source]
