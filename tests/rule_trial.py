"""A trial of a rule: one torch call, and what is owed of one of its arguments' rows.

``RULE_CHECKS`` compares every answer of the factor with rows by ordinary backwards.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from case import DEVICE
from gradkit._rules._factor import Dense, Factor, Owned
from gradkit._rules._layout import Layout
from gradkit._rules._rule import Operation, Rule
from probes import by_path, fork_random_state, map_structure
from rule_oracle import owners, rows_by_backward

BATCH_FIRST = Layout(0)
#: Relative to the largest entry, in float64.
TOLERANCE = 1e-11
ROWS = 2
MORE_ROWS = 3


def normal(*shape: int) -> Tensor:
    """Draw numbers; inside ``OperationCase.arguments``, equal at every call."""
    return torch.randn(shape, dtype=torch.float64)


#: A shape's ``"n"`` is the number of samples, ``"nt"`` that of their positions.
Shape = tuple[Any, ...]


def tensors(*shapes: Shape) -> Callable[[int], tuple[Tensor, ...]]:
    """Return what draws tensors of these shapes for a number of samples."""

    def drawn(samples: int) -> tuple[Tensor, ...]:
        sizes: dict[Any, Any] = {"n": samples, "nt": 2 * samples}
        return tuple(normal(*(sizes.get(s, s) for s in shape)) for shape in shapes)

    return drawn


@dataclass(frozen=True, eq=False)
class OperationCase:
    """One torch call, for any number of samples.

    Attributes:
        name: Its id.
        rule: The rule that serves it.
        arguments: Draws the positional arguments of a call of so many samples.
        parameters: The arguments that may be a parameter, by the rule's names; an
            element of a list of tensors as ``"operands[1]"``.
        function: What is called; by default the rule's first function.
        options: The keyword arguments.
        layout: Where the samples stand in the output.
        samples: How many samples there are.
        refusal: The rule's reason for not covering it, if it does not.
    """

    name: str
    rule: Rule
    arguments: Callable[[int], tuple[Any, ...]]
    parameters: tuple[str, ...]
    function: Callable[..., Tensor] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    layout: Layout = BATCH_FIRST
    samples: int = 3
    refusal: str | None = None

    def with_samples(self, samples: int) -> OperationCase:
        return replace(self, samples=samples)

    @property
    def called(self) -> Callable[..., Tensor]:
        return self.function or self.rule.functions[0]


class RuleTrial:
    """One call, made once, seen by a rule and by the oracle.

    Args:
        case: The call.
        argument: Which argument is the parameter.
        seed: For other numbers in the same places.
        rows: ``R``.
    """

    def __init__(
        self, case: OperationCase, argument: str, seed: int = 0, rows: int = ROWS
    ) -> None:
        self.case, self.argument = case, argument
        self.name, _, place = argument.partition("[")
        self.place = int(place[:-1]) if place else None
        with fork_random_state():
            torch.manual_seed(40 + seed)
            positional = case.arguments(case.samples)
            self.args = map_structure(_placed, positional)
            self.output = self.run().detach()
            drawn = torch.randn(rows, *self.output.shape, dtype=self.output.dtype)
        self.cotangents = drawn.to(self.output.device)
        self.bound = case.rule.bind(self.args, case.options)

    def run(self) -> Tensor:
        return self.case.called(*self.args, **self.case.options)

    @property
    def leaf(self) -> Tensor:
        value = self.bound[self.name]
        return value if self.place is None else value[self.place]

    @property
    def operation(self) -> Operation:
        """The call as the tape would hand it to the rule."""
        case = self.case
        parameters = {
            name: self.bound[name].shape
            for name in case.parameters
            if isinstance(self.bound.get(name), Tensor)
        } | {self.name: self.leaf.shape}
        return Operation(
            function=case.called,
            arguments=self.bound,
            parameters=parameters,
            shape=self.output.shape,
            dtype=self.output.dtype,
            samples=case.samples,
            layout=case.layout,
            place=self.place,
        )

    @property
    def refusal(self) -> str | None:
        return self.case.rule.unsupported(self.operation)

    def make(self) -> Factor:
        """Return the factor by the rule, made anew."""
        operation = self.operation
        reason = self.refusal
        assert reason is None, f"the rule refuses: {reason}"
        front = self.case.layout.front(self.cotangents, self.case.samples, lead=1)
        found = self.case.rule.rows[self.name](operation, front.movedim(1, 0))
        if isinstance(found, Factor):
            assert found.shape == self.leaf.shape
            return found
        assert found.shape == self.expected.shape
        return Dense(found, self.leaf.shape)

    @functools.cached_property
    def factor(self) -> Factor:
        return self.make()

    @functools.cached_property
    def expected(self) -> Tensor:
        """The rows ``(N, R, *p)`` by ordinary backwards."""
        layout = self.case.layout
        owner = owners(
            self.output, layout.axis, layout.before, self.case.samples, layout.after
        )
        return rows_by_backward(self.run, self.leaf, self.cotangents, owner)

    @property
    def flat(self) -> Tensor:
        """The same, ``(N, R, p)``."""
        return self.expected.flatten(2) if self.leaf.dim() else self.expected[..., None]

    def weights(self) -> tuple[Tensor, Tensor]:
        """Return a vector ``(*p)`` and weights ``(N, R)``, all different."""
        p, rows = self.leaf, self.flat.shape[:2]
        vector = torch.arange(p.numel(), device=p.device, dtype=p.dtype)
        weights = torch.arange(rows.numel(), device=p.device, dtype=p.dtype)
        return (0.5 + 0.7 * vector).sin().reshape(p.shape), (
            0.2 + 1.1 * weights
        ).cos().reshape(rows)


def _placed(path: tuple[Any, ...], leaf: Any) -> Any:
    if not isinstance(leaf, Tensor):
        return leaf
    leaf = leaf.to(DEVICE)
    return leaf.requires_grad_() if leaf.is_floating_point() else leaf


def assert_near(found: Tensor, expected: Tensor, what: str) -> None:
    """Compare relative to the largest entry; name the worst."""
    assert found.shape == expected.shape, f"{what}: {found.shape}, {expected.shape}"
    assert found.dtype == expected.dtype, f"{what}: {found.dtype}"
    assert not found.requires_grad, what
    if not found.numel():
        return
    error = (found - expected).abs() / (expected.abs().max() or 1.0)
    worst = int(error.flatten().argmax())  # takes nan for the largest
    largest = error.flatten()[worst].item()
    assert largest <= TOLERANCE, f"{what}: off by {largest:.1e} at flat entry {worst}"


def check_dense(trial: RuleTrial) -> None:
    """Rows of all samples, and of some."""
    assert_near(trial.factor.dense(slice(None)), trial.flat, "dense")
    some = slice(1, trial.case.samples)
    assert_near(trial.factor.dense(some), trial.flat[some], "dense of some samples")


def check_one_sample(trial: RuleTrial) -> None:
    """A batch of one sample has its row, also where all of an axis is its own."""
    case = trial.case.with_samples(1)
    one = RuleTrial(case, trial.argument)
    assert_near(one.factor.dense(slice(None)), one.flat, "dense of one sample")
    whole = replace(case, layout=Layout(0, after=one.output.shape[0]))
    other = RuleTrial(whole, trial.argument)
    if other.refusal is None:
        assert_near(other.factor.dense(slice(None)), one.flat, "dense of one sample")


def check_write(trial: RuleTrial) -> None:
    """Rows in the caller's buffer: contiguous, or a part of a wider one."""
    expected = trial.expected
    target = torch.full_like(expected, torch.nan)
    wide = expected.new_full((*trial.flat.shape[:2], trial.leaf.numel() + 5), torch.nan)
    inner = wide[..., 2:-3]
    part = inner.unflatten(-1, trial.leaf.shape) if trial.leaf.dim() else inner[..., 0]
    for place in (target, part):
        if trial.factor.write(place):
            assert_near(place, expected, "write")
    edge = torch.cat([wide[..., :2], wide[..., -3:]], -1)
    assert bool(edge.isnan().all()), "write: beside the target"


