"""The properties that every answer of every method must have.

Each check takes a ``Trial`` and raises ``AssertionError`` with what differs and where.
``CHECKS`` lists them all, strongest evidence first; ``owed`` says which of them a
question about a case owes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from case import Case
from gradkit.errors import InputError
from oracles import central_differences, contract, one_backward_per_entry
from probes import by_path, call, floating, forward, is_floating, map_structure
from trial import (
    AGAINST_DIFFERENCES,
    BETWEEN_METHODS,
    QUESTIONS,
    Answer,
    Question,
    Trial,
    assert_close,
    assert_same,
)


def check_closed_form(trial: Trial) -> None:
    """The answer is the formula's, worked out by hand."""
    case, model = trial.case, trial.case.make()
    form = case.parameter_jacobian if trial.question.by_parameter else case.jacobian
    assert form is not None
    with torch.no_grad():
        formula = by_path(form(model, case.draw()))
    if trial.question.of_objective:
        (cotangent,) = trial.cotangents().values()
        formula = {k: contract(cotangent, v, samples=True) for k, v in formula.items()}
    assert_close(trial.values, formula, BETWEEN_METHODS, "against the closed form")


def check_finite_differences(trial: Trial) -> None:
    """The answer is what central differences say, which use no derivative."""
    expected = trial.truth(central_differences)
    assert_close(trial.values, expected, AGAINST_DIFFERENCES, "against differences")


def check_per_entry_loop(trial: Trial) -> None:
    """The answer is that of one ordinary backward per entry."""
    expected = trial.truth(one_backward_per_entry)
    assert_close(trial.values, expected, BETWEEN_METHODS, "against the loop")


def check_ordinary_backward(trial: Trial) -> None:
    """Contracted with a cotangent, it is what one ``backward`` of the objective gives.

    With respect to inputs sample by sample, with respect to parameters summed.
    """
    case, question = trial.case, trial.question
    batched = case.batched is not False
    cotangents = trial.cotangents()
    probe = QUESTIONS[2 if question.by_parameter else 0].probe(case, trial.inputs)
    total = probe.run()[()].sum() + 0 * sum(v.sum() for v in probe.leaves.values())
    ordinary = torch.autograd.grad(total, list(probe.leaves.values()))
    found: Answer = {}
    for path in probe.leaves:
        if question.of_objective:
            parts = [trial.values[path]]
        else:
            rows = {k: trial.values[(*k, *path)] for k in cotangents}
            parts = [contract(c, rows[k].to(c), batched) for k, c in cotangents.items()]
            parts = [
                part.to(rows[k].dtype) for part, k in zip(parts, rows, strict=True)
            ]
        found[path] = torch.stack(parts).sum(0)
        if question.by_parameter:
            found[path] = found[path].sum(0)
    expected = dict(zip(probe.leaves, ordinary, strict=True))
    assert_close(found, expected, BETWEEN_METHODS, "against one ordinary backward")


def check_structure_and_shapes(trial: Trial) -> None:
    """Every entry is where it should be, with its shape; ``None`` elsewhere."""
    expected = trial.truth(one_backward_per_entry)
    shapes = {path: tuple(value.shape) for path, value in expected.items()}
    found = {path: tuple(value.shape) for path, value in trial.values.items()}
    assert found == shapes, f"the shapes are {found}, they should be {shapes}"
    empty = {path for path, value in trial.answer.items() if value is None}
    assert empty == without_derivative(trial), f"there is None at {empty or 'no path'}"


def without_derivative(trial: Trial) -> set:
    """Return where the answer must be ``None``, having nothing to differentiate."""
    case, inputs = trial.case, trial.inputs
    if trial.question.by_parameter or isinstance(case.wrt, list):
        return set()
    entries = by_path(inputs)
    if case.wrt is not None and not isinstance(inputs, Tensor):
        inside = [p for p in entries if p[:1] == (case.wrt,)]
        entries = {path[1:]: entries[path] for path in inside}
    given = trial.question.probe(case, inputs).leaves.keys()
    empty = {path for path in entries if path not in given}
    if not case.several_outputs or trial.question.of_objective:
        return empty
    outputs = by_path(forward(case.make(), inputs, case.of, case.seed))
    unfit = {path for path, y in outputs.items() if not is_floating(y)}
    return unfit | {(*y, *x) for y in outputs.keys() - unfit for x in empty}


def check_dtype_and_device(trial: Trial) -> None:
    """Each entry is like what it is the derivative of, and detached."""
    entries = floating(trial.inputs)
    for path, value in trial.values.items():
        inside = (
            (trial.case.wrt, *path) if isinstance(trial.case.wrt, str | int) else path
        )
        like = entries.get(path, entries.get(inside))
        dtype = trial.case.dtype if like is None else like.dtype
        assert value.dtype == dtype, f"{path} is {value.dtype}, it should be {dtype}"
        device = trial.case.device
        assert value.device.type == device.type, f"{path} is on {value.device}"
        assert not value.requires_grad, f"{path} requires grad; it should be detached"
        assert type(value) is Tensor, f"{path} is a {type(value).__name__}"


