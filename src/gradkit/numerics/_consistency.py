"""Whether a sample's row depends on the batch it travels in: rounding, or coupling."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from gradkit._call._public import public
from gradkit._call._request import Request
from gradkit._hints import in_order
from gradkit._problem._inputs import as_position, read_inputs
from gradkit._problem._target import read_target
from gradkit.errors import InputError
from gradkit.numerics._consistency_comparison import Comparison
from gradkit.numerics._consistency_report import BatchConsistencyReport

__all__ = ["batch_consistency"]

_FUNCTIONS = (
    "input_gradients",
    "jacobian",
    "per_sample_gradients",
    "parameter_jacobian",
)


@in_order(
    lambda first: getattr(first, "__name__", first) in _FUNCTIONS,
    "write gk.batch_consistency(model, inputs, derivative=gk.jacobian)",
)
@public
def batch_consistency(
    model: Any,
    inputs: Any,
    *,
    derivative: Any = None,
    objective: Any = None,
    batch_sizes: Iterable[int] = (1,),
) -> BatchConsistencyReport:
    """Return how each sample's row depends on the batch it travels in; ``print`` it.

    ``model(x)[0]`` and ``model(x[:1])[0]`` differ in the last digits for most models,
    since kernels depend on the shape and add in another order. They differ by more
    where samples have to do with one another: batch normalisation in training mode,
    a mean over the batch, attention over what pads it. This says which of the two it
    is, and in which submodule it arises.

    The model runs on the whole batch, on slices of it, and on batches of the same
    shape in which other samples stand beside some. What differs is computed again in
    float64, on private copies and with casts inside the model promoted: rounding
    shrinks there with the unit roundoff (by ``2**29`` from float32), and coupling
    stays. No tolerance is involved but the geometric mean of the two.

    Args:
        model: Maps ``(N, *in)`` to outputs with the samples first; an ``nn.Module``, a
            bound method of one, or any callable. Read, never modified.
        inputs: A tensor ``(N, *in)``, a sequence (``model(*inputs)``) or a mapping
            (``model(**inputs)``), as in ``gk.jacobian``. A batch of one is
            repeated, ``[x, x]``, and compared with itself alone.
        derivative: ``input_gradients``, ``jacobian``, ``per_sample_gradients`` or
            ``parameter_jacobian``, or its name: its rows are compared, too, unless
            the outputs are coupled.
        objective: From the whole batch's outputs to ``(N,)``, for a derivative that
            takes one. It is called once; slices get their part of its cotangent.
        batch_sizes: The sizes of the slices, each from 1 to ``N - 1``. Of more than
            64 slices 64 are taken, spread over the batch.

    Returns:
        A ``BatchConsistencyReport``, true where nothing is coupled.

    Raises:
        InputError: An argument is not what the function takes, or ``model`` draws
            random numbers.
        SampleDependenceError: ``objective`` couples samples.
        UnsupportedModelError: ``model`` writes to its parameters, or has no such
            derivative.

    Cost:
        Two forward passes of the batch, one of each slice, and three of other
        samples; as many again in float64 where anything differs, and in float32 where
        a model in float64 may be coupled. What submodules return is copied.

    Example:
        >>> import torch
        >>> import gradkit as gk
        >>> x = torch.linspace(-1, 1, 12).reshape(4, 3)
        >>> layers = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.BatchNorm1d(5))
        >>> report = gk.batch_consistency(layers, x, batch_sizes=(2,))
        >>> bool(report), report.coupled
        (False, "in '1' (BatchNorm1d)")
        >>> bool(gk.batch_consistency(layers.eval(), x))
        True

    Source:
        Higham, "Accuracy and Stability of Numerical Algorithms", 2nd ed. (SIAM 2002),
        sec. 1.13 and 4.2: what rounding does scales with the unit roundoff, and sums
        depend on their order.
    """
    target = read_target(model)
    read = read_inputs(inputs, True)
    samples = 2 if read.samples == 1 else read.samples
    if not samples:
        raise InputError("inputs must hold a sample; got N = 0", argument="inputs")
    sizes = _sizes(batch_sizes, samples)
    name = _function(derivative, objective)
    comparison = Comparison(target, read, samples, sizes)
    comparison.judge()
    if name is not None and comparison.report().verdict != "coupled":
        request = Request(name, model, inputs, objective)
        comparison.differentiate(request)
    return comparison.report()


def _sizes(batch_sizes: Any, samples: int) -> tuple[int, ...]:
    several = isinstance(batch_sizes, Iterable)
    given = cast(Iterable[Any], batch_sizes) if several else (batch_sizes,)
    sizes = [as_position(size) for size in given]
    if not sizes or any(s is None or not 0 < s < samples for s in sizes):
        raise InputError(
            f"batch_sizes must be whole numbers from 1 to N - 1 = {samples - 1}; got"
            f" {batch_sizes!r}",
            argument="batch_sizes",
        )
    return tuple(dict.fromkeys(s for s in sizes if s is not None))


def _function(derivative: Any, objective: Any) -> str | None:
    """Return the name of the public function that is meant."""
    name = getattr(derivative, "__name__", derivative)
    if name is not None and name not in _FUNCTIONS:
        raise InputError(
            f"derivative must be one of {', '.join(_FUNCTIONS)}, or None; got {name!r}",
            argument="derivative",
        )
    takes = name in ("input_gradients", "per_sample_gradients")
    if objective is not None and not takes:
        raise InputError(
            "objective must come with derivative='input_gradients' or"
            f" 'per_sample_gradients'; got derivative={name!r}",
            argument="objective",
        )
    return name
