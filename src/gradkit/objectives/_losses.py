"""Objectives that compare outputs with targets: losses, sample by sample."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gradkit.errors import InputError
from gradkit.objectives._criteria import OpenCriterion, criterion_name, open_criterion
from gradkit.objectives._scores import (
    describe,
    floating_outputs,
    ordinary,
    refuse_other_device,
    shape_text,
)

__all__ = ["SampleLoss", "TokenLoss"]


@dataclass(frozen=True, eq=False, repr=False)
class SampleLoss:
    """The loss of each sample alone: see ``sample_loss``."""

    criterion: Callable[..., Any]
    targets: Any
    reduction: str | None = None

    def __call__(self, outputs: Any) -> Tensor:
        outputs = floating_outputs("sample_loss", outputs)
        opened = open_criterion(self.criterion)
        _check_targets(opened, outputs, self.targets)
        targets = _in_precision_of(outputs, opened, ordinary(self.targets))
        losses = opened.function(outputs, targets)
        _check_losses(opened, losses, outputs, self.targets)
        reduction = self.reduction or opened.reduction
        total = _own_sum(losses)
        if reduction == "sum":
            return total
        return total / _mean_divisor(opened, losses, self.targets)

    def __repr__(self) -> str:
        reduction = f", reduction={self.reduction!r}" if self.reduction else ""
        name = criterion_name(self.criterion)
        return f"sample_loss({name}, {describe(self.targets)}{reduction})"


@dataclass(frozen=True, eq=False, repr=False)
class TokenLoss:
    """The cross entropy of each sample's tokens: see ``token_loss``."""

    labels: Tensor
    shift: bool = False
    ignore_index: int = -100
    reduction: str = "mean"

    def __call__(self, outputs: Any) -> Tensor:
        outputs = floating_outputs("token_loss", outputs)
        labels = ordinary(self.labels)
        if outputs.dim() != 3 or labels.shape != outputs.shape[:2]:
            raise InputError(
                "objective token_loss takes outputs (N, T, V) and labels (N, T);"
                f" got outputs of shape {shape_text(outputs.shape)} and labels of shape"
                f" {shape_text(labels.shape)}.",
                output_shape=tuple(outputs.shape),
                shape=tuple(labels.shape),
            )
        refuse_other_device("token_loss", "labels", labels, outputs)
        if self.shift and labels.shape[1] < 2:
            raise InputError(
                "objective token_loss with shift=True needs at least two tokens, since"
                " each predicts the next; got labels of shape"
                f" {shape_text(labels.shape)}.",
                shape=tuple(labels.shape),
            )
        if self.shift:
            outputs, labels = outputs[:, :-1], labels[:, 1:]
        counted = labels != self.ignore_index
        _check_classes("token_loss", labels, counted, outputs.shape[2], outputs)
        losses = F.cross_entropy(
            outputs.flatten(0, 1),
            labels.flatten().long(),
            ignore_index=self.ignore_index,
            reduction="none",
        )
        total = _own_sum(losses.reshape(labels.shape))
        return total if self.reduction == "sum" else total / counted.sum(1)

    def __repr__(self) -> str:
        return (
            f"token_loss({describe(self.labels)}, shift={self.shift},"
            f" ignore_index={self.ignore_index}, reduction={self.reduction!r})"
        )


def _in_precision_of(outputs: Tensor, opened: OpenCriterion, targets: Any) -> Any:
    # binary_cross_entropy_with_logits returns float32 losses for float64 outputs and
    # float32 targets: digits would be lost that the outputs have.
    if not opened.is_entrywise or not targets.is_floating_point():
        return targets
    wider = torch.promote_types(targets.dtype, outputs.dtype) == outputs.dtype
    return targets.to(outputs.dtype) if wider else targets


def _own_sum(losses: Tensor) -> Tensor:
    return losses.reshape(len(losses), losses.shape[1:].numel()).sum(1)


def _mean_divisor(opened: OpenCriterion, losses: Tensor, targets: Any) -> Any:
    """Return what a sample's sum is divided by: how many elements count.

    Class weights do not enter: divided by their own sum, a sample with one
    element would lose its weight altogether.
    """
    if opened.mean_weights is not None:
        return _own_sum(opened.mean_weights)
    is_counted = isinstance(targets, Tensor) and not targets.is_floating_point()
    if opened.ignore_index is None or not is_counted or targets.shape != losses.shape:
        return losses.shape[1:].numel()
    return _own_sum((targets != opened.ignore_index).to(losses.dtype))


