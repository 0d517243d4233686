"""Gradients of one number per sample: by the inputs, and by the parameters."""

from __future__ import annotations

from typing import Any, Literal, overload

from torch import Tensor, nn

from gradkit._call._open import open_call
from gradkit._call._public import public
from gradkit._call._request import Request
from gradkit._jacobian import arrange, run, source_sizes, with_point
from gradkit._methods._method import Method
from gradkit._parameter_jacobian._collect import collect
from gradkit._parameter_jacobian._mapping import ParameterJacobian
from gradkit._problem._derivative import Derivative

__all__ = ["input_gradients", "per_sample_gradients"]


@overload
def input_gradients(
    model: Any, inputs: Tensor, objective: Any = ..., *,
    wrt: nn.Module | str | int | None = ..., of: Any = ..., batched: bool | None = ...,
    seed: int | None = ..., method: str | Method = ...,
    max_memory: int | str | None = ..., with_values: Literal[False] = ...,
    create_graph: bool = ...,
) -> Tensor: ...  # fmt: skip
@overload
def input_gradients(
    model: Any, inputs: Any, objective: Any = ..., *,
    wrt: Any = ..., of: Any = ..., batched: bool | None = ...,
    seed: int | None = ..., method: str | Method = ...,
    max_memory: int | str | None = ..., with_values: Literal[True],
    create_graph: bool = ...,
) -> Derivative: ...  # fmt: skip
@overload
def input_gradients(
    model: Any, inputs: Any, objective: Any = ..., *,
    wrt: Any = ..., of: Any = ..., batched: bool | None = ...,
    seed: int | None = ..., method: str | Method = ...,
    max_memory: int | str | None = ..., with_values: bool = ...,
    create_graph: bool = ...,
) -> Any: ...  # fmt: skip
@public
def input_gradients(
    model: Any,
    inputs: Any,
    objective: Any = None,
    *,
    wrt: Any = None,
    of: Any = None,
    batched: bool | None = None,
    seed: int | None = None,
    method: str | Method = "auto",
    max_memory: int | str | None = None,
    with_values: bool = False,
    create_graph: bool = False,
) -> Any:
    """Return the gradient of each sample's objective with respect to its input.

    Row ``n`` is ``d objective[n] / d inputs[n]``, never scaled by ``1/N``:
    ``loss.backward()`` of a *mean* loss gives these rows divided by ``N``.

    Args:
        model: Maps ``(N, *in)`` to ``(N, *out)``; an ``nn.Module``, a bound method
            of one, or any callable. Read, never modified.
        inputs: A tensor ``(N, *in)``, a sequence (``model(*inputs)``) or a mapping
            (``model(**inputs)``), nested as the model likes. Tensors that all
            samples share are marked with ``gk.shared``. ``N`` may be 0.
        objective: From batched outputs to one number per sample, ``(N,)``; see
            ``gk.objectives``. A whole number, or one label per sample, means
            ``class_score``. ``None`` where a sample has one output. Called once, on
            the outputs of the whole batch.
        wrt: What to differentiate with respect to, as in ``jacobian``.
        of: What the objective is given, as in ``jacobian``.
        batched: ``False``: the gradient of a scalar function without a sample axis.
        seed: For a model that draws random numbers, as in ``jacobian``.
        method: As in ``jacobian``.
        max_memory: As in ``jacobian``.
        with_values: Return a ``gk.Derivative`` with outputs, objective values and
            the point too.
        create_graph: Keep the result's graph, connected to inputs and parameters.

    Returns:
        ``(N, *in)``, or ``(*in)`` with ``batched=False``, in the dtype and on the
        device of what it is a derivative with respect to, detached; in the form
        that ``wrt`` asks for, as in ``jacobian``.

    Raises:
        InputError: An argument is not what the function takes.
        SampleDependenceError: ``model`` or ``objective`` couples samples.
        UnsupportedModelError: ``method`` cannot differentiate ``model``.

    Cost:
        One forward and one backward pass; and the proof that samples are
        independent, as in ``jacobian``.

    Example:
        >>> import torch
        >>> import gradkit as gk
        >>> model = torch.nn.Linear(3, 2)
        >>> g = gk.input_gradients(model, torch.ones(5, 3), 1)
        >>> g.shape
        torch.Size([5, 3])
        >>> torch.equal(g[4], model.weight[1])
        True

    Source:
        Simonyan, Vedaldi and Zisserman, "Deep inside convolutional networks"
        (2013), sec. 3, where this is the saliency of a class score.
    """
    request = Request(
        "input_gradients", model, inputs, objective, wrt=wrt, of=of, batched=batched,
        seed=seed, method=method, max_memory=max_memory, create_graph=create_graph,
    )  # fmt: skip
    with open_call(request) as call:
        flat = run(call)
        lead = (call.task.samples,) if call.inputs.batched else ()
        shaped = [
            f.reshape((*lead, *size))
            for f, size in zip(flat, source_sizes(call), strict=True)
        ]
        derivative = arrange(call, shaped)
        return with_point(call, derivative) if with_values else derivative


