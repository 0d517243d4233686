"""Every public docstring says shapes, errors and cost, and shows a value."""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import docstrings
import gradkit as gk
from docstrings import (
    COSTLY,
    WELCOMING,
    class_faults,
    function_faults,
    items,
    member_faults,
    module_faults,
    public_classes,
    public_functions,
    public_members,
    public_modules,
    sections,
)

FUNCTIONS, CLASSES, MEMBERS = public_functions(), public_classes(), public_members()
MODULES = public_modules()
#: Functions that take anything, and refuse when what they return is used.
LATER = {"objectives.class_score"}


# --- the surface ------------------------------------------------------------------


def test_the_surface_is_found() -> None:
    assert {"jacobian", "open_rows", "shared", "objectives.token_loss"} <= set(
        FUNCTIONS
    )
    assert {"batch_invariant", "numerics.promoting", "plots.curves"} <= set(FUNCTIONS)
    assert {"Block", "errors.StaleError", "open_rows.Column", "Task"} <= set(CLASSES)
    members = {
        "ParameterJacobian.columns",  # a property
        "ParameterJacobian.norms",  # of a base class
        "quantities.Quantity.__call__",
        "reducers.TopK.merge",  # inherits its docstring, too
    }
    assert members <= set(MEMBERS)
    assert {"gradkit", "errors", "plots", "saliency", "mnist"} <= set(MODULES)
    assert not {"Method.unsupported", "Block.count", "Block.index"} & set(MEMBERS)


def test_what_is_named_here_is_there() -> None:
    costly = {f"{owner}.{name}" for owner, names in COSTLY.items() for name in names}
    assert costly <= set(MEMBERS)
    assert {*FUNCTIONS, *MEMBERS} >= WELCOMING
    assert set(FUNCTIONS) >= LATER


# --- what is written ----------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_function(name: str) -> None:
    refuses = name not in WELCOMING
    assert function_faults(FUNCTIONS[name], refuses=refuses) == []


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_class(name: str) -> None:
    assert class_faults(CLASSES[name]) == []


@pytest.mark.parametrize("name", sorted(MEMBERS))
def test_member(name: str) -> None:
    _, own, function, is_property = MEMBERS[name]
    faults = member_faults(
        function,
        is_property=is_property,
        costly=own in COSTLY.get(name.rpartition(".")[0], ()),
        refuses=name not in WELCOMING,
    )
    assert faults == []


@pytest.mark.parametrize("name", sorted(MODULES))
def test_module(name: str) -> None:
    assert module_faults(MODULES[name]) == []


# --- what is raised -------------------------------------------------------------------


def required(function: Callable[..., object]) -> dict[str, inspect.Parameter]:
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {
        name: p
        for name, p in inspect.signature(function).parameters.items()
        if p.default is p.empty and p.kind not in variadic
    }


def raised_by(call: Callable[[], object]) -> set[str]:
    """Return the names of the error that a call raises, and of its bases."""
    with pytest.raises(Exception) as caught:  # noqa: PT011
        call()
    return {kind.__name__ for kind in caught.type.__mro__[:-3]}


def told_by(name: str) -> set[str]:
    docstring = inspect.getdoc(FUNCTIONS[name]) or ""
    return set(items(sections(docstring).get("Raises", "")))


@pytest.mark.parametrize(
    "name", [n for n, f in FUNCTIONS.items() if required(f) and n not in LATER]
)
def test_nonsense_raises_what_is_written(name: str) -> None:
    found = {}
    for argument, parameter in required(FUNCTIONS[name]).items():
        by_name = parameter.kind is parameter.KEYWORD_ONLY
        found[argument] = by_name, object()
    given = [value for by_name, value in found.values() if not by_name]
    named = {n: value for n, (by_name, value) in found.items() if by_name}
    raised = raised_by(lambda: FUNCTIONS[name](*given, **named))
    assert raised & told_by(name)


class Writing(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        with torch.no_grad():
            self.weight.mul_(1.0)
        return super().forward(input)


def mixing() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))


