"""What is asked of rows by names that they do not have."""

from __future__ import annotations

from collections.abc import Iterable
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn

from gradkit._offered import no_attribute
from gradkit._problem._names import nearest

__all__ = ["Guesses", "no_parameter"]

_FLAT = "all rows side by side, (N, *out, P), are rows.flat()"
_PRODUCTS = (
    "rows.matvec(v) is the product with a vector, rows.rmatvec(w) that of the"
    " transpose, rows.gram(other) that with other rows"
)
_ELSEWHERE = MappingProxyType(
    {
        **dict.fromkeys(("T", "dot", "matmul"), _PRODUCTS),
        **dict.fromkeys(("clip", "clipped"), "write rows.clipped_sum(max_norm)"),
        "fisher": "its diagonal is rows.second_moment()",
        **dict.fromkeys(("flatten", "matrix", "numpy", "tensor", "to_tensor"), _FLAT),
        "hessian": "write gk.jacobian(lambda x: gk.input_gradients(f, x,"
        " create_graph=True), x)",
        **dict.fromkeys(("loss", "losses"), "write rows.objective_values"),
        "ntk": "write rows.gram()",
        **dict.fromkeys(
            ("shape", "size"), f"{_FLAT}, those of one parameter rows[name]"
        ),
        **dict.fromkeys(
            ("std", "var", "variance"),
            "gk.reducers.Variance() takes rows; rows.flat().var(0) is one batch's",
        ),
    }
)


class Guesses:
    """Answers names that rows do not have by those of what is meant."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            where = f"{type(self).__name__!r} object"
            raise no_attribute(self, where, name, dir(type(self)), _ELSEWHERE)

        def __matmul__(self, other: Any) -> NoReturn:
            raise TypeError(f"rows have no product @; {_PRODUCTS}")


def no_parameter(name: Any, names: Iterable[str]) -> KeyError:
    """Return the error that there is no parameter of a name."""
    if isinstance(name, str):
        return KeyError(f"{name!r} ({nearest(name, list(names))})")
    told = "slice(...)" if isinstance(name, slice) else repr(name)
    return KeyError(
        f"rows[...] takes a parameter's name; samples are rows.samples({told})"
    )
