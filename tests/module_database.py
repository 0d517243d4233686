"""PyTorch's module database as models with the samples first.

An entry is served as it is where a batch of one is that row of the whole. Where it is
not, it is turned until it is: samples that stand second are moved, and what takes no
batch in the database is given one. What is left has no samples, or mixes them. None
of this is gradkit's word: this module imports no gradkit.
"""

from __future__ import annotations

import inspect
import itertools
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter
from torch.utils import _pytree as pytree

from case import randomise
from probes import fork_random_state, is_floating

with warnings.catch_warnings():
    # torch's test utilities warn of packages that only torch's own tests need.
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_modules import module_db

#: How many samples an entry is given that has none.
SAMPLES = 4
#: Some classes have hundreds of entries, and neighbours are alike.
MOST_OF_A_CLASS = 16
#: Arguments that hold a mask of positions by positions, the same for all samples.
MASKS = {"attn_mask", "mask", "src_mask", "tgt_mask", "memory_mask"}
#: A third axis of these is of the heads.
PER_HEAD = {"attn_mask"}

NO_PARAMETERS = "has no parameters"
NO_SAMPLES = "its batch has no sample"
REDUCED = "reduces over the batch to one number"
MIXED = "normalises over the batch"


@dataclass(frozen=True, eq=False)
class Entry:
    """One call of one module, as a model with the samples first.

    Attributes:
        name: Class, position among the class's calls, mode.
        model: The module, or what moves its samples to where it takes them.
        inputs: Arguments by name.
        shared: The names of those that all samples share.
        several: Whether it returns more than one tensor; the first is read.
        left_out: Why it cannot be asked for rows; empty where it can.
    """

    name: str
    model: nn.Module
    inputs: dict[str, Any]
    shared: tuple[str, ...] = ()
    several: bool = False
    left_out: str = ""

    @property
    def samples(self) -> int:
        return len(next(self.leaves()))

    def leaves(self) -> Iterator[Tensor]:
        """Yield the tensors that have samples."""
        for name, value in self.inputs.items():
            if name not in self.shared:
                yield from tensors(value)

    def outputs(self, samples: slice | None = None) -> Tensor:
        """Return the first output, of some samples run as a batch of their own."""
        return first(self.model(**self.some(samples)))

    def some(self, samples: slice | None) -> dict[str, Any]:
        return {
            name: value
            if samples is None or name in self.shared
            else pytree.tree_map_only(Tensor, lambda t: t[samples], value)
            for name, value in self.inputs.items()
        }


class Turned(nn.Module):
    """Hands arguments on with their samples where the module takes them.

    That is second, for those named in ``moved``; and a mask per sample and head,
    ``(N, heads, T, S)``, is one of ``(N * heads, T, S)`` to a module.
    """

    def __init__(self, module: nn.Module, moved: tuple[str, ...], output: bool) -> None:
        super().__init__()
        self.module, self.moved, self.output = module, moved, output
        self.train(module.training)

    def forward(self, **inputs: Any) -> Tensor:
        turned = {
            name: exchanged(value) if name in self.moved else value
            for name, value in inputs.items()
        }
        for name in PER_HEAD & turned.keys():
            if turned[name].ndim == 4:
                turned[name] = turned[name].flatten(0, 1)
        found = first(self.module(**turned))
        return found.transpose(0, 1) if self.output else found


def exchanged(value: Any) -> Any:
    return pytree.tree_map_only(Tensor, lambda t: t.transpose(0, 1), value)


def tensors(structure: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(structure) if isinstance(leaf, Tensor)]


def first(outputs: Any) -> Tensor:
    return next(leaf for leaf in tensors(outputs) if leaf.is_floating_point())


# --- the database -----------------------------------------------------------------


def classes() -> list[str]:
    """Return the names of the modules that the database knows."""
    return [info.name for info in module_db]


