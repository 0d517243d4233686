"""What is asked of rows: numbers per row, tensors per parameter, projections."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from functools import wraps
from typing import Any, Literal, ParamSpec, TypeVar, cast, overload

import torch
from torch import Size, Tensor

from gradkit._guards._autocast import Autocast
from gradkit._guards._settings import quiet_settings
from gradkit._guards._trace import LOCK
from gradkit._parameter_jacobian._columns import Columns, refusal
from gradkit._parameter_jacobian._entries import Entry
from gradkit._problem._inputs import as_position

__all__ = ["Quantities", "plainly"]


Answer = TypeVar("Answer")
Asked = ParamSpec("Asked")


def plainly(method: Callable[Asked, Answer]) -> Callable[Asked, Answer]:
    """Run arithmetic on rows as it is written, in whatever context it is asked for.

    Autocast would round products, and inference mode would give tensors that no
    later computation may record.
    """

    @wraps(method)
    def wrapped(*args: Asked.args, **kwargs: Asked.kwargs) -> Answer:
        device = cast(Quantities, args[0])._device
        with LOCK, ExitStack() as stack:
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.no_grad())
            stack.enter_context(Autocast.of([device]).off())
            stack.enter_context(quiet_settings())
            return method(*args, **kwargs)

    return wrapped


class Quantities:
    """The quantities of a ``ParameterJacobian``, each straight from its entries."""

    _entries: tuple[Entry, ...]
    _columns: Columns
    _lead: tuple[int, ...]

    # -- numbers per row --------------------------------------------------------

    @overload
    def norms(self, *, per_parameter: Literal[False] = ...) -> Tensor: ...
    @overload
    def norms(self, *, per_parameter: Literal[True]) -> dict[str, Tensor]: ...
    @overload
    def norms(self, *, per_parameter: bool) -> Any: ...
    @plainly
    def norms(self, *, per_parameter: bool = False) -> Any:
        """Return the Euclidean norm of each row.

        Args:
            per_parameter: Whether each parameter's part has a norm of its own.

        Returns:
            ``(N, *out)``, or ``{name: (N, *out)}``.
        """
        if per_parameter:
            return self._shaped(self._norms(per_parameter=True), lead=True)
        (total, *_) = self._norms(per_parameter=False).values()
        return total.reshape(self._lead).to(self._columns.dtype)

    @plainly
    def gram(self, other: Quantities | None = None) -> Tensor:
        """Return the inner products of all rows with all rows of ``other``.

        For a Jacobian this is the empirical neural tangent kernel.

        Args:
            other: Derivatives of the same parameters at ``M`` other samples;
                ``None`` means these.

        Returns:
            ``(N, *out, M, *out)``.

        Raises:
            InputError: ``other`` has other parameters.

        Source:
            Jacot, Gabriel and Hongler, "Neural tangent kernel" (2018), sec. 4.
        """
        other = self if other is None else other
        if not isinstance(other, Quantities):
            raise refusal(
                "gram",
                f"other must be a ParameterJacobian; got {type(other).__name__}",
            )
        mine = [(c.name, c.shape) for c in self._columns]
        if mine != [(c.name, c.shape) for c in other._columns]:
            raise refusal(
                "gram",
                "other must hold derivatives with respect to the same parameters;"
                f" got {other._columns.names} beside {self._columns.names}",
            )
        total = None
        for left in self._entries:
            for right in other._entries:
                names = [n for n in left.names if n in right.names]
                if names:
                    part = left.gram(right, names)
                    total = part if total is None else total + part
        assert total is not None, "equal parameters share names"
        shape = (*self._lead, *other._lead)
        return total.reshape(shape).to(self._columns.dtype)

    @plainly
    def matvec(self, vector: Mapping[str, Tensor] | Tensor) -> Tensor:
        """Return ``J v``: the inner product of each row with a vector.

        Args:
            vector: ``{name: (*p)}`` with every parameter, or flat ``(P,)``, in the
                order of :attr:`columns`.

        Returns:
            ``(N, *out)``: how the outputs change along ``vector``, to first order.

        Raises:
            InputError: ``vector`` has other names or shapes.
        """
        vectors = self._columns.vectors(vector)
        total = _add(entry.matvec(vectors) for entry in self._entries)
        return total.reshape(self._lead).to(self._columns.dtype)

    # -- one tensor per parameter -----------------------------------------------

    @plainly
    def rmatvec(self, weights: Tensor) -> dict[str, Tensor]:
        """Return ``Jᵀ w``: the sum of rows, each times its weight.

        Args:
            weights: ``(N, *out)``.

        Returns:
            ``{name: (*p)}``.

        Raises:
            InputError: ``weights`` has another shape.
        """
        if not isinstance(weights, Tensor) or tuple(weights.shape) != self._lead:
            got = tuple(weights.shape) if isinstance(weights, Tensor) else weights
            raise refusal("rmatvec", f"weights must have shape {self._lead}; got {got}")
        flat = weights.detach().reshape(self._rows_shape)
        return self._shaped(self._weighted(flat))

    @plainly
    def sum(self) -> dict[str, Tensor]:
        """Return the sum of all rows, ``{name: (*p)}``.

        For an objective this is what ``objective.sum().backward()`` gives.
        """
        return self._shaped(self._weighted(self._ones))

    @plainly
    def mean(self) -> dict[str, Tensor]:
        """Return the mean of all rows, ``{name: (*p)}``."""
        found = self._weighted(self._ones)
        return self._shaped({n: v / self._count for n, v in found.items()})

    @plainly
    def second_moment(self) -> dict[str, Tensor]:
        """Return the mean of the rows' squares, entry by entry, ``{name: (*p)}``.

        For the log likelihood's gradients this is the diagonal of the empirical
        Fisher matrix.
        """
        found = self._each(lambda entry: entry.sum_of_squares())
        return self._shaped({n: v / self._count for n, v in found.items()})

    @plainly
    def clipped_sum(self, max_norm: float | Mapping[str, float]) -> dict[str, Tensor]:
        """Return the sum of rows, each scaled down to ``max_norm`` where it is longer.

        Args:
            max_norm: Bound on each row's norm, or one bound per parameter on its part
                of each row.

        Returns:
            ``{name: (*p)}``.

        Raises:
            InputError: A bound is not positive, or a parameter has none.

        Source:
            Abadi et al., "Deep learning with differential privacy" (2016),
            algorithm 1.
        """
        bounds = self._columns.bounds(max_norm)
        norms = self._norms(per_parameter=isinstance(max_norm, Mapping))
        # A row of zeros has no direction to scale; its factor is one.
        factors = {n: (bounds[n] / v).clamp(max=1.0) for n, v in norms.items()}
        found = self._each(lambda entry: entry.rmatvec(factors))
        return self._shaped(found)

    @overload
    def project(
        self, size: int, *, seed: int, per_parameter: Literal[False] = ...
    ) -> Tensor: ...
    @overload
    def project(
        self, size: int, *, seed: int, per_parameter: Literal[True]
    ) -> dict[str, Tensor]: ...
    @overload
    def project(self, size: int, *, seed: int, per_parameter: bool) -> Any: ...
    @plainly
    def project(self, size: int, *, seed: int, per_parameter: bool = False) -> Any:
        """Return each row's random projection onto ``size`` directions.

        Inner products and norms are kept in expectation. The projection depends on
        ``(seed, name, shape, size)`` of each parameter alone: not on the device, the
        batch, the memory budget, or which parameters are selected.

        Args:
            size: The number of directions.
            seed: Chooses them.
            per_parameter: Whether parameters stay apart.

        Returns:
            ``(N, *out, size)``, or ``{name: (N, *out, size)}``.

        Raises:
            InputError: ``size`` is not positive.

        Source:
            Johnson and Lindenstrauss (1984); with signs, Achlioptas (2003).
        """
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise refusal("project", f"size must be a positive number; got {size!r}")
        if as_position(seed) is None:
            raise refusal("project", f"seed must be a whole number; got {seed!r}")
        found = self._each(lambda entry: entry.project(size, int(seed)))
        shape = (*self._lead, size)
        if per_parameter:
            return {
                c.name: found[c.name].reshape(shape).to(c.dtype) for c in self._columns
            }
        return _add(found.values()).reshape(shape).to(self._columns.dtype)

    # -- helpers ----------------------------------------------------------------

    @property
    def _device(self) -> torch.device:
        return self._columns[0].device

    @property
    def _rows_shape(self) -> tuple[int, int]:
        return self._lead[0], Size(self._lead[1:]).numel()

    @property
    def _count(self) -> int:
        return Size(self._lead).numel()

    def _each(self, ask: Callable[[Entry], dict[str, Tensor]]) -> dict[str, Tensor]:
        found = {n: v for entry in self._entries for n, v in ask(entry).items()}
        return {name: found[name] for name in self._columns.names}

    @property
    def _ones(self) -> Tensor:
        return torch.ones(
            self._rows_shape, dtype=self._columns.dtype, device=self._device
        )

    def _norms(self, *, per_parameter: bool) -> dict[str, Tensor]:
        """Return ``(N, R)`` per parameter: of its part, or of the whole row."""
        found = self._each(lambda entry: entry.norms())
        if per_parameter:
            return found
        dtype = torch.promote_types(torch.float32, self._columns.dtype)
        stacked = torch.stack([v.to(dtype) for v in found.values()])
        total: Tensor = torch.linalg.vector_norm(stacked, dim=0)
        return {name: total for name in found}  # noqa: C420

    def _weighted(self, weights: Tensor) -> dict[str, Tensor]:
        every = dict.fromkeys(self._columns.names, weights)
        return self._each(lambda entry: entry.rmatvec(every))

    def _shaped(
        self, found: Mapping[str, Tensor], *, lead: bool = False
    ) -> dict[str, Tensor]:
        """Return each parameter's tensor in its shape (or the rows') and dtype."""
        return {
            c.name: found[c.name].reshape(self._lead if lead else c.shape).to(c.dtype)
            for c in self._columns
        }


def _add(parts: Iterable[Tensor]) -> Tensor:
    """Return the sum of tensors of one shape, in the widest of their dtypes."""
    total, *rest = parts
    for part in rest:
        total = total + part
    return total
