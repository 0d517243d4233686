"""The full Jacobian: with respect to inputs, and with respect to parameters."""

from __future__ import annotations

from typing import Any, Literal, overload

from torch import Size, Tensor

from gradkit._call._open import Call, open_call
from gradkit._call._public import public
from gradkit._call._request import Request
from gradkit._call._room import refuse_beyond_memory
from gradkit._call._solve import solve
from gradkit._methods._method import Method
from gradkit._parameter_jacobian._collect import collect
from gradkit._parameter_jacobian._mapping import ParameterJacobian
from gradkit._problem._derivative import Derivative
from gradkit._problem._result import OutRows, Rows, check_out
from gradkit.errors import InputError

__all__ = ["jacobian", "parameter_jacobian"]


@overload
def jacobian(
    model: Any, inputs: Any, *,
    wrt: Any = ..., of: Any = ..., batched: bool | None = ...,
    seed: int | None = ..., method: str | Method = ...,
    max_memory: int | str | None = ..., out: Tensor | None = ...,
    with_values: Literal[True], create_graph: bool = ...,
) -> Derivative: ...  # fmt: skip
@overload
def jacobian(
    model: Any, inputs: Any, *,
    wrt: Any = ..., of: Any = ..., batched: bool | None = ...,
    seed: int | None = ..., method: str | Method = ...,
    max_memory: int | str | None = ..., out: Tensor | None = ...,
    with_values: bool = ..., create_graph: bool = ...,
) -> Any: ...  # fmt: skip
@public
def jacobian(
    model: Any,
    inputs: Any,
    *,
    wrt: Any = None,
    of: Any = None,
    batched: bool | None = None,
    seed: int | None = None,
    method: str | Method = "auto",
    max_memory: int | str | None = None,
    out: Tensor | None = None,
    with_values: bool = False,
    create_graph: bool = False,
) -> Any:
    """Return the Jacobian of each sample's output with respect to its input.

    For sample ``n`` with output ``y`` and input ``x`` this is
    ``J[n, k, d] = dy[n, k] / dx[n, d]``: rows are outputs. Samples must not
    influence one another; a model that mixes them is refused, never averaged.

    Args:
        model: Maps ``(N, *in)`` to ``(N, *out)``; an ``nn.Module``, a bound method
            of one, or any callable. Read, never modified.
        inputs: A tensor ``(N, *in)``, a sequence (``model(*inputs)``) or a mapping
            (``model(**inputs)``), nested as the model likes. Tensors that all
            samples share are marked with ``gk.shared``. ``N`` may be 0.
        wrt: What to differentiate with respect to: a position or key of ``inputs``,
            a submodule or its dotted name (its output), or a sequence of these.
            ``None`` means every floating input.
        of: What to differentiate: a submodule or its name, a key, position or
            attribute of the outputs, or a function of the outputs.
        batched: ``False`` assumes no sample axis. ``None`` means ``True``, but
            refuses a 1-D input, which could be either.
        seed: For a model that draws random numbers: the draw of
            ``torch.manual_seed(seed); model(inputs)``.
        method: A name in ``gk.METHODS``, a ``gk.Method``, or ``"auto"``. All methods
            return the same numbers to rounding; they differ in cost and in which
            models they accept.
        max_memory: Bytes (or a text such as ``"2GB"``) of tensors alive at once
            beyond model, inputs, result and the forward's own graph. Changes the
            chunks, never the result beyond rounding. ``None``: a quarter of what is
            free.
        out: ``(N, *out, *in)``, which the result is written into, and which is
            returned; for one output and one input.
        with_values: Return a ``gk.Derivative`` with the outputs and the point too.
        create_graph: Keep the result's graph, connected to inputs and parameters.

    Returns:
        ``(N, *out, *in)``, or ``(*out, *in)`` with ``batched=False``, with the dtype
        and device of what it is a derivative with respect to, detached. With
        several outputs their structure; within it the structure of the inputs
        (``wrt=None``, with ``None`` where an entry is not floating), a tensor (one
        name) or a dict (several). An input that the output does not use has
        derivative zero.

    Raises:
        InputError: An argument is not what the function takes.
        SampleDependenceError: ``model`` couples samples, as batch normalisation
            does in training mode.
        UnsupportedModelError: ``method`` cannot differentiate ``model``.

    Cost:
        One forward pass; then ``K = prod(out)`` backward rows (reverse mode) or
        ``prod(in)`` forward columns (``jacfwd``). At a model's 1st, 2nd, 4th, 8th, …
        call of a kind (a plain function: at every call) up to seven more forward
        passes and a few rows, which prove that samples are independent.

    Example:
        >>> import torch
        >>> import gradkit as gk
        >>> layer = torch.nn.Linear(3, 2, dtype=torch.float64)
        >>> J = gk.jacobian(layer, torch.zeros(5, 3, dtype=torch.float64))
        >>> J.shape
        torch.Size([5, 2, 3])
        >>> torch.equal(J[4], layer.weight)
        True

    Source:
        Griewank and Walther, "Evaluating Derivatives", 2nd ed. (SIAM 2008), ch. 3.
    """
    request = Request(
        "jacobian", model, inputs, wrt=wrt, of=of, batched=batched, seed=seed,
        method=method, max_memory=max_memory, create_graph=create_graph,
    )  # fmt: skip
    with open_call(request) as call:
        if out is not None:
            _check_out(call, out, create_graph=create_graph)
        flat = run(call, out)
        sizes = source_sizes(call)
        blocks = _by_output(call, flat, sizes)
        if out is not None:
            blocks = [[out]]
        derivative = call.task.graph.outputs.structure(
            [arrange(call, block) for block in blocks]
        )
        return with_point(call, derivative) if with_values else derivative


