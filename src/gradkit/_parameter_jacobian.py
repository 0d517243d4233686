"""Per-sample derivatives with respect to parameters, and what is asked of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Any

import torch
from torch import Size, Tensor

from gradkit._entries import Entry
from gradkit._memory_use import format_bytes
from gradkit._problem._names import nearest
from gradkit._problem._tree import map_leaves
from gradkit.errors import InputError

__all__ = ["Column", "ParameterJacobian"]


@dataclass(frozen=True)
class Column:
    """One parameter: its names, shape, dtype and device."""

    name: str
    aliases: tuple[str, ...]
    shape: Size
    dtype: torch.dtype
    device: torch.device


class ParameterJacobian(Mapping[str, Tensor]):
    """Derivatives with respect to parameters, ``{name: (N, *p)}``, formed on request.

    What :func:`per_sample_gradients` returns has the leading axes ``(N,)``, what
    :func:`parameter_jacobian` returns ``(N, *out)``; below both are ``(N, *out)``.
    It is a mapping: ``J["fc1.weight"]`` is ``(N, *out, *p)``, a fresh tensor at each
    access. A tied parameter appears once and answers to each of its names.

    It is true for the moment of the call, whatever is done to the model, the inputs
    or the optimiser afterwards: it holds tensors of its own alone.

    Example:
        >>> import torch
        >>> import gradkit as gk
        >>> model = torch.nn.Linear(2, 1, bias=False)
        >>> x = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 4.0]])
        >>> G = gk.per_sample_gradients(model, x)
        >>> G["weight"].shape
        torch.Size([3, 1, 2])
        >>> G.norms()
        tensor([1., 2., 5.])
        >>> G
        ParameterJacobian(N=3, 1 parameter, 2 entries, holds 24 B)
    """

    def __init__(
        self,
        entries: Sequence[Entry],
        columns: Sequence[Column],
        lead: tuple[int, ...],
        outputs: Any,
        objective_values: Tensor | None,
    ) -> None:
        self._entries, self._columns = tuple(entries), tuple(columns)
        self._lead = tuple(lead)
        self._outputs, self._values = outputs, objective_values
        self._by_name = {n: c for c in columns for n in (c.name, *c.aliases)}

    # -- the mapping ------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._columns)

    def __iter__(self) -> Iterator[str]:
        return (column.name for column in self._columns)

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._by_name:
            raise KeyError(f"{name!r} ({nearest(str(name), list(self._by_name))})")
        column = self._by_name[name]
        return self.select([column.name]).to_dict()[column.name]

    def __repr__(self) -> str:
        lead = ", ".join(map(str, self._lead[1:]))
        count, total = len(self), sum(c.shape.numel() for c in self._columns)
        return (
            f"ParameterJacobian(N={self._lead[0]}{f', out=({lead})' if lead else ''},"
            f" {count} parameter{'s' if count != 1 else ''}, {total:,} entries,"
            f" holds {format_bytes(self.nbytes)})"
        )

    # -- what the forward gave --------------------------------------------------

    @property
    def outputs(self) -> Any:
        """The outputs of the very forward that was differentiated, detached."""
        return self._outputs

    @property
    def objective_values(self) -> Tensor | None:
        """``(N,)``: the objective; ``None`` for a Jacobian."""
        return self._values

    @property
    def columns(self) -> Mapping[str, slice]:
        """Where each parameter's entries stand in :meth:`flat`."""
        slices, start = {}, 0
        for column in self._columns:
            stop = start + column.shape.numel()
            slices[column.name], start = slice(start, stop), stop
        return MappingProxyType(slices)

    @property
    def nbytes(self) -> int:
        """The bytes of the tensors held."""
        return sum(entry.nbytes for entry in self._entries)

    # -- numbers per row --------------------------------------------------------

    def norms(self, *, per_parameter: bool = False) -> Any:
        """Return the Euclidean norm of each row.

        Args:
            per_parameter: Whether each parameter's part has a norm of its own.

        Returns:
            ``(N, *out)``, or ``{name: (N, *out)}``.
        """
        found = self._each(lambda entry: entry.norms())
        if per_parameter:
            return {n: v.reshape(self._lead) for n, v in found.items()}
        stacked = torch.stack([v.to(self._dtype) for v in found.values()])
        return torch.linalg.vector_norm(stacked, dim=0).reshape(self._lead)

    def gram(self, other: ParameterJacobian | None = None) -> Tensor:
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
        mine = [(c.name, c.shape) for c in self._columns]
        if mine != [(c.name, c.shape) for c in other._columns]:
            raise _refusal(
                "gram",
                "other must hold derivatives with respect to the same parameters;"
                f" got {list(other)} beside {list(self)}",
            )
        total = None
        for left in self._entries:
            for right in other._entries:
                names = [n for n in left.names if n in right.names]
                if names:
                    part = left.gram(right, names).to(self._dtype)
                    total = part if total is None else total + part
        assert total is not None, "equal parameters share names"
        return total.reshape(*self._lead, *other._lead)

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
        vectors = self._vectors(vector)
        parts = [entry.matvec(vectors).to(self._dtype) for entry in self._entries]
        return torch.stack(parts).sum(0).reshape(self._lead)

    # -- one tensor per parameter -----------------------------------------------

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
            raise _refusal(
                "rmatvec", f"weights must have shape {self._lead}; got {got}"
            )
        flat = weights.detach().reshape(self._rows_shape)
        return self._weighted(dict.fromkeys(self, flat))

    def sum(self) -> dict[str, Tensor]:
        """Return the sum of all rows, ``{name: (*p)}``.

        For an objective this is what ``objective.sum().backward()`` gives.
        """
        ones = torch.ones(self._rows_shape, dtype=self._dtype, device=self._device)
        return self._weighted(dict.fromkeys(self, ones))

    def mean(self) -> dict[str, Tensor]:
        """Return the mean of all rows, ``{name: (*p)}``."""
        return {n: v / self._count for n, v in self.sum().items()}

    def second_moment(self) -> dict[str, Tensor]:
        """Return the mean of the rows' squares, entry by entry, ``{name: (*p)}``.

        For the log likelihood's gradients this is the diagonal of the empirical
        Fisher matrix.
        """
        found = self._each(lambda entry: entry.sum_of_squares())
        return {
            c.name: found[c.name].reshape(c.shape) / self._count for c in self._columns
        }

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
        bounds = self._bounds(max_norm)
        norms = self.norms(per_parameter=isinstance(max_norm, Mapping))
        if not isinstance(norms, dict):
            norms = dict.fromkeys(self, norms)
        # A row of zeros has no direction to scale; its factor is one.
        factors = {
            n: (bounds[n] / v).clamp(max=1.0).reshape(self._rows_shape)
            for n, v in norms.items()
        }
        return self._weighted(factors)

    # -- everything -------------------------------------------------------------

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
            raise _refusal("project", f"size must be a positive number; got {size!r}")
        found = self._each(lambda entry: entry.project(size, seed))
        shaped = {n: v.reshape(*self._lead, size) for n, v in found.items()}
        if per_parameter:
            return shaped
        return torch.stack([v.to(self._dtype) for v in shaped.values()]).sum(0)

    def flat(self, out: Tensor | None = None) -> Tensor:
        """Return all rows side by side.

        Args:
            out: ``(N, *out, P)``, written into and returned.

        Returns:
            ``(N, *out, P)``; :attr:`columns` says where each parameter stands.

        Raises:
            InputError: ``out`` has another shape, dtype or device.
        """
        total = sum(c.shape.numel() for c in self._columns)
        shape = (*self._lead, total)
        if out is None:
            out = torch.empty(shape, dtype=self._dtype, device=self._device)
        self._check_out("flat", "out", out, shape, self._dtype, self._device)
        for entry in self._entries:
            # Slices of the last axis keep the strides of the caller's tensor.
            entry.write({n: out[..., self.columns[n]] for n in entry.names})
        return out

    def to_dict(
        self, out: Mapping[str, Tensor] | None = None
    ) -> dict[str, Tensor]:
        """Return all rows, one tensor per parameter.

        Args:
            out: ``{name: (N, *out, *p)}``, written into and returned.

        Returns:
            ``{name: (N, *out, *p)}``.

        Raises:
            InputError: ``out`` has other names, shapes, dtypes or devices.
        """
        if out is not None and set(out) != set(self):
            raise _refusal(
                "to_dict", f"out must have the names {list(self)}; got {list(out)}"
            )
        targets = {}
        for column in self._columns:
            shape = (*self._lead, *column.shape)
            target = torch.empty(shape, dtype=column.dtype, device=column.device)
            if out is not None:
                target = out[column.name]
                self._check_out(
                    "to_dict", f"out[{column.name!r}]", target, shape, column.dtype,
                    column.device,
                )  # fmt: skip
            targets[column.name] = target
        for entry in self._entries:
            entry.write({n: targets[n] for n in entry.names})
        return targets

    # -- parts ------------------------------------------------------------------

    def select(self, parameters: str | Sequence[str]) -> ParameterJacobian:
        """Return the part of some parameters, without another pass.

        Args:
            parameters: Names, names of submodules, or globs.

        Raises:
            InputError: A name matches nothing.
        """
        wanted = [parameters] if isinstance(parameters, str) else list(parameters)
        chosen = {c.name: c for name in wanted for c in self._matching(name)}
        columns = [c for c in self._columns if c.name in chosen]
        if not columns:
            raise _refusal("select", "parameters must name something; got nothing")
        entries = []
        for entry in self._entries:
            names = [n for n in entry.names if n in chosen]
            if names:
                entries.append(entry.select(names))
        return ParameterJacobian(
            entries, columns, self._lead, self._outputs, self._values
        )

    def samples(self, index: Any) -> ParameterJacobian:
        """Return the part of some samples, without another pass.

        Args:
            index: A whole number (one sample; the axis stays), a slice, a list, or
                a tensor of numbers or of booleans.

        Raises:
            InputError: ``index`` is out of range or of another kind.
        """
        count = self._lead[0]
        try:
            places = torch.arange(count, device="cpu")[_as_index(index)].reshape(-1)
        except (IndexError, TypeError, ValueError, RuntimeError) as error:
            raise _refusal(
                "samples",
                f"index must choose among {count} samples; got {index!r} ({error})",
            ) from error
        lead = (len(places), *self._lead[1:])

        def pick(value: Any) -> Any:
            if isinstance(value, Tensor) and value.ndim and len(value) == count:
                return value[places.to(value.device)]
            return value

        entries = [entry.take(places) for entry in self._entries]
        outputs = map_leaves(pick, self._outputs)
        return ParameterJacobian(
            entries, self._columns, lead, outputs, pick(self._values)
        )

    # -- helpers ----------------------------------------------------------------

    @property
    def _rows_shape(self) -> tuple[int, int]:
        return self._lead[0], Size(self._lead[1:]).numel()

    @property
    def _count(self) -> int:
        return Size(self._lead).numel()

    @property
    def _dtype(self) -> torch.dtype:
        dtype = self._columns[0].dtype
        for column in self._columns[1:]:
            dtype = torch.promote_types(dtype, column.dtype)
        return dtype

    @property
    def _device(self) -> torch.device:
        return self._columns[0].device

    def _each(self, ask: Callable[[Entry], dict[str, Tensor]]) -> dict[str, Tensor]:
        found = {n: v for entry in self._entries for n, v in ask(entry).items()}
        return {name: found[name] for name in self}

    def _weighted(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        found = self._each(lambda entry: entry.rmatvec(weights))
        return {c.name: found[c.name].reshape(c.shape) for c in self._columns}

    def _matching(self, name: str) -> list[Column]:
        if name in self._by_name:
            return [self._by_name[name]]
        found = [
            c
            for c in self._columns
            if any(
                fnmatchcase(n, name) or n.startswith(f"{name}.")
                for n in (c.name, *c.aliases)
            )
        ]
        if not found:
            raise _refusal(
                "select",
                f"parameters={name!r} matches nothing"
                f" ({nearest(name, list(self._by_name))})",
            )
        return found

    def _vectors(self, vector: Mapping[str, Tensor] | Tensor) -> dict[str, Tensor]:
        if isinstance(vector, Tensor):
            total = sum(c.shape.numel() for c in self._columns)
            if tuple(vector.shape) != (total,):
                raise _refusal(
                    "matvec",
                    f"vector must have shape ({total},); got {tuple(vector.shape)}",
                )
            return {n: vector.detach()[part] for n, part in self.columns.items()}
        given = {
            self._by_name[n].name: v for n, v in vector.items() if n in self._by_name
        }
        shapes = {c.name: tuple(c.shape) for c in self._columns}
        got = {n: tuple(v.shape) for n, v in given.items()}
        if got != shapes or len(given) != len(vector):
            odd = sorted({*vector, *shapes} - ({*vector} & {*shapes}))
            raise _refusal(
                "matvec",
                f"vector must hold {shapes}; it differs in"
                f" {odd or [n for n in shapes if got[n] != shapes[n]]}",
            )
        return {n: v.detach() for n, v in given.items()}

    def _bounds(self, max_norm: float | Mapping[str, float]) -> dict[str, float]:
        bounds = (
            {self._by_name[n].name: b for n, b in max_norm.items() if n in self}
            if isinstance(max_norm, Mapping)
            else dict.fromkeys(self, max_norm)
        )
        missing = [n for n in self if n not in bounds]
        if missing or not all(b > 0 for b in bounds.values()):
            raise _refusal(
                "clipped_sum",
                f"max_norm must be positive, for every parameter; got {max_norm!r}"
                + (f", without {missing}" if missing else ""),
            )
        return bounds

    def _check_out(
        self, method: str, name: str, out: Any, shape: Any, dtype: Any, device: Any
    ) -> None:
        got = (tuple(out.shape), out.dtype, out.device)
        if got != (tuple(shape), dtype, device) or out.requires_grad:
            raise _refusal(
                method,
                f"{name} must be {tuple(shape)}, {dtype} on {device}, without grad;"
                f" got {got[0]}, {got[1]} on {got[2]}"
                + (", which requires grad" if out.requires_grad else ""),
            )


def _as_index(index: Any) -> Any:
    if isinstance(index, (list, tuple)):
        return torch.as_tensor(index, device="cpu")
    return index.cpu() if isinstance(index, Tensor) else index


def _refusal(method: str, message: str) -> InputError:
    error = InputError(message)
    error.function = f"ParameterJacobian.{method}"
    return error
