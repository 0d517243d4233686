"""What a type checker knows of each public function: pyright reads this file.

Functions without parameters are also called, by ``tests/test_types.py``, so that what
is declared is what comes. Lines that must be errors carry the rule that they break:
``reportUnnecessaryTypeIgnoreComment`` tells of one that has become right.
"""

# Some types that public functions return have no public name.
# pyright: strict, reportUnnecessaryTypeIgnoreComment=true, reportPrivateUsage=false

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, get_origin

import torch
from torch import Tensor, nn

import gradkit as gk
from gradkit import (
    errors,
    mnist,
    numerics,
    objectives,
    plots,
    quantities,
    reducers,
    saliency,
    testing,
)
from gradkit._problem._inputs import Shared
from gradkit.cli import main
from gradkit.numerics._promoting import Promoted
from gradkit.streaming._open import Column, Rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from typing_extensions import assert_type
else:

    def assert_type(value: Any, kind: Any) -> Any:
        """Refuse a value that is not what it is declared to be."""
        kind = type(None) if kind is None else kind
        whole = kind if isinstance(kind, UnionType) else get_origin(kind) or kind
        assert kind is Any or isinstance(value, whole), (type(value), kind)
        return value


MODEL = nn.Linear(3, 2)
X = torch.linspace(-1.0, 1.0, 15).reshape(5, 3)
LABELS = torch.tensor([0, 1, 0, 1, 1])
BATCHES = [(X, LABELS), (X + 1, LABELS)]
#: What a caller knows only when the program runs.
SOME: bool = len(X) > 3


# -- the four questions ----------------------------------------------------------------


def input_gradients() -> None:
    assert_type(gk.input_gradients(MODEL, X, 0), Tensor)
    assert_type(gk.input_gradients(MODEL, X, 0, wrt=0), Tensor)
    assert_type(gk.input_gradients(nn.Sequential(MODEL), X, 0, wrt="0"), Tensor)
    assert_type(gk.input_gradients(nn.Sequential(MODEL), X, 0, wrt=MODEL), Tensor)
    assert_type(gk.input_gradients(MODEL, X[0], 0, batched=False), Tensor)
    assert_type(gk.input_gradients(MODEL, X, 0, with_values=False), Tensor)
    # What follows the structure of inputs or of wrt is not declared.
    assert_type(gk.input_gradients(MODEL, (X,), 0), Any)
    assert_type(gk.input_gradients(MODEL, {"input": X}, 0), Any)
    assert_type(gk.input_gradients(MODEL, X, 0, wrt=[0]), Any)
    assert_type(gk.input_gradients(MODEL, X, 0, with_values=SOME), Any)
    found = assert_type(
        gk.input_gradients(MODEL, X, 0, with_values=True), gk.Derivative
    )
    assert_type(found.objective_values, Tensor | None)
    pair = gk.input_gradients(MODEL, (X,), 0, with_values=True)
    assert_type(pair, gk.Derivative)


def jacobian() -> None:
    # The model decides: its outputs may have any structure.
    assert_type(gk.jacobian(MODEL, X), Any)
    assert_type(gk.jacobian(MODEL, X, out=torch.empty(5, 2, 3)), Any)
    assert_type(gk.jacobian(MODEL, X, with_values=SOME), Any)
    assert_type(gk.jacobian(MODEL, X, with_values=True), gk.Derivative)
    assert_type(gk.jacobian(MODEL, (X,), with_values=True), gk.Derivative)


