"""What a backward does beside its numbers: to its arguments, and in other settings.

A custom Function may be right in one call and wrong in the next: it writes to what
others hold, takes one input's flag for another's, or reads memory as if all were
contiguous. One call alone shows none of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gradkit._guards._custom import custom_name, custom_nodes
from gradkit.errors import AgreementError
from gradkit.numerics._bounds import gamma
from gradkit.testing._messages import not_offered
from gradkit.testing._point import Point, flat
from gradkit.testing._report import Findings
from gradkit.testing._subject import Subject
from gradkit.testing._variables import place

__all__ = ["check_behaviour"]


def check_behaviour(
    subject: Subject, point: Point, cotangents: Sequence[Tensor], findings: Findings
) -> None:
    """Raise where a custom Function of ``subject`` is right in one setting alone.

    Args:
        subject: What passed the comparison by reverse mode.
        point: Where.
        cotangents: One for each output.
        findings: Says what that comparison was let pass within.
    """
    if not subject.variables or not _writes(subject, point, cotangents):
        return
    usual = flat(subject.pullback(point.values, cotangents), point.inputs)
    if not len(usual):
        return
    rows = usual.split([part.size for part in point.inputs])
    sizes = [float(r.abs().nan_to_num(0.0, 0.0, 0.0).max()) if len(r) else 0.0
             for r in rows]  # fmt: skip
    room, least = 2 * findings.tolerance.get("reverse", 0.0), gamma(100, point.dtype)
    limits = [max(room * size, least * max(sizes)) for size in sizes]
    right = list(zip(rows, limits, strict=True))
    _one_by_one(subject, point, cotangents, right)
    _scattered(subject, point, cotangents, right, findings)


def _wrong(text: str) -> AgreementError:
    return AgreementError(text, mode="reverse", order=1)


def _writes(subject: Subject, point: Point, cotangents: Sequence[Tensor]) -> bool:
    """Raise where a backward writes to what is not its own; whether there is any."""
    with subject.recorded(point.values) as (points, outputs):
        pairs = [
            (o, c.detach().clone().to(o))
            for o, c in zip(outputs, cotangents, strict=True)
            if o.requires_grad
        ]
        nodes = custom_nodes(o.grad_fn for o, _ in pairs)
        if not nodes:
            return False
        if subject.hidden:
            raise _wrong(
                f"the function writes to {', '.join(sorted(subject.hidden))} in place,"
                " and autograd is not told: call ctx.mark_dirty in forward"
            )
        watched = [_Watched(node) for node in nodes]
        held = dict(zip((p.name for p in point.inputs), points, strict=True))
        held |= subject.handed
        held |= dict(zip((p.name for p in subject.outputs), outputs, strict=True))
        before = {name: t.detach().clone() for name, t in held.items()}
        try:
            torch.autograd.grad(
                [o for o, _ in pairs], points, [c for _, c in pairs], allow_unused=True
            )
        finally:
            for watch in watched:
                watch.end()
        for watch in watched:
            watch.judge()
        for name, tensor in held.items():
            if not _same(tensor, before[name]):
                names = ", ".join(dict.fromkeys(map(custom_name, nodes)))
                raise _changed(names, f"the value of {name}")
    return True


def _same(tensor: Tensor, before: Tensor) -> bool:
    return torch.equal(tensor.detach().nan_to_num(), before.nan_to_num())


def _changed(names: str, what: str) -> AgreementError:
    return _wrong(
        f"the backward of {names} changes {what} in place, which others hold too: a"
        " second use of it sees other numbers. Write to a copy (clone)"
    )


class _Watched:
    """What one custom node was given, before and after its backward."""

    def __init__(self, node: Any) -> None:
        self._name = custom_name(node)
        try:
            saved: Sequence[Tensor | None] = node.saved_tensors
        except RuntimeError:  # what was written to since is autograd's to refuse
            saved = ()
        self._saved = [(t, t.detach().clone()) for t in saved if t is not None]
        self._arrived: list[tuple[Tensor, Tensor]] = []
        self._handles = [node.register_prehook(self._arrives)]

    def _arrives(self, cotangents: Sequence[Tensor | None]) -> None:
        self._arrived += [
            (c, c.detach().clone()) for c in cotangents if isinstance(c, Tensor)
        ]

    def end(self) -> None:
        """Take the hook away."""
        for handle in self._handles:
            handle.remove()

    def judge(self) -> None:
        """Raise where something has changed."""
        if not all(_same(*pair) for pair in self._arrived):
            raise _changed(self._name, "the cotangent that arrives")
        if not all(_same(*pair) for pair in self._saved):
            raise _changed(self._name, "a saved tensor")


def _one_by_one(
    subject: Subject,
    point: Point,
    cotangents: Sequence[Tensor],
    usual: Sequence[tuple[Tensor, float]],
) -> None:
    """Take the gradient by each variable while no other requires grad."""
    if len(subject.variables) < 2:
        return
    for i, (variable, right) in enumerate(zip(subject.variables, usual, strict=True)):
        where = f"where {variable.name} alone requires grad"
        found = _pulled(subject, point, cotangents, where, only=i)[i]
        row = flat([found], [variable.part])
        _compare(point, i, row, *right, f"{where} (see ctx.needs_input_grad)")


def _pulled(
    subject: Subject,
    point: Point,
    cotangents: Sequence[Tensor],
    where: str,
    only: int | None = None,
) -> list[Tensor | None]:
    with subject.recorded(point.values, only) as (points, outputs):
        pairs = [
            (o, c.to(o)) for o, c in zip(outputs, cotangents, strict=True)
            if o.requires_grad
        ]  # fmt: skip
        found: list[Tensor | None] = [None] * len(points)
        wanted = [i for i, p in enumerate(points) if p.requires_grad]
        if not pairs:
            return found
        try:
            some = torch.autograd.grad(
                [o for o, _ in pairs], [points[i] for i in wanted],
                [c for _, c in pairs], allow_unused=True,
            )  # fmt: skip
        except Exception as error:
            raise _wrong(
                f"reverse mode raised {type(error).__name__} {where}: {error}"
            ) from error
        for i, gradient in zip(wanted, some, strict=True):
            found[i] = gradient
        return found


def _compare(
    point: Point, variable: int, row: Tensor, right: Tensor, allowed: float, where: str
) -> None:
    apart = (row - right).abs()
    wrong = ~(apart <= allowed) & right.isfinite()
    if not bool(wrong.any()):
        return
    worst = int(torch.where(wrong, apart.nan_to_num(torch.inf), -1.0).argmax())
    part, index = place(point.inputs[variable : variable + 1], worst)
    at = f"{part.name}{list(index) if index else ''}"
    raise AgreementError(
        f"reverse mode gives another gradient {where}: at {at} it is"
        f" {float(row[worst]):.10g} against {float(right[worst]):.10g}",
        mode="reverse", order=1, variable=part.name, index=index,
        analytic=float(row[worst]), numerical=float(right[worst]), tolerance=allowed,
    )  # fmt: skip


def _scattered(
    subject: Subject,
    point: Point,
    cotangents: Sequence[Tensor],
    usual: Sequence[tuple[Tensor, float]],
    findings: Findings,
) -> None:
    """Take the gradient with cotangents, then inputs too, that are not contiguous."""
    sizes = [part.size for part in point.inputs]
    apart = [_apart(c) for c in cotangents]

    def compare(where: str) -> None:
        found = _pulled(subject, point, apart, where)
        rows = flat(found, point.inputs).split(sizes)
        for i, (row, right) in enumerate(zip(rows, usual, strict=True)):
            _compare(point, i, row, *right, where)

    compare("where cotangents are not contiguous")
    own = subject.variables
    subject.variables = tuple(
        v if v.leaf is None else replace(v, value=_apart(v.value)) for v in own
    )
    try:
        reason = _another(point, lambda: subject.evaluate(point.values))
        if reason is None:
            compare("where inputs are not contiguous")
        else:
            findings.skipped["inputs that are not contiguous"] = reason
    finally:
        subject.variables = own


def _another(point: Point, evaluate: Callable[[], list[Tensor]]) -> str | None:
    """Return why a function cannot be compared: it raises, or is another one."""
    try:
        values = evaluate()
    except Exception as error:
        first = str(error).strip().partition("\n")[0]
        return not_offered(error) or f"{type(error).__name__}: {first[:200]}"
    return None if point.same(values) else "the function has other values with them"


def _apart(tensor: Tensor) -> Tensor:
    """Return the same values with axes in reverse order, and gaps between."""
    axes = list(range(tensor.dim()))[::-1]
    storage = tensor.new_zeros(*(tensor.shape[a] for a in axes), 2)
    result = storage[..., 0].permute(axes)
    return result.copy_(tensor.detach())