@public
def per_sample_gradients(
    model: Any,
    inputs: Any,
    objective: Any = None,
    *,
    of: Any = None,
    parameters: Any = None,
    seed: int | None = None,
    method: str | Method = "auto",
    max_memory: int | str | None = None,
) -> ParameterJacobian:
    """Return the gradient of each sample's objective with respect to the parameters.

    Row ``n`` is ``d objective[n] / d parameters``, never scaled by ``1/N``: the rows'
    sum is what ``objective.sum().backward()`` gives.

    Args:
        model: Maps ``(N, *in)`` to ``(N, *out)``; an ``nn.Module``, a bound method
            of one, or any callable (then ``parameters`` says whose). Read, never
            modified.
        inputs: As in ``jacobian``; integers are welcome. ``N`` may be 0.
        objective: From batched outputs to one number per sample, ``(N,)``; see
            ``gk.objectives``. ``None`` where a sample has one output.
        of: What the objective is given, as in ``jacobian``.
        parameters: Names, names of submodules, globs (``"*lora_*"``), a module, or a
            mapping of names to tensors. ``None``: all that require grad. A frozen
            parameter is included where it is named exactly.
        seed: For a model that draws random numbers, as in ``jacobian``.
        method: As in ``jacobian``.
        max_memory: As in ``jacobian``; rows that do not fit are computed again
            when they are asked for.

    Returns:
        A ``ParameterJacobian``: a mapping ``{name: (N, *p)}`` that also gives norms,
        sums, clipped sums, Gram matrices and projections.

    Raises:
        InputError: An argument is not what the function takes.
        SampleDependenceError: ``model`` or ``objective`` couples samples.
        UnsupportedModelError: ``method`` cannot differentiate ``model``.

    Cost:
        One forward pass; then ``N`` pullbacks, vmapped over samples, with a forward
        pass of their own; and the proof, as in ``jacobian``.

    Example:
        >>> import torch
        >>> import torch.nn.functional as F
        >>> import gradkit as gk
        >>> model = torch.nn.Linear(2, 1, bias=False)
        >>> _ = model.weight.data.fill_(1.0)
        >>> x = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
        >>> loss = gk.objectives.sample_loss(F.mse_loss, torch.zeros(2, 1))
        >>> gk.per_sample_gradients(model, x, loss)["weight"].flatten(1)
        tensor([[2., 0.],
                [0., 8.]])

    Source:
        Goodfellow, "Efficient per-example gradient computations" (2015).
    """
    request = Request(
        "per_sample_gradients", model, inputs, objective, of=of, parameters=parameters,
        seed=seed, method=method, max_memory=max_memory,
    )  # fmt: skip
    return collect(request)