def parameters() -> None:
    first = objectives.class_score(0)
    rows = assert_type(gk.per_sample_gradients(MODEL, X, first), gk.ParameterJacobian)
    found = assert_type(gk.parameter_jacobian(MODEL, X), gk.ParameterJacobian)
    assert_type(found["weight"], Tensor)
    assert_type(found.norms(), Tensor)
    assert_type(found.norms(per_parameter=False), Tensor)
    assert_type(found.norms(per_parameter=True), dict[str, Tensor])
    assert_type(found.norms(per_parameter=SOME), Any)
    assert_type(found.project(2, seed=0), Tensor)
    assert_type(found.project(2, seed=0, per_parameter=True), dict[str, Tensor])
    assert_type(found.project(2, seed=0, per_parameter=SOME), Any)
    assert_type(found.gram(), Tensor)
    assert_type(found.matvec(found.sum()), Tensor)
    assert_type(found.rmatvec(torch.ones(5, 2)), dict[str, Tensor])
    assert_type(found.sum(), dict[str, Tensor])
    assert_type(rows.mean(), dict[str, Tensor])
    assert_type(rows.second_moment(), dict[str, Tensor])
    assert_type(rows.clipped_sum(1.0), dict[str, Tensor])
    assert_type(rows.flat(), Tensor)
    assert_type(rows.to_dict(), dict[str, Tensor])
    assert_type(rows.select("weight"), gk.ParameterJacobian)
    assert_type(rows.samples([0, 1]), gk.ParameterJacobian)
    assert_type(rows.columns, Mapping[str, slice])
    assert_type(rows.objective_values, Tensor | None)
    assert_type(rows.nbytes, int)


def plans_and_methods() -> None:
    plan = assert_type(gk.explain(gk.jacobian, MODEL, X), gk.Plan)
    assert_type(gk.explain("input_gradients", MODEL, X, 0), gk.Plan)
    assert_type(plan.reasons, Mapping[str, str | None])
    assert_type(gk.METHODS["vmap"], gk.Method)
    assert_type(next(iter(gk.RULES.values())), gk.Rule)
    assert_type(gk.rules_method(), gk.Method)
    assert_type(gk.shared(X), Shared)
    assert_type(gk.Subject(MODEL), gk.Subject)


def methods_of_ones_own(task: gk.Task) -> Iterator[gk.Block]:
    pulled = task.graph.pull(task.cotangents(slice(0, 1))[0])
    yield gk.Block(slice(0, task.samples), slice(0, 1), tuple(pulled))


# -- numerics, testing -----------------------------------------------------------------


def agreement() -> None:
    report = gk.compare_methods(gk.jacobian, MODEL, X, methods=["vmap"])
    assert_type(report, gk.AgreementReport)
    same = gk.assert_agreement(gk.jacobian, MODEL, X, methods=["vmap"])
    assert_type(same, gk.AgreementReport)
    assert_type(report.to_markdown(), str)
    assert_type(report.to_dict(), dict[str, Any])
    assert_type(gk.batch_consistency(MODEL, X), gk.BatchConsistencyReport)
    with gk.batch_invariant() as nothing:
        assert_type(nothing, None)
    with numerics.promoting() as promoted:
        assert_type(promoted, Promoted)


def numbers() -> None:
    assert_type(numerics.explain_difference(X, X), numerics.Difference)
    assert_type(numerics.explain_difference({"x": X}, {"x": X}), numerics.Difference)
    assert_type(numerics.dot_error_bound(X, X), Tensor)
    assert_type(numerics.linear_error_bound(X, MODEL.weight.detach()), Tensor)
    assert_type(numerics.gamma(3, torch.float32), float)
    assert_type(numerics.unit_roundoff(torch.float32), float)
    assert_type(numerics.ulp_distance(X, X), Tensor)


def checks() -> None:
    double = X.double()
    report = testing.check_gradients(torch.sin, double)
    assert_type(report, testing.GradientReport)
    assert_type(testing.assert_gradients_close(X, X), numerics.Difference)
    assert_type(testing.assert_no_trace(_shape, MODEL, X), int)


def _shape(model: Any, inputs: Any) -> int:
    return len(model(inputs))


# -- objectives, saliency --------------------------------------------------------------

_Objective = Callable[[Any], Tensor]


def objective_functions() -> None:
    assert_type(objectives.output_sum(X), Tensor)
    assert_type(objectives.weighted_sum([1.0, 2.0]), _Objective)
    assert_type(objectives.class_score(0), _Objective)
    assert_type(objectives.class_score((0, 1)), _Objective)
    assert_type(objectives.class_score(LABELS)(X), Tensor)
    loss = objectives.sample_loss(nn.CrossEntropyLoss(), LABELS)
    assert_type(loss, _Objective)
    assert_type(objectives.token_loss(LABELS[:, None]), _Objective)


