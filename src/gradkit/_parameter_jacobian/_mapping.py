"""Per-sample derivatives with respect to parameters, as a mapping."""

# Arguments are checked whatever their declared types say.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from gradkit._memory_use import format_bytes
from gradkit._parameter_jacobian._columns import (
    Column,
    Columns,
    check_target,
    read_index,
    refusal,
)
from gradkit._parameter_jacobian._entries import Entry
from gradkit._parameter_jacobian._guesses import Guesses, no_parameter
from gradkit._parameter_jacobian._plainly import plainly
from gradkit._parameter_jacobian._quantities import Quantities
from gradkit._problem._tree import map_leaves

__all__ = ["ParameterJacobian"]


class ParameterJacobian(Quantities, Guesses, Mapping[str, Tensor]):
    """Derivatives with respect to parameters, ``{name: (N, *p)}``, formed on request.

    What ``per_sample_gradients`` returns has the leading axes ``(N,)``, what
    ``parameter_jacobian`` returns ``(N, *out)``; below both are ``(N, *out)``.
    It is a mapping: ``J["fc1.weight"]`` is ``(N, *out, *p)``, a fresh tensor at each
    access. A tied parameter appears once and answers to each of its names. Below ``K``
    is ``prod(out)``, and ``P`` counts the entries of all parameters.

    It is true for the moment of the call, whatever is done to the model, the inputs
    or the optimiser afterwards: it holds tensors of its own alone.

    Raises:
        KeyError: There is no parameter of that name.
        StaleError: Rows are computed again, and the model then reads something beside
            its own state and inputs that has changed.

    Cost:
        It holds ``nbytes``: factors of the parameters that rules serve, and the rows
        of the others, ``N K P`` numbers. Rows that exceed ``max_memory`` are not held,
        but copies of the model and its inputs; each question then runs the model
        again. ``gk.explain`` tells factors from rows, and how many bytes rows take.

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
        ParameterJacobian(N=3, 1 parameter, 2 entries, holds 36 B)
    """

    def __init__(
        self,
        entries: Sequence[Entry],
        columns: Sequence[Column],
        lead: tuple[int, ...],
        outputs: Any,
        objective_values: Tensor | None,
    ) -> None:
        self._entries, self._columns = tuple(entries), Columns(columns)
        self._lead = tuple(lead)
        self._outputs, self._values = outputs, objective_values

    # -- the mapping ------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._columns)

    def __iter__(self) -> Iterator[str]:
        return (column.name for column in self._columns)

    def __contains__(self, name: object) -> bool:
        return name in self._columns.by_name

    def __getitem__(self, name: str) -> Tensor:
        known = self._columns.by_name
        if not isinstance(name, str) or name not in known:
            raise no_parameter(name, known)
        column = self._columns.by_name[name]
        return self.select([column.name]).to_dict()[column.name]

    # Comparing values would form every row; two objects are equal if they are one.
    def __eq__(self, other: object) -> bool:
        return object.__eq__(self, other)

    def __hash__(self) -> int:
        return object.__hash__(self)

    def __repr__(self) -> str:
        lead = ", ".join(map(str, self._lead[1:]))
        count, total = len(self), self._columns.total
        return (
            f"ParameterJacobian(N={self._lead[0]}{f', out=({lead})' if lead else ''},"
            f" {count} parameter{'s' if count != 1 else ''}, {total:,} entries,"
            f" holds {format_bytes(self.nbytes)})"
        )

    # -- what the forward gave --------------------------------------------------

    @property
    def outputs(self) -> Any:
        """The outputs of the forward that was differentiated, ``(N, *out)``, detached.

        A copy at each access.
        """
        return map_leaves(_fresh, self._outputs)

    @property
    def objective_values(self) -> Tensor | None:
        """The objective, ``(N,)``, a copy at each access; ``None`` for a Jacobian."""
        return _fresh(self._values)

    @property
    def columns(self) -> Mapping[str, slice]:
        """Where each parameter's entries stand in the last axis of ``flat()``."""
        return MappingProxyType(self._columns.slices)

    @property
    def nbytes(self) -> int:
        """The bytes of the tensors held."""
        return sum(entry.nbytes for entry in self._entries)

    @plainly
    def flat(self, out: Tensor | None = None) -> Tensor:
        """Return all rows side by side.

        Args:
            out: ``(N, *out, P)``, written into and returned.

        Returns:
            ``(N, *out, P)``, in the dtype that holds every parameter's; ``columns``
            says where each parameter stands.

        Raises:
            InputError: ``out`` has another shape, dtype or device, requires grad or
                overlaps itself.

        Cost:
            Forms all rows, ``N K P`` numbers, and writes each once.
        """
        shape = (*self._lead, self._columns.total)
        if out is None:
            out = torch.empty(shape, dtype=self._columns.dtype, device=self._device)
        check_target("flat", "out", out, shape, self._columns.dtype, self._device)
        for entry in self._entries:
            # Slices of the last axis keep the strides of the caller's tensor.
            entry.write({n: out[..., self.columns[n]] for n in entry.names})
        return out

    @plainly
    def to_dict(self, out: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
        """Return all rows, one tensor per parameter.

        Args:
            out: ``{name: (N, *out, *p)}``, written into and returned.

        Returns:
            ``{name: (N, *out, *p)}``, each in its parameter's dtype.

        Raises:
            InputError: ``out`` has other names, shapes, dtypes or devices, or its
                tensors share memory.

        Cost:
            Forms all rows, ``N K P`` numbers, and writes each once.
        """
        if out is not None and set(out) != set(self):
            raise refusal(
                "to_dict", f"out must have the names {list(self)}; got {list(out)}"
            )
        if out is not None and len({_place(t) for t in out.values()}) < len(out):
            raise refusal("to_dict", "out must hold tensors that share no memory")
        targets: dict[str, Tensor] = {}
        for column in self._columns:
            shape = (*self._lead, *column.shape)
            target = torch.empty(shape, dtype=column.dtype, device=column.device)
            if out is not None:
                target = out[column.name]
                check_target(
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

        Returns:
            The part, with the parameters in the order of the whole.

        Raises:
            InputError: A name matches nothing.

        Cost:
            None; what is held is shared with the whole.

        Example:
            >>> import torch
            >>> import gradkit as gk
            >>> model = torch.nn.Sequential(
            ...     torch.nn.Linear(3, 2), torch.nn.Linear(2, 4)
            ... )
            >>> J = gk.parameter_jacobian(model, torch.ones(5, 3))
            >>> list(J.select("1")), list(J.select("*bias"))
            (['1.weight', '1.bias'], ['0.bias', '1.bias'])
        """
        one = isinstance(parameters, str) or not isinstance(parameters, Iterable)
        wanted: list[Any] = [parameters] if one else list(parameters)
        if not all(isinstance(name, str) for name in wanted):
            raise refusal(
                "select",
                "parameters must be names, names of submodules or globs; got"
                f" {type(parameters).__name__}",
            )
        chosen = {c.name: c for name in wanted for c in self._columns.matching(name)}
        columns = [c for c in self._columns if c.name in chosen]
        if not columns:
            raise refusal("select", "parameters must name something; got nothing")
        entries: list[Entry] = []
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

        Returns:
            The part, with the samples, outputs and objective values in the order of
            ``index``.

        Raises:
            InputError: ``index`` is out of range or of another kind.

        Cost:
            Copies what is held of these samples. Rows that are computed again are
            computed of all samples up to the last chosen one.

        Example:
            >>> import torch
            >>> import gradkit as gk
            >>> x = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 4.0]])
            >>> G = gk.per_sample_gradients(torch.nn.Linear(2, 1, bias=False), x)
            >>> G.samples([2, 0]).norms()
            tensor([5., 1.])
        """
        count = self._lead[0]
        places = read_index(index, count)
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


def _place(tensor: Any) -> Any:
    """Return where a tensor's numbers begin; empty ones are nowhere."""
    if not isinstance(tensor, Tensor) or not tensor.numel():
        return id(tensor)
    return tensor.device, tensor.data_ptr()


def _fresh(value: Any) -> Any:
    """Return a tensor that the caller may change."""
    return value.clone() if isinstance(value, Tensor) else value
