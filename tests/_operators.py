"""PyTorch's operator database as functions of one tensor, and a judge of Jacobians.

The truth is a plain loop over the output's entries; this module imports no gradkit.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

with warnings.catch_warnings():
    # torch's test utilities warn of packages that only torch's own tests need.
    warnings.simplefilter("ignore")
    from torch.testing._internal import common_methods_invocations as database

Function = Callable[[Tensor], Tensor]
Jacobian = Callable[[Function, Tensor, "int | None"], Tensor]

SEED = 11
SAMPLES_DRAWN = 64
SAMPLES_PER_ENTRY = 3
LARGEST_INPUT = LARGEST_OUTPUT = 150
TOLERANCE = 1e-10


@dataclass(frozen=True)
class Sample:
    """One call of one operator, as a function of one of its tensors."""

    name: str
    function: Function
    inputs: Tensor
    seed: int | None
    """Given where the operator draws random numbers."""


@dataclass(frozen=True)
class Outcome:
    """What came of a Jacobian: ``right``, ``wrong``, ``refused`` or ``crashed``."""

    name: str
    verdict: str
    reason: str = ""


# --- the database ---------------------------------------------------------------


def samples(
    device: torch.device, dtype: torch.dtype, only: str | None = None
) -> Iterator[Sample]:
    """Yield small samples of every differentiable entry, or of the one named."""
    for entry in database.op_db:
        if only not in (None, entry.full_name):
            continue
        if entry.name.startswith("as_strided"):
            continue  # reads the memory behind a tensor, whose layout a copy changes
        if entry.supports_autograd and entry.supports_dtype(dtype, device.type):
            yield from _spread(list(_entry_samples(entry, device, dtype)))


def _spread(found: list[Sample]) -> list[Sample]:
    """Return the first, the last and those evenly between: neighbours are alike."""
    most = min(SAMPLES_PER_ENTRY, len(found))
    return [found[i * (len(found) - 1) // max(1, most - 1)] for i in range(most)]


def _entry_samples(
    entry: Any, device: torch.device, dtype: torch.dtype
) -> Iterator[Sample]:
    torch.manual_seed(SEED)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        drawn = entry.sample_inputs(device.type, dtype, requires_grad=True)
        for position, call in enumerate(itertools.islice(drawn, SAMPLES_DRAWN)):
            sample = _sample(f"{entry.full_name}-{position}", entry, call)
            if sample is not None:
                yield sample


def _sample(name: str, entry: Any, drawn: Any) -> Sample | None:
    """Return a sample that can be judged, or ``None``."""
    call = (drawn.input, drawn.args, drawn.kwargs)
    leaves, structure = pytree.tree_flatten(call)
    leaves = [leaf.detach() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    at = next((i for i, leaf in enumerate(leaves) if _is_variable(leaf)), None)
    if at is None or not 0 < leaves[at].numel() <= LARGEST_INPUT:
        return None

    def function(inputs: Tensor) -> Tensor:
        # Clones, because batch_norm for one writes into its running statistics.
        fresh = [leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        fresh[at] = inputs
        first, args, kwargs = pytree.tree_unflatten(fresh, structure)
        with mock.patch.object(database, "wrapper_set_seed", _without_seed):
            outputs = entry.op(first, *args, **kwargs)
        return _one_tensor(drawn.output_process_fn_grad(outputs))

    return _judged(name, function, leaves[at])


def _without_seed(operator: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Let a random operator draw, where the database would seed each of its calls."""
    return operator(*args, **kwargs)


def _is_variable(leaf: object) -> bool:
    return (
        isinstance(leaf, Tensor)
        and leaf.is_floating_point()
        and leaf.layout is torch.strided
    )


def _one_tensor(outputs: Any) -> Tensor:
    """Join the floating tensors of an output; complex ones as two reals."""
    tensors = [
        tensor if tensor.layout is torch.strided else tensor.to_dense()
        for tensor in pytree.tree_leaves(outputs)
        if isinstance(tensor, Tensor)
        and (tensor.is_floating_point() or tensor.is_complex())
    ]
    real = [
        torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
        for tensor in tensors
    ]
    if len(real) == 1:
        return real[0]
    return torch.cat([tensor.reshape(-1) for tensor in real])


def _judged(name: str, function: Function, inputs: Tensor) -> Sample | None:
    """Return the sample if it is small and differentiable here, with its seed."""
    before = torch.get_rng_state()
    outputs = function(inputs.clone().requires_grad_())
    drew = not torch.equal(before, torch.get_rng_state())
    if not outputs.requires_grad or not 0 < outputs.numel() <= LARGEST_OUTPUT:
        return None
    return Sample(name, function, inputs, SEED if drew else None)


# --- the truth and the judge ----------------------------------------------------


def row_loop(function: Function, inputs: Tensor, seed: int | None) -> Tensor:
    """Return the Jacobian by one backward per entry of the output."""
    if seed is not None:
        torch.manual_seed(seed)
    inputs = inputs.clone().requires_grad_()
    outputs = function(inputs)
    rows = []
    for entry in outputs.reshape(-1):
        (row,) = torch.autograd.grad(
            entry, inputs, retain_graph=True, materialize_grads=True
        )
        rows.append(row.to_dense() if row.layout is not torch.strided else row)
    return torch.stack(rows).reshape(outputs.shape + inputs.shape)


def judge(
    sample: Sample, jacobian: Jacobian, refusals: tuple[type[Exception], ...] = ()
) -> Outcome:
    """Compare one Jacobian with the loop's.

    Args:
        sample: What to differentiate.
        jacobian: Takes the function, its tensor and the seed.
        refusals: The exceptions that count as a refusal; others are crashes.
    """
    with warnings.catch_warnings():
        # The database calls deprecated operators on purpose.
        warnings.simplefilter("ignore")
        truth = row_loop(sample.function, sample.inputs, sample.seed)
        try:
            found = jacobian(sample.function, sample.inputs, sample.seed)
        except refusals as error:
            return Outcome(sample.name, "refused", str(error))
        except Exception as error:  # whatever else comes is reported, not hidden
            return Outcome(sample.name, "crashed", f"{type(error).__name__}: {error}")
    if (found.shape, found.dtype) != (truth.shape, truth.dtype):
        kinds = [f"{tuple(t.shape)} {t.dtype}" for t in (found, truth)]
        return Outcome(sample.name, "wrong", " in place of ".join(kinds))
    finite = truth[truth.isfinite()]
    scale = max(1.0, finite.abs().max().item()) if finite.numel() else 1.0
    if torch.allclose(found, truth, rtol=0, atol=TOLERANCE * scale, equal_nan=True):
        return Outcome(sample.name, "right")
    error = (found - truth).abs().nan_to_num(torch.inf).max().item() / scale
    return Outcome(sample.name, "wrong", f"off by {error:.1e} of the largest entry")