def _check_targets(opened: OpenCriterion, outputs: Tensor, targets: Any) -> None:
    if not isinstance(targets, Tensor):
        if opened.takes_classes or opened.is_entrywise:
            raise InputError(
                f"objective sample_loss needs targets that are a tensor for"
                f" {opened.name}; got {describe(targets)}. Write"
                " torch.as_tensor(targets).",
                target_type=type(targets).__name__,
            )
        return
    refuse_other_device("sample_loss", "targets", targets, outputs)
    shapes = {"shape": tuple(targets.shape), "output_shape": tuple(outputs.shape)}
    if targets.shape[:1] != outputs.shape[:1]:
        raise InputError(
            f"objective sample_loss needs one target per sample, {len(outputs)} for"
            f" outputs of shape {shape_text(outputs.shape)}; got {describe(targets)}."
            f"{_lone_target_advice(outputs, targets)}",
            **shapes,
        )
    if opened.is_entrywise and targets.dim() != outputs.dim():
        raise InputError(
            f"objective sample_loss needs targets with the axes of the outputs for"
            f" {opened.name}, which would broadcast one sample's target to others;"
            f" got targets of shape {shape_text(targets.shape)} for outputs of shape"
            f" {shape_text(outputs.shape)}.{_entrywise_advice(outputs, targets)}",
            **shapes,
        )
    if opened.takes_classes:
        _check_class_targets(opened, outputs, targets)


def _lone_target_advice(outputs: Tensor, targets: Tensor) -> str:
    # One sample without its axis, as one meets it with batched=False.
    own = (outputs.shape[1:], outputs.shape[2:])
    return " Write targets[None]." if len(outputs) == 1 and targets.shape in own else ""


def _entrywise_advice(outputs: Tensor, targets: Tensor) -> str:
    """Return how to give targets the axes of the outputs, where that is known."""
    if targets.numel() == outputs.numel():
        return " Write targets.reshape(outputs.shape)."
    classes = outputs.shape[1] if outputs.dim() == 2 else 1
    if targets.dim() != 1 or classes == 1 or targets.dtype == torch.bool:
        return ""
    if targets.is_floating_point():
        return (
            f" Write targets[:, None].expand(-1, {classes}) if all {classes} outputs of"
            " a sample have one target."
        )
    whole = "" if targets.dtype == torch.int64 else ".long()"
    return f" Write F.one_hot(targets{whole}, {classes}).float() if they are classes."


def _check_class_targets(
    opened: OpenCriterion, outputs: Tensor, targets: Tensor
) -> None:
    probabilities = targets.is_floating_point() and targets.shape == outputs.shape
    rest = (outputs.shape[0], *outputs.shape[2:])
    if outputs.dim() < 2 or not (probabilities or tuple(targets.shape) == rest):
        raise InputError(
            f"objective sample_loss needs outputs (N, C, ...) and class targets"
            f" (N, ...) for {opened.name}; got outputs of shape"
            f" {shape_text(outputs.shape)} and {describe(targets)}. Token labels"
            " (N, T) for outputs (N, T, V) belong to gk.objectives.token_loss.",
            shape=tuple(targets.shape),
            output_shape=tuple(outputs.shape),
        )
    if probabilities:
        return
    if targets.dtype not in (torch.int64, torch.uint8):
        raise InputError(
            f"objective sample_loss needs int64 classes for {opened.name};"
            f" got {describe(targets)}. Write targets.long().",
            dtype=targets.dtype,
        )
    counted = targets != opened.ignore_index
    _check_classes("sample_loss", targets, counted, outputs.shape[1], outputs)


def _check_classes(
    name: str, labels: Tensor, counted: Tensor, classes: int, outputs: Tensor
) -> None:
    # On a GPU a class out of range would abort the whole process's context.
    outside = counted & ((labels < 0) | (labels >= classes))
    if bool(outside.any()):
        place = tuple(outside.nonzero()[0].tolist())
        label = int(labels[place])
        raise InputError(
            f"objective {name} needs classes from 0 to {classes - 1} for outputs of"
            f" shape {shape_text(outputs.shape)}; got the class {label} of sample"
            f" {place[0]}. Mark labels that do not count by ignore_index.",
            label=label,
            sample=place[0],
            output_shape=tuple(outputs.shape),
        )


def _check_losses(
    opened: OpenCriterion, losses: Any, outputs: Tensor, targets: Any
) -> None:
    n = len(outputs)
    if not isinstance(losses, Tensor) or losses.shape[:1] != outputs.shape[:1]:
        raise InputError(
            f"objective sample_loss needs a criterion that returns one loss, or a block"
            f" of losses, per sample: ({n}, ...); got {describe(losses)} from"
            f" {opened.name}. A loss that averages over the batch cannot be taken apart"
            ' again: build it with reduction="none".',
            criterion=opened.name,
            shape=tuple(losses.shape) if isinstance(losses, Tensor) else None,
        )
    crossed = isinstance(targets, Tensor) and targets.numel() == outputs.numel() == n
    if n > 1 and crossed and losses.shape[:2] == (n, n):
        raise InputError(
            f"objective sample_loss: {opened.name} compared every output with every"
            f" target: outputs of shape {shape_text(outputs.shape)} and targets of"
            f" shape {shape_text(targets.shape)} gave {shape_text(losses.shape)}. Write"
            " targets.reshape(outputs.shape).",
            criterion=opened.name,
            shape=tuple(losses.shape),
        )
