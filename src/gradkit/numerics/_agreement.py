"""Every method beside a float64 referee: rounding, a convention, or a fault."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gradkit._call._open import Call, open_call
from gradkit._call._request import named
from gradkit._dtypes import short
from gradkit._explain import asked_function, is_model, request_of
from gradkit._guards._custom import custom_name, custom_nodes
from gradkit._hints import in_order
from gradkit._methods import METHODS, read_method
from gradkit._methods._method import Method
from gradkit.errors import AgreementError, InputError
from gradkit.numerics._measured import judged
from gradkit.numerics._report import AgreementReport
from gradkit.numerics._truth import truth_of

__all__ = ["assert_agreement", "compare_methods"]

_WORDS = {
    "different": "is different",
    "convention": "follows another convention",
    "overflow": "overflows",
}


@in_order(is_model, "write gk.compare_methods(gk.jacobian, model, inputs)")
def compare_methods(
    function: Callable[..., Any] | str,
    model: Any,
    inputs: Any,
    *args: Any,
    methods: Any = METHODS,
    referee: str = "float64",
    **kwargs: Any,
) -> AgreementReport:
    """Return how far each method's rows are from a float64 referee's, and why.

    The referee computes the rows in float64, also where the model casts inside. What
    rounding may come to is measured, not guessed: the referee is run again with an
    error put into every operation, as large as rounding in the model's own precision
    makes it, and the spread of the rows is each entry's own bound.

    Args:
        function: One of the four functions, or its name.
        model: As in the call: maps ``(N, *in)`` to ``(N, *out)``.
        inputs: As in the call: a tensor ``(N, *in)``, a sequence or a mapping.
        *args: As in the call.
        methods: The methods to compare: names, ``gk.Method`` values, or a mapping of
            them.
        referee: ``"float64"``.
        **kwargs: As in the call.

    Returns:
        An ``AgreementReport``, true when no method is different. For each method: the
        time, the largest error, absolute and relative, in units in the last place,
        and a verdict: *equal* (bit for bit), *rounding*, *branch* (rounding changed a
        decision, such as the sign at a ReLU, and the rows are those of the other
        decision), *convention* (a known fork: ``no_grad`` in forward mode,
        ``padding_idx``, a tie), *overflow* (the model's own precision cannot hold a
        number of it), *unresolved* (the referee itself stayed below
        float64), or *different*, then with what the difference looks like. A method
        that does not apply is *skipped*, with the reason. The backward of a custom
        ``autograd.Function`` is every method's and the referee's: a note says so.

    Raises:
        InputError: An argument is not what the call takes, or six copies of the rows
            in float64 do not fit ``max_memory``.
        SampleDependenceError: The model or the objective couples samples.
        UnsupportedModelError: The model has no derivative here.

    Cost:
        One run of each method, and seventeen of a one-hot loop in float64.

    Example:
        >>> import torch
        >>> import gradkit as gk
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Sequential(torch.nn.Linear(9, 8), torch.nn.Tanh())
        >>> report = gk.compare_methods(gk.jacobian, model, torch.randn(5, 9))
        >>> bool(report), report["loop"].verdict, report["rules"].verdict
        (True, 'rounding', 'skipped')

    Source:
        Higham, "Accuracy and Stability of Numerical Algorithms", 2nd ed. (SIAM 2002),
        ch. 3; Parker, "Monte Carlo Arithmetic" (1997). See ``docs/numerics.md``.
    """
    return _compare("compare_methods", function, model, inputs, args, methods,
                    referee, kwargs)  # fmt: skip


@in_order(is_model, "write gk.assert_agreement(gk.jacobian, model, inputs)")
def assert_agreement(
    function: Callable[..., Any] | str,
    model: Any,
    inputs: Any,
    *args: Any,
    methods: Any = METHODS,
    referee: str = "float64",
    **kwargs: Any,
) -> AgreementReport:
    """Raise unless all methods agree with a float64 referee to rounding.

    Args:
        function: One of the four functions, or its name.
        model: As in the call: maps ``(N, *in)`` to ``(N, *out)``.
        inputs: As in the call: a tensor ``(N, *in)``, a sequence or a mapping.
        *args: As in the call.
        methods: The methods to compare.
        referee: ``"float64"``.
        **kwargs: As in the call.

    Returns:
        The report of ``compare_methods``, which is true.

    Raises:
        AgreementError: A method is *different*, follows another *convention*, or
            *overflow* spoils it; the text names the worst entry, both values, and
            what the difference looks like. ``report`` is the whole report.
        InputError: As ``compare_methods``.
        SampleDependenceError: As ``compare_methods``.
        UnsupportedModelError: As ``compare_methods``.

    Cost:
        That of ``compare_methods``.

    Example:
        >>> import torch
        >>> import gradkit as gk
        >>> model, x = torch.nn.Linear(9, 8), torch.randn(5, 9)
        >>> bool(gk.assert_agreement(gk.parameter_jacobian, model, x))
        True
    """
    report = _compare("assert_agreement", function, model, inputs, args, methods,
                      referee, kwargs)  # fmt: skip
    if report:
        return report
    texts = []
    if not report.disagreeing:
        texts = [f"{m.name!r} cannot be compared: {m.reason}" for m in report.methods]
    for method in report.disagreeing:
        found = [str(method.worst)] if method.worst else []
        why = "; ".join([*filter(None, [method.reason]), *method.hints])
        found += [why[:1].upper() + why[1:]] if why else []
        texts.append(f"{method.name!r} {_WORDS[method.verdict]}: {'. '.join(found)}")
    error = AgreementError(
        f"the methods of {report.function} must agree with {report.referee} to"
        f" rounding; {'. '.join(texts)}",
        report=report,
    )
    error.function = "assert_agreement"
    raise error


def _compare(
    name: str,
    function: Any,
    model: Any,
    inputs: Any,
    args: tuple[Any, ...],
    methods: Any,
    referee: str,
    kwargs: dict[str, Any],
) -> AgreementReport:
    with named(name):
        chosen = asked_function(function)
        if referee != "float64":
            raise InputError(f"referee must be 'float64'; got {referee!r}",
                             argument="referee")  # fmt: skip
        for argument in ("method", "create_graph"):
            if argument in kwargs:
                raise InputError(
                    f"{argument} has no meaning here, where all methods are run one by"
                    " one; choose among them with methods=",
                    argument=argument,
                )
        compared = _read(chosen.__name__, methods)
    with named(chosen.__name__):
        request = request_of(chosen, chosen.__name__, model, inputs, args, kwargs)
        with open_call(request) as call:
            return _report(call, compared)


def _read(function: str, methods: Any) -> list[Method]:
    """Return the methods, each once."""
    given: Iterable[Any] = methods.values() if isinstance(methods, Mapping) else methods
    if isinstance(methods, (str, Method)):
        given = (methods,)
    elif not isinstance(given, Iterable):
        raise InputError(
            "methods must be names, gk.Method values or a mapping of them; got"
            f" {type(methods).__name__}",
            argument="methods",
        )
    found: dict[str, Method] = {}
    for method in given:
        first, *_ = read_method(function, method)
        found[first.name] = first
    if not found:
        raise InputError("methods must name at least one; got none", argument="methods")
    return list(found.values())


def _report(call: Call, methods: list[Method]) -> AgreementReport:
    if not call.task.samples * call.task.rows:
        raise InputError("inputs must hold at least one sample and give one output;"
                         " there is nothing to compare", argument="inputs")  # fmt: skip
    custom = dict.fromkeys(map(custom_name, custom_nodes(
        t.grad_fn for t in call.task.graph.outputs.tensors
    )))  # fmt: skip
    truth = truth_of(call, lambda n: call.planner.watched("referee", n))
    reports = tuple(judged(call, method, truth) for method in methods)
    return AgreementReport(
        function=call.request.function,
        referee="the float64 referee",
        dtype=short(truth.dtype),
        samples=call.task.samples,
        methods=reports,
        branches={
            f"{operation} of {module!r}" if module else operation: count
            for (module, operation), count in truth.flips.items()
        },
        conventions=tuple(truth.conventions.values()),
        lower=truth.lower,
        custom=tuple(custom),
    )