@public
def parameter_jacobian(
    model: Any,
    inputs: Any,
    *,
    of: Any = None,
    parameters: Any = None,
    seed: int | None = None,
    method: str | Method = "auto",
    max_memory: int | str | None = None,
) -> ParameterJacobian:
    """Return the Jacobian of each sample's output with respect to the parameters.

    For sample ``n`` with output ``y`` and a parameter ``w`` this is
    ``J[n, k, i] = dy[n, k] / dw[i]``.

    Args:
        model: Maps ``(N, *in)`` to ``(N, *out)``, as in ``jacobian``.
        inputs: As in ``jacobian``; integers are welcome.
        of: What to differentiate, as in ``jacobian``; one output.
        parameters: Names, names of submodules, globs (``"*lora_*"``), a module, or a
            mapping of names to tensors. ``None``: all that require grad. A frozen
            parameter is included where it is named exactly.
        seed: For a model that draws random numbers, as in ``jacobian``.
        method: As in ``jacobian``.
        max_memory: As in ``jacobian``; rows that do not fit are computed again
            when they are asked for.

    Returns:
        A ``ParameterJacobian``: a mapping ``{name: (N, *out, *p)}`` that also gives
        norms, Gram matrices, products and projections without forming all of it.

    Raises:
        InputError: An argument is not what the function takes.
        SampleDependenceError: ``model`` couples samples.
        UnsupportedModelError: ``method`` cannot differentiate ``model``.

    Cost:
        One forward pass; then ``N·K`` pullbacks, vmapped over samples, with a
        forward pass of their own; and the proof, as in ``jacobian``.

    Example:
        >>> import torch
        >>> import gradkit as gk
        >>> layer = torch.nn.Linear(3, 2)
        >>> J = gk.parameter_jacobian(layer, torch.ones(5, 3))
        >>> J["weight"].shape, J["bias"][4].tolist()
        (torch.Size([5, 2, 2, 3]), [[1.0, 0.0], [0.0, 1.0]])

    Source:
        Jacot, Gabriel and Hongler, "Neural tangent kernel" (2018), sec. 4, where
        its Gram matrix is the kernel.
    """
    request = Request(
        "parameter_jacobian", model, inputs, of=of, parameters=parameters, seed=seed,
        method=method, max_memory=max_memory,
    )  # fmt: skip
    return collect(request)


