"""Products in letters with a parameter, in every order of the letters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gradkit._rules._einsum import EINSUM
from gradkit._rules._layout import Layout
from rule_trial import BATCH_FIRST, OperationCase, Shape, tensors

__all__ = ["EINSUM_CASES", "EINSUM_OF_ONE_SAMPLE"]

TIME_FIRST = Layout(1)
FLAT = Layout(0, after=2)

ALONG = "the parameter has an axis along the samples"

EQUATIONS = [
    ("ni,io->no", "right", BATCH_FIRST, ("n", 4), (4, 5)),
    ("ni,oi->no", "right", BATCH_FIRST, ("n", 4), (5, 4)),
    ("oi, ni -> no", "left", BATCH_FIRST, (5, 4), ("n", 4)),
    ("ni,oi", "right", BATCH_FIRST, ("n", 4), (5, 4)),
    ("nb,ab", "right", TIME_FIRST, ("n", 4), (5, 4)),
    ("nsi,oi->nso", "right", BATCH_FIRST, ("n", 2, 4), (5, 4)),
    ("nti,oi->not", "right", BATCH_FIRST, ("n", 2, 4), (5, 4)),
    ("nti,oi->tno", "right", TIME_FIRST, ("n", 2, 4), (5, 4)),
    ("mi,oi->mo", "right", FLAT, ("nt", 4), (5, 4)),
    ("mi,oi->om", "right", Layout(1, before=2), ("nt", 4), (5, 4)),
    ("nti,ihd->nthd", "right", BATCH_FIRST, ("n", 2, 4), (4, 6, 5)),
    ("nti,hid->nhtd", "right", BATCH_FIRST, ("n", 2, 4), (6, 4, 5)),
    ("nti,dih->nhtd", "right", BATCH_FIRST, ("n", 2, 4), (5, 4, 6)),
    ("nshd,hdo->nso", "right", BATCH_FIRST, ("n", 2, 6, 4), (6, 4, 5)),
    ("nhti,hio->nhto", "right", BATCH_FIRST, ("n", 6, 2, 4), (6, 4, 5)),
    ("nhti,hoi->nhto", "right", BATCH_FIRST, ("n", 6, 2, 4), (6, 5, 4)),
    ("nhti,oih->nhto", "right", BATCH_FIRST, ("n", 6, 2, 4), (5, 4, 6)),
    ("ntd,d->ntd", "right", BATCH_FIRST, ("n", 2, 4), (4,)),
    ("ntd,td->nd", "right", BATCH_FIRST, ("n", 2, 4), (2, 4)),
    ("nd,d->n", "right", BATCH_FIRST, ("n", 4), (4,)),
    ("n,o->no", "right", BATCH_FIRST, ("n",), (5,)),
    ("nt,->nt", "right", BATCH_FIRST, ("n", 2), ()),
    ("nti,oi->no", "right", BATCH_FIRST, ("n", 2, 4), (5, 4)),
    ("ni,oij->no", "right", BATCH_FIRST, ("n", 4), (5, 4, 7)),
    ("ni,ojis->nso", "right", BATCH_FIRST, ("n", 4), (5, 7, 4, 2)),
    ("...i,oi->...o", "right", BATCH_FIRST, ("n", 2, 4), (5, 4)),
    ("...i,...oi->...o", "right", BATCH_FIRST, ("n", 6, 4), (6, 5, 4)),
    ("n...i,...oi->n...o", "right", BATCH_FIRST, ("n", 2, 6, 4), (6, 5, 4)),
    ("...i,...o", "right", BATCH_FIRST, ("n", 6, 4), (6, 5)),
    ("...i,oi->o...", "right", TIME_FIRST, ("n", 4), (5, 4)),
    ("n...i,oi->no", "right", BATCH_FIRST, ("n", 2, 4), (5, 4)),
    ("nhti,hio->nhto", "right", BATCH_FIRST, ("n", 1, 2, 4), (6, 4, 5)),
    ("nhti,hio->nhto", "right", BATCH_FIRST, ("n", 6, 2, 4), (1, 4, 5)),
    ("nki,kio->no", "right", BATCH_FIRST, ("n", 1, 4), (6, 4, 5)),
    ("nsi,nio->nso", "right", BATCH_FIRST, ("n", 2, 4), (1, 4, 5)),
]


def letters(
    equation: str, shapes: tuple[Shape, ...], listed: bool = False
) -> Callable[[int], tuple[Any, ...]]:
    """Return what draws the arguments of an einsum."""
    draw = tensors(*shapes)
    if listed:
        return lambda samples: (equation, list(draw(samples)))
    return lambda samples: (equation, *draw(samples))


EINSUM_CASES = [
    OperationCase(
        f"einsum: {equation} of {shapes[0]}, {shapes[1]}",
        EINSUM,
        letters(equation, tuple(shapes)),
        (parameter,),
        layout=layout,
    )
    for equation, parameter, layout, *shapes in EQUATIONS
] + [
    OperationCase(
        f"einsum of a list: {equation}",
        EINSUM,
        letters(equation, tuple(shapes), listed=True),
        (f"left[{('left', 'right').index(parameter)}]",),
        layout=layout,
    )
    for equation, parameter, layout, *shapes in EQUATIONS[1:3]
]

EINSUM_CASES += [
    OperationCase(
        f"einsum refused: {equation}",
        EINSUM,
        letters(equation, shapes),
        ("right",),
        refusal=reason,
    )
    for equation, shapes, reason in [
        ("nii,oi->no", (("n", 4, 4), (5, 4)), "letter 'i' stands twice in 'nii'"),
        ("ni,oo->no", (("n", 4), (5, 5)), "letter 'o' stands twice in 'oo'"),
        ("ni,oi,o->no", (("n", 4), (5, 4), (5,)), "it multiplies 3 tensors, not two"),
        (
            "nsi,nio->nso",
            (("n", 2, 4), ("n", 4, 5)),
            "the parameter has an axis along the samples",
        ),
        (
            "ki,no->no",
            ((3, 4), ("n", 5)),
            "the parameter has an axis along the samples",
        ),
    ]
]

EINSUM_OF_ONE_SAMPLE = [
    OperationCase(
        "einsum: alone",
        EINSUM,
        letters("hi,oi->oh", ((6, 4), (5, 4))),
        ("left", "right"),
        layout=Layout(0, after=5),
        samples=1,
    ),
]
