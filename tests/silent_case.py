"""A model of whose parameters a use can go unseen, and what is owed of its rows.

A parameter whose use goes unseen has a row of zeros, and one whose samples are told
apart wrongly has other samples' rows. Neither raises anything by itself: only the loop
over samples tells.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

import gradkit as gk
from case import DEVICE, Case, Net, randomise, weight
from gradkit.errors import GradkitError
from probes import call, fork_random_state, map_structure
from sample_loop import (
    TOLERANCE,
    Rows,
    Verdict,
    assert_rows,
    assert_sums,
    gradient,
    judge,
    named_parameters,
    sample_rows,
)

Question = Literal["per_sample_gradients", "parameter_jacobian"]
QUESTIONS: tuple[Question, ...] = ("per_sample_gradients", "parameter_jacobian")

Objective = Callable[[Any], Tensor]
Parts = dict[str, Any]


@dataclass(frozen=True, eq=False)
class SilentCase(Case):
    """A case of which rows must be right, or right or refused.

    Attributes:
        may_refuse: Whether an error of gradkit is an answer, too.
        unused: The parameters whose rows are zero; those of all others are not.
        after: Called with the model when its parameters have been drawn.
        twin: Makes a model that computes the same from the same parameters, where the
            oracle cannot differentiate the model itself.
        penalty: A number per sample, of model and outputs, to add to the objective.
        tolerance: Of the largest entry; larger where it computes in float32 inside.
    """

    may_refuse: bool = False
    unused: tuple[str, ...] = ()
    after: Callable[[Any], None] | None = None
    twin: Callable[[], nn.Module] | None = None
    penalty: Callable[[Any, Tensor], Tensor] | None = None
    tolerance: float = TOLERANCE

    @property
    def expectation(self) -> str:
        """Either ``right`` or ``right or refused``."""
        return "right or refused" if self.may_refuse else "right"

    def make(self) -> Any:
        model = super().make()
        if self.after:
            self.after(model)
        return model

    def make_twin(self) -> Any:
        """Return the model that the oracle differentiates."""
        if not self.twin:
            return self.make()
        with fork_random_state():
            torch.manual_seed(20)
            model = self.twin()
            randomise(model)
        return model.to(DEVICE, self.dtype)

    def questions(self) -> tuple[Question, ...]:
        """Return the questions that suit it."""
        return QUESTIONS[:1] if self.penalty else QUESTIONS

    # -- one model, two askers --------------------------------------------------

    def run(self, model: Any, inputs: Any) -> Tensor:
        """Return the output that is differentiated."""
        outputs = call(model, inputs)
        return outputs if self.of is None else outputs[self.of]

    def objective_of(self, model: Any, first: int = 0) -> Objective:
        """Return the objective, of a batch whose first sample is ``first``."""
        plain = self.objective(first)
        if self.penalty is None:
            return plain
        penalty = self.penalty
        return lambda outputs: plain(outputs) + penalty(model, outputs)

    def expected(self, question: Question) -> tuple[nn.Module, Rows]:
        """Return the loop's rows, and the model that they are of."""
        model, inputs = self.make_twin(), self.draw()

        def own(n: int) -> Tensor:
            part = self.take(inputs, slice(n, n + 1))
            outputs = self.run(model, map_structure(copied, part))
            if question == "parameter_jacobian":
                return outputs[0]
            return self.objective_of(model, n)(outputs)[0]

        return model, sample_rows(named_parameters(model), own, self.samples)

    def ask(self, question: Question, **options: Any) -> gk.ParameterJacobian:
        """Return gradkit's answer."""
        model, inputs = self.make(), self.draw()
        options = {"of": self.of, "seed": self.seed, **options}
        given = map_structure(self._marked, inputs)
        if question == "parameter_jacobian":
            return gk.parameter_jacobian(model, given, **options)
        objective = self.objective_of(model)
        return gk.per_sample_gradients(model, given, objective, **options)

    def _marked(self, path: tuple[Any, ...], leaf: Any) -> Any:
        return gk.shared(leaf) if path and path[0] in self.shared else leaf

    def judge(self, question: Question, **options: Any) -> Verdict:
        """Return ``right``, ``wrong``, ``refused`` or ``crashed``, and the reason."""
        twin, expected = self.expected(question)

        def check(found: gk.ParameterJacobian) -> None:
            assert_rows(found, expected, self.tolerance)
            outputs = self.run(twin, self.draw())
            total = outputs.sum()
            if question == "per_sample_gradients":
                total = self.objective_of(twin)(outputs).sum()
            ordinary = gradient(total, named_parameters(twin).values())
            assert_sums(found, expected, ordinary, self.tolerance)

        return judge(lambda: self.ask(question, **options), check, (GradkitError,))


def copied(path: tuple[Any, ...], leaf: Any) -> Any:
    """Return what a model that writes into its inputs may have."""
    del path
    return leaf.clone() if isinstance(leaf, Tensor) else leaf


def silent(
    name: str,
    forward: Callable[..., Any],
    parts: Callable[[], dict[str, Any]],
    inputs: Callable[[int], Any],
    **options: Any,
) -> SilentCase:
    """Return the case of a forward as a function of named parts and the inputs."""
    return SilentCase(name, lambda: Net(forward, **parts()), inputs, **options)


def w(*shape: int) -> Callable[[], Parts]:
    """Return a maker of one parameter ``w``."""
    return lambda: {"w": weight(*shape)}


def parts(**shapes: tuple[int, ...]) -> Callable[[], Parts]:
    """Return a maker of parameters by name."""
    return lambda: {name: weight(*shape) for name, shape in shapes.items()}


def fc(
    inputs: int = 4, outputs: int = 3, **more: tuple[int, ...]
) -> Callable[[], Parts]:
    """Return a maker of a linear layer ``fc`` and of parameters by name."""
    own = parts(**more)
    return lambda: {"fc": nn.Linear(inputs, outputs), **own()}


def summed(y: Tensor) -> Tensor:
    """Return a small output that keeps the steps apart."""
    steps = torch.arange(1, 1 + y.shape[1], device=y.device, dtype=y.dtype)
    return torch.einsum("nt...,t->n...", y.sin(), steps)
