"""Gradients and Jacobians of PyTorch models, per sample: right, or refused.

| | one number per sample (an *objective*) | every output |
|---|---|---|
| **by the inputs** | `input_gradients` | `jacobian` |
| **by the parameters** | `per_sample_gradients` | `parameter_jacobian` |
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gradkit import errors, mnist, objectives
from gradkit._explain import explain
from gradkit._gradients import input_gradients, per_sample_gradients
from gradkit._jacobian import jacobian, parameter_jacobian
from gradkit._methods import METHODS, rules_method
from gradkit._methods._method import Method
from gradkit._methods._task import Task
from gradkit._offered import offering
from gradkit._parameter_jacobian._mapping import ParameterJacobian
from gradkit._plan import Plan
from gradkit._problem._block import Block
from gradkit._problem._derivative import Derivative
from gradkit._problem._inputs import shared
from gradkit._rules import RULES
from gradkit._rules._rule import Rule
from gradkit._subject import Subject
from gradkit._version import version

if TYPE_CHECKING:
    __version__: str
    from gradkit import numerics, plots, saliency, testing
    from gradkit.numerics._agreement import assert_agreement, compare_methods
    from gradkit.numerics._consistency import batch_consistency
    from gradkit.numerics._consistency_report import BatchConsistencyReport
    from gradkit.numerics._invariant import batch_invariant
    from gradkit.numerics._report import AgreementReport
    from gradkit.streaming import quantities, reducers
    from gradkit.streaming._open import open_rows
    from gradkit.streaming._reduce import reduce
    from gradkit.streaming._stream import stream

__all__ = [
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
]

#: What is imported when it is asked for, since many programs never do.
_LATER = {
    "AgreementReport": "gradkit.numerics._report",
    "BatchConsistencyReport": "gradkit.numerics._consistency_report",
    "assert_agreement": "gradkit.numerics._agreement",
    "batch_consistency": "gradkit.numerics._consistency",
    "batch_invariant": "gradkit.numerics._invariant",
    "compare_methods": "gradkit.numerics._agreement",
    "numerics": "gradkit.numerics",
    "open_rows": "gradkit.streaming._open",
    "plots": "gradkit.plots",
    "quantities": "gradkit.streaming.quantities",
    "reduce": "gradkit.streaming._reduce",
    "reducers": "gradkit.streaming.reducers",
    "saliency": "gradkit.saliency",
    "stream": "gradkit.streaming._stream",
    "testing": "gradkit.testing",
}

#: What answers what other libraries name, or do, by other names.
_ELSEWHERE = {
    "fisher": "the diagonal of the empirical Fisher matrix is"
    " gk.per_sample_gradients(model, x, objective).second_moment()",
    **dict.fromkeys(
        ("grad", "gradient", "gradients", "value_and_grad"),
        "gk.input_gradients(model, x, objective) is by the inputs,"
        " gk.per_sample_gradients(model, x, objective) by the parameters",
    ),
    **dict.fromkeys(
        ("grad_sample", "per_sample_grads"),
        "write gk.per_sample_gradients(model, x, objective)",
    ),
    "hessian": "write gk.jacobian(lambda x: gk.input_gradients(f, x,"
    " create_graph=True), x)",
    "influence": "inner products of gradients are gk.per_sample_gradients(model, x,"
    " objective).gram(others)",
    **dict.fromkeys(("jacfwd", "jacrev"), "write gk.jacobian(model, x)"),
    "jvp": "by the parameters write gk.parameter_jacobian(model, x).matvec(v)",
    "neuron_gradient": "write gk.input_gradients(model, x, 3, of='layer')",
    "ntk": "write gk.parameter_jacobian(model, x).gram()",
    "vjp": "write gk.input_gradients(model, x, gk.objectives.weighted_sum(v)); by the"
    " parameters gk.parameter_jacobian(model, x).rmatvec(v)",
    **{
        name: f"it is gk.saliency.{name}"
        for name in ("grad_cam", "integrated_gradients", "occlusion", "smoothgrad")
    },
}
_missing, _offered = offering(globals(), _ELSEWHERE)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return version()
    if name not in _LATER:
        return _missing(name)
    found: Any = import_module(_LATER[name])
    found = found if _LATER[name].endswith(f".{name}") else getattr(found, name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*_offered(), "__version__"})