def source_sizes(call: Call) -> list[Size]:
    """Return the shape of each source without its sample axis."""
    batched = call.inputs.batched
    return [s.shape[1:] if batched else s.shape for s in call.task.graph.sources]


def run(call: Call, out: Tensor | None = None) -> list[Tensor]:
    """Return ``(N, R, D)`` per source."""
    task, graph = call.task, call.task.graph
    sizes = source_sizes(call)
    like = [
        (size, s.dtype, s.device) for size, s in zip(sizes, graph.sources, strict=True)
    ]

    def sink() -> Rows:
        if out is not None:
            (size,), (out_size,) = sizes, graph.outputs.sizes
            return OutRows(out, task.samples, task.rows, out_size, size)
        return Rows(task.samples, task.rows, like, connected=task.connected)

    if not task.samples * task.rows:
        return sink().flat()
    if out is None:
        entry = sum(size.numel() * kind.itemsize for size, kind, _ in like)
        refuse_beyond_memory(call, task.samples * task.rows * entry)
    flat, _ = solve(call, sink)
    return flat if task.connected else [f.detach() for f in flat]


def _by_output(call: Call, flat: list[Tensor], sizes: list[Size]) -> list[list[Tensor]]:
    """Return the rows of each output in the caller's shapes, per source."""
    outputs = call.task.graph.outputs
    lead = (call.task.samples,) if call.inputs.batched else ()
    blocks: list[list[Tensor]] = []
    start = 0
    for out_size, width in zip(outputs.sizes, outputs.widths, strict=True):
        part = [
            f[:, start : start + width].reshape((*lead, *out_size, *size))
            for f, size in zip(flat, sizes, strict=True)
        ]
        blocks.append(part)
        start += width
    return blocks


def arrange(call: Call, values: list[Tensor]) -> Any:
    """Return one value per source in the form that ``wrt`` asked for."""
    given = iter(values)
    results: list[Any] = []
    for entry in call.entries:
        if entry.module is not None:
            results.append(next(given))
            continue
        own = {position: next(given) for position in entry.positions}
        results.append(call.inputs.structure(own, entry.name))
    if call.form == "dict":
        names = [entry.name for entry in call.entries]
        return dict(zip(names, results, strict=True))
    return results[0]


def with_point(call: Call, derivative: Any) -> Derivative:
    """Return the derivative with the values of the forward it was taken at."""
    graph = call.task.graph
    values = None if call.values is None else call.values.detach()
    if values is not None and not call.inputs.batched:
        values = values[0]
    at = arrange(call, [s.detach().clone() for s in graph.sources])
    return Derivative(derivative, graph.outputs.detached(), values, at)


def _check_out(call: Call, out: Tensor, *, create_graph: bool) -> None:
    graph = call.task.graph
    if create_graph:
        raise InputError(
            "out cannot be combined with create_graph=True: a result written in"
            " place has no graph",
            argument="out",
        )
    if len(graph.sources) != 1 or len(graph.outputs.tensors) != 1:
        raise InputError(
            "out needs one output and one input; got"
            f" {len(graph.outputs.tensors)} and {len(graph.sources)};"
            " choose with of= and wrt=",
            argument="out",
        )
    lead = (call.task.samples,) if call.inputs.batched else ()
    shape = (*lead, *graph.outputs.sizes[0], *source_sizes(call)[0])
    root = call.target.root
    others = [t.tensor for t in call.inputs.tensors]
    if root is not None:
        others += [*root.parameters(), *root.buffers()]
    check_out(out, graph.sources[0], shape, others)
