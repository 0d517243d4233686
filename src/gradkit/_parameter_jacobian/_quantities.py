"""What is asked of rows: numbers per row, tensors per parameter, projections."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, overload

from torch import Tensor

from gradkit._parameter_jacobian._columns import refusal
from gradkit._parameter_jacobian._plainly import plainly
from gradkit._parameter_jacobian._reading import Reading
from gradkit._problem._inputs import as_position

__all__ = ["Quantities"]


class Quantities(Reading):
    """The quantities of a ``ParameterJacobian``, each straight from its entries."""

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
            ``(N, *out)``, or ``{name: (N, *out)}``, in the parameters' dtype.

        Raises:
            StaleError: As in ``ParameterJacobian``.

        Cost:
            One pass over the rows. Of factors rows are formed, some samples' at a
            time, only where products of factors would cancel or are not known.
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
            ``(N, *out, M, *out)``, in the parameters' dtype.

        Raises:
            InputError: ``other`` has other parameters.

        Cost:
            ``N K · M K · P`` multiplications of rows; factors are multiplied without
            forming rows where they can be. Rows of ``other`` that are computed again
            are computed for each block of these.

        Example:
            >>> import torch
            >>> import gradkit as gk
            >>> layer = torch.nn.Linear(2, 1, bias=False)
            >>> G = gk.per_sample_gradients(
            ...     layer, torch.tensor([[1.0, 0.0], [3.0, 4.0]])
            ... )
            >>> G.gram(gk.per_sample_gradients(layer, torch.tensor([[2.0, 1.0]])))
            tensor([[ 2.],
                    [10.]])

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
                order of ``columns``.

        Returns:
            ``(N, *out)``, in the parameters' dtype: how the outputs change along
            ``vector``, to first order.

        Raises:
            InputError: ``vector`` has other names or shapes.

        Cost:
            One pass over the rows, ``N K P`` multiplications; fewer where factors
            can be multiplied without forming rows.

        Example:
            >>> import torch
            >>> import gradkit as gk
            >>> x = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 4.0]])
            >>> J = gk.parameter_jacobian(torch.nn.Linear(2, 1), x)
            >>> J.matvec({"weight": torch.ones(1, 2), "bias": torch.ones(1)}).T
            tensor([[2., 3., 8.]])
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
            ``{name: (*p)}``, each in its parameter's dtype.

        Raises:
            InputError: ``weights`` has another shape.

        Cost:
            As that of ``matvec``.

        Example:
            >>> import torch
            >>> import gradkit as gk
            >>> x = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 4.0]])
            >>> G = gk.per_sample_gradients(torch.nn.Linear(2, 1, bias=False), x)
            >>> G.rmatvec(torch.tensor([1.0, 0.0, -1.0]))["weight"]
            tensor([[-2., -4.]])
        """
        if not isinstance(weights, Tensor) or tuple(weights.shape) != self._lead:
            got = tuple(weights.shape) if isinstance(weights, Tensor) else weights
            raise refusal("rmatvec", f"weights must have shape {self._lead}; got {got}")
        flat = weights.detach().reshape(self._rows_shape)
        return self._shaped(self._weighted(flat))

    @plainly
    def sum(self) -> dict[str, Tensor]:
        """Return the sum of all rows, those of all samples and outputs.

        For an objective this is what ``objective.sum().backward()`` gives.

        Returns:
            ``{name: (*p)}``, each in its parameter's dtype.

        Cost:
            As that of ``rmatvec``.
        """
        return self._shaped(self._weighted(self._ones))

    @plainly
    def mean(self) -> dict[str, Tensor]:
        """Return the mean of all rows, the sum over ``N K``.

        Returns:
            ``{name: (*p)}``, each in its parameter's dtype.

        Cost:
            As that of ``sum``.
        """
        found = self._weighted(self._ones)
        return self._shaped({n: v / self._count for n, v in found.items()})

    @plainly
    def second_moment(self) -> dict[str, Tensor]:
        """Return the mean of the rows' squares, entry by entry.

        For the log likelihood's gradients this is the diagonal of the empirical
        Fisher matrix.

        Returns:
            ``{name: (*p)}``, each in its parameter's dtype.

        Cost:
            One pass over the rows. Of factors rows are formed, some samples' at a
            time, where a parameter is used several times or its rule knows no squares.
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
            ``{name: (*p)}``, each in its parameter's dtype.

        Raises:
            InputError: A bound is not positive, or a parameter has none.

        Cost:
            That of ``norms`` and that of ``rmatvec``.

        Example:
            >>> import torch
            >>> import gradkit as gk
            >>> x = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 4.0]])
            >>> G = gk.per_sample_gradients(torch.nn.Linear(2, 1, bias=False), x)
            >>> G.clipped_sum(1.0)["weight"]  # rows of length 1, 2 and 5
            tensor([[1.6000, 1.8000]])

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
            ``(N, *out, size)``, or ``{name: (N, *out, size)}``, in the parameters'
            dtype.

        Raises:
            InputError: ``size`` is not positive, or ``seed`` is no whole number.

        Cost:
            ``N K P · size`` multiplications. Rows are formed, some samples' at a time,
            and for each such part ``P · size`` signs are drawn.

        Example:
            >>> import torch
            >>> import gradkit as gk
            >>> G = gk.per_sample_gradients(torch.nn.Linear(3, 1), torch.ones(5, 3))
            >>> G.project(7, seed=0).shape
            torch.Size([5, 7])
            >>> torch.equal(G.samples(2).project(7, seed=0), G.project(7, seed=0)[2:3])
            True

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


def _add(parts: Iterable[Tensor]) -> Tensor:
    """Return the sum of tensors of one shape, in the widest of their dtypes."""
    total, *rest = parts
    for part in rest:
        total = total + part
    return total
