"""MUTANTS: deliberately wrong methods and calls, and the check that must see each.

A test that cannot fail shows nothing. A mutant is right but for one fault; most are
methods, which pass through the library as other people's methods do. What no method
can get wrong, because the library does it for all of them, is done to the call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import checks
import gradkit as gk
from cases import CASES
from probes import by_path
from trial import QUESTIONS, Answer, Question, Trial

Rows = Callable[[Any], Iterator[Any]]
Call = Callable[..., Answer]

ALL = tuple(question.name for question in QUESTIONS)
JACOBIANS = ("jacobian", "parameter_jacobian")
OF_INPUTS = ("input_gradients", "jacobian")


@dataclass(frozen=True)
class Mutant:
    """A fault, and the check that must see it.

    Attributes:
        name: What is wrong.
        killer: A check that must fail.
        method: Makes wrong rows out of right ones; ``None`` where the call is wrong.
        call: Makes a wrong call out of the right one.
        questions: The functions that can be wrong in this way.
        case: The case that shows it.
        refused: The functions that raise by themselves, before any check can fail.
    """

    name: str
    killer: checks.Check
    method: Callable[[Rows], Rows] | None = None
    call: Callable[[Call], Call] | None = None
    questions: tuple[str, ...] = ALL
    case: str = "mlp"
    refused: tuple[str, ...] = ()

    def trial(self, question: Question, trusted: bool = True) -> Trial:
        """Return the trial of this mutant.

        A method that says that it pulls back through the one forward is trusted;
        any other is checked by the library before its answer is returned.
        """
        case = next(case for case in CASES if case.name == self.case)
        method: Any = "vmap"
        if self.method is not None:
            method = foreign(self.name, self.method, trusted)
        return Trial(question, method, case, self.call)


def foreign(name: str, change: Callable[[Rows], Rows], trusted: bool) -> Any:
    """Return ``vmap`` with changed rows."""
    sound = gk.METHODS["vmap"]
    assert sound.inputs is not None
    assert sound.parameters is not None
    return replace(
        sound,
        name=name,
        inputs=change(sound.inputs),
        parameters=change(sound.parameters),
        through_graph=("inputs", "parameters") if trusted else (),
    )


def whole(change: Callable[[Tensor], Tensor]) -> Callable[[Rows], Rows]:
    """Return rows whose whole ``(N, R, size)`` tensors went through ``change``."""

    def changed(rows: Rows) -> Rows:
        def run(task: Any) -> Iterator[Any]:
            shape = (task.samples, task.rows)
            full: list[Tensor] = []
            for block in rows(task):
                full = full or [v.new_zeros(*shape, v.shape[-1]) for v in block.values]
                for target, values in zip(full, block.values, strict=True):
                    target[block.samples, block.rows] = values
            values = tuple(change(v).reshape(v.shape) for v in full)
            yield gk.Block(slice(0, shape[0]), slice(0, shape[1]), values)

        return run

    return changed


def one_nan(v: Tensor) -> Tensor:
    v[-1, -1, -1] = float("nan")
    return v


def inputs_reversed(v: Tensor) -> Tensor:
    return v.reshape(*v.shape[:2], 2, 3, 4).permute(0, 1, 4, 3, 2)  # of "convolution"


def stale(rows: Rows) -> Rows:
    kept: dict[Any, list[Any]] = {}

    def run(task: Any) -> Iterator[Any]:
        key = (task.kind, task.samples, task.rows, task.sizes)
        if key not in kept:
            kept[key] = list(rows(task))
        yield from kept[key]

    return run


def last_chunk_dropped(rows: Rows) -> Rows:
    def run(task: Any) -> Iterator[Any]:
        blocks = list(rows(task))
        yield from blocks[:-1] if len(blocks) > 1 else blocks

    return run


def chunk_repeated(rows: Rows) -> Rows:
    """Rows of every chunk are those of the first chunk of that size."""

    def run(task: Any) -> Iterator[Any]:
        first: dict[Any, Any] = {}
        for block in rows(task):
            shapes = tuple(v.shape for v in block.values)
            values = first.setdefault(shapes, block.values)
            yield block._replace(values=values)

    return run


METHOD_MUTANTS: tuple[Mutant, ...] = (
    Mutant("zeros", checks.check_finite_differences, whole(torch.zeros_like)),
    Mutant("negated", checks.check_closed_form, whole(torch.neg), case="one_number"),
    Mutant("absolute", checks.check_finite_differences, whole(torch.abs)),
    Mutant(
        "transposed",
        checks.check_closed_form,
        whole(lambda v: v.mT),
        questions=JACOBIANS,
        case="linear",
    ),
    Mutant(
        "inputs_reversed",
        checks.check_finite_differences,
        whole(inputs_reversed),
        questions=OF_INPUTS,
        case="convolution",
    ),
    Mutant(
        "outputs_shifted",
        checks.check_per_entry_loop,
        whole(lambda v: v.roll(1, 1)),
        questions=JACOBIANS,
    ),
    Mutant("samples_flipped", checks.check_per_entry_loop, whole(lambda v: v.flip(0))),
    Mutant("divided_by_n", checks.check_ordinary_backward, whole(lambda v: v / len(v))),
    Mutant(
        "summed_over_the_batch",
        checks.check_per_entry_loop,
        whole(lambda v: v.sum(0, keepdim=True).expand_as(v)),
    ),
    Mutant(
        "mean_over_the_batch",
        checks.check_per_entry_loop,
        whole(lambda v: v.mean(0, keepdim=True).expand_as(v)),
    ),
    Mutant(
        "first_sample_for_all",
        checks.check_finite_differences,
        whole(lambda v: v[:1].expand_as(v)),
    ),
    Mutant(
        "single_precision_inside",
        checks.check_per_entry_loop,
        whole(lambda v: v.float().to(v.dtype)),
    ),
    Mutant(
        "off_by_a_hundred_millionth",
        checks.check_ordinary_backward,
        whole(lambda v: v * (1 + 1e-8)),
    ),
    Mutant(
        "one_nan",
        checks.check_finite_differences,
        whole(one_nan),
        refused=("per_sample_gradients", "parameter_jacobian"),
    ),
    Mutant(
        "right_for_three_samples",
        checks.check_batch_split,
        whole(lambda v: v * len(v) / 3),
    ),
    Mutant("stale_cache", checks.check_second_batch, stale),
    Mutant(
        "last_chunk_dropped",
        checks.check_chunks,
        last_chunk_dropped,
        questions=JACOBIANS,
        refused=JACOBIANS,
    ),
    Mutant("chunk_repeated", checks.check_chunks, chunk_repeated, questions=JACOBIANS),
)


def after(change: Callable[[Answer], Answer]) -> Callable[[Call], Call]:
    """Return the call whose answer is changed."""

    def changed(call: Call) -> Call:
        return lambda model, inputs, **options: change(call(model, inputs, **options))

    return changed


def each(change: Callable[[Tensor], Any]) -> Callable[[Call], Call]:
    """Return the call every tensor of whose answer is changed."""

    def over(answer: Answer) -> Answer:
        return {k: v if v is None else change(v) for k, v in answer.items()}

    return after(over)


def when(condition: Callable[[], bool]) -> Callable[[Call], Call]:
    """Return the call whose answer is doubled on a condition."""
    return each(lambda v: 2 * v if condition() else v)


def leaving(trace: Callable[[Any, list[Tensor]], Any]) -> Callable[[Call], Call]:
    """Return the call that does something to the model or the input tensors."""

    def traced(call: Call) -> Call:
        def run(model: Any, inputs: Any, **options: Any) -> Answer:
            answer = call(model, inputs, **options)
            tensors = [v for v in by_path(inputs).values() if isinstance(v, Tensor)]
            trace(model, tensors)
            return answer

        return run

    return traced


def same_memory(call: Call) -> Call:
    """Return the call that writes every answer of one shape into one tensor."""
    kept: dict[Any, Tensor] = {}

    def run(model: Any, inputs: Any, **options: Any) -> Answer:
        answer = call(model, inputs, **options)
        for path, value in answer.items():
            memory = kept.setdefault((path, value.shape), torch.empty_like(value))
            answer[path] = memory.copy_(value)
        return answer

    return run


def accumulate(model: nn.Module, _: list[Tensor]) -> None:
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad = parameter.grad + 1


def leave_grads(model: nn.Module, _: list[Tensor]) -> None:
    for parameter in model.parameters():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)


def copy_buffers(model: nn.Module, _: list[Tensor]) -> None:
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, buffer.clone())


def write_and_write_back(_: Any, tensors: list[Tensor]) -> None:
    for tensor in tensors:
        tensor.add_(1).sub_(1)


def hook(model: nn.Module, _: list[Tensor]) -> None:
    next(model.children()).register_forward_hook(lambda *_: None)


def extra_row(answer: Answer) -> Answer:
    return {k: v if len(v) else v.new_zeros(1, *v.shape[1:]) for k, v in answer.items()}


CALL_MUTANTS: tuple[Mutant, ...] = (
    Mutant("wrong_rank", checks.check_structure_and_shapes,
           call=each(lambda v: v.unsqueeze(0))),
    Mutant("zeros_for_none", checks.check_structure_and_shapes,
           call=after(lambda a: {k: torch.zeros(3) if v is None else v
                                 for k, v in a.items()}),
           questions=OF_INPUTS, case="ids_and_floats"),
    Mutant("wrong_dtype", checks.check_dtype_and_device, call=each(Tensor.float)),
    Mutant("still_attached", checks.check_dtype_and_device,
           call=each(lambda v: v.clone().requires_grad_())),
    Mutant("empty_gives_one", checks.check_empty_batch, call=after(extra_row)),
    Mutant("same_memory", checks.check_second_batch, call=same_memory),
    Mutant("wrong_under_no_grad", checks.check_under_no_grad,
           call=when(lambda: not torch.is_grad_enabled())),
    Mutant("wrong_under_inference_mode", checks.check_under_inference_mode,
           call=when(torch.is_inference_mode_enabled)),
    Mutant("input_written", checks.check_inputs_untouched,
           call=leaving(write_and_write_back)),
    Mutant("input_requires_grad", checks.check_inputs_untouched,
           call=leaving(lambda _, tensors: tensors[0].requires_grad_())),
    Mutant("accumulates", checks.check_model_untouched, call=leaving(accumulate)),
    Mutant("grad_left", checks.check_model_untouched, call=leaving(leave_grads)),
    Mutant("training_flag", checks.check_model_untouched,
           call=leaving(lambda model, _: model.eval())),
    Mutant("frozen", checks.check_model_untouched,
           call=leaving(lambda model, _: model.requires_grad_(False))),
    Mutant("buffers_copied", checks.check_model_untouched,
           call=leaving(copy_buffers), case="batch_norm_in_eval"),
    Mutant("hook_left", checks.check_model_untouched, call=leaving(hook)),
    Mutant("attribute_left", checks.check_model_untouched,
           call=leaving(lambda model, _: setattr(model, "last", 1))),
    Mutant("random_numbers_drawn", checks.check_random_state_untouched,
           call=leaving(lambda *_: torch.rand(1))),
    Mutant("numpy_numbers_drawn", checks.check_random_state_untouched,
           call=leaving(lambda *_: np.random.rand())),
)  # fmt: skip

MUTANTS = METHOD_MUTANTS + CALL_MUTANTS
