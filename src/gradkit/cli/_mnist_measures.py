"""What ``gradkit mnist`` takes of a trained network, and how each is checked.

Everything is computed in float32, which is what is shown, and once more in
float64, where rounding cannot hide an error. What it must equal is computed
from the Jacobian that the method ``loop`` gives in float64, one sample and one
output at a time.
"""

from __future__ import annotations

import copy
import dataclasses
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gradkit as gk
from gradkit import objectives
from gradkit.cli._cost import cost
from gradkit.errors import UnsupportedModelError

# Of the largest magnitude. In float32, sums of 784 and of 500 terms round.
TOLERANCES = {"float32": 1e-4, "float64": 1e-10}
REFERENCE = "loop"

# Of each gradient: what it is of, its call for a network f, what it must equal.
_TEXTS = {
    "loss": (
        "loss",
        "gk.input_gradients(f, x, sample_loss(F.cross_entropy, y))",
        "J, weighted by softmax - one-hot",
    ),
    "output_sum": (
        "sum of the scores",
        "gk.input_gradients(f, x, output_sum)",
        "J, summed over its rows",
    ),
    "class_score_2": (
        "score of class 2",
        "gk.input_gradients(f, x, class_score(2))",
        "row 2 of J",
    ),
    "class_score_label": (
        "score of its class",
        "gk.input_gradients(f, x, class_score(y))",
        "row y of J",
    ),
    "single_sample": (
        "loss, one digit alone",
        "gk.input_gradients(f, x[:1], sample_loss(F.cross_entropy, y[:1]))",
        "row 0 of the loss gradients",
    ),
    "fc1": (
        "layer fc1, summed",
        'gk.input_gradients(f, x, output_sum, of="fc1")',
        "column sums of the weight",
    ),
    "parameter_norms": (
        "loss, by parameters: norm",
        "gk.per_sample_gradients(f, x, sample_loss(F.cross_entropy, y)).norms()",
        "norms of outer products",
    ),
}


@dataclasses.dataclass(frozen=True)
class Difference:
    """How far a result is from what it must equal, over the largest magnitude."""

    float32: float
    float64: float
    agrees: bool


@dataclasses.dataclass(frozen=True)
class Quantity:
    """A gradient in float32, and how far it is from what it must equal."""

    name: str
    values: Tensor
    difference: Difference

    @property
    def title(self) -> str:
        """What it is the gradient of."""
        return _TEXTS[self.name][0]

    @property
    def call(self) -> str:
        """The call that gives it, for a network ``f``."""
        return _TEXTS[self.name][1]

    @property
    def equals(self) -> str:
        """What it must equal, with ``J`` the Jacobian."""
        return _TEXTS[self.name][2]


@dataclasses.dataclass(frozen=True)
class MethodRun:
    """The full Jacobian by one method, or the reason why there is none."""

    name: str
    reason: str | None = None
    seconds: float = math.nan
    peak_bytes: int = 0
    difference: Difference | None = None


@dataclasses.dataclass(frozen=True)
class Measures:
    """All that was computed of ``N`` digits.

    Attributes:
        images: ``(N, 784)``.
        labels: ``(N,)``.
        outputs: ``(N, 10)`` class scores.
        losses: ``(N,)`` cross entropies.
        quantities: The gradients, by name.
        jacobian: ``(N, 10, 784)``, by ``auto``.
        auto: The method that this was.
        methods: One run for each method of gradkit.
        undecided: ``(N,)``, true where float32 may round a ReLU to its other side.
    """

    images: Tensor
    labels: Tensor
    outputs: Tensor
    losses: Tensor
    quantities: dict[str, Quantity]
    jacobian: Tensor
    auto: str
    methods: tuple[MethodRun, ...]
    undecided: Tensor

    @property
    def findings(self) -> list[str]:
        """What differs by more than rounding; empty if all is well."""
        compared = [(q.name, q.difference) for q in self.quantities.values()]
        compared += [
            (f"jacobian by {run.name}", run.difference)
            for run in self.methods
            if run.difference
        ]
        return [name for name, difference in compared if not difference.agrees]