def refused_calls(x: Tensor, y: Tensor) -> dict[str, Callable[[Any], object]]:
    """Return a call of every function that takes a model, which refuses some."""
    score = gk.objectives.class_score(1)
    maps = gk.saliency
    calls: dict[str, Callable[[Any], object]] = {
        "input_gradients": lambda m: gk.input_gradients(m, x, 1),
        "jacobian": lambda m: gk.jacobian(m, x),
        "per_sample_gradients": lambda m: gk.per_sample_gradients(m, x, score),
        "parameter_jacobian": lambda m: gk.parameter_jacobian(m, x),
        "explain": lambda m: gk.explain("jacobian", m, x),
        "compare_methods": lambda m: gk.compare_methods("jacobian", m, x),
        "assert_agreement": lambda m: gk.assert_agreement("jacobian", m, x),
        "saliency.expected_gradients": lambda m: maps.expected_gradients(
            m, x, 1, baselines=x
        ),
        "saliency.grad_cam": lambda m: maps.grad_cam(
            nn.Sequential(nn.Unflatten(1, (3, 1)), nn.Flatten(), m), x, 1, wrt="0"
        ),
        "saliency.occlusion": lambda m: maps.occlusion(m, x, 1, window=1),
        "saliency.sensitivity": lambda m: maps.sensitivity("gradient", m, x, 1),
        "saliency.randomization_check": lambda m: maps.randomization_check(
            "gradient", m, x, 1
        ),
        "quantities.projected_gradients": lambda m: gk.quantities.projected_gradients(
            m, 4
        )((x, y)),
        "quantities.noise_scale": lambda m: gk.quantities.noise_scale(
            m, [(x, y)] * 9, progress=False
        ),
        "reduce": lambda m: gk.reduce(
            gk.quantities.loss(m), [(x, y)] * 2, gk.reducers.Mean(), progress=False
        ),
        "stream": lambda m: streamed(m, x, y),
    }
    for name in ("gradient", "gradient_times_input", "guided_backprop",
                 "integrated_gradients", "smoothgrad"):  # fmt: skip
        calls[f"saliency.{name}"] = partial(mapped, getattr(maps, name), x)
    for name in ("completeness_gap", "deletion_curve", "insertion_curve"):
        calls[f"saliency.{name}"] = partial(curved, getattr(maps, name), x)
    for name in ("loss", "gradient_norm", "gradients", "grand", "el2n",
                 "jacobian_norm", "spectral_norm"):  # fmt: skip
        calls[f"quantities.{name}"] = partial(
            asked, getattr(gk.quantities, name), (x, y)
        )
    return calls


def mapped(function: Callable[..., object], x: Tensor, model: nn.Module) -> None:
    function(model, x, 1)


def curved(function: Callable[..., object], x: Tensor, model: nn.Module) -> None:
    function(x, model, x, 1)


def asked(quantity: Callable[..., Any], batch: Any, model: nn.Module) -> None:
    quantity(model)(batch)


def streamed(model: nn.Module, x: Tensor, y: Tensor) -> None:
    pytest.importorskip("zarr", minversion="3", reason="Python 3.10 has no zarr 3")
    with tempfile.TemporaryDirectory() as folder:
        gk.stream(gk.quantities.loss(model), [(x, y)] * 2, folder, progress=False)


CALLS = refused_calls(torch.rand(5, 3), torch.tensor([0, 1, 1, 0, 1]))


@pytest.mark.parametrize("name", sorted(CALLS))
@pytest.mark.parametrize(
    ("make", "error"),
    [
        (mixing, "SampleDependenceError"),
        (lambda: Writing(3, 2), "UnsupportedModelError"),
    ],
    ids=["mixing", "writing"],
)
def test_a_refused_model_raises_what_is_written(
    name: str, make: Callable[[], nn.Module], error: str
) -> None:
    assert error in raised_by(lambda: CALLS[name](make()))
    assert error in told_by(name)


# --- each fault is found -----------------------------------------------------


