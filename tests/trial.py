"""A trial: one question put to one method about one case, and what it may not touch."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import gradkit as gk
from case import Case
from oracles import Blocks, derivative
from probes import (
    Path,
    Probe,
    by_path,
    input_probe,
    is_floating,
    map_structure,
    parameter_probe,
)

Answer = dict[Path, Any]

#: Relative to ``max|J|``, whatever the size of the result.
BETWEEN_METHODS = {torch.float64: 1e-10, torch.float32: 1e-4}
AGAINST_DIFFERENCES = {torch.float64: 1e-6, torch.float32: 1e-4}


@dataclass(frozen=True)
class Question:
    """One of the four functions, and what it is asked for."""

    name: str
    of_objective: bool
    by_parameter: bool

    def suits(self, case: Case) -> bool:
        """Whether the case has what this question asks for."""
        if self.by_parameter:
            several = case.several_outputs and not self.of_objective
            plain = case.batched is None and case.wrt is None
            return plain and not several and case.trainable()
        return case.wrt is not None or any(
            is_floating(leaf) for leaf in by_path(case.draw()).values()
        )

    def ask(
        self, case: Case, model: Any, inputs: Any, *, first: int = 0, **options: Any
    ) -> Answer:
        """Call gradkit and return its answer by path."""
        options |= self.options(case, first)
        answer = getattr(gk, self.name)(model, marked(case, inputs), **options)
        return by_path(answer.to_dict() if self.by_parameter else answer)

    def explain(self, case: Case) -> gk.Plan:
        """Return gradkit's plan for the ordinary call."""
        inputs = marked(case, case.draw())
        return gk.explain(self.name, case.make(), inputs, **self.options(case))

    def options(self, case: Case, first: int = 0) -> dict[str, Any]:
        options: dict[str, Any] = {"of": case.of, "seed": case.seed}
        if not self.by_parameter:
            options |= {"wrt": case.wrt, "batched": case.batched}
        if self.of_objective:
            options["objective"] = case.objective(first)
        return options

    def probe(self, case: Case, inputs: Any, first: int = 0) -> Probe:
        """Return the same computation for the oracles."""
        options: dict[str, Any] = {"of": case.of, "seed": case.seed}
        if self.of_objective:
            options["objective"] = case.objective(first)
        if self.by_parameter:
            return parameter_probe(case.make(), inputs, **options)
        options |= {"wrt": case.wrt, "shared": case.shared}
        return input_probe(case.make(), inputs, **options)


QUESTIONS = (
    Question("input_gradients", of_objective=True, by_parameter=False),
    Question("jacobian", of_objective=False, by_parameter=False),
    Question("per_sample_gradients", of_objective=True, by_parameter=True),
    Question("parameter_jacobian", of_objective=False, by_parameter=True),
)


def marked(case: Case, inputs: Any) -> Any:
    """Return the inputs with those that all samples share marked as such."""

    def mark(path: Path, leaf: Any) -> Any:
        whole = bool(path) and path[0] in case.shared and isinstance(leaf, Tensor)
        return gk.shared(leaf) if whole else leaf

    return map_structure(mark, inputs) if case.shared else inputs


def joined(blocks: Blocks) -> Answer:
    """Return the derivative by one path: the output's, then the leaf's."""
    return {
        (*output, *leaf): value
        for output, leaves in blocks.items()
        for leaf, value in leaves.items()
    }


@functools.cache
def truth(
    question: Question, case: Case, full: Callable[[Probe], Blocks], seed: int = 0
) -> Answer:
    """Return what an oracle says, in float64; computed once per case."""
    probe = question.probe(case, case.draw(seed=seed))
    return joined(derivative(probe, full, case.batched is not False))


