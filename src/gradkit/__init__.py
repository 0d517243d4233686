"""Gradients and Jacobians of PyTorch models, per sample: right, or refused.

| | one number per sample (an *objective*) | every output |
|---|---|---|
| **by the inputs** | `input_gradients` | `jacobian` |
| **by the parameters** | `per_sample_gradients` | `parameter_jacobian` |
"""

from gradkit import errors, mnist, objectives
from gradkit._explain import explain
from gradkit._gradients import input_gradients, per_sample_gradients
from gradkit._jacobian import jacobian, parameter_jacobian
from gradkit._methods import METHODS, rules_method
from gradkit._methods._method import Method
from gradkit._methods._task import Task
from gradkit._parameter_jacobian._mapping import ParameterJacobian
from gradkit._plan import Plan
from gradkit._problem._block import Block
from gradkit._problem._derivative import Derivative
from gradkit._problem._inputs import shared
from gradkit._rules import RULES
from gradkit._rules._rule import Rule

__all__ = [
    "METHODS",
    "RULES",
    "Block",
    "Derivative",
    "Method",
    "ParameterJacobian",
    "Plan",
    "Rule",
    "Task",
    "errors",
    "explain",
    "input_gradients",
    "jacobian",
    "mnist",
    "objectives",
    "parameter_jacobian",
    "per_sample_gradients",
    "rules_method",
    "shared",
]