def good(tensor: Tensor) -> Tensor:
    """Return a tensor.

    Args:
        tensor: ``(N, *in)``.

    Returns:
        ``(N, *in)``.

    Raises:
        InputError: It is none.

    Cost:
        None.

    Example:
        >>> 1 + 1
        2
    """
    if not isinstance(tensor, Tensor):
        raise gk.errors.InputError("tensor must be one")
    return tensor


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("a tensor.", "a tensor", "no summary in one line"),
        ("a tensor.\n", "a tensor.\nAnd more.", "no summary in one line"),
        ("Cost:\n    None.", "", "no Cost"),
        ("None.", "", "Cost is empty"),
        ("Raises:\n    InputError: It is none.", "", "no Raises"),
        ("InputError: It", "NoError: It", "Raises names NoError, which is no error"),
        ("InputError: It", "ValueError: It", "Raises lacks InputError"),
        ("Returns:\n    ``(N, *in)``.", "", "no Returns"),
        ("Returns:\n    ``(N, *in)``.", "Returns:\n    It.", "Returns has no shape"),
        ("tensor: ``(N, *in)``.", "tensor: One.", "tensor has no shape"),
        ("tensor: ``(N, *in)``.", "tensor: ``(N,)``", "tensor is described by no"),
        ("tensor: ``(N, *in)``.", "t: ``(N,)``.", "Args describes ['t']"),
        ("tensor: ``(N, *in)``.", "tensor: ``(N, Q)``.", "Args has a shape (N, Q)"),
        ("None.", "As in ``gk.nothing``.", "refers to gk.nothing, which is nowhere"),
        ("None.", "As in :func:`jacobian`.", "a role"),
        (">>> 1 + 1", "1 + 1", "no Example that runs"),
        ("\n    2", "", "Example shows no value"),
        ("Cost:", "Price:", "unknown sections ['Price']"),
        ("Cost:\n    None.", "Source:\n    X.\n\nCost:\n    0.", "sections come as"),
    ],
)
def test_a_fault_of_a_function_is_found(
    old: str, new: str, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    docstring = inspect.getdoc(good) or ""
    assert docstrings.function_faults(good) == []
    assert docstring.count(old) == 1 or old == "\n    2"
    monkeypatch.setattr(good, "__doc__", docstring.replace(old, new))
    assert any(found.startswith(fault) for found in function_faults(good))


def test_a_function_that_refuses_nothing_needs_no_errors() -> None:
    def quiet() -> None:
        """Do nothing.

        Cost:
            None.

        Example:
            >>> 1 + 1
            2
        """

    assert function_faults(quiet) == ["no Raises"]
    assert function_faults(quiet, refuses=False) == []


def test_a_fault_of_a_class_is_found() -> None:
    class Undocumented(NamedTuple):
        rows: Tensor

    @dataclass
    class Poor:
        """Two things.

        Attributes:
            values: Some.
        """

        values: Tensor
        other: int

    assert class_faults(Undocumented) == [
        "no summary in one line",
        "no Example that runs",
        "rows is not described",
    ]
    assert class_faults(Poor) == [
        "no Example that runs",
        "values has no shape",
        "other is not described",
    ]


def test_a_fault_of_a_member_is_found() -> None:
    class Kind:
        def bare(self, rows: Tensor) -> Tensor:
            """Return ``rows``."""
            return rows

        @property
        def area(self) -> Tensor:
            """The area."""
            return torch.zeros(())

        def undocumented(self) -> None: ...

    assert member_faults(Kind.bare, costly=True) == [
        "Args describes []",
        "no Returns",
        "no Raises",
        "no Cost",
    ]
    area = Kind.area.fget
    assert area is not None
    assert member_faults(area, is_property=True) == ["no shape"]
    assert member_faults(Kind.undocumented) == ["no summary in one line"]


def test_a_fault_of_a_module_is_found() -> None:
    module = ModuleType("poor", "What :func:`jacobian` is for")
    assert module_faults(module) == [
        "no summary in one line",
        "a role, which is printed as it is",
    ]
    assert module_faults(ModuleType("bare")) == ["no summary in one line"]


def test_a_method_inherits_its_docstring() -> None:
    assert inspect.getdoc(gk.reducers.TopK.merge) == inspect.getdoc(
        gk.reducers.Reducer.merge
    )