class Trial:
    """One question put to one method about one case; the ordinary call made once.

    Args:
        question: Which function is called.
        method: A method's name, or a method.
        case: What it is called with.
        corrupt: Wraps the call; how mutants get in.
    """

    def __init__(
        self,
        question: Question,
        method: Any,
        case: Case,
        corrupt: Callable[[Callable[..., Answer]], Callable[..., Answer]] | None = None,
    ) -> None:
        self.question, self.method, self.case = question, method, case
        self.model, self.inputs = case.make(), case.draw()
        for parameter in list(self._parameters())[::2]:
            parameter.grad = torch.full_like(parameter, 0.5)  # adding to it must show
        self._ask = corrupt(self._call) if corrupt else self._call

    def _call(self, model: Any, inputs: Any, **options: Any) -> Answer:
        options["method"] = self.method
        return self.question.ask(self.case, model, inputs, **options)

    def _parameters(self) -> Any:
        owner = getattr(self.model, "__self__", self.model)
        return owner.parameters() if isinstance(owner, nn.Module) else ()

    def compute(self, inputs: Any, **options: Any) -> Answer:
        """Return the answer for these inputs, without the entries that are None."""
        answer = self._ask(self.model, inputs, **options)
        return {path: value for path, value in answer.items() if value is not None}

    @functools.cached_property
    def before(self) -> dict[str, dict[str, Any]]:
        return snapshot(self.model, self.inputs)

    @functools.cached_property
    def answer(self) -> Answer:
        """The answer of the ordinary call, with the entries that are None."""
        _ = self.before
        answer = self._ask(self.model, self.inputs)
        _ = self.after
        return answer

    @functools.cached_property
    def after(self) -> dict[str, dict[str, Any]]:
        return snapshot(self.model, self.inputs)

    @property
    def values(self) -> Answer:
        return {path: v for path, v in self.answer.items() if v is not None}

    def truth(self, full: Callable[[Probe], Blocks], seed: int = 0) -> Answer:
        return truth(self.question, self.case, full, seed)

    def cotangents(self) -> dict[Path, Tensor]:
        """Return the objective's derivative with respect to the outputs, float64."""
        jacobian = QUESTIONS[3 if self.question.by_parameter else 1]
        outputs = jacobian.probe(self.case, self.inputs).run()
        ys = {p: y.detach().requires_grad_() for p, y in outputs.items()}
        total = self.case.objective()(ys).sum()
        return dict(zip(ys, torch.autograd.grad(total, list(ys.values())), strict=True))


def assert_close(
    actual: Answer, expected: Answer, tolerances: Mapping[torch.dtype, float], what: str
) -> None:
    """Compare relative to ``max|J|`` of each tensor; name the worst entry."""
    assert actual.keys() == expected.keys(), (
        f"{what}: there are {list(actual)}, there should be {list(expected)}"
    )
    for path, value in actual.items():
        right = expected[path].to(torch.float64)
        assert value.shape == right.shape, (
            f"{what}: {path} has shape {tuple(value.shape)}, not {tuple(right.shape)}"
        )
        if not value.numel():
            continue
        scale = right.abs().max().item() or 1.0
        error = (value.detach().to(torch.float64) - right).abs() / scale
        worst = int(error.flatten().argmax())  # takes nan for the largest
        place = np.unravel_index(worst, value.shape)
        largest = error.flatten()[worst].item()
        assert largest <= tolerances[value.dtype], (
            f"{what}: {path} at {tuple(map(int, place))} is {value[place].item():.6g},"
            f" not {right[place].item():.6g}: off by {largest:.1e} of max|J|"
        )


# What a call may not change.


def tensor_state(tensor: Tensor) -> dict[str, Any]:
    grad = tensor.grad if tensor.is_leaf else None
    return {
        "identity": id(tensor),
        "values": tensor.detach().clone(),
        "version": None if tensor.is_inference() else tensor._version,
        "requires_grad": tensor.requires_grad,
        "strides": tensor.stride(),
        "grad": None if grad is None else grad.clone(),
        "hooks": len(tensor._backward_hooks or ()),
    }


def module_state(module: nn.Module) -> dict[str, Any]:
    """Return flags, hooks and every attribute by identity."""
    kept = {"_parameters", "_buffers", "_modules"}
    state: dict[str, Any] = {"training": module.training}
    for name, value in module.__dict__.items():
        state[name] = id(value)
        if name in kept or name.endswith("hooks"):
            state[f"{name}, entries"] = {key: id(v) for key, v in value.items()}
    return state


def snapshot(model: Any, inputs: Any) -> dict[str, dict[str, Any]]:
    """Return all that a call must leave alone, by part."""
    owner = getattr(model, "__self__", model)
    state: dict[str, dict[str, Any]] = {"inputs": {}, "model": {}, "random": {}}
    for path, leaf in by_path(inputs).items():
        if isinstance(leaf, Tensor):
            facts = tensor_state(leaf)
            state["inputs"] |= {f"{path} {name}": fact for name, fact in facts.items()}
    if isinstance(owner, nn.Module):
        tensors = [*owner.named_parameters(), *owner.named_buffers()]
        parts = [(name, tensor_state(t)) for name, t in tensors]
        parts += [(name, module_state(m)) for name, m in owner.named_modules()]
        for part, facts in parts:
            state["model"] |= {f"{part} {name}": fact for name, fact in facts.items()}
    numpy_state = np.random.get_state()
    state["random"] = {
        "torch": torch.get_rng_state(),
        "cuda": [state.tolist() for state in torch.cuda.get_rng_state_all()],
        "python": random.getstate(),
        "numpy": [np.asarray(part).tolist() for part in numpy_state],
        "grad mode": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
    }
    return state


def assert_same(trial: Trial, part: str) -> None:
    _ = trial.answer
    before, after = trial.before[part], trial.after[part]
    changed = [
        name
        for name in before.keys() | after.keys()
        if not same(before.get(name), after.get(name))
    ]
    assert not changed, f"the call changed the {part}: {', '.join(sorted(changed))}"


def same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    return type(one) is type(other) and one == other
