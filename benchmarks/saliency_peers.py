"""SmoothGrad and integrated gradients by gradkit, by captum, by PAIR, and their bound.

All explain the score of each sample's own class, with 50 draws or steps. What a peer
does by another rule:

- captum's noise has one deviation for the whole batch, here the mean of the samples'
  own; that changes the numbers a little, and no cost.
- PAIR's ``saliency`` takes one sample at a time. The steps of its integral include
  both ends, all with equal weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import gradkit as gk
from benchmarks import measuring
from benchmarks.entries import Entry, Work
from benchmarks.problems import Problem
from benchmarks.report import TOLERANCE

#: Draws of SmoothGrad and steps of the integral.
STEPS, NOISE = 50, 0.15

#: The largest difference from PAIR's integral, as a part of the largest. There,
#: gradients at the two ends count as much as those between, and kinks fall elsewhere:
#: each moves a mean of ``n`` gradients by an ``n``-th of a gradient or so.
ANOTHER_RULE = 2.5 / STEPS

#: Bounds on the root mean square of a difference of two SmoothGrads, by what the draws'
#: variance makes of it. Over 100 samples, independent draws come within 3 % of 1; one
#: map without noise would give 0.71, or more by its bias, and a bias as large as the
#: noise of one map 1.22.
ALIKE = (0.9, 1.1)


@dataclass(frozen=True)
class Method:
    """A kind of map, and who makes it.

    Args:
        title: What its tables are called.
        ours: gradkit's.
        captum: Makes captum's with an internal size; ``None``: its default.
        sizes: Internal sizes of captum to try.
        pair: PAIR's.
        apart: How far theirs is from ours, of a problem.
        column: What the table calls that.
        bounds: The least and the most allowed of captum and of PAIR.
    """

    title: str
    ours: Entry
    captum: Callable[[int | None], Entry]
    sizes: tuple[int, ...]
    pair: Entry
    apart: Callable[[Problem, Tensor, Tensor], float]
    column: str
    bounds: tuple[tuple[float, float], tuple[float, float]]


def _passes(problem: Problem) -> Work:
    """Take the gradients at the inputs themselves, and do nothing with them."""
    model, targets = problem.model, problem.targets[:, None]
    points = problem.inputs.clone().requires_grad_()

    def call() -> None:
        for _ in range(STEPS):
            torch.autograd.grad(model(points).gather(1, targets).sum(), points)

    return Work(call)


def smoothgrad(problem: Problem, **options: Any) -> Tensor:
    """Return gradkit's SmoothGrad."""
    return gk.saliency.smoothgrad(
        problem.model, problem.inputs, problem.targets, draws=STEPS, noise=NOISE,
        **options,
    )  # fmt: skip


def integrated(problem: Problem, **options: Any) -> Tensor:
    """Return gradkit's integrated gradients."""
    return gk.saliency.integrated_gradients(
        problem.model, problem.inputs, problem.targets, baseline=0.0, steps=STEPS,
        **options,
    )  # fmt: skip


def _spread(values: Tensor) -> Tensor:
    flat = values.flatten(1)
    return flat.amax(1) - flat.amin(1)


def _captum_smoothgrad(size: int | None) -> Entry:
    def build(problem: Problem) -> Work:
        from captum.attr import (  # pyright: ignore[reportMissingImports]
            NoiseTunnel,
            Saliency,
        )

        tunnel = NoiseTunnel(Saliency(problem.model))

        def call() -> Tensor:
            found = tunnel.attribute(
                problem.inputs, nt_type="smoothgrad", nt_samples=STEPS,
                nt_samples_batch_size=size, target=problem.targets, abs=False,
                stdevs=NOISE * _spread(problem.inputs).mean().item(),
            )  # fmt: skip
            assert isinstance(found, Tensor)
            return found

        return Work(call)

    return Entry(_captum_name("nt_samples_batch_size", size), build, needs="captum")