def entries(
    name: str, training: bool, device: torch.device, most: int = MOST_OF_A_CLASS
) -> list[Entry]:
    """Return the entries of a class in one mode, at most so many, evenly spread."""
    info = next(info for info in module_db if info.name == name)
    with warnings.catch_warnings(), fork_random_state():
        warnings.simplefilter("ignore")
        torch.manual_seed(5)
        calls = info.module_inputs_func(
            info, device=device, dtype=torch.float64, requires_grad=False,
            training=training,
        )  # fmt: skip
        steps = min(most, len(calls))
        places = [i * (len(calls) - 1) // max(1, steps - 1) for i in range(steps)]
        mode = "training" if training else "eval"
        return [
            _entry(f"{name}-{at}-{mode}", info.module_cls, calls[at], training, device)
            for at in places
        ]


def _entry(
    name: str, kind: Any, call: Any, training: bool, device: torch.device
) -> Entry:
    module = kind(*call.constructor_input.args, **call.constructor_input.kwargs)
    module = module.to(device, torch.float64).train(training)
    given = call.forward_input
    bound = inspect.signature(module.forward).bind(*given.args, **given.kwargs)
    inputs = {k: v for k, v in bound.arguments.items() if v is not None}
    if any(isinstance(p, UninitializedParameter) for p in module.parameters()):
        module(**inputs)
    randomise(module)
    plain = Entry(name, module, inputs, _shared(inputs))
    reason = _reason(plain)
    if reason:
        return replace(plain, left_out=reason)
    found = next((e for e in _layouts(plain) if takes_samples_first(e)), None)
    assert found is not None, f"{name} has samples on no axis that was tried"
    several = not isinstance(found.model(**found.inputs), Tensor)
    return replace(found, several=several)


def _shared(inputs: dict[str, Any]) -> tuple[str, ...]:
    return tuple(n for n, v in inputs.items() if n in MASKS and v.ndim == 2)


def _reason(entry: Entry) -> str:
    if not any(True for _ in entry.model.parameters()):
        return NO_PARAMETERS
    for reason, holds in REASONS.items():
        if holds(entry):
            return reason
    return ""


# --- where the samples are --------------------------------------------------------


def _layouts(entry: Entry) -> Iterator[Entry]:
    """Yield the entry with its samples taken to be here and there."""
    for stacked, second in itertools.product((False, True), ("none", "hx", "all")):
        inputs = _given_samples(entry) if stacked else entry.inputs
        names = [name for name in inputs if not name.endswith("mask")]
        moved = tuple(n for n in names if second == "all" or n == second)
        if any(t.ndim < 2 for n in moved for t in tensors(inputs[n])):
            continue
        if not stacked:  # what is stacked has its samples first already
            inputs = {n: exchanged(v) if n in moved else v for n, v in inputs.items()}
        model = entry.model
        if moved or any(inputs[n].ndim == 4 for n in PER_HEAD & inputs.keys()):
            model = Turned(model, moved, output=second == "all")
        yield replace(entry, model=model, inputs=inputs)


def _given_samples(entry: Entry) -> dict[str, Any]:
    """Return arguments of several samples, each unlike the others."""

    def several(tensor: Tensor) -> Tensor:
        if is_floating(tensor):
            return torch.randn_like(tensor.expand(SAMPLES, *tensor.shape))
        if not tensor.ndim:
            return tensor.repeat(SAMPLES)
        return torch.stack([tensor.roll(n, -1) for n in range(SAMPLES)])

    return {
        name: value if name in entry.shared
        else pytree.tree_map_only(Tensor, several, value)
        for name, value in entry.inputs.items()
    }  # fmt: skip


def takes_samples_first(entry: Entry) -> bool:
    """Whether a batch of one is its row of the whole, for every sample."""
    negative = pytree.tree_map_only(
        Tensor, lambda t: -2 * t if is_floating(t) else t, entry.inputs
    )
    # Of two draws, since what one sample tells another can be cut off by a ReLU.
    return _rows_stand_alone(entry) and _rows_stand_alone(
        replace(entry, inputs=negative)
    )


def _rows_stand_alone(entry: Entry) -> bool:
    leaves = list(entry.leaves())
    if any(t.ndim == 0 or len(t) != len(leaves[0]) for t in leaves):
        return False
    try:
        whole = entry.outputs()
        rows = [entry.outputs(slice(n, n + 1)) for n in range(entry.samples)]
    except (RuntimeError, ValueError, AssertionError):
        return False  # these sizes are not what the module takes
    if whole.ndim == 0 or any(row.shape[:1] != (1,) for row in rows):
        return False
    joined = torch.cat(rows)
    return joined.shape == whole.shape and torch.allclose(joined, whole, 1e-9, 1e-12)


# --- why not ----------------------------------------------------------------------


def _has_no_sample(entry: Entry) -> bool:
    return any(tensor.ndim and not len(tensor) for tensor in entry.leaves())


def _reduces(entry: Entry) -> bool:
    return getattr(entry.model, "reduction", None) in ("mean", "sum")


def _normalises_over_the_batch(entry: Entry) -> bool:
    module = entry.model
    return isinstance(module, nn.modules.batchnorm._BatchNorm) and (
        module.training or module.running_mean is None
    )


REASONS = {
    NO_SAMPLES: _has_no_sample,
    REDUCED: _reduces,
    MIXED: _normalises_over_the_batch,
}