def maps() -> None:
    zeros = torch.zeros(1, 3)
    assert_type(saliency.gradient(MODEL, X, 0), Tensor)
    assert_type(saliency.gradient(MODEL, (X,), 0), Any)
    assert_type(saliency.gradient_times_input(MODEL, X, 0), Tensor)
    assert_type(saliency.gradient_times_input(MODEL, (X,), 0), Any)
    relu = nn.Sequential(MODEL, nn.ReLU())
    assert_type(saliency.guided_backprop(relu, X, 0), Tensor)
    assert_type(saliency.guided_backprop(relu, (X,), 0), Any)
    assert_type(saliency.integrated_gradients(MODEL, X, 0, steps=2), Tensor)
    assert_type(saliency.integrated_gradients(MODEL, (X,), 0, steps=2), Any)
    expected = saliency.expected_gradients(MODEL, X, 0, baselines=zeros, draws=2)
    assert_type(expected, Tensor)
    several = saliency.expected_gradients(MODEL, (X,), 0, baselines=(zeros,), draws=2)
    assert_type(several, Any)
    assert_type(saliency.smoothgrad(MODEL, X, 0, draws=2), Tensor)
    assert_type(saliency.smoothgrad(MODEL, (X,), 0, draws=2), Any)
    assert_type(saliency.smoothgrad(relu, X, 0, draws=2, wrt="0"), Tensor)
    assert_type(saliency.occlusion(MODEL, X, 0, window=1), Tensor)
    convolution = nn.Conv1d(1, 2, 2)
    images = X[:, None]
    summed = nn.Sequential(convolution, nn.Flatten())
    assert_type(saliency.grad_cam(summed, images, 0, wrt="0"), Tensor)
    assert_type(saliency.METHODS["gradient"], Callable[..., Any])


def reduced_maps() -> None:
    image = X.reshape(1, 5, 3)
    assert_type(saliency.absolute(X), Tensor)
    assert_type(saliency.absolute((X, None)), Any)
    assert_type(saliency.channel_sum(image), Tensor)
    assert_type(saliency.channel_max(image), Tensor)
    assert_type(saliency.channel_norm(image), Tensor)


def checks_of_maps() -> None:
    found = saliency.gradient_times_input(MODEL, X, 0)
    assert_type(saliency.completeness_gap(found, MODEL, X, 0), Tensor)
    curve = assert_type(
        saliency.deletion_curve(found, MODEL, X, 0, steps=2), saliency.Curve
    )
    assert_type(saliency.insertion_curve(found, MODEL, X, 0, steps=2), saliency.Curve)
    assert_type(curve.area, Tensor)
    moved = saliency.sensitivity("gradient_times_input", MODEL, X, 0, draws=1)
    assert_type(moved, Tensor)
    report = saliency.randomization_check("gradient_times_input", MODEL, X, 0)
    assert_type(report, saliency.RandomizationReport)
    assert_type(report.depends, bool)


# -- whole data sets -------------------------------------------------------------------


def quantity_makers() -> None:
    assert_type(quantities.loss(MODEL), quantities.Quantity)
    assert_type(quantities.gradient_norm(MODEL), quantities.Quantity)
    assert_type(quantities.gradients(MODEL), quantities.Quantity)
    assert_type(quantities.projected_gradients(MODEL, 2), quantities.Quantity)
    assert_type(quantities.grand(MODEL), quantities.Quantity)
    assert_type(quantities.el2n(MODEL), quantities.Quantity)
    assert_type(quantities.jacobian_norm(MODEL), quantities.Quantity)
    assert_type(quantities.spectral_norm(MODEL), quantities.Quantity)
    noise = quantities.noise_scale(MODEL, BATCHES * 4, progress=False)
    assert_type(noise, reducers.NoiseScaleEstimate)


def reductions() -> None:
    mean, top = reducers.Mean(), reducers.TopK(2)
    loss = quantities.loss(MODEL)
    # The rows decide: they may be one tensor or several by name.
    assert_type(gk.reduce(loss, BATCHES, mean, progress=False), Any)
    several = gk.reduce(loss, BATCHES, {"mean": mean, "top": top}, progress=False)
    assert_type(several, dict[str, Any])
    with tempfile.TemporaryDirectory() as folder:
        kept = reducers.Checkpointed(mean, folder)
        assert_type(gk.reduce(loss, BATCHES, kept, progress=False), Any)