def measure(network: nn.Sequential, images: Tensor, labels: Tensor) -> Measures:
    """Compute every derivative of the digits, and what each must equal.

    Args:
        network: With layers ``fc1``, ``relu`` and ``fc2``.
        images: ``(N, 784)``, on the network's device.
        labels: ``(N,)``.

    Returns:
        The measures, on the device of the network.
    """
    # Not every device has float64.
    device = torch.device("cpu") if images.device.type == "mps" else images.device
    twin = copy.deepcopy(network).to(device, torch.float64)
    twin_images, twin_labels = images.to(device, torch.float64), labels.to(device)
    reference = gk.jacobian(twin, twin_images, method=REFERENCE)
    undecided = _undecided(twin, twin_images)

    def method_run(name: str) -> MethodRun:
        try:
            twin_value = gk.jacobian(twin, twin_images, method=name)
        except UnsupportedModelError as error:
            reasons = error.facts.get("reasons", {})
            return MethodRun(name, reason=reasons.get(name, error.message))
        value, seconds, peak = cost(lambda: gk.jacobian(network, images, method=name))
        difference = _difference(value, twin_value, reference, undecided)
        return MethodRun(name, None, seconds, peak, difference)

    values = _gradients(network, images, labels)
    twin_values = _gradients(twin, twin_images, twin_labels)
    truths = _truths(twin, twin_images, twin_labels, reference)
    with torch.no_grad():
        outputs = network(images)
    return Measures(
        images=images,
        labels=labels,
        outputs=outputs,
        losses=F.cross_entropy(outputs, labels, reduction="none"),
        quantities={
            name: Quantity(
                name,
                values[name],
                _difference(values[name], twin_values[name], truths[name], undecided),
            )
            for name in _TEXTS
        },
        jacobian=gk.jacobian(network, images),
        auto=gk.explain("jacobian", network, images).method,
        methods=tuple(method_run(method.name) for method in gk.METHODS.values()),
        undecided=undecided.to(images.device),
    )


def _gradients(network: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    loss = objectives.sample_loss(F.cross_entropy, y)
    first_loss = objectives.sample_loss(F.cross_entropy, y[:1])
    output_sum = objectives.output_sum
    class_score = objectives.class_score
    return {
        "loss": gk.input_gradients(network, x, loss),
        "output_sum": gk.input_gradients(network, x, output_sum),
        "class_score_2": gk.input_gradients(network, x, class_score(2)),
        "class_score_label": gk.input_gradients(network, x, class_score(y)),
        "single_sample": gk.input_gradients(network, x[:1], first_loss),
        "fc1": gk.input_gradients(network, x, output_sum, of="fc1"),
        "parameter_norms": gk.per_sample_gradients(network, x, loss).norms(),
    }


@torch.no_grad()
def _truths(
    network: nn.Sequential, x: Tensor, y: Tensor, J: Tensor
) -> dict[str, Tensor]:
    """Return what the gradients must equal, from ``J`` and the layers alone.

    With the cotangent ``c`` at a layer's output, the gradient of its weight is the
    outer product of ``c`` and the layer's input ``a``, that of its bias is ``c``:
    the squared norm of both together is ``|c|^2 (1 + |a|^2)``.
    """
    fc1, fc2 = network.get_submodule("fc1"), network.get_submodule("fc2")
    assert isinstance(fc1, nn.Linear)
    assert isinstance(fc2, nn.Linear)
    hidden = fc1(x).relu()
    scores = fc2(hidden)
    c2 = scores.softmax(1) - F.one_hot(y, scores.shape[1])
    c1 = (c2 @ fc2.weight) * (hidden > 0)
    loss = torch.einsum("nk,nkd->nd", c2, J)
    squares1 = c1.square().sum(1) * (1 + x.square().sum(1))
    squares2 = c2.square().sum(1) * (1 + hidden.square().sum(1))
    return {
        "loss": loss,
        "output_sum": J.sum(1),
        "class_score_2": J[:, 2],
        "class_score_label": J[torch.arange(len(y), device=y.device), y],
        "single_sample": loss[:1],
        "fc1": fc1.weight.sum(0).expand_as(x),
        "parameter_norms": (squares1 + squares2).sqrt(),
    }


@torch.no_grad()
def _undecided(network: nn.Sequential, x: Tensor) -> Tensor:
    """Return ``(N,)``, true where float32 may put a ReLU on its other side.

    There the Jacobian jumps. The error of a sum of ``n`` products, in any order, is
    at most ``n u / (1 - n u)`` times the sum of their magnitudes, with ``u`` half
    the spacing of numbers at 1.

    Source:
        Higham, "Accuracy and Stability of Numerical Algorithms", 2nd ed. (SIAM
        2002), section 3.1.
    """
    fc1 = network.get_submodule("fc1")
    assert isinstance(fc1, nn.Linear)
    rounding = (x.shape[1] + 1) * torch.finfo(torch.float32).eps / 2
    magnitudes = F.linear(x.abs(), fc1.weight.abs(), fc1.bias.abs())
    return (fc1(x).abs() <= rounding / (1 - rounding) * magnitudes).any(1)


def _difference(
    value: Tensor, twin_value: Tensor, truth: Tensor, undecided: Tensor
) -> Difference:
    largest = float(truth.abs().max()) or 1.0
    single, double = (
        (v.to(truth) - truth).abs().reshape(len(truth), -1).amax(1) / largest
        for v in (value, twin_value)
    )
    judged = single.masked_fill(undecided[: len(truth)], 0)
    agrees = float(judged.max()) <= TOLERANCES["float32"] and (
        float(double.max()) <= TOLERANCES["float64"]
    )
    return Difference(float(single.max()), float(double.max()), agrees)