def check_second_batch(trial: Trial) -> None:
    """Another batch gets its own answer, and the first answer stays what it was."""
    first = {path: value.clone() for path, value in trial.values.items()}
    second = trial.compute(trial.case.draw(seed=1))
    expected = trial.truth(one_backward_per_entry, seed=1)
    assert_close(second, expected, BETWEEN_METHODS, "a second batch")
    for path, value in trial.values.items():
        assert torch.equal(value, first[path]), f"the second call overwrote {path}"


def check_chunks(trial: Trial) -> None:
    """A memory budget changes the chunks and not the answer.

    Where one byte is not enough for one row, the refusal says how much is; twice that
    gives chunks of two rows, which do not divide the 3, 5 or 7 rows of most cases.
    """
    found = in_chunks(trial, 1)
    assert_close(found, trial.values, BETWEEN_METHODS, "in chunks")


def in_chunks(trial: Trial, budget: int) -> Answer:
    try:
        return trial.compute(trial.inputs, max_memory=budget)
    except InputError as error:
        # "auto" says it anew for each method that it comes to.
        needed = error.facts.get("needed", 0)
        if needed <= budget:
            raise
    return in_chunks(trial, 2 * needed)


def check_batch_split(trial: Trial) -> None:
    """A sample alone gets the rows that it has in the batch."""
    last = trial.case.samples - 1
    inputs = trial.case.take(trial.inputs, slice(last, last + 1))
    alone = trial.compute(inputs, first=last)
    rows = {path: value[last:] for path, value in trial.values.items()}
    assert_close(alone, rows, BETWEEN_METHODS, "alone")


def check_empty_batch(trial: Trial) -> None:
    """No samples give no rows, of the right shapes."""
    found = trial.compute(trial.case.take(trial.inputs, slice(0, 0)))
    shapes = {path: (0, *value.shape[1:]) for path, value in trial.values.items()}
    empty = {path: tuple(value.shape) for path, value in found.items()}
    assert empty == shapes, f"of no samples: {empty}, it should be {shapes}"


def check_inputs_untouched(trial: Trial) -> None:
    """The inputs have the values, versions, flags and ``.grad`` they had."""
    assert_same(trial, "inputs")


def check_model_untouched(trial: Trial) -> None:
    """Parameters, ``.grad``, buffers, flags, hooks and attributes are as before."""
    assert_same(trial, "model")


def check_random_state_untouched(trial: Trial) -> None:
    """Random generators and grad mode are as before."""
    assert_same(trial, "random")


def check_under_no_grad(trial: Trial) -> None:
    """Inside ``no_grad`` the answer is the same."""
    outside = trial.values
    with torch.no_grad():
        found = trial.compute(trial.inputs)
    assert_close(found, outside, BETWEEN_METHODS, "under no_grad")


def check_under_inference_mode(trial: Trial) -> None:
    """Inside ``inference_mode``, with inputs made there, the answer is the same."""
    outside = trial.values
    with torch.inference_mode():
        inputs = map_structure(
            lambda _, leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf,
            trial.inputs,
        )
        found = trial.compute(inputs)
        assert_close(found, outside, BETWEEN_METHODS, "under inference_mode")


Check = Callable[[Trial], None]

CHECKS: tuple[Check, ...] = (
    check_closed_form,
    check_finite_differences,
    check_per_entry_loop,
    check_ordinary_backward,
    check_structure_and_shapes,
    check_dtype_and_device,
    check_second_batch,
    check_chunks,
    check_batch_split,
    check_empty_batch,
    check_inputs_untouched,
    check_model_untouched,
    check_random_state_untouched,
    check_under_no_grad,
    check_under_inference_mode,
)


def owed(check: Check, question: Question, case: Case) -> bool:
    """Whether the check has something to say about this question and case."""
    if check is check_closed_form:
        form = case.parameter_jacobian if question.by_parameter else case.jacobian
        return form is not None
    if check is check_batch_split:
        # What is drawn at random depends on how many samples it is drawn for.
        return case.batched is None and case.seed is None and case.samples > 1
    if check is check_empty_batch:
        unrun = question.by_parameter and question.of_objective
        return case.batched is None and (unrun or runs_without_samples(case))
    return True


@functools.cache
def runs_without_samples(case: Case) -> bool:
    """Whether the model itself takes a batch of none."""
    try:
        call(case.make(), case.take(case.draw(), slice(0, 0)))
    except (RuntimeError, ValueError, IndexError):
        return False
    return True