def streams() -> None:
    with tempfile.TemporaryDirectory() as folder:
        batches, store = BATCHES, Path(folder) / "rows"
        rows = gk.stream(quantities.loss(MODEL), batches, store, progress=False)
        assert_type(rows, Rows)
        again = assert_type(gk.open_rows(store), Rows)
        column = assert_type(again["rows"], Column)
        assert_type(column[:3], Tensor)
        assert_type(next(iter(column)), Tensor)
        assert_type(again[0], Any)
        assert_type(again[:2], Any)
        assert_type(len(again), int)
        assert_type(again.missing, list[range])


# -- figures, digits, the command ------------------------------------------------------


def figures(
    images: Tensor,
    found: Mapping[str, Tensor],
    curves: Mapping[str, saliency.Curve],
    reports: Mapping[str, saliency.RandomizationReport],
) -> None:
    assert_type(plots.curves(curves), Figure)
    assert_type(plots.randomization_cascade(reports), Figure)
    assert_type(plots.saliency_grid(images, found), Figure)
    assert_type(plots.jacobian_rows(images, images), Figure)
    ranked = plots.ranked_samples(images, images, samples=[0], name="loss", title="")
    assert_type(ranked, Figure)
    figure = plots.digit_gradients(
        images,
        labels=images,
        predictions=images,
        score_gradients=images,
        loss_gradients=images,
        norms=images,
        jacobian=images,
    )
    assert_type(figure, Figure)


def digits(folder: Path) -> None:
    data = assert_type(mnist.digits(folder), mnist.Digits)
    network = assert_type(mnist.network(seed=0), nn.Sequential)
    images, labels = data.train_images, data.train_labels
    assert_type(mnist.train(network, images, labels), mnist.History)
    assert_type(mnist.accuracy(network, images, labels), float)


def command() -> None:
    assert_type(main(["--version"]), int)
    error = errors.InputError("no", argument="x")
    assert_type(error.function, str | None)
    assert_type(error.facts, dict[str, Any])


# -- what must be an error -------------------------------------------------------------


def wrong_calls(pair: tuple[Tensor, Tensor]) -> None:
    """Say with a rule what a type checker must refuse."""
    gk.jacobian(MODEL)  # pyright: ignore[reportCallIssue]
    gk.jacobian(MODEL, X, 0)  # pyright: ignore[reportCallIssue]
    gk.jacobian(MODEL, X, steps=3)  # pyright: ignore[reportCallIssue]
    gk.jacobian(MODEL, X, out=pair)  # pyright: ignore[reportArgumentType]
    gk.input_gradients(MODEL, X, 0, method=3)  # pyright: ignore[reportCallIssue, reportArgumentType]
    gk.per_sample_gradients(MODEL, X, seed="0")  # pyright: ignore[reportArgumentType]
    gk.per_sample_gradients(MODEL, X, wrt=0)  # pyright: ignore[reportCallIssue]
    gk.parameter_jacobian(MODEL, X, max_memory=0.5)  # pyright: ignore[reportArgumentType]
    gk.shared([1.0])  # pyright: ignore[reportArgumentType]
    gk.reduce(len, BATCHES, "mean")  # pyright: ignore[reportCallIssue, reportArgumentType]
    objectives.class_score("cat")  # pyright: ignore[reportArgumentType]
    objectives.token_loss([[1]])  # pyright: ignore[reportArgumentType]
    saliency.gradient(MODEL, X)  # pyright: ignore[reportCallIssue]
    saliency.smoothgrad(MODEL, X, 0, noise="0.1")  # pyright: ignore[reportCallIssue, reportArgumentType]


def wrong_uses(rows: gk.ParameterJacobian, plan: gk.Plan, store: Rows) -> None:
    """Say the same of results."""
    gk.input_gradients(MODEL, X, 0).items()  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    found = gk.jacobian(MODEL, X, with_values=True)
    found.sum()  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    found.objective_values.sum()  # pyright: ignore[reportOptionalMemberAccess]
    rows.norms().items()  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    rows.norms(per_parameter=True).sum()  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    rows["weight"] = X  # pyright: ignore[reportIndexIssue]
    plan.samples = 3  # pyright: ignore[reportAttributeAccessIssue]
    gk.METHODS["mine"] = gk.rules_method()  # pyright: ignore[reportIndexIssue]
    store["loss"].mean()  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    saliency.smoothgrad(MODEL, X, 0).items()  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
