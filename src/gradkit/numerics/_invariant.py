"""Rows that are the same, bit for bit, whatever batch their sample travels in.

What was measured to differ between a batch and its samples alone, and what is done:

| operations | differ by | inside |
|---|---|---|
| matrix products | shape, threads | one chain of roundings per entry |
| convolutions | batch, layout, threads | as a pair of samples gives them |
| ``sigmoid``, ``gelu``, ``pow``, ``cos`` … | place in memory | in whole vectors |
| sums, means, norms | layout, a batch of one | contiguous, one thread |
| ``var``, ``std`` | batch, in float64 | from sums |
| softmax, cumulative sums | axis, threads | along contiguous memory |
| normalisation, interpolation, fused attention | layout, threads | contiguous |
| factors of matrices | layout, threads | one thread; named unless contiguous |
| ``cdist``, fused recurrent layers, ``Bilinear`` | batch | nothing: named |

What rounds once, such as additions, divisions, ``relu`` and pooling by maxima, was
never seen to differ and is left alone.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.backends import mha
from torch.utils._python_dispatch import TorchDispatchMode

from gradkit._hints import in_order
from gradkit.numerics._invariant_kinds import COMPLEX, NAMED, way_of
from gradkit.numerics._invariant_products import UnprovedError

__all__ = ["batch_invariant"]

_REAL = frozenset((torch.float32, torch.float64, torch.bfloat16, torch.float16))
_OPENED = "CompositeImplicitAutograd"


class _Invariant(TorchDispatchMode):
    """Computes what rounds differently in other batches by a way that does not."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self._named: set[str] = set()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # to say so for each operation takes longer than most of them

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if _is_open(func):
            # Without autograd an operation arrives before it is taken apart.
            with self:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        written, pure = _forms(func)
        way = way_of(pure) if pure is not None else None
        name = func._schema.name.rpartition("::")[2].removesuffix("_")
        if way is None and name not in NAMED:
            return func(*args, **kwargs)
        tensors = [a for a in (*args, *kwargs.values()) if isinstance(a, Tensor)]
        is_complex = any(t.is_complex() for t in tensors)
        if not (_is_dense(tensors) and (is_complex or _is_real(tensors))):
            return func(*args, **kwargs)
        if way is None or (is_complex and name not in COMPLEX):
            reason = "its numbers are complex" if is_complex else "it is one kernel"
            self._name(name, reason)
            return func(*args, **kwargs)
        try:
            if written:
                return _written(func, pure, way, args, kwargs)
            return way(func, args, kwargs)
        except UnprovedError as error:
            self._name(name, f"no kernel here keeps the entries apart of {error}")
            return func(*args, **kwargs)

    def _name(self, name: str, reason: str) -> None:
        if name not in self._named:
            self._named.add(name)
            warnings.warn(
                f"batch_invariant: rows of torch's {name} may depend on their batch:"
                f" {reason}",
                stacklevel=2,
            )


@cache
def _is_open(func: Any) -> bool:
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    return isinstance(func, torch._ops.OpOverload) and has(func.name(), _OPENED)


@cache
def _forms(func: Any) -> tuple[tuple[str, ...], Any]:
    """Return what an operation writes to, and the one that writes to nothing."""
    schema = getattr(func, "_schema", None)
    if schema is None:
        return (), None
    written = [a for a in schema.arguments if a.alias_info and a.alias_info.is_write]
    if not written:
        return (), func
    names = tuple(a.name for a in written)
    inner = [a for a in schema.arguments if not (a.kwarg_only and a in written)]
    signature = [(a.name, str(a.type)) for a in inner]
    library, _, name = schema.name.rpartition("::")
    packet = getattr(getattr(torch.ops, library), name.removesuffix("_"), None)
    for overload in packet.overloads() if packet is not None else ():
        pure = getattr(packet, overload)
        same = [(a.name, str(a.type)) for a in pure._schema.arguments] == signature
        if same and not pure._schema.is_mutable:
            return names, pure
    return names, None


def _written(
    func: Any, pure: Any, way: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Return what ``func`` does by computing apart and writing what came out."""
    names = _forms(func)[0]
    places = [a.name for a in func._schema.arguments]
    bound = dict(zip(places, args, strict=False)) | kwargs
    targets = [bound[name] for name in names]
    if any(a.name in names and a.kwarg_only for a in func._schema.arguments):
        kwargs = {name: v for name, v in kwargs.items() if name not in names}
    results = way(pure, args, kwargs)
    results = results if isinstance(results, tuple) else (results,)
    for target, result in zip(targets, results, strict=True):
        if target.shape != result.shape and names != ("self",):
            target.resize_(result.shape)
        target.copy_(result)
    return targets[0] if len(targets) == 1 else tuple(targets)


def _is_dense(tensors: list[Tensor]) -> bool:
    return all(t.device.type == "cpu" and t.layout is torch.strided for t in tensors)


def _is_real(tensors: list[Tensor]) -> bool:
    return any(t.dtype in _REAL for t in tensors)


@in_order(lambda _: True, "it is a context: with gk.batch_invariant(): y = model(x)")
@contextmanager
def batch_invariant() -> Iterator[None]:
    """Compute inside so that no row depends on the batch that its sample travels in.

    ``model(x)[i]`` and ``model(x[i : i + 1])[0]`` differ by rounding as torch computes
    them, since its kernels depend on shapes, on places in memory and on the number of
    threads. Inside, they are equal bit for bit, and so are derivatives with respect to
    a sample's inputs and per-sample gradients: in forward, in backward and under
    ``torch.func``, for samples in any number and at any place, laid out in memory in
    any way, on a CPU in float32, float64 and bfloat16.

    A sum over a batch, such as ``.grad`` of a parameter, is no row and rounds as sums
    do; so do rows by ``method="rows"`` of parameters that a sample uses at several
    places (a convolution's, a layer's of tokens), which are sums with zeros. Nor are
    weights that differ by sample in a convolution under ``vmap`` covered. Models that
    mix samples, such as batch normalisation in training, do so inside too.

    The numbers agree with torch's to rounding, not bit for bit. Contexts may be
    nested. While one is on, torch's fused recurrent and transformer layers are off in
    the whole process, since they can't be opened.

    Returns:
        A context manager, which yields nothing.

    Warns:
        UserWarning: An operation was met that can't be opened; it is named once.

    Cost:
        Up to twice the forward; ``benchmarks/batch_invariant.py`` measures it. Sums run
        on one thread. The first call of each shape tries kernels on known numbers.

    Example:
        >>> import torch
        >>> import gradkit as gk
        >>> layer, x = torch.nn.Linear(784, 500), torch.randn(100, 784)
        >>> with gk.batch_invariant():
        ...     print(torch.equal(layer(x)[7:8], layer(x[7:8])))
        True
    """
    # Both are asked above the dispatcher, and lead to kernels that can't be opened.
    onednn, fast = torch._C._get_mkldnn_enabled(), mha.get_fastpath_enabled()
    torch._C._set_mkldnn_enabled(False)
    mha.set_fastpath_enabled(False)
    try:
        with _Invariant():
            yield
    finally:
        torch._C._set_mkldnn_enabled(onednn)
        mha.set_fastpath_enabled(fast)
