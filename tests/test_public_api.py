"""The public names, their signatures, and what an import brings."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gradkit

ROOT = Path(__file__).parents[1]
PACKAGE = Path(gradkit.__file__).parent

NAMES = {
    "METHODS",
    "RULES",
    "AgreementReport",
    "BatchConsistencyReport",
    "Block",
    "Derivative",
    "Method",
    "ParameterJacobian",
    "Plan",
    "Rule",
    "Subject",
    "Task",
    "assert_agreement",
    "batch_consistency",
    "batch_invariant",
    "compare_methods",
    "errors",
    "explain",
    "input_gradients",
    "jacobian",
    "mnist",
    "numerics",
    "objectives",
    "open_rows",
    "parameter_jacobian",
    "per_sample_gradients",
    "plots",
    "quantities",
    "reduce",
    "reducers",
    "rules_method",
    "saliency",
    "shared",
    "stream",
    "testing",
}
SIGNATURES = {
    "input_gradients": "(model, inputs, objective=None, *, wrt=None, of=None,"
    " batched=None, seed=None, method='auto', max_memory=None, with_values=False,"
    " create_graph=False)",
    "jacobian": "(model, inputs, *, wrt=None, of=None, batched=None, seed=None,"
    " method='auto', max_memory=None, out=None, with_values=False,"
    " create_graph=False)",
    "per_sample_gradients": "(model, inputs, objective=None, *, of=None,"
    " parameters=None, seed=None, method='auto', max_memory=None)",
    "parameter_jacobian": "(model, inputs, *, of=None, parameters=None, seed=None,"
    " method='auto', max_memory=None)",
    "shared": "(tensor)",
    "stream": "(compute, loader, store, *, identity=None, resume=True, progress=True)",
    "reduce": "(compute, loader, reducer, *, progress=True)",
    "open_rows": "(store)",
    "explain": "(function, model, inputs, *args, **kwargs)",
    "batch_consistency": "(model, inputs, *, derivative=None, objective=None,"
    " batch_sizes=(1,))",
    "batch_invariant": "()",
    "numerics.explain_difference": "(a, b, referee=None, *, terms=None, samples=None)",
    "saliency.gradient": "(model, inputs, objective, *, wrt=None, of=None,"
    " max_memory=None)",
    "saliency.gradient_times_input": "(model, inputs, objective, *, wrt=None, of=None,"
    " max_memory=None)",
    "saliency.guided_backprop": "(model, inputs, objective, *, wrt=None, of=None,"
    " max_memory=None)",
    "saliency.integrated_gradients": "(model, inputs, objective, *, baseline=0.0,"
    " steps=50, rule='gauss_legendre', max_gap=None, wrt=None, of=None,"
    " max_memory=None)",
    "saliency.expected_gradients": "(model, inputs, objective, *, baselines, draws=50,"
    " seed=0, wrt=None, of=None, max_memory=None)",
    "saliency.smoothgrad": "(model, inputs, objective, *, draws=50, noise=0.15,"
    " statistic='mean', seed=0, wrt=None, of=None, max_memory=None)",
    "saliency.grad_cam": "(model, inputs, objective, *, wrt, of=None)",
    "saliency.occlusion": "(model, inputs, objective, *, window, stride=None,"
    " baseline=0.0, of=None, max_memory=None)",
    "saliency.completeness_gap": "(attributions, model, inputs, objective, *,"
    " baseline=0.0, wrt=None, of=None)",
    "saliency.deletion_curve": "(attributions, model, inputs, objective, *, steps=28,"
    " baseline=0.0, of=None, max_memory=None)",
    "saliency.insertion_curve": "(attributions, model, inputs, objective, *, steps=28,"
    " baseline=0.0, of=None, max_memory=None)",
    "saliency.sensitivity": "(method, model, inputs, objective, *, noise=0.02,"
    " draws=10, seed=0, settings=None)",
    "saliency.randomization_check": "(method, model, inputs, objective, *, layers=None,"
    " order='cascade', threshold=0.5, seed=0, settings=None)",
    "objectives.weighted_sum": "(weights)",
    "objectives.class_score": "(index)",
    "objectives.sample_loss": "(criterion, targets, *, reduction=None)",
    "objectives.token_loss": "(labels, *, shift=False, ignore_index=-100,"
    " reduction='mean')",
}
# Optional dependencies, and the old home of torch.func.
UNWANTED = ("matplotlib", "mlxtend", "zarr", "fsspec", "functorch")


# --- names and signatures -------------------------------------------------------


def test_public_names() -> None:
    assert sorted(gradkit.__all__) == sorted(NAMES)
    assert len(set(gradkit.__all__)) == len(gradkit.__all__)


@pytest.mark.parametrize("name", sorted(NAMES))
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(gradkit, name) is not None
    assert name in dir(gradkit)


@pytest.mark.parametrize("name", sorted(SIGNATURES))
def test_signature(name: str) -> None:
    assert bare_signature(resolve(name)) == SIGNATURES[name]


def resolve(name: str) -> Callable[..., object]:
    value: object = gradkit
    for part in name.split("."):
        value = getattr(value, part)
    assert callable(value)
    return value


def bare_signature(function: Callable[..., object]) -> str:
    """Return a signature without its annotations."""
    signature = inspect.signature(function)
    bare = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in signature.parameters.values()
    ]
    return str(inspect.Signature(bare))


def test_registries_cannot_be_changed() -> None:
    methods: Any = gradkit.METHODS
    with pytest.raises(TypeError):
        methods["mine"] = methods["loop"]
    with pytest.raises(AttributeError):
        methods["loop"].name = "another"


# --- what an import brings, what a wheel holds ----------------------------------


def unwanted_after(statement: str) -> set[str]:
    """Return which of ``UNWANTED`` a fresh interpreter has loaded after a statement."""
    return packages_after(statement) & set(UNWANTED)


def test_import_brings_no_optional_dependency() -> None:
    assert unwanted_after("import gradkit") == set()


def test_an_optional_dependency_that_is_imported_is_found() -> None:
    assert unwanted_after("import gradkit, matplotlib") == {"matplotlib"}


def packages_after(statement: str) -> set[str]:
    """Return the packages that a fresh interpreter has loaded after a statement."""
    listed = "{name.partition('.')[0] for name in sys.modules}"
    script = f"import sys; {statement}; print(*{listed})"
    printed = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout
    return set(printed.split()) - set(sys.stdlib_module_names)


def added_to_torch(statement: str) -> set[str]:
    """Return the packages that a statement loads and ``import torch`` does not."""
    return packages_after(f"import torch; {statement}") - packages_after("import torch")


def test_import_adds_to_torch_what_is_required_alone() -> None:
    found = added_to_torch("import gradkit")
    assert "gradkit" in found
    assert found <= {"gradkit", "numpy", "tqdm"}


def test_another_package_that_is_imported_is_found() -> None:
    assert "hypothesis" in added_to_torch("import gradkit, hypothesis")


def test_import_works_without_the_optional_dependencies() -> None:
    blocked = "; ".join(f"sys.modules[{name!r}] = None" for name in UNWANTED)
    use = "import gradkit; assert all(hasattr(gradkit, n) for n in gradkit.__all__)"
    run = subprocess.run(
        [sys.executable, "-c", f"import sys; {blocked}; {use}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.returncode, run.stderr) == (0, "")
