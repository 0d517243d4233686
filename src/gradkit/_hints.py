"""What wrong guesses of names are answered with: the name that is meant here."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import wraps
from types import MappingProxyType
from typing import Any, NoReturn, ParamSpec, TypeVar

from gradkit._offered import close
from gradkit.errors import InputError

__all__ = ["hinted", "in_order", "refuse_unknown"]

Result = TypeVar("Result")
Given = ParamSpec("Given")

_SAMPLE_LOSS = "objective=gk.objectives.sample_loss(criterion, y)"
_MEMORY = "here it is max_memory=, in bytes"
_WHOLE = "resume=False refuses a store that has rows, and nothing is ever overwritten"
_DIM = "the norm of a row is over all its entries; per_parameter=True takes them apart"
_OBJECTIVE = (
    ("wrt", f"pass objective=3 for the score of class 3, or {_SAMPLE_LOSS} for a loss"),
    ("objective", f"pass {_SAMPLE_LOSS}"),
)
_LOSS = (("criterion", "here it is 'criterion'"), ("objective", f"pass {_SAMPLE_LOSS}"))
_TARGETS = (
    ("targets", "here it is 'targets'"),
    ("labels", "here it is 'labels'"),
    ("split", "targets come from the batch: pass split=lambda b: (b[0], b[1])"),
    *_OBJECTIVE,
)
_LAYER = (
    ("wrt", "here it is 'wrt', the layer to differentiate by; a layer or neuron to"
     " differentiate itself is chosen by of="),
    ("parameters", "here it is 'parameters', names or globs"),
)  # fmt: skip
_NEURON = (
    ("objective", "pass objective=3 for the score of output 3; of= chooses a layer"),
    ("of", "a layer's outputs, or one of several outputs, are chosen by of="),
)
_SIZE = (("size", "here it is 'size'"),)
_STORE = (("store", "here it is 'store'"),)
_RESUME = (("resume", f"{_WHOLE}: name another folder for another store"),)
_VALUES = (
    ("with_values", "here it is 'with_values'"),
    ("parameters", "they are attributes of the result: rows.objective_values and"
     " rows.outputs"),
)  # fmt: skip

#: What others call an argument: an argument that the function must have, and what to
#: say; the first that fits is said.
_ELSEWHERE: Mapping[str, tuple[tuple[str, str], ...]] = MappingProxyType(
    {
        "abs": (("wrt", "take gk.saliency.absolute of the result"),),
        "additional_forward_args": (
            ("inputs", "here it is 'inputs': pass all as (x, mask), and wrt=0 for x"),
        ),
        "argnums": (
            ("wrt", "here it is 'wrt'"), ("parameters", "here it is 'parameters'"),
        ),
        "baseline": (("baselines", "here it is 'baselines'"),),
        "baselines": (("baseline", "here it is 'baseline'"),),
        "batch_size": (("max_memory", _MEMORY),),
        "chunk_size": (("max_memory", "here it is 'max_memory'"),),
        "criterion": _LOSS,
        "dim": (*_SIZE, ("per_parameter", _DIM)),
        "fn": (("function", "here it is 'function'"),),
        "folder": _STORE,
        "force": _RESUME,
        "forward_func": (("model", "here it is 'model'"),),
        "function": (
            ("derivative", "here it is 'derivative', such as derivative=gk.jacobian"),
        ),
        "index": _NEURON,
        "internal_batch_size": (("max_memory", "here it is 'max_memory'"),),
        "k": _SIZE,
        "labels": _TARGETS,
        "layer": _LAYER,
        "layers": _LAYER,
        "loss": _LOSS,
        "loss_fn": _LOSS,
        "loss_function": _LOSS,
        "method": (("rule", "here it is 'rule'"),),
        "multiply_by_inputs": (("steps", "divide the result by inputs - baseline"),),
        "nt_type": (("statistic", "here it is 'statistic'"),),
        "perturbations_per_eval": (("max_memory", _MEMORY),),
        "relu_attributions": (("wrt", "take .relu() of the result"),),
        "return_convergence_delta": (
            ("steps", "gk.saliency.completeness_gap measures it"),
        ),
        "max_grad_norm": (("max_norm", "here it is 'max_norm'"),),
        "microbatch": (("max_memory", _MEMORY),),
        "mode": _RESUME,
        "n_components": _SIZE,
        "n_samples": (("draws", "here it is 'draws'"),),
        "n_steps": (("steps", "here it is 'steps'"),),
        "names": (("parameters", "here it is 'parameters'"),),
        "neuron": _NEURON,
        "nt_samples": (("draws", "here it is 'draws'"),),
        "out": _STORE,
        "output": _STORE + _NEURON,
        "overwrite": _RESUME,
        "params": (("parameters", "here it is 'parameters'"),),
        "path": _STORE,
        "per_layer": (("per_parameter", "here it is 'per_parameter'"),),
        "proj_dim": _SIZE,
        "reduction": (
            ("objective", "no sample's number is reduced with others; within a sample,"
             " pass objective=gk.objectives.sample_loss(criterion, y,"
             " reduction='sum')"),
        ),
        "return_values": _VALUES,
        "sliding_window_shapes": (("window", "here it is 'window'"),),
        "stdevs": (
            ("noise", "here it is 'noise', a share of each sample's range: stdev /"
             " (max - min)"),
        ),
        "strides": (("stride", "here it is 'stride'"),),
        "target": _TARGETS,
        "targets": _TARGETS,
        "trace": (
            ("other", "take it of the whole: rows.gram().diagonal(dim1=1,"
             " dim2=3).sum(-1)"),
        ),
        "with_values": _VALUES,
        "wrt": (("parameters", "here it is 'parameters'"),),
        "y": _TARGETS,
    }
)  # fmt: skip


def refuse_unknown(
    function: str, names: Collection[str], given: Iterable[str]
) -> NoReturn:
    """Raise Python's own error of a keyword, with what is meant here, if known."""
    unknown = next(n for n in given if n not in names)
    said = [text for own, text in _ELSEWHERE.get(unknown, ()) if own in names]
    said += [f"here it is {name!r}" for name in close(unknown, names)]
    raise TypeError(
        f"{function}() got an unexpected keyword argument {unknown!r}"
        + (f"; {said[0]}" if said else "")
    )


def hinted(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """Explain keywords that a function has not."""
    names = set(inspect.signature(function).parameters)

    @wraps(function)
    def wrapped(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        if not kwargs.keys() <= names:
            refuse_unknown(function.__name__, names, kwargs)
        return function(*args, **kwargs)

    return wrapped


def in_order(
    misplaced: Callable[[Any], bool], advice: str
) -> Callable[[Callable[Given, Result]], Callable[Given, Result]]:
    """Refuse calls whose first argument is one that belongs elsewhere.

    Args:
        misplaced: Whether the first argument is.
        advice: What to write instead.
    """

    def decorated(function: Callable[Given, Result]) -> Callable[Given, Result]:
        @wraps(function)
        def wrapped(*args: Given.args, **kwargs: Given.kwargs) -> Result:
            if args and misplaced(args[0]):
                error = InputError(f"got {_named(args[0])} first; {advice}")
                error.function = function.__name__
                raise error
            return function(*args, **kwargs)

        return wrapped

    return decorated


def _named(value: Any) -> str:
    own = getattr(value, "__name__", None)
    return own if isinstance(own, str) else f"the model {type(value).__name__}"