def check_take(trial: RuleTrial) -> None:
    """The factor of some samples, repeated and in another order."""
    index = torch.tensor([trial.case.samples - 1, 0, trial.case.samples - 1])
    taken = trial.factor.take(index)
    assert (taken.samples, taken.rows) == (3, trial.factor.rows)
    assert_near(taken.dense(slice(None)), trial.flat[index], "take")
    squares = taken.squares()
    if squares is not None:
        assert_near(squares, trial.flat[index].square().sum(-1), "squares of taken")


def check_products(trial: RuleTrial) -> None:
    """Norms, inner products and contractions, where the factor knows them."""
    factor, rows = trial.factor, trial.flat
    vector, weights = trial.weights()
    other = RuleTrial(trial.case, trial.argument, seed=1)
    answers = {
        "squares": (factor.squares(), rows.square().sum(-1)),
        "inner": (factor.inner(other.factor), (rows * other.flat).sum(-1)),
        "matvec": (factor.matvec(vector), rows @ vector.reshape(-1)),
        "rmatvec": (factor.rmatvec(weights), torch.einsum("nr,nrp->p", weights, rows)),
        "sum_of_squares": (factor.sum_of_squares(), rows.square().sum((0, 1))),
    }
    for what, (found, expected) in answers.items():
        if found is not None:
            assert_near(found, expected, what)


def check_gram(trial: RuleTrial) -> None:
    """Inner products with the rows of a second batch, of other sizes."""
    case = trial.case.with_samples(trial.case.samples + 2)
    other = RuleTrial(case, trial.argument, seed=1, rows=MORE_ROWS)
    found = trial.factor.gram(other.factor)
    if found is not None:
        expected = trial.flat.flatten(0, 1) @ other.flat.flatten(0, 1).T
        assert_near(found, expected, "gram")


def check_own(trial: RuleTrial) -> None:
    """What the factor owns does not change when the caller's tensors do."""
    fresh = RuleTrial(trial.case, trial.argument)
    factor = fresh.make()
    tensors = [leaf.detach() for leaf in by_path(fresh.args).values() if _is(leaf)]
    factor.own(Owned(tensor.untyped_storage().data_ptr() for tensor in tensors))
    for tensor in tensors:
        tensor.zero_()
    assert not any(held.requires_grad for held in factor.held())
    assert_near(factor.dense(slice(None)), trial.flat, "own")


def _is(leaf: Any) -> bool:
    return isinstance(leaf, Tensor)


RULE_CHECKS = (
    check_dense,
    check_one_sample,
    check_write,
    check_take,
    check_products,
    check_gram,
    check_own,
)


def trials(cases: list[OperationCase]) -> list[tuple[OperationCase, str]]:
    """Return each case that is served, with each argument that may be a parameter."""
    return [(c, p) for c in cases if c.refusal is None for p in c.parameters]


def trial_name(value: Any) -> str:
    """Return the id of a case, of an argument or of a check."""
    if isinstance(value, OperationCase):
        return value.name
    return value if isinstance(value, str) else value.__name__