def _captum_integrated(size: int | None) -> Entry:
    def build(problem: Problem) -> Work:
        from captum.attr import (  # pyright: ignore[reportMissingImports]
            IntegratedGradients,
        )

        method = IntegratedGradients(problem.model)

        def call() -> Tensor:
            return method.attribute(
                problem.inputs, baselines=0, target=problem.targets, n_steps=STEPS,
                method="gausslegendre", internal_batch_size=size,
            )  # fmt: skip

        return Work(call)

    return Entry(_captum_name("internal_batch_size", size), build, needs="captum")


def _captum_name(option: str, size: int | None) -> str:
    return "captum, defaults" if size is None else f"captum, best: `{option}={size}`"


def _pair(mask: Callable[..., Any]) -> Callable[[Problem], Work]:
    """Return what makes masks sample by sample."""

    def build(problem: Problem) -> Work:
        from saliency.core.base import (  # pyright: ignore[reportMissingImports]
            INPUT_OUTPUT_GRADIENTS,
        )

        model, device = problem.model, problem.inputs.device

        def gradients(
            batch: Any, call_model_args: Any = None, expected_keys: Any = None
        ) -> dict[str, Any]:
            points = torch.as_tensor(batch, dtype=torch.float32, device=device)
            points.requires_grad_()
            scores = model(points)[:, call_model_args]
            (found,) = torch.autograd.grad(scores.sum(), points)
            return {INPUT_OUTPUT_GRADIENTS: found.cpu().numpy()}

        def call() -> Tensor:
            samples, targets = problem.inputs.cpu().numpy(), problem.targets.tolist()
            pairs = zip(samples, targets, strict=True)
            masks = [torch.as_tensor(mask(s, gradients, k)) for s, k in pairs]
            return torch.stack(masks).to(problem.inputs)

        return Work(call)

    return build


def _pair_smoothgrad(*given: Any) -> Any:
    from saliency.core import GradientSaliency  # pyright: ignore[reportMissingImports]

    return GradientSaliency().GetSmoothedMask(
        *given, stdev_spread=NOISE, nsamples=STEPS, magnitude=False
    )


def _pair_integrated(*given: Any) -> Any:
    from saliency.core import (  # pyright: ignore[reportMissingImports]
        IntegratedGradients,
    )

    return IntegratedGradients().GetMask(*given, x_steps=STEPS, batch_size=STEPS)


def _by_noise(problem: Problem, ours: Tensor, theirs: Tensor) -> float:
    """Return the size of a difference of two means, by what the draws make of it."""
    variance = smoothgrad(problem, statistic="variance").mean() / (STEPS - 1)
    found = (ours - theirs).square().mean() / (2 * variance)
    # A NaN must not be taken for agreement, nor raise.
    return math.sqrt(found) if math.isfinite(found) else math.inf


BOUND = Entry(f"bound: {STEPS} forward and backward passes", _passes)

METHODS = {
    "smoothgrad": Method(
        title=f"SmoothGrad, {STEPS} draws",
        ours=Entry(
            "`gk.saliency.smoothgrad`",
            lambda problem: Work(lambda: smoothgrad(problem)),
        ),
        captum=_captum_smoothgrad,
        sizes=(1, 2, 5, 10, 25, 50),
        pair=Entry("PAIR `saliency`", _pair(_pair_smoothgrad), needs="saliency"),
        apart=_by_noise,
        column="difference ÷ its noise",
        bounds=(ALIKE, ALIKE),
    ),
    "integrated": Method(
        title=f"Integrated gradients, {STEPS} steps",
        ours=Entry(
            "`gk.saliency.integrated_gradients`",
            lambda problem: Work(lambda: integrated(problem)),
        ),
        captum=_captum_integrated,
        sizes=(100, 200, 500, 1000, 2500, 5000),
        pair=Entry("PAIR `saliency`", _pair(_pair_integrated), needs="saliency"),
        apart=lambda _, ours, theirs: measuring.difference(ours, theirs),
        column="largest difference",
        bounds=((0.0, TOLERANCE), (0.0, ANOTHER_RULE)),
    ),
}
