"""CASES: every kind of model, input and output that the four questions are asked of.

Sizes differ on every axis: with square shapes a transposed result has the right
shape, and with a symmetric weight the right values.
"""

from __future__ import annotations

from case import Case
from cases_of_functions import function_cases
from cases_of_networks import network_cases
from cases_of_parameters import parameter_cases
from cases_of_structures import structure_cases

CASES: tuple[Case, ...] = (
    *function_cases(),
    *network_cases(),
    *structure_cases(),
    *parameter_cases(),
)
