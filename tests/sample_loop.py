"""Rows of parameters by definition: a batch of one at a time, one backward per number.

Made with torch alone, and nothing of the batch: what a sample's row is cannot depend
on where it stands in a batch, on its neighbours, or on how a library splits the work.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

#: ``right``, ``wrong``, ``refused`` or ``crashed``; and the reason.
Verdict = tuple[str, str]

#: Of the largest entry. Sums in another order differ by some 1e-15 of it.
TOLERANCE = 1e-9
#: Of the largest entry of all parameters: what a row may be off where it is zero but
#: for rounding, as is that of an attention's key bias.
ROUNDING = 1e-13


def named_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that require grad; a tied one once."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def gradient(value: Tensor, parameters: Iterable[Tensor]) -> list[Tensor]:
    """Return one dense gradient per parameter; zeros where ``value`` has none."""
    parameters = list(parameters)
    if not value.requires_grad:
        return [torch.zeros_like(p) for p in parameters]
    found = torch.autograd.grad(
        value, parameters, retain_graph=True, materialize_grads=True
    )
    return [part.to_dense() if part.is_sparse else part for part in found]


@dataclass(frozen=True)
class Rows:
    """Rows by name, and what follows from them by definition.

    Attributes:
        parts: ``{name: (*lead, *p)}``.
        lead: ``(N,)``, or ``(N, *out)``.
    """

    parts: dict[str, Tensor]
    lead: tuple[int, ...]

    def __iter__(self) -> Iterator[str]:
        return iter(self.parts)

    def to_dict(self) -> dict[str, Tensor]:
        return self.parts

    def flat(self) -> dict[str, Tensor]:
        """Return ``{name: (R, p)}``."""
        axes = len(self.lead)
        return {
            name: part.reshape(math.prod(self.lead), math.prod(part.shape[axes:]))
            for name, part in self.parts.items()
        }

    def norms(self, *, per_parameter: bool = False) -> Any:
        squares = {
            name: part.square().sum(1).reshape(self.lead)
            for name, part in self.flat().items()
        }
        if per_parameter:
            return {name: square.sqrt() for name, square in squares.items()}
        return torch.stack(list(squares.values())).sum(0).sqrt()

    def gram(self) -> Tensor:
        products = [part @ part.T for part in self.flat().values()]
        return torch.stack(products).sum(0).reshape(*self.lead, *self.lead)

    def sum(self) -> dict[str, Tensor]:
        axes = tuple(range(len(self.lead)))
        return {name: part.sum(axes) for name, part in self.parts.items()}

    def second_moment(self) -> dict[str, Tensor]:
        axes = tuple(range(len(self.lead)))
        return {name: part.square().mean(axes) for name, part in self.parts.items()}

    def matvec(self, vectors: Mapping[str, Tensor]) -> Tensor:
        products = [part @ vectors[k].flatten() for k, part in self.flat().items()]
        return torch.stack(products).sum(0).reshape(self.lead)

    def rmatvec(self, weights: Tensor) -> dict[str, Tensor]:
        axes = len(self.lead)
        return {k: torch.tensordot(weights, p, axes) for k, p in self.parts.items()}

    def largest(self) -> float:
        return max((_largest(part) for part in self.parts.values()), default=0.0)


def sample_rows(
    parameters: Mapping[str, Tensor], own: Callable[[int], Tensor], samples: int
) -> Rows:
    """Return the rows of ``N`` samples.

    Args:
        parameters: What to differentiate with respect to.
        own: Sample ``n``'s numbers, ``(*out)``, by a forward on a batch of one.
        samples: ``N``.
    """
    lead: tuple[int, ...] = (samples,)
    rows: list[list[Tensor]] = []
    for n in range(samples):
        values = own(n)
        lead = (samples, *values.shape)
        rows += [gradient(v, parameters.values()) for v in values.reshape(-1)]
    columns = zip(*rows, strict=True) if rows else [()] * len(parameters)
    parts = {
        name: torch.stack(column).reshape(*lead, *p.shape)
        if column
        else p.new_zeros((0, *p.shape))
        for (name, p), column in zip(parameters.items(), columns, strict=True)
    }
    return Rows({name: part.detach() for name, part in parts.items()}, lead)


def _largest(tensor: Tensor) -> float:
    return tensor.abs().max().item() if tensor.numel() else 0.0


def assert_near(
    found: Tensor,
    expected: Tensor,
    what: str,
    floor: float = 0,
    tolerance: float = TOLERANCE,
) -> None:
    """Raise unless shapes and dtypes agree, and entries to within the tolerance."""
    kinds = [(tuple(t.shape), t.dtype, t.device.type) for t in (found, expected)]
    assert kinds[0] == kinds[1], f"{what}: {kinds[0]} in place of {kinds[1]}"
    assert not found.requires_grad, f"{what} requires grad"
    error = _largest(found - expected)
    allowed = tolerance * _largest(expected) + floor
    # Written so that a NaN fails.
    assert error <= allowed, f"{what}: off by {error:.1e}, where {allowed:.1e} may be"


def assert_rows(found: Any, expected: Rows, tolerance: float = TOLERANCE) -> None:
    """Raise unless rows, norms, Gram matrix and moments are those of the loop.

    Args:
        found: A mapping of names to rows that has what ``Rows`` has.
        expected: The loop's.
        tolerance: Of the largest entry.
    """
    assert list(found) == list(expected.parts)
    near = functools.partial(assert_near, tolerance=tolerance)
    floor = ROUNDING * expected.largest()
    for name, part in found.to_dict().items():
        near(part, expected.parts[name], f"rows of {name}", floor)
    near(found.norms(), expected.norms(), "norms", floor)
    near(found.gram(), expected.gram(), "Gram matrix")
    of_each = expected.norms(per_parameter=True)
    for name, norms in found.norms(per_parameter=True).items():
        # The norm of p entries, each off by the floor.
        size = expected.flat()[name].shape[1]
        near(norms, of_each[name], f"norms of {name}", floor * size**0.5)
    moments, squared = expected.second_moment(), ROUNDING * expected.largest() ** 2
    for name, moment in found.second_moment().items():
        near(moment, moments[name], f"second moment of {name}", squared)
    assert_products(found, expected, near)


def ramp(like: Tensor) -> Tensor:
    """Return 1, 2, 3, … in the shape of a tensor."""
    return torch.arange(1, 1 + like.numel()).to(like).reshape(like.shape)


def assert_products(found: Any, expected: Rows, near: Callable[..., None]) -> None:
    """Raise unless products with vectors, from either side, are those of the loop."""
    entries = sum(part.shape[1] for part in expected.flat().values())
    floor = ROUNDING * expected.largest() * (entries + math.prod(expected.lead))
    vectors = {name: ramp(part).cos() for name, part in expected.sum().items()}
    near(found.matvec(vectors), expected.matvec(vectors), "matvec", floor)
    weights = ramp(expected.norms()).sin()
    products = expected.rmatvec(weights)
    for name, product in found.rmatvec(weights).items():
        near(product, products[name], f"rmatvec of {name}", floor)


def assert_sums(
    found: Any, expected: Rows, ordinary: Iterable[Tensor], tolerance: float = TOLERANCE
) -> None:
    """Raise unless the rows' sum is the ordinary gradient.

    Args:
        found: What has ``sum``.
        expected: The rows, whose size says what rounding their sum may have.
        ordinary: One gradient per parameter, of the whole batch.
        tolerance: Of the largest entry.
    """
    floor = ROUNDING * expected.largest() * math.prod(expected.lead)
    sums = found.sum()
    assert list(sums) == list(expected.parts)
    for (name, part), whole in zip(sums.items(), ordinary, strict=True):
        assert_near(part, whole, f"sum of {name}", floor, tolerance)


def judge(
    ask: Callable[[], Any],
    check: Callable[[Any], None],
    refusals: tuple[type[Exception], ...],
) -> Verdict:
    """Return what came of a question.

    Args:
        ask: Returns the answer.
        check: Raises an ``AssertionError`` unless the answer is right.
        refusals: The exceptions that count as a refusal; others are crashes.
    """
    try:
        check(ask())
    except refusals as error:
        return "refused", str(error)
    except AssertionError as error:
        return "wrong", str(error)
    except Exception as error:  # whatever else comes is reported, not hidden
        return "crashed", f"{type(error).__name__}: {error}"
    return "right", ""
