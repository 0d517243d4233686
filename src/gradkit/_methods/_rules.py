"""``rules``: one ordinary backward, then the rows from each operation's own rule."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from gradkit._guards._graph import Graph
from gradkit._memory_use import format_bytes
from gradkit._methods._method import Method
from gradkit._methods._task import Task
from gradkit._problem._block import Block
from gradkit._problem._target import module_name
from gradkit._rules import RULES
from gradkit._rules._engine import Engine
from gradkit._rules._factor import Factor, Owned
from gradkit._rules._rule import Rule
from gradkit._rules._service import Table
from gradkit.errors import InputError, UnsupportedModelError

__all__ = ["RULES_METHOD", "RuleRows", "factors_of", "rules_method"]


class RuleRows:
    """The rows of a task by rules: a function of the task that knows its rules.

    Args:
        rules: The rules, by name.
    """

    def __init__(self, rules: Mapping[str, Rule]) -> None:
        self.rules = MappingProxyType(dict(rules))
        self.table: Table = MappingProxyType(
            {function: rule for rule in rules.values() for function in rule.functions}
        )

    def __call__(self, task: Task) -> Iterator[Block]:
        """Yield the rows some samples at a time; every parameter must be served."""
        engine = self.engine(task)
        names = [p.name for p in task.forwards.parameters]
        found = factors_of(task, engine)
        if len(found) < len(names):
            raise refusal(engine, names, task.planner.budget)
        sizes = list(task.sizes)
        width = max(task.rows * sum(sizes) * task.graph.dtype.itemsize, 1)
        count = max(task.planner.budget // (2 * width), 1)
        for start in range(0, task.samples, count):
            part = slice(start, min(start + count, task.samples))
            values = tuple(
                _rows(found[i], part, task, source)
                for i, source in enumerate(task.graph.sources)
            )
            yield Block(part, slice(0, task.rows), values)

    def engine(self, task: Task) -> Engine:
        """Return the survey of a task's forward."""
        known = task.planner.known

        def fewer() -> Graph | None:
            if task.forwards.guard.drew or task.samples < 2:
                return None
            try:
                return task.forwards.graph(slice(0, task.samples - 1), taped=True)
            except torch.OutOfMemoryError:
                raise
            except Exception:
                return None  # the model refuses such a batch; nothing can be told

        remembered = None if task.planner.renew else known.rules
        engine = Engine(task.graph, self.table, remembered, fewer)
        known.rules = engine.remembered
        return engine


def _rows(factors: list[Factor], part: slice, task: Task, source: Tensor) -> Tensor:
    count = part.stop - part.start
    total = source.new_zeros(count, task.rows, source.numel())
    for factor in factors:
        total += factor.dense(part)
    return total.detach()


def factors_of(task: Task, engine: Engine) -> dict[int, list[Factor]]:
    """Return the factors of the parameters that rules serve, by position."""
    budget = task.planner.budget
    engine.limit(task.rows, budget)
    if not engine.service.uses:
        return {}
    several = task.cotangent is None
    engine.cotangents(task.cotangents, task.rows, budget if several else None)
    guard = task.forwards.guard
    owned = Owned(
        t.untyped_storage().data_ptr()
        for t in guard.state.tensors()
        if t.layout is torch.strided
    )
    found = {}
    for i in list(engine.service.uses):
        try:
            found[i] = engine.factors(i, task.rows, owned)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, NotImplementedError) as error:
            text = str(error).strip().splitlines() or ["no message"]
            engine.refuse(i, f"its rows cannot be formed ({text[0]})")
    return found


def refusal(
    engine: Engine, names: list[str], budget: int
) -> InputError | UnsupportedModelError:
    """Return the error that rules do not serve a parameter."""
    if engine.needed:
        return InputError(
            f"max_memory must hold the factors of all rows; got {budget:,} bytes, and"
            f" method 'rules' needs {engine.needed:,} ({format_bytes(engine.needed)});"
            " raise max_memory, or choose another method",
            argument="max_memory",
            needed=engine.needed,
        )
    reasons = {names[i]: reason for i, reason in engine.service.reasons.items()}
    name, reason = next(iter(reasons.items()))
    rules = ", ".join(sorted({r.name for r in engine.table.values()}))
    return UnsupportedModelError(
        f"parameter {name!r}: {reason} (rules exist for {rules})", reasons=reasons
    )


def _unsupported(task: Task) -> str | None:
    if task.connected:
        return "create_graph=True needs a result that stays in the ordinary graph"
    if task.graph.tape is None:
        return "the forward was not recorded for it"
    for module in task.forwards.guard.modules():
        if module._backward_hooks and module._is_full_backward_hook is False:
            where = module_name(task.forwards.target.root, module)
            return (
                f"{type(module).__name__} ({where}) has a backward hook that is not a"
                " full one, which may change what arrives at a parameter"
            )
    return None


def _method(name: str, rules: Mapping[str, Rule]) -> Method:
    rows: Callable[[Task], Any] = RuleRows(rules)
    return Method(
        name=name,
        mode="reverse",
        summary="one ordinary backward, then each operation's own rule; the fastest"
        " for parameters, and the only one that need not form rows",
        parameters=rows,
        unsupported=_unsupported,
        through_graph=("parameters",),
    )


#: What ``method="rules"`` is.
RULES_METHOD = _method("rules", RULES)


def rules_method(*extra: Rule) -> Method:
    """Return the method ``rules`` with further rules, which come before gradkit's.

    Args:
        *extra: Rules of your own. One that names a torch function which a rule of
            gradkit serves takes its place.

    Returns:
        A method to pass as ``method=``. The registry of rules stays as it is.

    Raises:
        InputError: An argument is not a ``gk.Rule``.

    Cost:
        A table of the rules is built; no model is run.

    Example:
        >>> import torch
        >>> import gradkit as gk
        >>> def rows(operation, cotangent):
        ...     return (cotangent * operation.spread("input")[:, None]).sum(-1)
        >>> rule = gk.Rule(
        ...     "product",
        ...     (torch.mul, torch.Tensor.mul),
        ...     ("input", "other"),
        ...     {"other": rows},
        ... )
        >>> class Scaled(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.scale = torch.nn.Parameter(torch.tensor(2.0))
        ...
        ...     def forward(self, x):
        ...         return (x * self.scale).sum(-1)
        >>> x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
        >>> method = gk.rules_method(rule)
        >>> gk.per_sample_gradients(Scaled(), x, method=method)["scale"]
        tensor([3., 7.])
    """
    for rule in extra:
        if not isinstance(rule, Rule):
            error = InputError(f"extra must be gk.Rule; got {type(rule).__name__}")
            error.function = "rules_method"
            raise error
    return _method("rules", {**RULES, **{rule.name: rule for rule in extra}})
