"""``check_gradients``: the derivatives of a function against differences of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from gradkit._call._public import public
from gradkit._dtypes import short
from gradkit.errors import AgreementError, InputError
from gradkit.testing._arguments import (
    MODES,
    opened,
    read_arguments,
    refuse_unchecked,
    refuse_unrepeatable,
)
from gradkit.testing._behaviour import check_behaviour
from gradkit.testing._examine import Examination
from gradkit.testing._messages import not_offered
from gradkit.testing._point import Point, Problem, flat
from gradkit.testing._report import Findings, GradientReport
from gradkit.testing._second import Second
from gradkit.testing._subject import Subject
from gradkit.testing._summary import report_of
from gradkit.testing._twin import Twin

__all__ = ["check_gradients"]


@public
def check_gradients(
    function: Callable[..., Any],
    inputs: Any,
    *,
    wrt: Any = None,
    reference: Callable[..., Any] | None = None,
    order: int = 1,
    modes: Sequence[str] = MODES,
    dtype: torch.dtype = torch.float64,
    directions: int = 8,
    seed: int = 0,
) -> GradientReport:
    """Check the derivatives of a function, and say which entry is wrong.

    With random ``u`` and ``v`` the numbers ``<v, J u>`` by differences, ``<Jᵀ v, u>``
    by reverse mode and ``J u`` by forward mode are compared. What they may differ by is
    measured: differences at seven step sizes show their own truncation and rounding.
    Where they differ by more, halving finds the entry.

    Everything runs on private copies: the function's ``.grad``, flags, buffers and
    random state stay as they are. At a kink (``relu`` at 0) any derivative between the
    one-sided ones is right, and the check goes on beside it.

    Args:
        function: A callable or module. Samples play no part: any shapes go in and out.
            A module's parameters are checked beside the inputs; a plain function's
            are what it is handed.
        inputs: A tensor of any shape, a sequence (``function(*inputs)``) or a mapping
            (``function(**inputs)``), nested as liked.
        wrt: Positions or names of inputs, names or globs of parameters. By default all
            floating inputs, and the parameters that require grad.
        reference: A plain version of ``function``, whose float64 derivatives by
            autograd are the truth. ``function`` then runs in the dtypes of ``inputs``,
            as kernels for float32 alone need. A module's parameters are taken from
            ``function``, by name.
        order: 2 also checks the derivative of ``Jᵀ v`` by the inputs, the parameters
            and ``v``.
        modes: Of ``"reverse"`` and ``"forward"``.
        dtype: What floating inputs, parameters and buffers are converted to:
            ``torch.float64``, or ``torch.float32`` with larger steps and tolerances.
        directions: How many random directions of all variables together; each variable
            also gets one of its own.
        seed: For the directions, and what ``torch.manual_seed`` gets before every
            evaluation, so that dropout is the same function each time.

    Returns:
        A ``GradientReport``, always true: what was checked, the largest differences,
        kinks, and what was skipped and why (no ``jvp``, a function that ``torch.func``
        does not take).

    Raises:
        AgreementError: A derivative is wrong. It carries ``variable``, ``index``,
            ``output``, ``output_index``, ``analytic``, ``numerical``, ``mode`` and
            ``order``. Or a custom Function writes to what it is given, or its backward
            gives another gradient where one variable alone requires grad, or where
            memory is not contiguous.
        InputError: An argument is not what it must be; the function does not repeat
            under one seed; nothing floating goes in or comes out.
        UnsupportedModelError: The function does not run in ``dtype``, or differences
            cannot decide; ``reference=`` can. None of ``modes`` has a derivative, or
            with ``order=2`` there is no second one (``once_differentiable``).

    Cost:
        Per direction and variable 14 evaluations, one backward and one forward-mode
        pass, whatever the sizes; three times that where a kink is met. With ``order=2``
        as many backwards again. With a custom Function one run more per variable and
        three for contiguity. An error costs ``log2`` of the sizes more, and up to
        50 differences for its hint.

    Example:
        >>> import torch
        >>> from gradkit.testing import check_gradients
        >>> print(check_gradients(torch.nn.Linear(3, 2), torch.ones(5, 3)))
        Linear: derivatives agree with differences of the function (order 1, float64)
          by inputs (5, 3), weight (2, 3), bias (2,)
          of output (5, 2)
          reverse: off by ... of the derivative (allowed ...)
          forward: off by ... of the derivative (allowed ...)
        >>> class Doubled(torch.autograd.Function):
        ...     @staticmethod
        ...     def forward(ctx, x):
        ...         return x.clone()
        ...
        ...     @staticmethod
        ...     def backward(ctx, cotangent):
        ...         return 2 * cotangent
        >>> try:
        ...     check_gradients(Doubled.apply, torch.tensor(1.0))
        ... except AssertionError as error:
        ...     print(error)
        check_gradients: reverse mode is wrong (order 1): d output / d inputs is 2
        against 1 (differences of the function, ± ...). Hint: it is 2 times what it
        should be

    Source:
        The comparison of ``<v, J u>`` with ``<Jᵀ v, u>``: Griewank and Walther,
        "Evaluating Derivatives", 2nd ed. (SIAM 2008), ch. 3. Error of differences:
        Ridders, Advances in Engineering Software 4 (1982). Checked in
        ``tests/test_testing_planted.py``.
    """
    chosen = read_arguments(function, order, modes, dtype, directions)
    generator = torch.Generator().manual_seed(seed)
    findings = Findings()
    if reference is not None:
        with Twin(function, reference, inputs, wrt, seed) as twin:
            twin.compare(chosen, order, directions, generator, findings)
            refuse_unchecked(chosen, order, findings.skipped)
            return report_of(function, twin.subject, twin.name, order, findings)
    with opened(function, inputs, wrt, dtype, seed) as subject:
        values = [v.value for v in subject.variables]
        refuse_unrepeatable(subject, values)
        _by_differences(subject, dtype, chosen, order, directions, generator, findings)
        refuse_unchecked(chosen, order, findings.skipped)
        return report_of(function, subject, _TRUTHS[1], order, findings)


_TRUTHS = {1: "differences of the function", 2: "differences of the first derivative"}


def _by_differences(
    subject: Subject,
    dtype: torch.dtype,
    modes: Sequence[str],
    order: int,
    directions: int,
    generator: torch.Generator,
    findings: Findings,
) -> None:
    point = _point(subject, dtype, findings)
    Examination(point, modes, 1, _TRUTHS[1], generator, findings).run(directions)
    cotangents = [
        torch.randn(p.shape, generator=generator, dtype=torch.float64)
        .to(value.device, value.dtype)
        for p, value in zip(subject.outputs, point.like, strict=True)
    ]  # fmt: skip
    if "reverse" in modes and "reverse" not in findings.skipped:
        _by_functorch(subject, point, cotangents, findings)
        # On a kink another layout may choose another derivative.
        at = point.shifted(generator) if findings.kinks else point
        check_behaviour(subject, at, cotangents, findings)
    if order == 2 and "reverse" in modes and "reverse" not in findings.skipped:
        second = _point(Second(subject, cotangents), dtype, findings)
        Examination(second, ["reverse"], 2, _TRUTHS[2], generator, findings).run(
            directions
        )


def _point(problem: Problem, dtype: torch.dtype, findings: Findings) -> Point:
    point = Point(problem, [v.value for v in problem.variables], dtype)
    broken = torch.nonzero(~point.centre.isfinite())[:, 0]
    if point.coarse:
        findings.notes.setdefault(
            f"it computes in {short(problem.lowest or dtype)} inside, and"
            " tolerances are those of that; pass reference= for a closer look"
        )
    if len(broken) and len(broken) == len(point.centre):
        raise InputError(
            "function must have finite values at inputs; got NaN or infinity alone."
            " Check it at a place inside its domain",
            argument="inputs",
        )
    if len(broken):
        findings.notes.setdefault(
            f"{len(broken)} of {len(point.centre)} values are NaN or infinite at the"
            " given inputs, and were left out"
        )
    return point


def _by_functorch(
    subject: Subject, point: Point, cotangents: Sequence[Tensor], findings: Findings
) -> None:
    """Compare ``torch.func`` with autograd, where it takes the function at all."""
    try:
        outputs, found = subject.transformed(point.values, cotangents)
    except Exception as error:
        findings.skipped["torch.func"] = (
            not_offered(error) or f"{type(error).__name__}: {str(error)[:200]}"
        )
        return
    if not point.same(list(outputs)):
        findings.skipped["torch.func"] = (
            "the function has other values there: it takes another path, or draws its"
            " random numbers in another order"
        )
        return
    usual = flat(subject.pullback(point.values, cotangents), point.inputs)
    other = flat(list(found), point.inputs)
    if not len(usual):
        return
    apart = (usual - other).abs()
    # Both were let pass within this; other kernels round in another way.
    allowed = findings.tolerance.get("reverse", 0.0) * usual.abs().max()
    if bool((apart > allowed).any()):
        worst = int((apart - allowed).argmax())
        raise AgreementError(
            "torch.func.vjp and autograd differ for the same function and cotangent:"
            f" entry {worst} of the gradient is {float(other[worst]):.10g} against"
            f" {float(usual[worst]):.10g}",
            mode="torch.func",
            order=1,
        )
