"""What a loader's batch says: what the model is given, and what it is compared with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gradkit._problem._inputs import Shared
from gradkit._problem._target import modules_within, read_target
from gradkit._problem._tree import map_leaves
from gradkit.errors import InputError
from gradkit.objectives._scores import describe

__all__ = ["Batch", "Split", "no_targets", "read_batch"]

Split = Callable[[Any], tuple[Any, Any]]

#: Under one of these the targets stand in a batch that is a mapping.
_TARGETS = ("labels", "label", "targets", "target", "y")


class Batch(NamedTuple):
    """A batch's inputs, as gradkit takes them, and its targets, or ``None``."""

    inputs: Any
    targets: Any

    def beside(self, model: Any) -> Batch:
        """Return the batch on the device of the model's first tensor, if it has one."""
        device = _device(model)
        if device is None:
            return self

        def moved(value: Any) -> Any:
            if isinstance(value, Shared):
                return Shared(value.tensor.to(device))
            return value.to(device) if isinstance(value, Tensor) else value

        return Batch(map_leaves(moved, self.inputs), map_leaves(moved, self.targets))


def _device(model: Any) -> torch.device | None:
    for module in modules_within(read_target(model).call):
        for tensor in (*module.parameters(), *module.buffers()):
            return tensor.device
    return None


def read_batch(batch: Any, split: Split | None) -> Batch:
    """Return the inputs and the targets of a batch, as ``split`` takes it apart.

    Raises:
        InputError: The batch has no form that is known, or ``split`` no pair.
    """
    if split is not None:
        pair = split(batch)
        if isinstance(pair, (tuple, list)) and len(pair) == 2:
            return Batch(*pair)
        raise InputError(
            f"split must return a pair, (inputs, targets); got {describe(pair)}",
            argument="split",
        )
    if isinstance(batch, Mapping):
        return _of_mapping(batch)
    if isinstance(batch, Sequence) and not isinstance(batch, (str, bytes)) and batch:
        return _of_sequence(batch)
    if isinstance(batch, (Tensor, Shared)):
        return Batch(batch, None)
    empty = " without entries" if isinstance(batch, Sequence) else ""
    raise InputError(
        "split must say what the batch holds, as a function batch -> (inputs, targets),"
        " where it is no tensor, sequence or mapping of tensors; got"
        f" {describe(batch)}{empty}",
        argument="split",
    )


def _of_mapping(batch: Mapping[str, Any]) -> Batch:
    found = [key for key in batch if key in _TARGETS]
    if len(found) > 1:
        raise InputError(
            f"split must say which of {', '.join(map(repr, found))} are the targets;"
            f" the batch has the keys {', '.join(map(repr, batch))}. Pass"
            " split=lambda batch: (inputs, targets)",
            argument="split",
            keys=list(batch),
        )
    inputs = {key: value for key, value in batch.items() if key not in found}
    return Batch(inputs, batch[found[0]] if found else None)


def _of_sequence(batch: Sequence[Any]) -> Batch:
    if len(batch) == 1:
        return Batch(batch[0], None)
    *inputs, targets = batch
    return Batch(inputs[0] if len(inputs) == 1 else inputs, targets)


def no_targets(inputs: Any, what: str) -> InputError:
    """Return the refusal of a batch whose targets are needed for ``what``."""
    keys = list(inputs) if isinstance(inputs, Mapping) else None
    got = "the batch has inputs alone"
    if keys is not None:
        got = (
            f"the batch has the keys {', '.join(map(repr, keys))}, and none of"
            f" {', '.join(map(repr, _TARGETS))}"
        )
    return InputError(
        f"split must give the targets that {what}; {got}. Pass"
        " split=lambda batch: (inputs, targets)",
        argument="split",
        **({} if keys is None else {"keys": keys}),
    )
